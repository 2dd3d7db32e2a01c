"""A component's quantized weights in a safetensors file, written a block of rows at a time.

Layout: a parameter `x` that is not quantized is stored under its name, in the model's
dtype. A quantized one (N, K) is `x.qdata` and `x.scale`:

- 8 bits: `x.qdata` int8 (N, K);
- 4 bits: `x.qdata` uint8 (N, K / 2), two values a byte, each plus 8, the one of the even
  column in the lower half (as XNNPACK and ExecuTorch's embedding kernels pack them);
- `x.scale` (N, K / group size), or (N, 1) per axis;
- `x.zero`, of the same shape, where the type has zeros.

A weight is (value * scale), or (stored value * scale + zero). The header's metadata say
component, quantization, dtype and layout. torchao's own support of safetensors keeps 4-bit
values in int8, with zero points that are all zero: twice the size.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torchao.quantization import IntxUnpackedToInt8Tensor

from voxtral_build.axes import Component
from voxtral_build.checkpoint import WEIGHTS
from voxtral_build.errors import BuildError
from voxtral_build.progress import Tenths
from voxtral_build.quant import Quant
from voxtral_build.quantization import (
    assemble,
    placeholders,
    quantizable_names,
    quantize_tensor,
    quantized_names,
    scale_dtype,
    zeros,
)
from voxtral_build.row_blocks import Pool, blocks, read_rows
from voxtral_build.tensor_file import TensorInfo, read_header, write_tensors
from voxtral_build.weights import checkpoint_key, parameter_names, read_tensors

log = logging.getLogger(__name__)

_LAYOUT = "1"
_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class QuantizedWeight:
    """What quantizing one weight did.

    Attributes:
        bits_per_weight: in the file, with the scales.
        relative_rms_error: |dequantized - weight| / |weight|, over all values.
    """

    bits_per_weight: float
    relative_rms_error: float


@dataclass(frozen=True)
class QuantizedComponent:
    """What was written.

    Attributes:
        bytes, sha256: of the file.
        weights: quantized weights, by the model's names.
        left_as_is: weights that the group size does not divide, unquantized.
    """

    bytes: int
    sha256: str
    weights: dict[str, QuantizedWeight]
    left_as_is: list[str]


def write_component(
    path: Path,
    checkpoint: Path,
    model: nn.Module,
    component: Component,
    quant: Quant,
    dtype: torch.dtype,
    threads: int,
) -> QuantizedComponent:
    """Quantize a component from file to file; no tensor is in memory whole.

    Args:
        path: the file to write.
        checkpoint: the folder of the weights.
        model: on the meta device; tells names and shapes.
        threads: cores to use. The bytes do not depend on it.

    Raises:
        ConfigError: the group size does not fit a layer.
    """
    quantized = quantized_names(model, component, quant)
    names = parameter_names(model, component)
    source = read_header(checkpoint / WEIGHTS)
    infos = {name: source.tensors[checkpoint_key(name)] for name in names}
    announced: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, info in infos.items():
        if name in quantized:
            announced |= _parts(name, info.shape, quant, dtype)
        else:
            announced[name] = (_SAFETENSORS_NAMES[dtype], info.shape)
    left = sorted(quantizable_names(model, component).keys() - quantized)
    metadata = _metadata(component, quant, dtype) | {"left_as_is": json.dumps(left)}
    total = sum(math.prod(info.shape) for info in infos.values())
    progress = Tenths(log, f"{component} {quant.slug}: quantized", total, "M parameters")
    weights = {}
    with (
        source.path.open("rb", buffering=0) as file,
        write_tensors(path, announced, metadata) as writer,
        Pool(threads) as pool,
    ):
        for name, info in infos.items():
            if name in quantized:
                work = _WeightQuantizer(file.fileno(), info, quant, dtype)
                writer.add(f"{name}.qdata", work.qdata(pool))
                writer.add(f"{name}.scale", [_bytes(work.scale)])
                if work.zero is not None:
                    writer.add(f"{name}.zero", [_bytes(work.zero)])
                weights[name] = work.result()
            else:
                rows = (read_rows(file.fileno(), info, block) for block in blocks(info.shape))
                writer.add(name, (_bytes(block.to(dtype)) for block in rows))
            progress.add(math.prod(info.shape))
        digest = writer.sha256()
    return QuantizedComponent(path.stat().st_size, digest, weights, left)


class _WeightQuantizer:
    """Quantizes one weight block by block, and sums up what that cost."""

    def __init__(self, file: int, info: TensorInfo, quant: Quant, dtype: torch.dtype):
        self._file, self._info, self._quant, self._dtype = file, info, quant, dtype
        _, shape = _parts("", info.shape, quant, dtype)[".scale"]
        # One allocation: a small one for each block, between the temporaries of the blocks,
        # would scatter the heap until it takes a gigabyte.
        self.scale = torch.empty(shape, dtype=scale_dtype(quant, dtype))
        self.zero = torch.empty_like(self.scale) if quant.zeros else None
        self._bytes = self.scale.nbytes * (2 if quant.zeros else 1)
        self._error = self._norm = 0.0

    def qdata(self, pool: Pool) -> Iterator[bytes]:
        """The bytes of the values; afterwards `scale`, `zero` and `result` are there."""
        for packed, error, norm in pool.map(self._block, blocks(self._info.shape)):
            self._bytes += len(packed)
            self._error += error
            self._norm += norm
            yield packed

    def _block(self, rows: tuple[int, int]) -> tuple[bytes, float, float]:
        # Inference mode, as torch has it, is a thread's own.
        with torch.inference_mode():
            weight = read_rows(self._file, self._info, rows).to(self._dtype)
            quantized = quantize_tensor(weight, self._quant)
            exact = weight.float()
            error = (quantized.dequantize().float() - exact).square().sum(dtype=torch.float64)
            norm = exact.square().sum(dtype=torch.float64)
            qdata = quantized.qdata
            packed = _bytes(pack_int4(qdata) if self._quant.bits == 4 else qdata)
            self.scale[slice(*rows)] = quantized.scale
            if self.zero is not None:
                self.zero[slice(*rows)] = zeros(quantized)
            return packed, float(error), float(norm)

    def result(self) -> QuantizedWeight:
        return QuantizedWeight(
            bits_per_weight=8 * self._bytes / math.prod(self._info.shape),
            relative_rms_error=math.sqrt(self._error / self._norm) if self._norm else 0.0,
        )


def _parts(
    name: str, shape: tuple[int, ...], quant: Quant, dtype: torch.dtype
) -> dict[str, tuple[str, tuple[int, ...]]]:
    rows, width = shape
    values = ("U8", (rows, width // 2)) if quant.bits == 4 else ("I8", (rows, width))
    groups = width // quant.group_size if quant.group_size else 1
    numbers = (_SAFETENSORS_NAMES[scale_dtype(quant, dtype)], (rows, groups))
    parts: dict[str, tuple[str, tuple[int, ...]]] = {
        f"{name}.qdata": values,
        f"{name}.scale": numbers,
    }
    return parts | {f"{name}.zero": numbers} if quant.zeros else parts


def _metadata(component: Component, quant: Quant, dtype: torch.dtype) -> dict[str, str]:
    return {
        "component": component,
        "quant": quant.values.slug,
        "dtype": str(dtype).removeprefix("torch."),
        "layout": _LAYOUT,
    }


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def pack_int4(values: Tensor) -> Tensor:
    """int8 (N, K) of -8 to 7 as uint8 (N, K / 2)."""
    shifted = (values + 8).view(torch.uint8)
    return shifted[:, ::2] | shifted[:, 1::2] << 4


def unpack_int4(packed: Tensor) -> Tensor:
    """uint8 (N, K / 2) as int8 (N, K) of -8 to 7."""
    values = torch.empty((packed.shape[0], 2 * packed.shape[1]), dtype=torch.int8)
    values[:, ::2] = (packed & 15).view(torch.int8) - 8
    values[:, 1::2] = (packed >> 4).view(torch.int8) - 8
    return values


def load_tensors(
    checkpoint: Path,
    weights: Path | None,
    model: nn.Module,
    component: Component,
    quant: Quant,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """A component's tensors: quantized from `weights`, or the checkpoint's own where None.

    Raises:
        BuildError: `weights` holds something else.
    """
    names = parameter_names(model, component)
    if weights is None:
        return read_tensors(checkpoint, names, dtype)
    return ComponentFile(weights, model, component, quant, dtype).read(names)


class ComponentFile:
    """Reads what `write_component` wrote, some tensors or all.

    Raises:
        BuildError: the file holds something else.
    """

    def __init__(
        self, path: Path, model: nn.Module, component: Component, quant: Quant, dtype: torch.dtype
    ) -> None:
        self.path = path
        self._quant, self._dtype = quant, dtype
        self._layout = placeholders(model, component, quant, dtype)
        with safe_open(str(path), framework="pt") as file:
            found = file.metadata() or {}
        wanted = _metadata(component, quant, dtype)
        if {key: found.get(key) for key in wanted} != wanted:
            raise BuildError(
                f"{path} holds other weights than this step needs",
                got=", ".join(f"{key} {found.get(key)}" for key in wanted),
                allowed=", ".join(f"{key} {value}" for key, value in wanted.items()),
                next_step="make it again with `voxtral-build quantize`",
            )

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Tensors by the model's names. The file stays mapped; 4-bit values are unpacked."""
        with safe_open(str(self.path), framework="pt") as file:

            def quantized(name: str, pattern: IntxUnpackedToInt8Tensor) -> Tensor:
                qdata, scale = (file.get_tensor(f"{name}.{part}") for part in ("qdata", "scale"))
                zero = file.get_tensor(f"{name}.zero") if self._quant.zeros else None
                values = unpack_int4(qdata) if self._quant.bits == 4 else qdata
                whole: Tensor = assemble(pattern, values, scale.to(self._dtype), zero)
                return whole

            return {
                name: quantized(name, pattern)
                if isinstance(pattern := self._layout[name], IntxUnpackedToInt8Tensor)
                else file.get_tensor(name)
                for name in names
            }
