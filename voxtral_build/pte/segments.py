"""Segments: the data behind the head of a .pte or a .ptd file.

Alignment: neither format says how its data were aligned, but every alignment divides the
offset it led to. So each segment is placed at a multiple of the largest power of two that
divides its offset in the file it comes from, at least ExecuTorch's 128 bytes and at most a
page of 4096. An offset that is even by chance is kept so too, which costs some padding and
no correctness. Alignments that are no power of two are not kept; no backend of ExecuTorch
asks for one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from voxtral_build.files import whole_file
from voxtral_build.pte.extents import Extent, UniqueExtents, aligned

# ExecuTorch's default `segment_alignment`, in bytes.
SEGMENT_ALIGNMENT = 128
_MAX_ALIGNMENT = 4096
# A flatbuffer begins with the place of its root table and the schema's four bytes. Both
# formats put their header behind them.
HEADER_AT = 8


@dataclass(frozen=True)
class Segment:
    """A segment to write.

    Attributes:
        pieces: its data, each with its place in the segment in bytes, ascending; zeros
            fill the gaps.
        alignment: the segment begins at a multiple of it, counted from the segment base.
    """

    pieces: tuple[tuple[int, Extent], ...]
    alignment: int

    @property
    def size(self) -> int:
        """Bytes from the segment's begin to the end of its last piece."""
        return self.pieces[-1][0] + self.pieces[-1][1].size if self.pieces else 0


def kept_alignment(offset: int) -> int:
    """The largest power of two that divides `offset`, between 128 and 4096 bytes."""
    if offset == 0:
        return SEGMENT_ALIGNMENT
    return min(_MAX_ALIGNMENT, max(SEGMENT_ALIGNMENT, offset & -offset))


def whole_segments(unique: UniqueExtents) -> list[Segment]:
    """A segment for each extent."""
    return [
        Segment(((0, extent),), alignment)
        for extent, alignment in zip(unique.extents, unique.alignments, strict=True)
    ]


def places_of(segments: Sequence[Segment]) -> tuple[list[int], int]:
    """Where each segment begins, counted from the segment base, and where the last ends."""
    places: list[int] = []
    end = 0
    for segment in segments:
        places.append(aligned(end, segment.alignment))
        end = places[-1] + segment.size
    return places, end


def insert_header(flatbuffer: bytes, header: bytes) -> bytes:
    """`flatbuffer` with `header` after its first eight bytes.

    What is aligned in the flatbuffer stays so if the header's length is a multiple of the
    strictest alignment in it.
    """
    (root,) = struct.unpack_from("<I", flatbuffer)
    start = struct.pack("<I", root + len(header)) + flatbuffer[4:HEADER_AT]
    return start + header + flatbuffer[HEADER_AT:]


def write_file(path: Path, head: bytes, base: int, segments: Sequence[Segment]) -> None:
    """Write a head and the segments that begin at byte `base`, whole or not at all."""
    places, end = places_of(segments)
    with whole_file(path) as temporary, temporary.open("wb") as output:
        output.write(head)
        for place, segment in zip(places, segments, strict=True):
            for offset, extent in segment.pieces:
                if extent.size:
                    _fill(output, base + place + offset)
                    extent.copy_to(output)
        if end:  # the last segment may be empty, and begin behind a gap
            _fill(output, base + end)


def _fill(output: BinaryIO, place: int) -> None:
    """Write zeros up to byte `place`."""
    output.write(bytes(place - output.tell()))
