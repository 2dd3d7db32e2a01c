"""What was written for Vulkan, read back and held against the graph with its weights.

No host at hand runs a Vulkan delegate, so that this stands in for running it: which ops the
delegates hold, on which bytes, what they take and give, and which state they keep.

A delegate is a header ("VH00" at byte 4; offsets and sizes of what follows), a flatbuffer
(`backends/vulkan/serialization/schema.fbs` in the wheel, read by the wheel's own flatc) with
values and a chain of op calls on them, and no data: constants are named data of the program.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from voxtral_build.gates import Outcome, condition
from voxtral_build.pte.extents import Extent
from voxtral_build.pte.inspect import describe
from voxtral_build.pte.program_file import ProgramFile, broken, read, text
from voxtral_build.pte.schema import table

aten = torch.ops.aten

# "VH00", then: bytes of the header, place and size of the flatbuffer, place and size of data.
_HEADER = struct.Struct("<4x4sHIIIQ")
_PREPACK = "et_vk.prepack.default"

# What a graph's ops have become. Each is a count that must be the same before and after.
_SAME = {
    "linear": (
        (aten.linear.default,),
        ("aten.linear.default", "et_vk.linear_q4gsw.default", "et_vk.linear_dq8ca_q4gsw.default"),
    ),
    "convolution": ((aten.conv1d.default,), ("aten.convolution.default",)),
    "norm": ((aten.rms_norm.default,), ("et_vk.rms_norm.default",)),
    "embedding": (
        (aten.embedding.default,),
        ("aten.embedding.default", "et_vk.embedding_q4gsw.default"),
    ),
    "attention": ((aten.scaled_dot_product_attention.default,), ("aten._softmax.default",)),
    "activation": ((aten.silu.default,), ("aten.sigmoid.default",)),
    "gelu": ((aten.gelu.default,), ("aten.exp.default",)),
}
# Where an op call keeps its weight, what belongs to it, and its bias, among its arguments.
_WEIGHTS = {
    "aten.linear.default": (1, 2),
    "et_vk.linear_q4gsw.default": (1, 2, 4),
    "et_vk.linear_dq8ca_q4gsw.default": (3, 5, 4, 7),
    "aten.convolution.default": (1, 2),
    "et_vk.rms_norm.default": (1,),
    "aten.embedding.default": (0,),
    "et_vk.embedding_q4gsw.default": (0, 1),
}
# Further ops that a delegate may hold: shapes, arithmetic, masks and where keys are.
_OTHERS = frozenset(
    {
        _PREPACK,
        *(
            f"aten.{name}"
            for name in (
                "_to_copy.default", "abs.default", "add.Tensor", "arange.start_step",
                "bitwise_and.Tensor", "bmm.default", "cat.default", "clone.default",
                "constant_pad_nd.default", "div.Tensor_mode", "eq.Tensor", "ge.Scalar",
                "gt.Scalar", "index.Tensor", "lt.Scalar", "mul.Tensor", "neg.default",
                "permute_copy.default", "relu.default", "rsqrt.default", "slice_copy.Tensor",
                "squeeze_copy.dims", "sub.Tensor", "sum.dim_IntList", "unsqueeze_copy.default",
                "view_copy.default",
            )
        ),
        "torchao.choose_qparams_affine.default",
        "add", "floordiv", "mul", "sub", "sym_size.int",
    }
)  # fmt: skip
# What may look up embeddings on the CPU.
_EMBEDDINGS = ("aten::embedding.out", "quantized_decomposed::embedding_byte.out")
# Kernels that may stay with the CPU: where keys are written, and the turns of RoPE.
_OUTSIDE = frozenset(
    {
        "aten::_to_copy.out",
        "aten::cos.out",
        "aten::cumsum.out",
        "aten::full_like.out",
        "aten::mul.out",
        "aten::remainder.Scalar_out",
        "aten::select_copy.int_out",
        "aten::sin.out",
        "aten::slice_copy.Tensor_out",
        "aten::sub.out",
        "aten::unsqueeze_copy.out",
        *_EMBEDDINGS,
    }
)


@dataclass(frozen=True)
class Delegate:
    """One call of a delegate.

    Attributes:
        graph: its `VkGraph`, as ExecuTorch's serializer has it.
        constants: where the bytes of each constant lie.
        arguments: values of the method that it takes and gives, by their numbers in the plan:
            inputs first.
    """

    graph: Any
    constants: Sequence[Extent]
    arguments: Sequence[int]

    def constant_of(self, value: int) -> int | None:
        """The number of the constant that a value is, or is prepacked from."""
        for call in self.graph.chain:
            if call.name == _PREPACK and call.args[1] == value:
                value = call.args[0]
                break
        constant = getattr(self.graph.values[value].value, "constant_id", -1)
        return constant if constant >= 0 else None


def delegates(file: ProgramFile, method: str) -> list[Delegate]:
    """The delegates of a method in the order of their calls.

    Raises:
        PteError: one is not what Vulkan's serializer writes, or a constant is missing.
    """
    plan = next(plan for plan in file.program.executionPlan if text(plan.name) == method)
    call_type = table("InstructionArguments").DelegateCall
    return [
        _delegate(file, plan.delegates[instruction.instrArgs.delegateIndex], instruction.instrArgs)
        for chain in plan.chains
        for instruction in chain.instructions
        if instruction.instrArgsType == call_type
    ]


def _delegate(file: ProgramFile, delegate: Any, call: Any) -> Delegate:
    from executorch.backends.vulkan.serialization.vulkan_graph_serialize import (
        flatbuffer_to_vk_graph,
    )

    processed = delegate.processed
    if processed.location == table("DataLocation").SEGMENT:
        data = b"".join(map(bytes, file.segment(processed.index).chunks()))
    else:
        data = bytes(file.program.backendDelegateData[processed.index].data)
    if text(delegate.id) != "VulkanBackend" or len(data) < _HEADER.size:
        raise broken(file.path, "a delegate is not Vulkan's", got=text(delegate.id))
    magic, _, start, size, _, _ = _HEADER.unpack_from(data)
    if magic != b"VH00" or data[start + 4 : start + 8] != b"VK00":
        raise broken(file.path, "a delegate's data are damaged", got=repr(data[:8]))
    graph = flatbuffer_to_vk_graph(data[start : start + size])
    named = {text(entry.key): entry.segmentIndex for entry in file.program.namedData or ()}
    constants = []
    for constant in graph.constants:
        if constant.named_key not in named:
            raise broken(file.path, "a constant is missing", got=constant.named_key or "no name")
        constants.append(file.segment(named[constant.named_key]))
    return Delegate(graph, constants, [int(value) for value in call.args])


def inspect(method: str, model: Path, program: ExportedProgram) -> list[Outcome]:
    """Hold a method against its graph.

    Args:
        model: a `.pte` with the method, alone or among others.
        program: the graph as exported, its weights bound.

    Raises:
        PteError: the file can't be read.
    """
    written = delegates(read(model), method)
    outside = describe(model).methods[method].operators
    claims = {
        "delegated": (
            "Every op of the graph has to be there, once, and nothing that no one knows.",
            _delegated(written, outside, program),
        ),
        "weights": (
            "The bytes that the GPU gets are the scheme's, packed as its kernels read them.",
            _weights(written, program),
        ),
        "state": (
            "What a call leaves behind has to be where the next one reads it.",
            _state(written, program),
        ),
        "signature": (
            "Runners pass and expect tensors of these shapes and dtypes.",
            _signature(model, method, written, program),
        ),
    }
    outcomes = []
    for name, (reason, wrong) in claims.items():
        faults = list(wrong)
        detail = "; ".join(faults[:5]) or None
        outcomes.append(condition(f"{method}.{name}", not faults, reason, detail))
    return outcomes


def _delegated(
    written: Sequence[Delegate], outside: Mapping[str, int], program: ExportedProgram
) -> Iterator[str]:
    """Ops that are missing, doubled or unknown."""
    chain = Counter(call.name for delegate in written for call in delegate.graph.chain)
    graph = Counter(node.target for node in program.graph.nodes if node.op == "call_function")
    graph[aten.embedding.default] -= sum(outside.get(name, 0) for name in _EMBEDDINGS)
    for kind, (before, after) in _SAME.items():
        wanted = sum(graph[op] for op in before)
        got = sum(chain[name] for name in after)
        if got != wanted:
            yield f"{kind}: {got} instead of {wanted}"
    for delegate in written:
        numbers = [getattr(value.value, "double_val", 0.5) for value in delegate.graph.values]
        if any(number.is_integer() for number in numbers):
            yield "a float stands for an integer"  # the serializer has one value for 0 and 0.0
    known = _OTHERS.union(*(after for _, after in _SAME.values()))
    yield from (f"{name} was not expected" for name in chain if name not in known)
    yield from (f"{name} is left to the CPU" for name in outside if name not in _OUTSIDE)


def _weights(written: Sequence[Delegate], program: ExportedProgram) -> Iterator[str]:
    """Weights that differ, or are not where they belong."""
    left = [set(range(len(delegate.constants))) for delegate in written]
    for kind in ("linear", "convolution", "norm", "embedding"):
        before, after = _SAME[kind]
        users = [node for node in program.graph.nodes if node.target in before]
        calls = [
            (index, call)
            for index, delegate in enumerate(written)
            for call in delegate.graph.chain
            if call.name in after
        ]
        # Where the counts differ, `_delegated` says so.
        for node, (index, call) in zip(users, calls, strict=False):
            name, wanted = _expected(node, call.name, program)
            for argument, data in zip(_WEIGHTS[call.name], wanted, strict=True):
                constant = written[index].constant_of(call.args[argument])
                if constant is None:
                    if data is not None:
                        yield f"{name}: no constant"
                    continue
                left[index].discard(constant)
                if data is None or written[index].constants[constant].sha256() != data:
                    yield f"{name}: other bytes in argument {argument} of {call.name}"
    # What is left: buffers, such as caches, and single numbers.
    buffers = {_sha256(_tensor(program, name)) for name in program.graph_signature.buffers}
    for delegate, constants in zip(written, left, strict=True):
        for constant in constants:
            extent = delegate.constants[constant]
            if extent.size > 8 and extent.sha256() not in buffers:
                yield f"a constant of {extent.size} bytes is not the graph's"


def _expected(node: Node, name: str, program: ExportedProgram) -> tuple[str, list[bytes | None]]:
    """A weight's name, and the hashes of what an op call has of it; None where nothing."""
    position = 0 if node.target is aten.embedding.default else 1
    if node.target is aten.rms_norm.default:
        position = 2
    target, weight = _parameter(cast("Node", node.args[position]), program)
    has_bias = node.target in (aten.linear.default, aten.conv1d.default)
    bias = node.args[2] if has_bias and len(node.args) > 2 else None
    if hasattr(weight, "qdata") != ("q4gsw" in name):
        # Quantized, and an op that does not know it, or the other way round.
        parts = [b""] * (len(_WEIGHTS[name]) - has_bias)
    elif "q4gsw" in name:
        packed, scales, sums = pack_int4(weight)
        parts = [_sha256(packed), _sha256(scales)]
        if name == "et_vk.linear_dq8ca_q4gsw.default":
            parts.append(_sha256(sums))
        if name == "et_vk.embedding_q4gsw.default":
            parts[1] = _sha256(cast("Any", weight).scale)
    else:
        parts = [_sha256(weight)]
    hashes: list[bytes | None] = list(parts)
    if has_bias:
        tensor = None if bias is None else _parameter(cast("Node", bias), program)[1]
        if tensor is not None and "q4gsw" in name:
            tensor = _padded(tensor, 4)
        hashes.append(None if tensor is None else _sha256(tensor))
    return target, hashes


def pack_int4(weight: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A quantized (N, K) weight as Vulkan's kernels read it.

    Args:
        weight: torchao's: `qdata` int8 of -8 to 7, `scale` (N, K / group).

    Returns:
        Values, two a byte, each plus 8: (N, K / 2) uint8, the first in the low half. Scales
        (K / group, N) and sums of each group's values, int32, likewise: N padded with zeros
        to a multiple of 4 and of 8.
    """
    values = weight.qdata.numpy().astype(np.int16)
    rows, width = values.shape
    shifted = (np.pad(values, ((0, 0), (0, -width % 8))) + 8).astype(np.uint8)
    packed = shifted[:, 0::2] | (shifted[:, 1::2] << 4)
    sums = values.reshape(rows, weight.scale.shape[1], -1).sum(axis=2, dtype=np.int32)
    return (
        torch.from_numpy(packed),
        _padded(weight.scale.t(), 4),
        _padded(torch.from_numpy(sums).t(), 8),
    )


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % multiple))


def _parameter(node: Node, program: ExportedProgram) -> tuple[str, Tensor]:
    """Name and content of the parameter that a node is, or dequantizes."""
    while node.op != "placeholder":
        node = node.all_input_nodes[0]
    name = program.graph_signature.inputs_to_parameters[node.name]
    return name, program.state_dict[name]


def _tensor(program: ExportedProgram, name: str) -> Tensor:
    content = program.state_dict if name in program.state_dict else program.constants
    return cast("Tensor", content[name])


def _sha256(tensor: Tensor) -> bytes:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(cast("Any", data)).digest()


def _state(written: Sequence[Delegate], program: ExportedProgram) -> Iterator[str]:
    """State that is not written in place, or in another form than it is read."""
    wanted = sorted(_sha256(_tensor(program, name)) for name in mutated_buffers(program))
    got = []
    for delegate in written:
        values = delegate.graph.values
        prepacked = {call.args[1] for call in delegate.graph.chain if call.name == _PREPACK}
        for call in delegate.graph.chain:
            result = call.args[-1]
            if call.name == _PREPACK or result not in prepacked:
                continue
            constant = cast("int", delegate.constant_of(result))
            got.append(delegate.constants[constant].sha256())
            source, target = values[call.args[0]].value, values[result].value
            if _form(source) != _form(target):
                yield f"{call.name} writes state as another kind of memory than it reads"
    if sorted(got) != wanted:
        yield f"{len(got)} tensors written in place, of {len(wanted)} of the graph's"


def _form(tensor: Any) -> tuple[Any, ...]:
    return tensor.datatype, tensor.storage_type, tensor.memory_layout


def mutated_buffers(program: ExportedProgram) -> list[str]:
    """Buffers that a call of an exported graph writes."""
    buffers = program.graph_signature.inputs_to_buffers
    return [
        buffers[target.name]
        for node in program.graph.nodes
        if node.target in (aten.index_copy_.default, aten.copy_.default)
        and (target := node.args[0]).name in buffers
    ]


def _signature(
    model: Path, method: str, written: Sequence[Delegate], program: ExportedProgram
) -> Iterator[str]:
    """Shapes or dtypes that differ, of the method or where a delegate meets it."""
    described = describe(model).methods[method]
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    for kind, names, values in (
        ("input", signature.user_inputs, described.inputs),
        ("output", signature.user_outputs, described.outputs),
    ):
        wanted = [_fake(nodes[str(name)].meta["val"]) for name in names]
        got = [(value.dtype, value.sizes) for value in values]
        if len(got) != len(wanted) or not all(map(_fits, got, wanted)):
            yield f"{kind}s {got} instead of {wanted}"
    plan = next(p for p in read(model).program.executionPlan if text(p.name) == method)
    for delegate in written:
        graph = delegate.graph
        ids = [*graph.input_ids, *graph.output_ids]
        if len(ids) != len(delegate.arguments):
            yield f"a delegate of {len(ids)} arguments gets {len(delegate.arguments)}"
            continue
        for number, argument in zip(ids, delegate.arguments, strict=True):
            tensor, value = graph.values[number].value, plan.values[argument].val
            sizes = [] if value.sizes is None else [int(size) for size in value.sizes]
            if list(tensor.dims) != sizes:
                yield f"a delegate's tensor of {tensor.dims} is {sizes} outside"


def _fake(value: Tensor) -> tuple[str, tuple[int | None, ...]]:
    """Dtype and sizes; None for one that varies."""
    sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
    return str(value.dtype).removeprefix("torch."), sizes


def _fits(got: tuple[Any, Any], wanted: tuple[str, Iterable[int | None]]) -> bool:
    sizes = tuple(wanted[1])
    return (
        got[0] == wanted[0]
        and len(got[1]) == len(sizes)
        and all(w is None or g == w for g, w in zip(got[1], sizes, strict=True))
    )
