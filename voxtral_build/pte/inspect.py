"""What is inside a .pte file: methods, delegates, operators, memory and data.

Only the head of the file is read. All sizes are in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxtral_build.pte.constant_method import Constant, is_constant_plan, plain_value
from voxtral_build.pte.program_file import (
    ProgramFile,
    broken,
    is_external,
    read,
    tensors,
    text,
)
from voxtral_build.pte.render import render
from voxtral_build.pte.scalar_types import scalar_type_name
from voxtral_build.pte.schema import table
from voxtral_build.pte.subsegments import CONSTANT, MUTABLE, plan_data_bytes

__all__ = [
    "MethodDescription",
    "ProgramDescription",
    "SegmentTotal",
    "ValueDescription",
    "batched_matmuls",
    "describe",
    "render",
    "undelegated_linears",
]

# torch's names of the schema's scalar types.
_DTYPES = {
    "BYTE": "uint8", "CHAR": "int8", "SHORT": "int16", "INT": "int32", "LONG": "int64",
    "HALF": "float16", "FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool",
    "BFLOAT16": "bfloat16", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
}  # fmt: skip
_DYNAMISM = ("static", "dynamic_bound", "dynamic_unbound")
_LINEAR_WORDS = frozenset(("linear", "mm", "addmm", "matmul"))
_BATCHED_WORDS = frozenset(("bmm", "baddbmm"))


@dataclass(frozen=True)
class ValueDescription:
    """An input or output of a method.

    Attributes:
        kind: "tensor", or the schema's name of another kind ("Int", "Bool", "TensorList").
        dtype: torch's name of a tensor's dtype, such as "float32"; else None.
        sizes: a tensor's sizes, upper bounds where they are dynamic; else None.
        dynamism: "static", "dynamic_bound" or "dynamic_unbound" for a tensor; else None.
    """

    kind: str
    dtype: str | None = None
    sizes: tuple[int, ...] | None = None
    dynamism: str | None = None


@dataclass(frozen=True)
class MethodDescription:
    """A method that computes.

    Attributes:
        delegates: how many delegates of each backend it has.
        delegate_calls: how many of its instructions call a delegate.
        operators: how many of its instructions call each kernel, by "name.overload".
        instructions: all instructions, delegate calls and kernels included.
        arena_bytes: the size of each planned memory arena.
        planned_bytes: their sum.
        constant_bytes: the constants in the .pte that it uses without a delegate; constants
            that methods share count in each.
        mutable_bytes: the initial values of its mutable buffers.
        external_tensors: tensors whose data lie in another file.
    """

    name: str
    inputs: tuple[ValueDescription, ...]
    outputs: tuple[ValueDescription, ...]
    delegates: Mapping[str, int]
    delegate_calls: int
    operators: Mapping[str, int]
    instructions: int
    arena_bytes: tuple[int, ...]
    planned_bytes: int
    constant_bytes: int
    mutable_bytes: int
    external_tensors: int


@dataclass(frozen=True)
class SegmentTotal:
    """The segments of one kind: "constant", "mutable", "delegate", "named" or "unused"."""

    count: int
    bytes: int


@dataclass(frozen=True)
class ProgramDescription:
    """A .pte file.

    Attributes:
        file: its name without folders.
        file_bytes: its size.
        head_bytes: of these, the flatbuffer with its header.
        methods: by name, those that compute.
        constant_methods: metadata by name; a list for a method with several outputs.
        segments: totals by kind.
        named_data_keys: how many keys of named data there are.
    """

    file: str
    file_bytes: int
    head_bytes: int
    methods: Mapping[str, MethodDescription]
    constant_methods: Mapping[str, Constant | list[Constant]]
    segments: Mapping[str, SegmentTotal]
    named_data_keys: int

    def as_dict(self) -> dict[str, Any]:
        """The description in types that JSON knows."""
        return asdict(self)


def describe(path: Path) -> ProgramDescription:
    """Describe the .pte file `path`.

    Raises:
        PteError: it is not a readable .pte, or holds what the schema does not know.
    """
    file = read(path)
    plans = file.program.executionPlan
    try:
        return ProgramDescription(
            file=path.name,
            file_bytes=file.file_size,
            head_bytes=file.head_size,
            methods={
                text(plan.name): _method(plan) for plan in plans if not is_constant_plan(plan)
            },
            constant_methods={
                text(plan.name): _constant(plan) for plan in plans if is_constant_plan(plan)
            },
            segments=_segment_totals(file),
            named_data_keys=len(file.program.namedData or ()),
        )
    except (LookupError, ValueError) as error:
        raise broken(
            path, "a method cannot be described", got=f"{type(error).__name__}: {error}"
        ) from error


def undelegated_linears(method: MethodDescription) -> int:
    """Kernel calls that multiply by a matrix outside of any delegate.

    Counts linear, mm, addmm and matmul with their quantized variants, such as
    `quantized_decomposed::mixed_linear`; not bmm, see `batched_matmuls`.
    """
    return _calls_with(method, _LINEAR_WORDS)


def undelegated_operators(method: MethodDescription) -> dict[str, int]:
    """Kernel calls outside of any delegate, but for a device's own way in and out.

    Inputs and outputs are the caller's, on the CPU; for a delegate that computes elsewhere,
    ExecuTorch copies them at the method's edges (`et_copy::_h2d_copy`, `_d2h_copy`).
    """
    return {
        name: count for name, count in method.operators.items() if not name.startswith("et_copy::")
    }


def batched_matmuls(method: MethodDescription) -> int:
    """Kernel calls of bmm and baddbmm outside of any delegate: attention, not weights."""
    return _calls_with(method, _BATCHED_WORDS)


def _calls_with(method: MethodDescription, words: frozenset[str]) -> int:
    return sum(
        count
        for operator, count in method.operators.items()
        if not words.isdisjoint(_base_name(operator).split("_"))
    )


def _base_name(operator: str) -> str:
    """The name alone: `linear` of `aten::linear.out`."""
    return operator.rpartition("::")[2].partition(".")[0]


def _method(plan: Any) -> MethodDescription:
    arguments = table("InstructionArguments")
    instructions = [
        instruction for chain in plan.chains or () for instruction in chain.instructions or ()
    ]
    kernels = [
        _operator_name(plan.operators[instruction.instrArgs.opIndex])
        for instruction in instructions
        if instruction.instrArgsType == arguments.KernelCall
    ]
    # Arena 0 is reserved for constants and always empty.
    sizes = () if plan.nonConstBufferSizes is None else plan.nonConstBufferSizes
    arenas = tuple(int(size) for size in sizes[1:])
    return MethodDescription(
        name=text(plan.name),
        inputs=_values(plan, plan.inputs),
        outputs=_values(plan, plan.outputs),
        delegates=_counted(text(delegate.id) for delegate in plan.delegates or ()),
        delegate_calls=sum(
            instruction.instrArgsType == arguments.DelegateCall for instruction in instructions
        ),
        operators=_counted(kernels),
        instructions=len(instructions),
        arena_bytes=arenas,
        planned_bytes=sum(arenas),
        constant_bytes=plan_data_bytes(plan, CONSTANT),
        mutable_bytes=plan_data_bytes(plan, MUTABLE),
        external_tensors=sum(is_external(tensor) for tensor in tensors(plan)),
    )


def _counted(names: Any) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _operator_name(operator: Any) -> str:
    name, overload = text(operator.name), text(operator.overload)
    return f"{name}.{overload}" if overload else name


def _values(plan: Any, indices: Any) -> tuple[ValueDescription, ...]:
    return tuple(_value(plan.values[index]) for index in (() if indices is None else indices))


def _value(evalue: Any) -> ValueDescription:
    kinds = table("KernelTypes")
    if evalue.valType != kinds.Tensor:
        named = {number: name for name, number in vars(kinds).items() if name[:1].isupper()}
        return ValueDescription(named.get(evalue.valType, f"kind {evalue.valType}"))
    tensor = evalue.val
    name = scalar_type_name(tensor.scalarType)
    return ValueDescription(
        kind="tensor",
        dtype=_DTYPES.get(name, name.lower()),
        sizes=tuple(int(size) for size in (() if tensor.sizes is None else tensor.sizes)),
        dynamism=_DYNAMISM[tensor.shapeDynamism],
    )


def _constant(plan: Any) -> Constant | list[Constant]:
    values = [plain_value(plan.values[index]) for index in plan.outputs]
    return values[0] if len(values) == 1 else values


def _segment_totals(file: ProgramFile) -> dict[str, SegmentTotal]:
    """Count the segments by what refers to them, the first reference deciding."""
    program = file.program
    in_segment = table("DataLocation").SEGMENT
    kinds: dict[int, str] = {}
    if program.constantSegment is not None and program.segments:
        kinds[program.constantSegment.segmentIndex] = CONSTANT
    for subsegment in program.mutableDataSegments or ():
        kinds.setdefault(subsegment.segmentIndex, MUTABLE)
    for plan in program.executionPlan:
        for delegate in plan.delegates or ():
            if delegate.processed.location == in_segment:
                kinds.setdefault(delegate.processed.index, "delegate")
    for entry in program.namedData or ():
        kinds.setdefault(entry.segmentIndex, "named")
    totals: dict[str, SegmentTotal] = {}
    for index, segment in enumerate(program.segments or ()):
        kind = kinds.get(index, "unused")
        total = totals.get(kind, SegmentTotal(0, 0))
        totals[kind] = SegmentTotal(total.count + 1, total.bytes + int(segment.size))
    return totals
