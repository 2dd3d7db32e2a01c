"""Writing a .pte file from a program and data that lie in other files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxtral_build.pte.extents import aligned
from voxtral_build.pte.program_file import HEADER, HEADER_MAGIC
from voxtral_build.pte.schema import builder, new
from voxtral_build.pte.segments import (
    SEGMENT_ALIGNMENT,
    Segment,
    insert_header,
    places_of,
    write_file,
)


def write_program(
    path: Path,
    program: Any,
    identifier: bytes,
    segments: Sequence[Segment],
    base_alignment: int = SEGMENT_ALIGNMENT,
) -> None:
    """Write `program` (a `ProgramT`) and its segments to `path`, whole or not at all.

    `program.segments` is set here. The segment base is a multiple of `base_alignment`.
    """
    places, end = places_of(segments)
    program.segments = [
        new("DataSegment", offset=place, size=segment.size)
        for place, segment in zip(places, segments, strict=True)
    ]
    head = pack_program(program, identifier)
    # As ExecuTorch does, a program without data gets no header.
    base = 0
    if end:
        head, base = _with_header(head, end, base_alignment)
    write_file(path, head, base, segments)


def pack_program(program: Any, identifier: bytes) -> bytes:
    """The flatbuffer of a `ProgramT`, without an extended header."""
    # Half a megabyte holds most heads; the builder doubles when it must.
    building = builder(1 << 19)
    data = program.backendDelegateData
    packed = [_AlignedInlineData(item.data) for item in data or ()]
    program.backendDelegateData = packed if data is not None else None
    try:
        root = program.Pack(building)
    finally:
        program.backendDelegateData = data
    building.Finish(root, file_identifier=identifier)
    return bytes(building.Output())


class _AlignedInlineData:
    """Delegate data kept in the flatbuffer, at a multiple of 128 bytes.

    The generated code would put them at any byte, though the schema asks for 16 and a build
    may ask for more (`delegate_alignment`): what was asked cannot be read from the file.
    """

    def __init__(self, data: Any) -> None:
        self._data = None if data is None else bytes(data)

    def Pack(self, building: Any) -> Any:  # noqa: N802 - called by the generated code
        vector = None
        if self._data:
            building.StartVector(1, len(self._data), SEGMENT_ALIGNMENT)
            building.head = building.Head() - len(self._data)
            building.Bytes[building.Head() : building.Head() + len(self._data)] = self._data
            vector = building.EndVector()
        elif self._data is not None:
            building.StartVector(1, 0, 1)
            vector = building.EndVector()
        building.StartObject(1)
        if vector is not None:
            building.PrependUOffsetTRelativeSlot(0, vector, 0)
        return building.EndObject()


def _with_header(head: bytes, data_size: int, base_alignment: int) -> tuple[bytes, int]:
    """`head` with the extended header after its first eight bytes, and the segment base."""
    # The header's place is a multiple of the strictest alignment in the flatbuffer, so
    # that what was aligned before it was inserted stays so.
    room = SEGMENT_ALIGNMENT
    head_size = len(head) + room
    base = aligned(head_size, base_alignment)
    header = HEADER.pack(HEADER_MAGIC, HEADER.size, head_size, base, data_size)
    return insert_header(head, header.ljust(room, b"\0")), base
