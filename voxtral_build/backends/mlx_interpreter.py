"""The MLX backend's instructions on the CPU, by torch.

Apple's GPUs are not at hand where artifacts are built. This runs what was written for them,
instruction by instruction, with the values and the roundings of ExecuTorch's MLX runtime
(`backends/mlx/runtime/MLXInterpreter.h`): types are promoted as MLX promotes them, and each
operation rounds to the type of its result. What adds up within one operation does so in
float32, as MLX's kernels do, in another order.

Independent of how the instructions came to be: nothing of the lowering is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from voxtral_build.backends.mlx_program import Instruction, MlxProgram, Tid, Vid, dtype
from voxtral_build.errors import PteError

# Weights are dequantized as they are used, this many at once: 4 MB, which caches hold.
_DEQUANTIZED = 1 << 20
# Fields that name a dtype, and two of ExecuTorch's numbers for one.
_DTYPES = {"scalar_type", "dtype"}
_FLOAT, _BFLOAT16 = 6, 15


class Interpreter:
    """A method with its state, ready to be called.

    Args:
        program: as `read_program` gives it.
        wide: compute in float32 what the program has in bf16, so that a difference from
            another implementation in float32 is a mistake and no rounding.
    """

    def __init__(self, program: MlxProgram, *, wide: bool = False) -> None:
        unknown = {
            instruction.op for chain in program.chains for instruction in chain
        } - OPERATIONS.keys()
        if unknown:
            raise PteError(
                "the program has operations that this interpreter does not know",
                got=", ".join(sorted(unknown)),
                allowed=sorted(OPERATIONS),
            )
        self._program = program
        self._wide = wide
        self._constants = {tid: program.constant(tid) for tid in program.data}
        # As the runtime does: once, in place of placeholders among the constants.
        if program.init is not None:
            self._run(program.init, self._constants)
        self.reset()

    def reset(self) -> None:
        """Zero the state, as a program that was just loaded has it."""
        meta = self._program.meta
        self._state = {
            tid: self._widened(torch.zeros(meta[tid].sizes, dtype=meta[tid].dtype))
            for tid in self._program.state
        }

    @property
    def state(self) -> dict[str, Tensor]:
        """Caches and the like, by the names of the method's buffers."""
        return {self._program.names[tid]: tensor for tid, tensor in self._state.items()}

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the method once.

        Raises:
            ValueError: the inputs are not those of the method.
            PteError: an instruction asks for what is not known here.
            RuntimeError, TypeError: an instruction cannot be computed.
        """
        program = self._program
        if len(inputs) != len(program.inputs):
            raise ValueError(f"{len(inputs)} inputs instead of {len(program.inputs)}")
        for tid, tensor in zip(program.inputs, inputs, strict=True):
            if not program.meta[tid].fits(tensor):
                raise ValueError(
                    f"{program.names[tid]} is {tensor.dtype} {tuple(tensor.shape)}, which "
                    f"{program.meta[tid]} does not allow"
                )
        tensors = self._constants | self._state | dict(zip(program.inputs, inputs, strict=True))
        self._run(program.main, tensors)
        self._state = {tid: tensors[tid] for tid in program.state}
        return tuple(
            self._widened(tensors[tid]) if self._wide else tensors[tid].to(program.meta[tid].dtype)
            for tid in program.outputs
        )

    def _widened(self, tensor: Tensor) -> Tensor:
        return tensor.float() if self._wide and tensor.dtype == torch.bfloat16 else tensor

    def _run(self, chain: int, tensors: dict[Tid, Tensor]) -> None:
        values: dict[Vid, int] = {}

        def resolve(field: Any) -> Any:
            if isinstance(field, Tid):
                return self._widened(tensors[field])
            if isinstance(field, Vid):
                return values[field]
            return [resolve(item) for item in field] if isinstance(field, list) else field

        for instruction in self._program.chains[chain]:
            out = instruction.fields["out"]
            arguments = {k: resolve(v) for k, v in instruction.fields.items() if k != "out"}
            if self._wide:
                for name in _DTYPES & arguments.keys():
                    if arguments[name] == _BFLOAT16:
                        arguments[name] = _FLOAT
            result = _perform(instruction, arguments)
            if isinstance(out, Vid):
                values[out] = result
            else:
                tensors[out] = result


def _perform(instruction: Instruction, arguments: dict[str, Any]) -> Any:
    try:
        return OPERATIONS[instruction.op](**arguments)
    except Exception as error:
        shown = {
            name: tuple(value.shape) if isinstance(value, Tensor) else value
            for name, value in arguments.items()
        }
        error.add_note(f"in {instruction.op} of {shown}")
        raise


def _promote(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one dtype. Unlike torch's, MLX's scalars count as any tensor does."""
    common = tensors[0].dtype
    for tensor in tensors[1:]:
        common = torch.promote_types(common, tensor.dtype)
    return [tensor.to(common) for tensor in tensors]


def _binary(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda a, b: operation(*_promote(a, b))


def _unary(operation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def named(x: Tensor) -> Tensor:  # torch's own calls it otherwise
        return operation(x)

    return named


def _gelu(x: Tensor, approximate: str) -> Tensor:
    if approximate != "none":
        raise PteError(f"this interpreter does not know GELU by {approximate}")
    # The runtime makes it of four operations, each of which rounds.
    half, root = (torch.tensor(value, dtype=x.dtype) for value in (0.5, math.sqrt(0.5)))
    return half * (x * (1 + torch.erf(root * x)))


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight.float()).to(x.dtype)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, *, causal: bool
) -> Tensor:
    """(B, H, T, D), (B, G, S, D), (B, G, S, D) and a (.., T, S) mask: H is a multiple of G."""
    length, keys = q.shape[2], k.shape[2]
    groups = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.float().repeat_interleave(groups, dim=1) for x in (k, v))
    scores = (q.float() * scale) @ wide_k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:  # the last query sees the last key
        seen = torch.ones(length, keys, dtype=torch.bool).tril(keys - length)
        scores = scores.masked_fill(~seen, -math.inf)
    return (scores.softmax(-1) @ wide_v).to(q.dtype)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Values of rows of uint32 words, (.., K) uint8, the lowest bits first."""
    if bits not in (4, 8):
        raise PteError(f"this interpreter does not know weights of {bits} bits")
    octets = packed.contiguous().view(torch.uint8)
    if bits == 4:
        octets = torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)
    return octets


def _affine(mode: str, biases: Tensor | None) -> Tensor:
    if mode != "affine" or biases is None:
        raise PteError(f"this interpreter does not know weights of mode {mode}")
    return biases


def _quantized_matmul(
    x: Tensor, w: Tensor, scales: Tensor, biases: Tensor | None, group_size: int, bits: int,
    mode: str, *, transpose: bool,
) -> Tensor:  # fmt: skip
    """x (.., K) and weights (N, K) of scale * q + bias: (.., N)."""
    biases = _affine(mode, biases)
    if not transpose:
        raise PteError("this interpreter does not know weights that are not transposed")
    rows, groups = scales.shape
    block = max(1, _DEQUANTIZED // (groups * group_size))
    wide, parts = x.float(), []
    for start in range(0, rows, block):
        part = slice(start, start + block)
        values = unpack(w[part], bits).view(-1, groups, group_size).float()
        values.mul_(scales[part, :, None].float()).add_(biases[part, :, None].float())
        parts.append(wide @ values.flatten(1).T)
    return torch.cat(parts, dim=-1).to(torch.promote_types(x.dtype, scales.dtype))


def _dequantize(
    w: Tensor, scales: Tensor, biases: Tensor | None, group_size: int, bits: int, mode: str,
    global_scale: Tensor | None, dtype: int | None,
) -> Tensor:  # fmt: skip
    """(.., K / group) scales and packed values: (.., K)."""
    biases = _affine(mode, biases)
    if global_scale is not None:
        raise PteError("this interpreter does not know a global scale")
    values = unpack(w, bits).view(*scales.shape, group_size).to(scales.dtype)
    # MLX's kernel multiplies and adds in the dtype of the scales.
    result = (values * scales.unsqueeze(-1) + biases.unsqueeze(-1)).flatten(-2)
    return result if dtype is None else result.to(_dtype(dtype))


def _addmm(mat1: Tensor, mat2: Tensor, bias: Tensor | None, alpha: float, beta: float) -> Tensor:
    result = alpha * (mat1.float() @ mat2.float())
    kind = torch.promote_types(mat1.dtype, mat2.dtype)
    if bias is None:
        return result.to(kind)
    return (result + beta * bias.float()).to(torch.promote_types(kind, bias.dtype))


def _conv1d(x: Tensor, w: Tensor, stride: int, padding: int, dilation: int, groups: int) -> Tensor:
    """x (B, T, C) and weights (O, K, C / groups): (B, T', O)."""
    result = F.conv1d(
        x.float().transpose(1, 2),
        w.float().transpose(1, 2),
        None,
        stride,
        padding,
        dilation,
        groups,
    )
    return result.transpose(1, 2).to(torch.promote_types(x.dtype, w.dtype))


def _pad(x: Tensor, pad_width: list[int], mode: str, constant_value: float) -> Tensor:
    if mode != "constant":
        raise PteError(f"this interpreter does not know padding by {mode}")
    pairs = [pad_width[i : i + 2] for i in range(0, len(pad_width), 2)]
    return F.pad(x, [width for pair in reversed(pairs) for width in pair], value=constant_value)


def _slice(x: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    index = [slice(None)] * x.dim()
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _squeeze(x: Tensor, dims: list[int]) -> Tensor:
    return x.squeeze(tuple(dims)) if dims else x.squeeze()


def _take(x: Tensor, index: Tensor | int, axis: int) -> Tensor:
    if not isinstance(index, Tensor):
        return x.select(axis, index)
    # uint32 has no index_select; the bits are what is taken.
    bits = x.view(torch.int32) if x.dtype == torch.uint32 else x
    taken = bits.index_select(axis, index.flatten()).view(x.dtype)
    return taken.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _arange(start: int, stop: int, step: int, scalar_type: int | None) -> Tensor:
    kind = torch.int32 if scalar_type is None else _dtype(scalar_type)
    return torch.arange(start, stop, step, dtype=kind)


def _index_copy(dst: Tensor, update: Tensor, indices: Tensor, axis: int) -> Tensor:
    if indices.dtype != torch.int64 or indices.dim() != 1:
        raise TypeError(f"the runtime wants int64 indices, got {indices.dtype}")
    return dst.index_copy(axis, indices, update.to(dst.dtype))


def _where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    x, y = _promote(x, y)
    return torch.where(condition, x, y)


_dtype = dtype  # `dtype` is also a field of an instruction

OPERATIONS: dict[str, Callable[..., Any]] = {
    "ARange": _arange,
    "Add": _binary(torch.add),
    "AddInt": lambda a, b: a + b,
    "Addmm": _addmm,
    "AsType": lambda x, scalar_type: x.to(_dtype(scalar_type)),
    "BitwiseAnd": _binary(torch.bitwise_and),
    "Concatenate": lambda tensors, axis: torch.cat(_promote(*tensors), dim=axis),
    "Conv1D": _conv1d,
    "Cos": _unary(torch.cos),
    "Dequantize": _dequantize,
    "ExpandDims": lambda x, axis: x.unsqueeze(axis),
    "FloorDivide": _binary(torch.floor_divide),
    "FloorDivideInt": lambda a, b: a // b,
    "FullLike": lambda x, v, scalar_type: torch.full_like(
        x, v, dtype=None if scalar_type is None else _dtype(scalar_type)
    ),
    "Gelu": _gelu,
    "Greater": _binary(torch.gt),
    "GreaterEqual": _binary(torch.ge),
    "IdCopy": _unary(lambda x: x),
    "IndexCopy": _index_copy,
    "Less": _binary(torch.lt),
    "Multiply": _binary(torch.mul),
    "MultiplyInt": lambda a, b: a * b,
    "Pad": _pad,
    "QuantizedMatmul": _quantized_matmul,
    "RMSNorm": _rms_norm,
    "Remainder": _binary(torch.remainder),
    "Reshape": lambda x, shape: x.reshape(shape),
    "Sdpa": _sdpa,
    "Silu": _unary(lambda x: x * torch.sigmoid(x)),
    "Sin": _unary(torch.sin),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Stack": lambda tensors, axis: torch.stack(_promote(*tensors), dim=axis),
    "Subtract": _binary(torch.sub),
    "SubtractInt": lambda a, b: a - b,
    "SymSize": lambda a, dim: a.shape[dim],
    "Take": _take,
    "Transpose": lambda x, perm: x.permute(perm),
    "Where": _where,
}
