"""Quantized weights: chosen by torchao, kept in safetensors, laid out for export.

Weights are torchao's `IntxUnpackedToInt8Tensor`: int8 storage of int4 or int8 values, a
scale per group in the model's dtype, zero points of zero. ExecuTorch's backends recognize
the ops that it exports to.

Scales come from torchao's affine choice, not from its HQQ search: the search's bytes
depend on the CPU that ran it, and two builds must give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxUnpackedToInt8Tensor,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup

from voxtral_build.errors import ConfigError
from voxtral_build.matrix import Component, Quant
from voxtral_build.tensor_file import write_tensors
from voxtral_build.weights import parameter_names, read_tensors

_PARTS = ("qdata", "scale", "zero_point")
_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int8: "I8"}


def torchao_config(quant: Quant) -> Any:
    """torchao's configuration of a quantization."""
    granularity = PerGroup(quant.group_size) if quant.group_size else PerAxis(0)
    if quant.type == "8da4w":
        return Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4,  # type: ignore[attr-defined]  # torch's stubs lack it
            weight_granularity=granularity,
        )
    if quant.type == "8w":
        return IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=granularity)
    raise ValueError(f"nothing to quantize: {quant.type}")


def quantizes_activations(quant: Quant) -> bool:
    """Whether linears quantize their inputs as they run."""
    return quant.type.startswith("8da")


def quantized_names(model: nn.Module, component: Component, quant: Quant) -> set[str]:
    """Parameters that `quant` applies to: weights of linears, or of the embedding.

    Convolutions and norms are never quantized.

    Raises:
        ConfigError: the group size does not divide a layer's width; names the layer and
            the sizes that would do.
    """
    if quant.type == "none":
        return set()
    kind = nn.Embedding if component == "embedding" else nn.Linear
    names = set()
    for module_name, module in model.named_modules():
        name = f"{module_name}.weight"
        if not isinstance(module, kind) or name not in parameter_names(model, component):
            continue
        width = module.weight.shape[-1]
        if quant.group_size and width % quant.group_size:
            sizes = [size for size in (32, 64, 128, 256) if width % size == 0]
            raise ConfigError(
                f"{quant.type} with group size {quant.group_size} does not fit layer {module_name}",
                got=f"a weight of width {width}",
                allowed=f"group sizes {', '.join(map(str, sizes)) or 'none of the usual'}, "
                "or 0 (per axis)",
                next_step=f"set another group_size for the {component} in config/matrix.yaml",
            )
        names.add(name)
    return names


def quantize_tensor(weight: Tensor, quant: Quant) -> IntxUnpackedToInt8Tensor:
    """Quantize one (N, K) weight."""
    with torch.device("meta"):
        holder = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    holder.weight = nn.Parameter(weight, requires_grad=False)
    quantize_(holder, torchao_config(quant))
    chosen: IntxUnpackedToInt8Tensor = holder.weight.data
    if quant.type != "8da4w" or not quant.group_size:
        return chosen
    # XNNPACK keeps the scales of 4-bit groups in bf16. Rounded before the weights are, the
    # eager model is the model that runs; rounded there alone, every weight would be off by
    # up to 2^-9. (torchao's weight_scale_dtype does the same, but rounds 1 / scale as well.)
    return IntxUnpackedToInt8Tensor.from_hp(
        weight,
        chosen.block_size,
        chosen.target_dtype,
        activation_quantization=chosen.activation_quantization,
        intx_choose_qparams_algorithm=None,
        custom_scale=chosen.scale.bfloat16().to(weight.dtype),
        custom_zero_point=chosen.zero_point,
    )


def placeholder(shape: torch.Size, quant: Quant, dtype: torch.dtype) -> IntxUnpackedToInt8Tensor:
    """A quantized weight of the right layout without content, for exporting a graph."""
    # torchao itself makes the layout, from the smallest weight that has it.
    rows, width = shape
    pattern = quantize_tensor(torch.zeros(1, width, dtype=dtype), quant)
    parts = (
        getattr(pattern, part).new_empty((rows, *getattr(pattern, part).shape[1:]))
        for part in _PARTS
    )
    return _like(pattern, *parts)


def _like(pattern: IntxUnpackedToInt8Tensor, *parts: Tensor) -> IntxUnpackedToInt8Tensor:
    return IntxUnpackedToInt8Tensor(
        *parts,
        pattern.target_dtype,
        pattern.block_size,
        pattern.dtype,
        pattern.activation_quantization,
    )


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


def write_component(
    path: Path,
    model: nn.Module,
    component: Component,
    quant: Quant,
    dtype: torch.dtype,
    tensors: Iterator[tuple[str, Tensor]],
) -> str:
    """Quantize a component's tensors one at a time, as they come, into a file.

    Args:
        path: the safetensors file; a quantized weight `x` is stored as `x.qdata`,
            `x.scale` and `x.zero_point`.
        model: on the meta device; tells names and shapes.
        tensors: (name, float tensor) in the order of `parameter_names`.

    Returns:
        The file's sha256.
    """
    quantized = quantized_names(model, component, quant)
    layout = placeholders(model, component, quant, dtype)
    announced = {
        part: (_SAFETENSORS_NAMES[tensor.dtype], tuple(tensor.shape))
        for name, value in layout.items()
        for part, tensor in _stored(name, value)
    }
    metadata = {"component": component, "quant": quant.slug, "dtype": str(dtype)}
    with write_tensors(path, announced, metadata) as writer:
        for name, tensor in tensors:
            value = tensor.to(dtype)
            if name in quantized:
                value = quantize_tensor(value, quant)
            for part, stored in _stored(name, value):
                writer.add(part, [stored.contiguous().view(-1).view(torch.uint8).numpy().tobytes()])
        return writer.sha256()


def _stored(name: str, value: Tensor) -> list[tuple[str, Tensor]]:
    if isinstance(value, IntxUnpackedToInt8Tensor):
        return [(f"{name}.{part}", getattr(value, part)) for part in _PARTS]
    return [(name, value)]


def load_tensors(
    checkpoint: Path,
    weights: Path | None,
    model: nn.Module,
    component: Component,
    quant: Quant,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """A component's tensors: quantized from `weights`, or the checkpoint's own where None."""
    if weights is None:
        return read_tensors(checkpoint, parameter_names(model, component), dtype)
    return read_component(weights, model, component, quant, dtype)


def dequantize(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values as plain tensors, so that linears do not quantize their inputs."""
    return {
        name: tensor.dequantize() if isinstance(tensor, IntxUnpackedToInt8Tensor) else tensor
        for name, tensor in tensors.items()
    }


def read_component(
    path: Path, model: nn.Module, component: Component, quant: Quant, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Read what `write_component` wrote; the file stays mapped, not copied."""
    layout: Mapping[str, Tensor] = placeholders(model, component, quant, dtype)
    with safe_open(str(path), framework="pt") as file:
        return {
            name: _like(pattern, *(file.get_tensor(f"{name}.{part}") for part in _PARTS))
            if isinstance(pattern, IntxUnpackedToInt8Tensor)
            else file.get_tensor(name)
            for name, pattern in layout.items()
        }
