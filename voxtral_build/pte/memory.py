"""What the methods of a .pte file keep between calls, and what data their delegates read.

All sizes are in bytes. Memory is planned for upper bounds where sizes are dynamic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxtral_build.pte.constant_method import is_constant_plan
from voxtral_build.pte.data_file import read_data
from voxtral_build.pte.external import external_bytes
from voxtral_build.pte.program_file import (
    ProgramFile,
    broken,
    read,
    tensor_bytes,
    text,
)
from voxtral_build.pte.schema import table
from voxtral_build.pte.subsegments import CONSTANT, plan_data_bytes


@dataclass(frozen=True)
class StateTensor:
    """A tensor that a method writes in place and reads in the next call."""

    sizes: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class MethodMemory:
    """What one method keeps and reads.

    Attributes:
        state: its mutable buffers; they lie in its planned memory.
        largest_activation: the largest other tensor that memory is planned for.
        named_bytes: named data that its delegates refer to, in the .pte or in its data file;
            what methods share counts in each.
        delegate_bytes: its delegates' own data.
        constant_bytes: constants that it uses without a delegate, in either file.
    """

    state: tuple[StateTensor, ...]
    largest_activation: int
    named_bytes: int
    delegate_bytes: int
    constant_bytes: int

    @property
    def data_bytes(self) -> int:
        """All that it reads: its weights, and what a backend keeps beside them."""
        return self.constant_bytes + self.named_bytes + self.delegate_bytes


def methods_memory(path: Path, data: Path | None = None) -> dict[str, MethodMemory]:
    """Measure every method of the .pte file `path` that computes.

    Args:
        data: the .ptd file in which it keeps data, where it does.

    Raises:
        PteError: it is not a readable .pte, or holds what the schema does not know; `data` is
            no readable .ptd.
    """
    file = read(path)
    named = {
        text(entry.key): file.segment(entry.segmentIndex).size
        for entry in file.program.namedData or ()
    }
    if data is not None:
        # What has a layout is a tensor's, and no delegate's.
        named |= {
            key: entry.extent.size
            for key, entry in read_data(data).entries.items()
            if entry.layout is None
        }
    plans = [plan for plan in file.program.executionPlan if not is_constant_plan(plan)]
    try:
        return {text(plan.name): _method(file, plan, named) for plan in plans}
    except (LookupError, ValueError) as error:
        raise broken(
            path, "a method cannot be measured", got=f"{type(error).__name__}: {error}"
        ) from error


def _method(file: ProgramFile, plan: Any, named: Mapping[str, int]) -> MethodMemory:
    state = {index: plan.values[index].val for index in _written_in_place(plan)}
    kind = table("KernelTypes").Tensor
    activations = (
        tensor_bytes(value.val)
        for index, value in enumerate(plan.values)
        if value.valType == kind and value.val.allocationInfo is not None and index not in state
    )
    delegates = plan.delegates or ()
    keys: set[str] = set()
    if named:  # else a blob may hold gigabytes of weights, and there is nothing to find in it
        # A delegate names its data by their keys.
        blobs = b"\n".join(_blob(file, delegate) for delegate in delegates)
        keys = {key for key in named if key.encode() in blobs}
    return MethodMemory(
        state=tuple(
            StateTensor(tuple(int(size) for size in tensor.sizes), tensor_bytes(tensor))
            for tensor in state.values()
        ),
        largest_activation=max(activations, default=0),
        named_bytes=sum(named[key] for key in keys),
        delegate_bytes=sum(_blob_bytes(file, delegate) for delegate in delegates),
        constant_bytes=plan_data_bytes(plan, CONSTANT) + external_bytes(plan),
    )


def _written_in_place(plan: Any) -> set[int]:
    """The values that kernels write in place.

    A program does not mark its mutable buffers. Exported graphs are functional, and what
    writes in place is there to update one: a cache operator of ExecuTorch's LLM library, or
    torch's own operators whose names end in `_`, such as the copy that ends a method.
    """
    return {
        int(arguments[position])
        for name, arguments in _kernel_calls(plan)
        if (position := _written_argument(name)) is not None
    }


def _written_argument(operator: str) -> int | None:
    name = operator.rpartition("::")[2]
    if name.startswith("update_cache"):
        return 1  # update_cache(value, cache, ...)
    return 0 if name.endswith("_") else None


def _kernel_calls(plan: Any) -> Iterator[tuple[str, Any]]:
    kernel_call = table("InstructionArguments").KernelCall
    for chain in plan.chains or ():
        for instruction in chain.instructions or ():
            if instruction.instrArgsType == kernel_call:
                call = instruction.instrArgs
                yield text(plan.operators[call.opIndex].name), call.args


def _blob(file: ProgramFile, delegate: Any) -> bytes:
    index = delegate.processed.index
    if delegate.processed.location == table("DataLocation").SEGMENT:
        return b"".join(bytes(chunk) for chunk in file.segment(index).chunks())
    return bytes(file.program.backendDelegateData[index].data)


def _blob_bytes(file: ProgramFile, delegate: Any) -> int:
    index = delegate.processed.index
    if delegate.processed.location == table("DataLocation").SEGMENT:
        return file.segment(index).size
    return len(file.program.backendDelegateData[index].data)
