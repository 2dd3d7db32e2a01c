"""Reading the head of a .pte file; its segments stay on disk.

A .pte file begins with a flatbuffer (`program.fbs` in ExecuTorch) whose bytes 4 to 8 name
the schema, "ET12". Where data follow, a header stands between these bytes and the
rest of the flatbuffer, at byte 8, little-endian: "eh00", the header's length (uint32), and
as uint64 the size of the flatbuffer with the header, the place of the first segment
(the segment base) and the size of all segments. The segments hold constants, initial values
of mutable buffers, delegates and named data; their offsets count from the base. A program
without a byte of such data has no header and no base.

Source: `executorch/schema/README.md` and `program.fbs` of ExecuTorch 1.5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxtral_build.errors import PteError
from voxtral_build.pte.extents import Extent
from voxtral_build.pte.scalar_types import scalar_bytes
from voxtral_build.pte.schema import table, unpack_program
from voxtral_build.pte.segments import HEADER_AT

HEADER_MAGIC = b"eh00"
# Magic, header length, program size, segment base, size of all segments.
HEADER = struct.Struct("<4sIQQQ")
# Older writers leave out the last field.
_SHORT_HEADER_BYTES = HEADER.size - 8
# Flatbuffer offsets are signed 32-bit numbers.
_MAX_FLATBUFFER_BYTES = 1 << 31
_REBUILD = "give a .pte that was written whole by the installed ExecuTorch"
# What the generated code raises on bytes that are no flatbuffer of the schema.
_PARSE_ERRORS = (
    struct.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class ProgramFile:
    """A .pte file whose head was read.

    Attributes:
        path: the file.
        program: its `ProgramT`, the object form of the flatbuffer, free to be changed.
        identifier: the schema's four bytes, b"ET12".
        file_size: bytes of the file.
        head_size: bytes of the flatbuffer, the extended header included.
        segment_base: byte at which segment offsets begin to count; `file_size` where the
            program has no data.
    """

    path: Path
    program: Any
    identifier: bytes
    file_size: int
    head_size: int
    segment_base: int

    def segment(self, index: int) -> Extent:
        """Where segment `index` lies in the file.

        Raises:
            PteError: there is no such segment, or it reaches past the end of the file.
        """
        segments = self.program.segments or ()
        if not 0 <= index < len(segments):
            raise broken(self.path, "a segment is missing", got=f"segment {index}",
                         allowed=f"0 to {len(segments) - 1}")  # fmt: skip
        offset = self.segment_base + int(segments[index].offset)
        extent = Extent(self.path, offset, int(segments[index].size))
        if extent.offset + extent.size > self.file_size:
            raise broken(
                self.path,
                "a segment reaches past the end of the file: it was cut short",
                got=f"segment {index} ends at byte {extent.offset + extent.size}",
                allowed=f"up to {self.file_size}",
            )
        return extent


def read(path: Path) -> ProgramFile:
    """Read the head of the .pte file `path` and check that all its segments are there.

    Raises:
        PteError: `path` is missing, a folder, empty, cut short or no program of the
            installed schema.
    """
    head, file_size, segment_base = _read_head(path)
    try:
        program = unpack_program(head)
        file = ProgramFile(path, program, head[4:8], file_size, len(head), segment_base)
        _check(file)
    except _PARSE_ERRORS as error:
        raise broken(path, "its head is damaged", got=f"{type(error).__name__}: {error}") from error
    return file


def broken(path: Path, reason: str, *, got: object = None, allowed: str | None = None) -> PteError:
    """The error for a file that is no sound .pte."""
    return PteError(
        f"{path} is not a usable .pte: {reason}", got=got, allowed=allowed, next_step=_REBUILD
    )


def text(value: bytes | str | None) -> str:
    """A flatbuffer string, which the generated code gives as bytes or, if absent, None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else bytes(value).decode("utf-8")


def tensors(plan: Any) -> Iterator[Any]:
    """Every `TensorT` among the values of an execution plan, in order."""
    kind = table("KernelTypes").Tensor
    return (value.val for value in plan.values or () if value.valType == kind)


def tensor_bytes(tensor: Any) -> int:
    """Bytes of a dense tensor of these sizes (of the upper bound, where they are dynamic).

    Raises:
        ValueError: the schema has no such scalar type, or a size is negative.
    """
    sizes = [int(size) for size in (() if tensor.sizes is None else tensor.sizes)]
    return scalar_bytes(tensor.scalarType, sizes)


def is_external(tensor: Any) -> bool:
    """Whether the tensor's data lie in a file beside the .pte, found by name."""
    extra = tensor.extraTensorInfo
    return extra is not None and extra.location == table("TensorDataLocation").EXTERNAL


def _read_head(path: Path) -> tuple[bytes, int, int]:
    """The flatbuffer's bytes, the file's size and the segment base."""
    try:
        with path.open("rb") as source:
            file_size = source.seek(0, os.SEEK_END)
            source.seek(0)
            start = source.read(HEADER_AT + HEADER.size)
            _check_identifier(path, start)
            head_size, segment_base = _read_header(path, start, file_size)
            source.seek(0)
            return source.read(head_size), file_size, segment_base
    except OSError as error:
        raise PteError(
            f"{path} cannot be read",
            got=error.strerror or str(error),
            allowed="a .pte file",
            next_step="check the path and whether the step that writes it has run",
        ) from error


def _check_identifier(path: Path, start: bytes) -> None:
    if len(start) < HEADER_AT:
        reason = "it is empty" if not start else "it is cut short"
        raise broken(path, reason, got=f"{len(start)} bytes")
    if not table("Program").ProgramBufferHasIdentifier(start, 0):
        raise broken(
            path,
            "bytes 4 to 8 do not name the installed ExecuTorch's schema",
            got=repr(start[4:8]),
            allowed="b'ET12'",
        )


def _read_header(path: Path, start: bytes, file_size: int) -> tuple[int, int]:
    """The head's size and the segment base, from the extended header or in its absence."""
    if start[HEADER_AT : HEADER_AT + 4] != HEADER_MAGIC:
        if file_size > _MAX_FLATBUFFER_BYTES:
            raise broken(path, "it has no extended header, yet is too large to go without",
                         got=f"{file_size} bytes")  # fmt: skip
        return file_size, file_size
    if len(start) < HEADER_AT + HEADER.size:
        raise broken(path, "it is cut short in its header", got=f"{file_size} bytes")
    _, length, head_size, segment_base, data_size = HEADER.unpack_from(start, HEADER_AT)
    if length < _SHORT_HEADER_BYTES:
        raise broken(path, "its header is too short", got=f"{length} bytes",
                     allowed=f"{_SHORT_HEADER_BYTES} or more")  # fmt: skip
    if not HEADER_AT + length <= head_size <= file_size:
        raise broken(path, "its head is cut short", got=f"a file of {file_size} bytes",
                     allowed=f"a head of {head_size} bytes and its data")  # fmt: skip
    if segment_base == 0:
        return head_size, file_size
    end = segment_base + (data_size if length >= HEADER.size else 0)
    if segment_base < head_size or end > file_size:
        raise broken(path, "its segments do not fit in the file: it was cut short",
                     got=f"segments from byte {segment_base} to {end}",
                     allowed=f"from byte {head_size} to {file_size}")  # fmt: skip
    return head_size, segment_base


def _check(file: ProgramFile) -> None:
    """Hold every reference to a segment against the segments that there are."""
    program = file.program
    if not program.executionPlan:
        raise broken(file.path, "it holds no method")
    for index in range(len(program.segments or ())):
        file.segment(index)
    subsegments = [*(program.mutableDataSegments or ())]
    if program.constantSegment is not None and len(offsets(program.constantSegment)):
        subsegments.append(program.constantSegment)
    for subsegment in subsegments:
        extent = file.segment(subsegment.segmentIndex)
        if any(offset > extent.size for offset in offsets(subsegment)):
            raise broken(file.path, "a tensor lies outside of its segment",
                         got=f"offset {max(offsets(subsegment))}",
                         allowed=f"up to {extent.size}")  # fmt: skip
    for entry in program.namedData or ():
        file.segment(entry.segmentIndex)
        if not text(entry.key):
            raise broken(file.path, "named data have no key", got=f"segment {entry.segmentIndex}")
    inline_count = len(program.backendDelegateData or ())
    for plan in program.executionPlan:
        _check_plan(file.path, plan)
        for delegate in plan.delegates or ():
            processed = delegate.processed
            if processed is None or not text(delegate.id):
                raise broken(file.path, "a delegate has no backend or no data")
            if processed.location == table("DataLocation").SEGMENT:
                file.segment(processed.index)
            elif processed.index >= inline_count:
                raise broken(file.path, "a delegate's data are missing",
                             got=f"inline data {processed.index} of {inline_count}")  # fmt: skip


def _check_plan(path: Path, plan: Any) -> None:
    """Hold what a method refers to by number against what it has, and read its names."""
    names = [plan.name]
    for operator in plan.operators or ():
        names += [operator.name, operator.overload]
    for name in names:
        text(name)
    arguments = table("InstructionArguments")
    used: dict[str, tuple[list[int], int]] = {
        name: ([int(index) for index in (() if indices is None else indices)], len(plan.values))
        for name, indices in (("input", plan.inputs), ("output", plan.outputs))
    }
    calls: list[int] = []
    delegate_calls: list[int] = []
    for chain in plan.chains or ():
        for instruction in chain.instructions or ():
            if instruction.instrArgsType == arguments.KernelCall:
                calls.append(instruction.instrArgs.opIndex)
            elif instruction.instrArgsType == arguments.DelegateCall:
                delegate_calls.append(instruction.instrArgs.delegateIndex)
    used["operator"] = (calls, len(plan.operators or ()))
    used["delegate"] = (delegate_calls, len(plan.delegates or ()))
    for name, (indices, count) in used.items():
        for index in indices:
            if not 0 <= index < count:
                raise broken(path, f"method {text(plan.name)!r} refers to what it does not hold",
                             got=f"{name} {index}", allowed=f"0 to {count - 1}")  # fmt: skip


def offsets(subsegments: Any) -> list[int]:
    """The tensor offsets of a `SubsegmentOffsetsT` in bytes; the first is a placeholder."""
    return [int(offset) for offset in (() if subsegments.offsets is None else subsegments.offsets)]
