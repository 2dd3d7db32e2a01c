""".ptd files: data that a program keeps outside of its .pte, by name.

A .ptd file begins with a flatbuffer (see `flat_tensor`) whose bytes 4 to 8 name the
schema, "FT01". A header stands behind them, at byte 8, little-endian: "FH01", the header's
length (uint32), and as uint64 the header's length with padding, the size of the flatbuffer
without the header, the place of the first segment (the segment base) and the size of all
segments. A runtime finds data by name alone: nothing in the file says which program they
belong to.

Source: `executorch/extension/flat_tensor` of ExecuTorch 1.5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from voxtral_build.errors import PteError
from voxtral_build.pte.extents import Extent, NamedExtents, aligned
from voxtral_build.pte.flat_tensor import (
    IDENTIFIER,
    VERSION,
    FlatTensor,
    NamedData,
    TensorLayout,
    pack,
    unpack,
)
from voxtral_build.pte.scalar_types import scalar_bytes
from voxtral_build.pte.segments import (
    HEADER_AT,
    SEGMENT_ALIGNMENT,
    insert_header,
    kept_alignment,
    places_of,
    whole_segments,
    write_file,
)

DATA_SUFFIX = ".ptd"
HEADER_MAGIC = b"FH01"
# Magic, header length, padded header length, flatbuffer size, segment base, size of all
# segments.
HEADER = struct.Struct("<4sIQQQQ")
# The flatbuffer holds no number of more than eight bytes; ExecuTorch keeps it at sixteen.
_HEADER_ROOM = aligned(HEADER.size, 16)
_REBUILD = "give a .ptd that was written whole by the installed ExecuTorch or by link"


@dataclass(frozen=True)
class DataEntry:
    """Data in a file.

    Attributes:
        extent: where they lie.
        alignment: of their place, in bytes.
        layout: of data that are a tensor's.
    """

    extent: Extent
    alignment: int
    layout: TensorLayout | None


@dataclass(frozen=True)
class DataFile:
    """A .ptd file whose head was read.

    Attributes:
        entries: by name, in the file's order.
        base_alignment: of the segment base, in bytes.
    """

    path: Path
    entries: Mapping[str, DataEntry] = field(default_factory=dict)
    base_alignment: int = SEGMENT_ALIGNMENT

    def renamed(self, names: Mapping[str, str]) -> DataFile:
        """The same data, some of them under other names."""
        entries = {names.get(key, key): entry for key, entry in self.entries.items()}
        return replace(self, entries=entries)


def read_data(path: Path) -> DataFile:
    """Read the head of the .ptd file `path` and check that all its data are there.

    Raises:
        PteError: `path` is missing, a folder, empty, cut short or no .ptd of the installed
            schema.
    """
    try:
        with path.open("rb") as source:
            file_size = source.seek(0, os.SEEK_END)
            source.seek(0)
            start = source.read(HEADER_AT + HEADER.size)
            head_size, segment_base = _read_header(path, start, file_size)
            source.seek(0)
            head = source.read(head_size)
    except OSError as error:
        raise PteError(
            f"{path} cannot be read",
            got=error.strerror or str(error),
            allowed="a .ptd file",
            next_step="check the path and whether the step that writes it has run",
        ) from error
    try:
        content = unpack(head)
    except (struct.error, ValueError) as error:
        raise _broken(path, "its head is damaged", got=error) from error
    if content.version > VERSION:
        raise _broken(path, "it is of a newer version of the schema", got=content.version,
                      allowed=f"up to {VERSION}")  # fmt: skip
    entries: dict[str, DataEntry] = {}
    for item in content.named_data:
        if not item.key or item.key in entries:
            reason = "data have no name" if not item.key else "two data have one name"
            raise _broken(path, reason, got=f"{item.key!r}, segment {item.segment_index}")
        entries[item.key] = _entry(path, item, content.segments, segment_base, file_size)
    return DataFile(path, entries, kept_alignment(segment_base))


def join_data(files: Sequence[DataFile], output: Path) -> None:
    """Join .ptd files into the file `output`, whole or not at all.

    Names stand in the order of the files; equal data are stored once. The same files in
    the same order give the same bytes.

    Raises:
        PteError: a name stands for different data in two files.
    """
    data = NamedExtents()
    layouts: dict[str, TensorLayout | None] = {}
    for file in files:
        for key, entry in file.entries.items():
            data.add(key, entry.extent, entry.alignment)
            if layouts.setdefault(key, entry.layout) != entry.layout:
                raise PteError(
                    f"the tensor {key!r} differs between two units",
                    got=f"{layouts[key]} in {data.keys[key][1]}, {entry.layout} in {file.path}",
                    allowed="one layout per name",
                    next_step="lower both units from the same weights",
                )
    segments = whole_segments(data.unique)
    places, end = places_of(segments)
    flatbuffer = pack(
        FlatTensor(
            version=VERSION,
            segments=tuple(
                (place, segment.size) for place, segment in zip(places, segments, strict=True)
            ),
            named_data=tuple(
                NamedData(key, index, layouts[key]) for key, (index, _) in data.keys.items()
            ),
        )
    )
    alignment = max((file.base_alignment for file in files), default=SEGMENT_ALIGNMENT)
    base = aligned(_HEADER_ROOM + len(flatbuffer), alignment)
    header = HEADER.pack(HEADER_MAGIC, HEADER.size, _HEADER_ROOM, len(flatbuffer), base, end)
    head = insert_header(flatbuffer, header.ljust(_HEADER_ROOM, b"\0"))
    write_file(output, head.ljust(base, b"\0"), base, segments)


def _broken(path: Path, reason: str, *, got: object = None, allowed: str | None = None) -> PteError:
    return PteError(
        f"{path} is not a usable .ptd: {reason}", got=got, allowed=allowed, next_step=_REBUILD
    )


def _read_header(path: Path, start: bytes, file_size: int) -> tuple[int, int]:
    """The size of the flatbuffer with the header, and the segment base."""
    if len(start) < HEADER_AT:
        reason = "it is empty" if not start else "it is cut short"
        raise _broken(path, reason, got=f"{len(start)} bytes")
    if start[4:HEADER_AT] != IDENTIFIER:
        raise _broken(path, "bytes 4 to 8 do not name the installed ExecuTorch's schema",
                      got=start[4:HEADER_AT], allowed=repr(IDENTIFIER))  # fmt: skip
    if len(start) < HEADER_AT + HEADER.size:
        raise _broken(path, "it is cut short in its header", got=f"{file_size} bytes")
    magic, length, offset, size, base, data_size = HEADER.unpack_from(start, HEADER_AT)
    if magic != HEADER_MAGIC or length < HEADER.size:
        raise _broken(path, "it has no header", got=f"{magic!r} of {length} bytes",
                      allowed=f"{HEADER_MAGIC!r} of {HEADER.size} or more")  # fmt: skip
    if not offset + size <= base or base + data_size > file_size:
        raise _broken(path, "its data do not fit in the file: it was cut short",
                      got=f"{file_size} bytes",
                      allowed=f"a head of {offset + size}, data from byte {base} to "
                      f"{base + data_size}")  # fmt: skip
    return offset + size, base


def _entry(
    path: Path,
    item: NamedData,
    segments: Sequence[tuple[int, int]],
    segment_base: int,
    file_size: int,
) -> DataEntry:
    if item.segment_index >= len(segments):
        raise _broken(path, f"the data {item.key!r} are missing",
                      got=f"segment {item.segment_index} of {len(segments)}")  # fmt: skip
    offset, size = segments[item.segment_index]
    if segment_base + offset + size > file_size:
        raise _broken(path, f"the data {item.key!r} reach past the end of the file",
                      got=f"up to byte {segment_base + offset + size}",
                      allowed=f"up to {file_size}")  # fmt: skip
    if item.layout is not None:
        try:
            needed = scalar_bytes(item.layout.scalar_type, item.layout.sizes)
        except ValueError as error:
            raise _broken(path, f"the size of {item.key!r} cannot be told", got=error) from error
        if len(item.layout.dim_order) != len(item.layout.sizes) or needed > size:
            raise _broken(path, f"the data {item.key!r} are not the tensor they should be",
                          got=f"{size} bytes", allowed=f"{needed}, for {item.layout}")  # fmt: skip
    return DataEntry(Extent(path, segment_base + offset, size), kept_alignment(offset), item.layout)
