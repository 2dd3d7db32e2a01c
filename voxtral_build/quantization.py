"""Quantizing weights, by torchao.

Quantized weights are torchao's `IntxUnpackedToInt8Tensor`: int8 storage of int4 or int8
values, a scale per group, zero points of zero, or of any fraction where a type has them.
ExecuTorch's backends recognize the ops that it exports to. How they are kept in files is in
`quantized_file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quant_primitives import _choose_qparams_and_quantize_affine_hqq
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
    IntxChooseQParamsAlgorithm,
    IntxUnpackedToInt8TensorActivationQuantization,
)

from voxtral_build.axes import Component
from voxtral_build.errors import ConfigError
from voxtral_build.quant import Algorithm, Quant
from voxtral_build.weights import parameter_names

# torch's stubs lack the integers below 8 bits.
_TARGETS: dict[int, torch.dtype] = {4: torch.int4, 8: torch.int8}  # type: ignore[attr-defined]
_ALGORITHMS: dict[Algorithm, IntxChooseQParamsAlgorithm] = {
    "affine": IntxChooseQParamsAlgorithm.AFFINE,
    "hqq": IntxChooseQParamsAlgorithm.HQQ_SCALE_ONLY,
}


def quantizes_activations(quant: Quant) -> bool:
    """Whether linears quantize their inputs as they run."""
    return quant.type.startswith("8da")


def quantizable_names(model: nn.Module, component: Component) -> dict[str, int]:
    """Weights of linears, or of the embedding, and how wide each is.

    Convolutions, norms and biases are never quantized.
    """
    kind = nn.Embedding if component == "embedding" else nn.Linear
    ours = set(parameter_names(model, component))
    return {
        f"{name}.weight": module.weight.shape[-1]
        for name, module in model.named_modules()
        if isinstance(module, kind) and f"{name}.weight" in ours
    }


def quantized_names(model: nn.Module, component: Component, quant: Quant) -> set[str]:
    """Parameters that `quant` applies to.

    Raises:
        ConfigError: the group size does not divide a layer's width, and such layers are
            not to be left as they are; names the layer and the sizes that would do.
    """
    if quant.type == "none":
        return set()
    widths = quantizable_names(model, component)
    # A group of any size has whole bytes; a row of its own must have, too.
    fitting = {name for name, width in widths.items() if width % (quant.group_size or 2) == 0}
    misfits = [name for name in widths if name not in fitting]
    if misfits and not quant.skip_incompatible_shapes:
        name = misfits[0]
        sizes = [size for size in (32, 64, 128, 256) if widths[name] % size == 0]
        more = f" (and {len(misfits) - 1} more)" if len(misfits) > 1 else ""
        raise ConfigError(
            f"{quant.type} with group size {quant.group_size} does not fit layer "
            f"{name.removesuffix('.weight')}{more}",
            got=f"a weight of width {widths[name]}",
            allowed=f"group sizes {', '.join(map(str, sizes)) or 'none of the usual'}, "
            "or 0 (per axis)",
            next_step=f"set another group_size for the {component} in config/matrix.yaml, or "
            "skip_incompatible_shapes: true to leave such layers unquantized",
        )
    return fitting


@dataclass(frozen=True)
class ComponentSize:
    """What a component takes, before a backend packs it.

    Attributes:
        weights: its parameters.
        bytes: of their values and scales.
    """

    weights: int
    bytes: int


def component_size(
    model: nn.Module, component: Component, quant: Quant, dtype: torch.dtype
) -> ComponentSize:
    """Sizes by the scheme: packed values, and a scale for each row or group.

    The output projection and the embedding, one tensor in the checkpoint, count apart: they
    are in two units, each with its own copy.

    Raises:
        ConfigError: the group size does not fit a layer.
    """
    quantized = quantized_names(model, component, quant)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    shapes = {name: parameters[name].shape for name in parameter_names(model, component)}
    return ComponentSize(
        weights=sum(shape.numel() for shape in shapes.values()),
        bytes=sum(
            quantized_bytes(shape, quant, dtype)
            if name in quantized
            else shape.numel() * dtype.itemsize
            for name, shape in shapes.items()
        ),
    )


def quantized_bytes(shape: torch.Size, quant: Quant, dtype: torch.dtype) -> int:
    """A quantized (rows, width) weight with its scales and zeros, one each a row or group."""
    rows, width = shape
    groups = width // quant.group_size if quant.group_size else 1
    numbers = rows * groups * (2 if quant.zeros else 1)
    return rows * width * quant.bits // 8 + numbers * scale_dtype(quant, dtype).itemsize


def scale_dtype(quant: Quant, dtype: torch.dtype) -> torch.dtype:
    """What scales are rounded to: the model's dtype, or less where the kernels keep less.

    XNNPACK keeps the scales of int4 weights for int8 activations in bf16. Rounded before
    the weights are, the eager model is the model that runs; rounded there alone, every
    weight would be off by up to 2^-9.
    """
    return torch.bfloat16 if quant.type == "8da4w" else dtype


def quantize_tensor(weight: Tensor, quant: Quant) -> IntxUnpackedToInt8Tensor:
    """Quantize one (N, K) weight; rows are independent of each other.

    Args:
        weight: float32, or bf16 for a model in bf16.

    Returns:
        The weight, of `weight`'s dtype; scales (N, K / group size) in the same, with the
        values of `scale_dtype`.
    """
    if quant.zeros:
        return _quantize_with_zeros(weight, quant)
    values, dtype = weight.float(), weight.dtype
    block = (1, quant.group_size or weight.shape[1])
    target = _TARGETS[quant.bits]
    activations = (
        IntxUnpackedToInt8TensorActivationQuantization.INT8_ASYM_PER_TOKEN
        if quantizes_activations(quant)
        else None
    )
    chosen = IntxUnpackedToInt8Tensor.from_hp(
        values,
        block,
        target,
        activation_quantization=activations,
        intx_choose_qparams_algorithm=_ALGORITHMS[quant.algorithm],
    )
    rounded = scale_dtype(quant, dtype)
    if rounded != torch.float32:
        # (torchao's own weight_scale_dtype rounds 1 / scale as well: not the nearest values.)
        chosen = IntxUnpackedToInt8Tensor.from_hp(
            values,
            block,
            target,
            activation_quantization=activations,
            intx_choose_qparams_algorithm=None,
            custom_scale=chosen.scale.to(rounded).float(),
            custom_zero_point=chosen.zero_point,
        )
    return assemble(chosen, chosen.qdata, chosen.scale.to(dtype))


def _quantize_with_zeros(weight: Tensor, quant: Quant) -> IntxUnpackedToInt8Tensor:
    """int4 values from the least to the greatest weight of each group."""
    rows, width = weight.shape
    size, dtype = quant.group_size or width, weight.dtype
    groups = weight.float().view(rows, -1, size)
    if quant.algorithm == "hqq":
        _, scale, middle, _ = _choose_qparams_and_quantize_affine_hqq(
            weight, group_size=size, compute_dtype=torch.float32, device="cpu", raw_output=True
        )
        zero = -middle * scale
    else:
        zero = groups.amin(dim=-1)
        scale = (groups.amax(dim=-1) - zero) / 15
        scale[scale == 0] = 1  # all weights of a group are the same
    # Rounded before the weights are, as for `scale_dtype`.
    scale, zero = scale.to(dtype), zero.to(dtype)
    steps = (groups - zero.float().unsqueeze(-1)) / scale.float().unsqueeze(-1)
    qdata = steps.round().clamp(0, 15).view(rows, width).to(torch.int8) - 8
    return IntxUnpackedToInt8Tensor(
        qdata, scale, _zero_point(scale, zero), _TARGETS[4], (1, size), dtype, None
    )


def _zero_point(scale: Tensor, zero: Tensor) -> Tensor:
    """The value that stands for 0, of -8 to 7 and between; float32, whatever the model's dtype."""
    return -zero.float() / scale.float() - 8


def zeros(weight: IntxUnpackedToInt8Tensor) -> Tensor:
    """(N, groups): what is added to (value + 8) * scale, in the model's dtype.

    Exactly the numbers that `assemble` was given: a quotient in float32, multiplied again, is
    nearer to a number than the next of its dtype; in float32 itself it may be off by the last
    bit.
    """
    exact: Tensor = -(weight.zero_point.float() + 8) * weight.scale.float()
    return exact.to(weight.dtype)


def assemble(
    pattern: IntxUnpackedToInt8Tensor, qdata: Tensor, scale: Tensor, zero: Tensor | None = None
) -> IntxUnpackedToInt8Tensor:
    """A quantized weight of the kind of `pattern` from its parts.

    Args:
        qdata: int8 (N, K).
        scale: (N, groups), of the model's dtype.
        zero: the same, what is added to (value + 8) * scale, where the type has zeros.
    """
    return IntxUnpackedToInt8Tensor(
        qdata,
        scale,
        torch.zeros_like(scale, dtype=torch.int8) if zero is None else _zero_point(scale, zero),
        pattern.target_dtype,
        pattern.block_size,
        scale.dtype,
        pattern.activation_quantization,
    )


def placeholder(shape: torch.Size, quant: Quant, dtype: torch.dtype) -> IntxUnpackedToInt8Tensor:
    """A quantized weight of the right layout without content, for exporting a graph."""
    # torchao itself makes the layout, from the smallest weight that has it.
    rows, width = shape
    pattern = quantize_tensor(torch.zeros(1, width, dtype=dtype), quant.layout)
    qdata, scale = (
        part.new_empty((rows, *part.shape[1:])) for part in (pattern.qdata, pattern.scale)
    )
    return assemble(pattern, qdata, scale, scale if quant.zeros else None)


def placeholders(
    model: nn.Module, component: Component, quant: Quant, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Tensors without content for every parameter of a component: no memory is touched."""
    quantized = quantized_names(model, component, quant)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {
        name: placeholder(parameters[name].shape, quant, dtype)
        if name in quantized
        else torch.empty(parameters[name].shape, dtype=dtype)
        for name in parameter_names(model, component)
    }


def dequantize(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values as plain tensors, so that linears do not quantize their inputs."""
    return {
        name: tensor.dequantize() if isinstance(tensor, IntxUnpackedToInt8Tensor) else tensor
        for name, tensor in tensors.items()
    }
