"""What ExecuTorch's MLX backend wrote of a method: a list of instructions, read from a `.pte`.

A method for MLX is one delegate. Its payload, a flatbuffer (`schema.fbs` of the backend),
holds chains of instructions over numbered slots, of tensors (constants, inputs, outputs,
state and temporaries, in this order) and of integers. Constants are not in it: they are
named data of the program, by the payload's names.
"""

from __future__ import annotations

import importlib
import struct
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from voxtral_build.backends import mlx_serialization
from voxtral_build.errors import PteError
from voxtral_build.pte.extents import Extent
from voxtral_build.pte.program_file import broken, read, text
from voxtral_build.pte.scalar_types import scalar_type_name
from voxtral_build.pte.schema import table

DELEGATE = "MLXBackend"
_BINDINGS = "executorch.backends.mlx.serialization._generated.mlx_delegate"
# Four bytes of padding, the magic, and as uint64 the end of the flatbuffer and the size of
# what follows it, which this version leaves empty.
_HEADER = struct.Struct("<4x4sQQ")
_MAGIC = b"MLX0"
_VERSION = b"1"
# What the generated code raises on bytes that are no flatbuffer of the schema.
_PARSE_ERRORS = (struct.error, LookupError, MemoryError, TypeError, ValueError, AttributeError)
DTYPES = {
    "BYTE": torch.uint8, "CHAR": torch.int8, "INT": torch.int32, "LONG": torch.int64,
    "HALF": torch.float16, "FLOAT": torch.float32, "BFLOAT16": torch.bfloat16,
    "BOOL": torch.bool, "UINT32": torch.uint32,
}  # fmt: skip


@dataclass(frozen=True)
class Tid:
    """A slot of a tensor."""

    index: int


@dataclass(frozen=True)
class Vid:
    """A slot of an integer."""

    index: int


@dataclass(frozen=True)
class Instruction:
    """One operation.

    Attributes:
        op: as the schema has it, without `Node`: "QuantizedMatmul".
        fields: by the schema's names: slots, lists of them, numbers, text; None where an
            optional one is absent.
    """

    op: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class TensorMeta:
    """Shape and dtype of a slot that is no temporary.

    Attributes:
        sizes: upper bounds of those that vary. (Lower ones are written, too, but are the
            tracer's, which takes 2 for 1; the runtime reads neither.)
        varying: the dimensions that do.
    """

    sizes: tuple[int, ...]
    varying: frozenset[int]
    dtype: torch.dtype

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.sizes)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of these."""
        return (
            tensor.dtype == self.dtype
            and len(tensor.shape) == len(self.sizes)
            and all(
                1 <= size <= bound if dim in self.varying else size == bound
                for dim, (size, bound) in enumerate(zip(tensor.shape, self.sizes, strict=True))
            )
        )


@dataclass(frozen=True)
class MlxProgram:
    """The instructions of a method.

    Attributes:
        chains: instructions in order; `main` runs at every call, `init` once before.
        inputs, outputs, state: tensor slots, in the order of the method's own.
        names: of the slots that have one, less the prefix that the backend puts before.
        meta: of constants, inputs, outputs and state.
        data: where each constant's bytes lie.
    """

    chains: tuple[tuple[Instruction, ...], ...]
    main: int
    init: int | None
    inputs: tuple[Tid, ...]
    outputs: tuple[Tid, ...]
    state: tuple[Tid, ...]
    names: dict[Tid, str]
    meta: dict[Tid, TensorMeta]
    data: dict[Tid, Extent]

    @property
    def constants(self) -> dict[str, Tid]:
        """Slots of constants by name."""
        return {self.names[tid]: tid for tid in self.data}

    def constant(self, tid: Tid) -> torch.Tensor:
        """A constant, from disk.

        Raises:
            PteError: it has not the bytes that its shape and dtype ask for.
        """
        meta, extent = self.meta[tid], self.data[tid]
        content = bytearray().join(bytes(chunk) for chunk in extent.chunks())
        wanted = meta.dtype.itemsize
        for size in meta.sizes:
            wanted *= size
        if len(content) != wanted:
            raise broken(extent.path, f"constant {self.names[tid]} has not the size of its shape",
                         got=f"{len(content)} bytes", allowed=f"{wanted}")  # fmt: skip
        if not content:
            return torch.empty(meta.sizes, dtype=meta.dtype)
        return torch.frombuffer(content, dtype=meta.dtype).reshape(meta.sizes)

    def counts(self) -> Counter[str]:
        """How often each operation occurs in what a call runs."""
        return Counter(instruction.op for instruction in self.chains[self.main])


def read_program(path: Path, method: str) -> MlxProgram:
    """Read the instructions of a method.

    Args:
        path: a `.pte` that has the method, alone or among others.

    Raises:
        PteError: it has not, or the method is not one delegate of the MLX backend alone.
    """
    mlx_serialization.install()
    file = read(path)
    plans = {text(plan.name): plan for plan in file.program.executionPlan}
    if method not in plans:
        raise broken(path, f"it has no method {method}", got=", ".join(plans))
    plan = plans[method]
    delegates = [text(delegate.id) for delegate in plan.delegates or ()]
    if delegates != [DELEGATE] or plan.operators:
        operators = [text(operator.name) for operator in plan.operators or ()]
        raise PteError(
            f"{path}: {method} is not one delegate of the MLX backend",
            got=", ".join(delegates + operators) or "nothing",
            allowed=DELEGATE,
        )
    processed = plan.delegates[0].processed
    if processed.location == table("DataLocation").SEGMENT:
        payload = b"".join(bytes(chunk) for chunk in file.segment(processed.index).chunks())
    else:
        payload = bytes(file.program.backendDelegateData[processed.index].data)
    data = {
        text(entry.key): file.segment(entry.segmentIndex) for entry in file.program.namedData or ()
    }
    try:
        return _in_order(path, plan, _parse(path, payload, data))
    except _PARSE_ERRORS as error:
        got = f"{type(error).__name__}: {error}"
        raise broken(path, "its MLX payload is damaged", got=got) from error


def _in_order(path: Path, plan: Any, program: MlxProgram) -> MlxProgram:
    """The program with inputs and outputs in the order of the method, not the delegate's."""
    calls = [call.instrArgs.args for chain in plan.chains for call in chain.instructions]
    slots = (*program.inputs, *program.outputs)
    if len(calls) != 1 or len(calls[0]) != len(slots):
        raise broken(path, "its delegate is not called as its MLX payload asks for")
    slot_of = dict(zip((int(value) for value in calls[0]), slots, strict=True))
    inputs, outputs = (
        tuple(slot_of[int(value)] for value in values if int(value) in slot_of)
        for values in (plan.inputs, plan.outputs)
    )
    if (set(inputs), set(outputs)) != (set(program.inputs), set(program.outputs)):
        raise broken(path, "inputs or outputs of the method are not those of its MLX payload")
    return replace(program, inputs=inputs, outputs=outputs)


def _parse(path: Path, payload: bytes, data: dict[str, Extent]) -> MlxProgram:
    if len(payload) < _HEADER.size or payload[4:8] != _MAGIC:
        raise broken(path, "its MLX payload has no MLX header", got=repr(payload[:8]))
    _, end, _ = _HEADER.unpack_from(payload)
    if end > len(payload):
        raise broken(path, "its MLX payload is cut short", got=len(payload), allowed=str(end))
    graph = _class("MLXGraph").GetRootAs(payload[_HEADER.size : end], 0)
    if graph.Version() != _VERSION:
        raise broken(path, "its MLX payload is of another version", got=graph.Version())
    names, prefixed = {}, {}
    for slot in _vector(graph, "NamedSlots"):
        if slot.Slot().SlotType() == _class("SlotType").TensorSlot:
            tid, name = Tid(slot.Slot().Idx()), text(slot.Name())
            prefixed[tid], names[tid] = name, name.split("/", 1)[-1]
    constants = [Tid(index) for index in range(graph.NumConstantTensors())]
    absent = [prefixed.get(tid, str(tid)) for tid in constants if prefixed.get(tid) not in data]
    if absent:
        raise broken(path, "constants of its MLX payload are not in it", got=", ".join(absent))
    init = graph.InitChainIdx()
    return MlxProgram(
        chains=tuple(
            tuple(_instruction(item) for item in _vector(chain, "Instructions"))
            for chain in _vector(graph, "InstructionChains")
        ),
        main=graph.MainChainIdx(),
        init=None if init < 0 else init,
        inputs=_slots(graph, "InputMap"),
        outputs=_slots(graph, "OutputMap"),
        state=_slots(graph, "MutableBufferMap"),
        names=names,
        meta={
            Tid(index): _meta(graph.TensorMeta(index)) for index in range(graph.TensorMetaLength())
        },
        data={tid: data[prefixed[tid]] for tid in constants},
    )


def _class(name: str) -> Any:
    return getattr(importlib.import_module(f"{_BINDINGS}.{name}"), name)


def _vector(owner: Any, field: str) -> list[Any]:
    getter = getattr(owner, field)
    return [getter(index) for index in range(getattr(owner, f"{field}Length")())]


def _slots(graph: Any, field: str) -> tuple[Tid, ...]:
    return tuple(Tid(slot.Idx()) for slot in _vector(graph, field))


def _meta(meta: Any) -> TensorMeta:
    shape = _vector(meta, "Shape")
    return TensorMeta(
        tuple(size.MaxValue() if size.Value() < 0 else size.Value() for size in shape),
        frozenset(dim for dim, size in enumerate(shape) if size.Value() < 0),
        dtype(meta.ScalarType()),
    )


def dtype(scalar_type: int) -> torch.dtype:
    """torch's dtype of a scalar type of ExecuTorch's schema."""
    return DTYPES[scalar_type_name(scalar_type)]


def _instruction(item: Any) -> Instruction:
    from executorch.backends.mlx._generated_inspector import OP_NODE_FIELDS
    from executorch.backends.mlx.serialization._generated_serializers import MLX_OP_TYPE_NAMES

    name = MLX_OP_TYPE_NAMES[item.OpType()]
    node = _class(name)()
    node.Init(item.Op().Bytes, item.Op().Pos)
    fields = {field: _field(node, getter, kind) for field, getter, kind in OP_NODE_FIELDS[name]}
    return Instruction(name.removesuffix("Node"), fields)


def _field(node: Any, getter: str, kind: str) -> Any:
    if kind.endswith("_list"):
        return [_value(item, kind.removesuffix("_list")) for item in _vector(node, getter)]
    return _value(getattr(node, getter)(), kind)


def _value(value: Any, kind: str) -> Any:
    """One field's content; the kinds are the generator's."""
    if value is None or kind in ("scalar", "int"):
        return value
    if kind == "string":
        return text(value)
    if kind == "tid":
        return Tid(value.Idx())
    if kind == "vid":
        return Vid(value.Idx())
    if kind in ("int_or_vid", "float_or_vid"):
        return Vid(value.Vid().Idx()) if value.IsVid() else value.Literal()
    if kind == "vid_or_tid":
        return Vid(value.Vid().Idx()) if value.IsVid() else Tid(value.Tid().Idx())
    if kind == "int_or_vid_or_tid":
        chosen = {0: value.Literal, 1: value.Vid, 2: value.Tid}[value.Kind()]()
        return {1: Vid, 2: Tid}[value.Kind()](chosen.Idx()) if value.Kind() else chosen
    raise PteError(f"the payload has fields of a kind that is not known here: {kind}")
