"""The flatbuffer of a .ptd file: which data have which name, and where they lie.

The executorch wheel ships no generated classes of this schema and reads it by running
`flatc`. It has four small tables, which are taken apart by hand here.

Source: `executorch/extension/flat_tensor/serialize/flat_tensor.fbs` of ExecuTorch 1.5, and
FlatBuffers' "Internals" (flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voxtral_build.pte.schema import builder

IDENTIFIER = b"FT01"
# The newest version of the schema that the runtime loads.
VERSION = 0


@dataclass(frozen=True)
class TensorLayout:
    """What a tensor is: its dtype (the schema's `ScalarType`), its sizes, their order."""

    scalar_type: int
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]


@dataclass(frozen=True)
class NamedData:
    """A name, the index of its segment, and what it is if it is a tensor."""

    key: str
    segment_index: int
    layout: TensorLayout | None


@dataclass(frozen=True)
class FlatTensor:
    """The root table.

    Attributes:
        segments: offset from the segment base and size of each, in bytes.
        named_data: in the file's order; several names may share a segment.
    """

    version: int
    segments: tuple[tuple[int, int], ...]
    named_data: tuple[NamedData, ...]


def unpack(flatbuffer: bytes) -> FlatTensor:
    """Read the root table.

    Raises:
        struct.error, ValueError: the bytes are no flatbuffer of this schema.
    """
    root = _Table(flatbuffer, _number(flatbuffer, "I", 0))
    return FlatTensor(
        version=root.number(0, "I"),
        segments=tuple((item.number(0, "Q"), item.number(1, "Q")) for item in root.tables(1)),
        named_data=tuple(
            NamedData(item.text(0), item.number(1, "I"), _layout(item.table(2)))
            for item in root.tables(2)
        ),
    )


def _layout(table: _Table | None) -> TensorLayout | None:
    if table is None:
        return None
    return TensorLayout(table.number(0, "b"), table.numbers(1, "i"), table.numbers(2, "B"))


def _number(data: bytes, kind: str, at: int) -> int:
    """A little-endian number; `kind` is its letter in `struct`."""
    if at < 0:  # which `struct` would count from the end
        raise ValueError(f"a number at byte {at}")
    (number,) = struct.unpack_from(f"<{kind}", data, at)
    return int(number)


class _Table:
    """Fields of a table, by their place in the schema; one that is absent is 0 or empty."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        # The vtable: its size, the table's size, and for each field its place in the table.
        self._vtable = at - _number(data, "i", at)
        self._vtable_size = _number(data, "H", self._vtable)

    def number(self, field: int, kind: str) -> int:
        place = self._place(field)
        return 0 if place is None else _number(self._data, kind, place)

    def text(self, field: int) -> str:
        start, length = self._vector(field, 1)
        return self._data[start : start + length].decode()

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._data, self._target(place))

    def tables(self, field: int) -> list[_Table]:
        start, length = self._vector(field, 4)
        places = range(start, start + 4 * length, 4)
        return [_Table(self._data, self._target(place)) for place in places]

    def numbers(self, field: int, kind: str) -> tuple[int, ...]:
        start, length = self._vector(field, struct.calcsize(kind))
        return struct.unpack_from(f"<{length}{kind}", self._data, start)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry >= self._vtable_size:
            return None
        offset = _number(self._data, "H", self._vtable + entry)
        return self._at + offset if offset else None

    def _target(self, place: int) -> int:
        """Where the reference at `place` leads."""
        return place + _number(self._data, "I", place)

    def _vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Where its items begin, and how many there are."""
        place = self._place(field)
        if place is None:
            return 0, 0
        start = self._target(place) + 4
        length = _number(self._data, "I", start - 4)
        if start + length * item_bytes > len(self._data):
            raise ValueError(f"{length} items from byte {start} of {len(self._data)}")
        return start, length


def pack(content: FlatTensor) -> bytes:
    """The flatbuffer of a root table; the same content gives the same bytes."""
    building = builder(1 << 16)
    named_data = [_pack_named_data(building, item) for item in content.named_data]
    segments = [
        _pack_table(building, ("Uint64", offset), ("Uint64", size))
        for offset, size in content.segments
    ]
    named_data_at = _pack_vector(building, "UOffsetTRelative", named_data)
    segments_at = _pack_vector(building, "UOffsetTRelative", segments)
    root = _pack_table(
        building,
        ("Uint32", content.version),
        ("UOffsetTRelative", segments_at),
        ("UOffsetTRelative", named_data_at),
    )
    building.Finish(root, file_identifier=IDENTIFIER)
    return bytes(building.Output())


def _pack_named_data(building: Any, item: NamedData) -> int:
    key, layout = building.CreateString(item.key), 0
    if item.layout is not None:
        sizes = _pack_vector(building, "Int32", item.layout.sizes)
        dim_order = _pack_vector(building, "Uint8", item.layout.dim_order)
        layout = _pack_table(
            building,
            ("Int8", item.layout.scalar_type),
            ("UOffsetTRelative", sizes),
            ("UOffsetTRelative", dim_order),
        )
    return _pack_table(
        building,
        ("UOffsetTRelative", key),
        ("Uint32", item.segment_index),
        ("UOffsetTRelative", layout),
    )


def _pack_table(building: Any, *fields: tuple[str, int]) -> int:
    """A table whose fields are of these kinds and values; 0 leaves a field out."""
    building.StartObject(len(fields))
    for place, (kind, value) in enumerate(fields):
        getattr(building, f"Prepend{kind}Slot")(place, value, 0)
    return int(building.EndObject())


def _pack_vector(building: Any, kind: str, items: Sequence[int]) -> int:
    item_bytes = 1 if kind == "Uint8" else 4
    building.StartVector(item_bytes, len(items), item_bytes)
    for item in reversed(items):  # a flatbuffer is written from its end
        getattr(building, f"Prepend{kind}")(item)
    return int(building.EndVector())
