"""Merging the tensors of constant and mutable segments.

A constant segment holds many tensors, and so does a segment with the initial values of
mutable buffers. `Tensor.data_buffer_idx` is an index into the segment's list of offsets,
whose first entry is a placeholder: index 0 means that a tensor has no data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from voxtral_build.pte.extents import Extent, UniqueExtents, aligned
from voxtral_build.pte.program_file import (
    ProgramFile,
    broken,
    is_external,
    offsets,
    tensor_bytes,
    tensors,
    text,
)
from voxtral_build.pte.segments import SEGMENT_ALIGNMENT, Segment

CONSTANT = "constant"
MUTABLE = "mutable"


def data_kind(tensor: Any) -> str | None:
    """In which kind of segment the tensor's data lie; None for one without or elsewhere."""
    if tensor.dataBufferIdx == 0 or is_external(tensor):
        return None
    return CONSTANT if tensor.allocationInfo is None else MUTABLE


def plan_data_bytes(plan: Any, kind: str) -> int:
    """Bytes of a method's data of one kind; tensors that share them count once."""
    found = {
        int(tensor.dataBufferIdx): tensor_bytes(tensor)
        for tensor in tensors(plan)
        if data_kind(tensor) == kind
    }
    return sum(found.values())


def refuse_inline(file: ProgramFile) -> None:
    """Refuse constants kept in the flatbuffer and several mutable segments.

    Raises:
        PteError: the file has them; ExecuTorch 1.5 writes neither.
    """
    for buffer in file.program.constantBuffer or ():
        if buffer.storage is not None and len(buffer.storage):
            raise broken(file.path, "it keeps constants in its head, as old versions did",
                         got=f"{len(file.program.constantBuffer)} constant buffers",
                         allowed="constants in a segment")  # fmt: skip
    count = len(file.program.mutableDataSegments or ())
    if count > 1:
        raise broken(file.path, "it has several segments of mutable data", got=count,
                     allowed="one")  # fmt: skip


def _subsegment(file: ProgramFile, kind: str) -> Any:
    if kind == CONSTANT:
        return file.program.constantSegment
    return (file.program.mutableDataSegments or [None])[0]


def tensor_extent(file: ProgramFile, tensor: Any, kind: str) -> Extent:
    """Where the data of a tensor lie in its file.

    Raises:
        PteError: the tensor refers to data that the file does not hold.
    """
    subsegment = _subsegment(file, kind)
    places = [] if subsegment is None else offsets(subsegment)
    index = int(tensor.dataBufferIdx)
    if index >= len(places):
        raise broken(file.path, f"a tensor refers to {kind} data that are not there",
                     got=f"data {index}", allowed=f"1 to {len(places) - 1}")  # fmt: skip
    segment = file.segment(subsegment.segmentIndex)
    extent = Extent(file.path, segment.offset + places[index], tensor_bytes(tensor))
    if places[index] + extent.size > segment.size:
        raise broken(file.path, f"a tensor reaches past the end of the {kind} data",
                     got=f"byte {places[index] + extent.size}",
                     allowed=f"up to {segment.size}")  # fmt: skip
    return extent


@dataclass
class SubsegmentMerger:
    """Collects one kind of tensor data over all plans; equal data are kept once.

    Data that no tensor refers to are left out.
    """

    kind: str
    _unique: UniqueExtents = field(default_factory=UniqueExtents)

    @property
    def is_empty(self) -> bool:
        """Whether no tensor has data of this kind."""
        return not self._unique.extents

    def add_plan(self, file: ProgramFile, plan: Any) -> None:
        """Take in the data of a plan's tensors and renumber the tensors.

        Raises:
            PteError: a tensor refers to data that the file does not hold.
        """
        for tensor in tensors(plan):
            if data_kind(tensor) != self.kind:
                continue
            try:
                extent = tensor_extent(file, tensor, self.kind)
            except ValueError as error:
                raise broken(file.path, f"method {text(plan.name)!r} holds a tensor whose size "
                             "cannot be told", got=error) from error  # fmt: skip
            tensor.dataBufferIdx = 1 + self._unique.add(extent, self._alignment(file))

    def _alignment(self, file: ProgramFile) -> int:
        """The alignment of tensors in the file, in bytes: whatever it was divides this."""
        if self.kind == MUTABLE:
            return 1  # copied out when a method is loaded
        common = math.gcd(*offsets(_subsegment(file, self.kind)))
        return min(SEGMENT_ALIGNMENT, common & -common) if common else SEGMENT_ALIGNMENT

    def segment(self) -> tuple[Segment, list[int]]:
        """The merged segment, and its offsets with the placeholder first."""
        pieces: list[tuple[int, Extent]] = []
        end = 0
        for extent, alignment in zip(self._unique.extents, self._unique.alignments, strict=True):
            pieces.append((aligned(end, alignment), extent))
            end = pieces[-1][0] + extent.size
        return Segment(tuple(pieces), SEGMENT_ALIGNMENT), [0, *(place for place, _ in pieces)]
