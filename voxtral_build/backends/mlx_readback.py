"""What was written for MLX, held against the graph that it was made from.

Apple's GPUs are not at hand where artifacts are built, so the file is read back: its
constants are unpacked and compared with the weights, its inputs, outputs, state and
operations with the graph's; and its instructions are run on the CPU beside the graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_map
from torchao.quantization import IntxUnpackedToInt8Tensor

from voxtral_build.backends.mlx_interpreter import Interpreter, unpack
from voxtral_build.backends.mlx_program import MlxProgram, read_program
from voxtral_build.errors import PteError
from voxtral_build.gates import Outcome, condition

# Of what is the same but for the order of float32 additions, over the largest output (at
# least 1); a wrong operand or weight is off by far more.
LARGEST_DIFFERENCE = 1e-4
# MLX rounds more often: it makes a GELU of several operations, and dequantizes an embedding of
# int4 in bf16, for three to five times the noise of rounding the result, the more the larger
# its groups.
LARGEST_NOISE = 8.0
_ROWS = 512
_TOKENS = 64  # fewer than any vocabulary has

# Operations that hold a model's work, by the graph's and by the payload's names. All others
# are told right from wrong by running them.
_OPERATIONS = {
    "linear": ("Addmm", "QuantizedMatmul"),
    "scaled_dot_product_attention": ("Sdpa",),
    "rms_norm": ("RMSNorm",),
    "conv1d": ("Conv1D",),
    "gelu": ("Gelu",),
    "silu": ("Silu",),
    "index_copy": ("IndexCopy",),
}
# What the backend calls the parts of a torchao weight: values, scales, zero points.
_PART = re.compile(
    r"(?P<module>.+)\.parametrizations\.(?P<name>\w+)\.original(?P<part>[012])"
    r"(?P<change>|_to_packed|_regrouped|_to_biases_dummy)"
)
_WHOLE, _VALUES, _SCALES = "", "0", "1"
_LITERAL = re.compile(r"_scalar_.+|_lifted_tensor_constant\d+")
_CHANNELS_LAST = "_channel_last"


def inspect(method: str, model: Path, program: ExportedProgram) -> list[Outcome]:
    """Hold a method's file against its graph; see `Backend.inspect`.

    The graph has to be as it was exported, not as `Backend.prepare` leaves it: what that
    changes is to be checked, too. Its state is not changed.
    """
    reason = "What no delegate takes, a program for MLX can't compute."
    try:
        written = read_program(model, method)
    except PteError as error:
        return [condition(f"{method}.mlx_delegate", False, reason, str(error))]
    faults = {
        "constants": (constant_faults, "Every weight has to be there with the values it has."),
        "interface": (interface_faults, "Runners pass tensors of these shapes and dtypes."),
        "operations": (operation_faults, "An operation that is not there computes nothing."),
    }
    outcomes = [condition(f"{method}.mlx_delegate", True, reason)]
    for name, (check, why) in faults.items():
        found = list(check(written, program))
        outcomes.append(
            condition(f"{method}.mlx_{name}", not found, why, "; ".join(found[:5]) or None)
        )
    if all(outcome.passed for outcome in outcomes):
        outcomes += run_beside(method, written, program)
    return outcomes


# --- constants ----------------------------------------------------------------------------


def constant_faults(written: MlxProgram, program: ExportedProgram) -> Iterator[str]:
    """What is wrong with the constants, each compared to the last bit."""
    weights, seen = _weights(program), set()
    for name, tid in written.constants.items():
        value = written.constant(tid)
        if _LITERAL.fullmatch(name):
            if value.numel() > 1:
                yield f"{name} is no number: {tuple(value.shape)}"
            continue
        found = _expected(name, weights)
        if found is None:
            yield f"{name} is no weight of the graph"
            continue
        key, part, wanted = found
        seen.add((key, part))
        got = _as_written(name, value, weights[key])
        same = (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if not same or not torch.equal(_bits(got), _bits(wanted)):
            yield f"{name} has not the values of {key}"
    for key, weight in weights.items():
        parts = (_VALUES, _SCALES) if isinstance(weight, IntxUnpackedToInt8Tensor) else (_WHOLE,)
        if any((key, part) not in seen for part in parts):
            yield f"{key} is missing"


def _weights(program: ExportedProgram) -> dict[str, Tensor]:
    """Parameters and buffers that the graph reads and never writes."""
    signature, state = program.graph_signature, state_names(program)
    used = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    return {
        spec.target: _tensor(program, spec.target)
        for spec in signature.input_specs
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
        and spec.target is not None
        and spec.target not in state
        and spec.arg.name in used
    }


def state_names(program: ExportedProgram) -> list[str]:
    """Buffers that operations of the graph write in place."""
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    return [
        names[node.args[0].name]
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        and names.get(node.args[0].name) is not None
    ]


def _tensor(program: ExportedProgram, name: str) -> Tensor:
    # Buffers that no checkpoint holds are with the constants.
    table = program.state_dict if name in program.state_dict else program.constants
    tensor: Tensor = table[name]
    return tensor


def _expected(name: str, weights: Mapping[str, Tensor]) -> tuple[str, str, Tensor] | None:
    """Which weight a constant holds, which part of it, and the values that it must have."""
    if name in weights:
        return name, _WHOLE, weights[name].detach()
    plain = name.removesuffix(_CHANNELS_LAST)
    if plain in weights:
        return plain, _WHOLE, weights[plain].detach().permute(0, 2, 1)
    match = _PART.fullmatch(name)
    key = f"{match['module']}.{match['name']}" if match else ""
    weight = weights.get(key)
    if match is None or not isinstance(weight, IntxUnpackedToInt8Tensor):
        return None
    # Of the zero points a placeholder: what stands there when it runs follows from the scales.
    placeholder = torch.tensor(0.0, dtype=weight.scale.dtype)
    parts = {_VALUES: weight.qdata, _SCALES: weight.scale}
    return key, match["part"], parts.get(match["part"], placeholder)


def _as_written(name: str, value: Tensor, weight: Tensor) -> Tensor:
    """A constant's values in the layout of the weight's own part."""
    if name.endswith("_to_packed"):
        assert isinstance(weight, IntxUnpackedToInt8Tensor)
        bits = 8 if weight.target_dtype == torch.int8 else 4
        return (unpack(value, bits).to(torch.int16) - (1 << bits - 1)).to(torch.int8)
    if name.endswith("_regrouped"):
        assert isinstance(weight, IntxUnpackedToInt8Tensor)
        groups = value.view(*weight.scale.shape, -1)
        # One scale that differs from its group's first shows as NaN.
        alike = (groups == groups[..., :1]).all(-1)
        return torch.where(alike, groups[..., 0], torch.nan)
    return value


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


# --- interface and operations --------------------------------------------------------------


def interface_faults(written: MlxProgram, program: ExportedProgram) -> Iterator[str]:
    """How inputs, outputs and state differ from the graph's."""
    signature = program.graph_signature
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    for kind, tids, names in (
        ("input", written.inputs, signature.user_inputs),
        ("output", written.outputs, signature.user_outputs),
    ):
        if len(tids) != len(names):
            yield f"{len(tids)} {kind}s instead of {len(names)}"
            continue
        for tid, name in zip(tids, names, strict=True):
            value, meta = values[str(name)], written.meta[tid]
            wanted = tuple(_upper_bound(size) for size in value.shape)
            if (meta.sizes, meta.dtype) != (wanted, value.dtype):
                yield (
                    f"{kind} {name} is {meta.dtype} {meta.sizes} instead of {value.dtype} {wanted}"
                )
    state = {name: _tensor(program, name) for name in state_names(program)}
    got = {written.names.get(tid, str(tid)): tid for tid in written.state}
    if got.keys() != state.keys():
        yield f"the state is {sorted(got)} instead of {sorted(state)}"
        return
    for name, tid in got.items():
        meta, tensor = written.meta[tid], state[name]
        if meta.varying or (meta.sizes, meta.dtype) != (tuple(tensor.shape), tensor.dtype):
            yield f"{name} is {meta.dtype} {meta.sizes} instead of {tensor.dtype} {tensor.shape}"


def _upper_bound(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    bound = size.node.shape_env.bound_sympy(size.node.expr)
    return int(bound.upper)


def operation_faults(written: MlxProgram, program: ExportedProgram) -> Iterator[str]:
    """Which operations are there in another number than in the graph."""
    counts = written.counts()
    graph = Counter(
        str(node.target.overloadpacket.__name__).rstrip("_")
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )
    for name, operations in _OPERATIONS.items():
        got = sum(counts[operation] for operation in operations)
        if got != graph[name]:
            yield f"{got} {' or '.join(operations)} for {graph[name]} {name}"
    for instruction in written.chains[written.main]:
        if instruction.op == "QuantizedMatmul":
            weights, scales = (
                _PART.fullmatch(written.names.get(instruction.fields[field], ""))
                for field in ("w", "scales")
            )
            if not weights or not scales or weights["module"] != scales["module"]:
                yield f"a product of weights and scales that do not belong together: {instruction}"


# --- running -------------------------------------------------------------------------------


def run_beside(method: str, written: MlxProgram, program: ExportedProgram) -> Iterator[Outcome]:
    """Run the instructions and the graph on the same inputs, call after call."""
    calls = list(example_calls(method, written, program))
    reason = "Both compute in float32: only the order of additions may differ."
    wide = _outputs(Eager(program, wide=True), calls)
    try:
        got = _outputs(Interpreter(written, wide=True), calls)
    except (PteError, RuntimeError, TypeError) as error:
        what = "; ".join([str(error), *getattr(error, "__notes__", ())])
        yield condition(f"{method}.mlx_difference", False, reason, what)
        return
    figure = float((got - wide).abs().max() / wide.abs().max().clamp(min=1))
    yield Outcome(
        gate=f"{method}.mlx_difference",
        figure=figure,
        max=LARGEST_DIFFERENCE,
        passed=figure <= LARGEST_DIFFERENCE,
        detail=f"{len(calls)} calls",
        reason=reason,
    )
    if torch.bfloat16 not in {meta.dtype for meta in written.meta.values()}:
        return
    noises = []
    for run in (Interpreter(written), Eager(program)):
        # Noise is alike in all calls, and each takes its time in a large model.
        rounded = _outputs(run, calls[:2])
        noises.append(float((rounded - wide[: len(rounded)]).norm()))
    ratio = noises[0] / max(noises[1], torch.finfo(torch.float32).tiny)
    yield Outcome(
        gate=f"{method}.mlx_noise",
        figure=ratio,
        max=LARGEST_NOISE,
        passed=ratio <= LARGEST_NOISE,
        reason="What rounding to bf16 costs on MLX, over what it costs the graph in eager.",
    )


def _outputs(run: Callable[..., Sequence[Tensor]], calls: Sequence[tuple[Tensor, ...]]) -> Tensor:
    return torch.cat([run(*inputs)[0].flatten().float() for inputs in calls])


def example_calls(
    method: str, written: MlxProgram, program: ExportedProgram
) -> Iterator[tuple[Tensor, ...]]:
    """Inputs of calls in a row: the first ones of an utterance, and at the end of a cache."""
    generator = torch.Generator().manual_seed(0)
    first = written.meta[written.inputs[0]]

    def floats(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(first.dtype)

    if method == "token_embedding":
        yield (torch.randint(_TOKENS, (1, min(_TOKENS, first.sizes[1])), generator=generator),)
        return
    if method == "audio_encoder":
        chunk = first.sizes[2] // written.meta[written.outputs[0]].sizes[1]
        for tokens in (1, 4):
            yield (floats(1, first.sizes[1], tokens * chunk),)
        return
    slots = max(written.meta[tid].sizes[2] for tid in written.state if written.meta[tid].rank == 4)
    bound = written.meta[written.inputs[1]]
    varies = bool(bound.varying)
    length = min(4, bound.sizes[0])
    end = slots - (slots % length or length)
    calls = [(0, length), (length, 1 if varies else length), (end, length)]
    if program.graph.find_nodes(op="call_function", target=torch.ops.aten.remainder.Scalar):
        calls.append((end + length, length))  # a ring goes on
    for start, count in calls:
        positions = torch.arange(start, start + count)
        shape = (1, count, first.sizes[2]) if varies else first.sizes
        yield floats(*shape), positions


class Eager(fx.Interpreter):
    """A graph in eager with a state of its own; in float32 where it has bf16, if asked to be.

    Weights are widened as they are read: at no time are there two of all.
    """

    def __init__(self, program: ExportedProgram, *, wide: bool = False) -> None:
        super().__init__(program.module(check_guards=False))
        self._wide = wide
        self._state = {
            name: self._widened(torch.zeros_like(self.fetch_attr(name)))
            for name in state_names(program)
        }

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        result = self.run(*inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._widened(super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in self._state:
            return self._state[target]
        return self._widened(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if self._wide:
            args, kwargs = tree_map(_no_bf16, (args, kwargs))
        if target is torch.ops.torchao.dequantize_affine.default:
            return _dequantize(*args)
        return self._widened(super().call_function(target, args, kwargs))

    def _widened(self, value: Any) -> Any:
        plain = type(value) in (Tensor, nn.Parameter)
        return value.float() if self._wide and plain and value.dtype == torch.bfloat16 else value


def _dequantize(
    qdata: Tensor,
    block: list[int],
    scale: Tensor,
    zero_point: Tensor,
    kind: torch.dtype,
    low: int,
    high: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """torchao's, some rows at once: its temporaries are several times the size of its result."""
    dequantize = torch.ops.torchao.dequantize_affine.default
    result = torch.empty(qdata.shape, dtype=dtype)
    parts = (torch.split(tensor, _ROWS) for tensor in (result, qdata, scale, zero_point))
    for rows, q, s, z in zip(*parts, strict=True):
        rows.copy_(dequantize(q, block, s, z, kind, low, high, dtype))
    return result


def _no_bf16(argument: Any) -> Any:
    return torch.float32 if argument is torch.bfloat16 else argument
