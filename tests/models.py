"""Small checkpoints and their eager methods, for tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from tests import mps_ops  # noqa: F401  # kernels that PyTorch has on macOS only
from voxtral_build.axes import COMPONENT_OF, Method, Mode
from voxtral_build.graph import bind_weights, export_method
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import CUSTOM_SDPA, AttentionFamily
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.quant import Quant
from voxtral_build.quantization import quantize_tensor, quantized_names
from voxtral_build.settings import Settings
from voxtral_build.steps.synth import Size, make_params, write_checkpoint
from voxtral_build.weights import parameter_names, read_tensors

# Grouped-query attention, attention wider and narrower than the model, windows that a
# hundred steps wrap several times; one layer each where lowering has to be quick.
TWO_LAYERS = Size(96, 2, 3, 32, 192, 20, 128, 2, 4, 2, 48, 192, 1280, 16)
ONE_LAYER = Size(64, 1, 2, 32, 96, 20, 96, 1, 4, 2, 32, 128, 1280, 16)
SETTINGS = Settings(max_seq_len=256)
NONE = Quant.parse("none")


@functools.cache
def checkpoint(size: Size = TWO_LAYERS, seed: int = 0) -> Path:
    """A random checkpoint, written once per process."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))
    write_checkpoint(make_params(size), seed, folder)
    return folder


def builder(
    folder: Path,
    mode: Mode,
    settings: Settings = SETTINGS,
    attention: AttentionFamily = CUSTOM_SDPA,
) -> MethodBuilder:
    config = ModelConfig.load(folder / "params.json")
    return MethodBuilder(config, RuntimeConfig.resolve(config, settings, mode), attention)


def eager(
    folder: Path,
    method: Method,
    mode: Mode,
    settings: Settings = SETTINGS,
    attention: AttentionFamily = CUSTOM_SDPA,
    quant: Quant = NONE,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A method with the checkpoint's weights."""
    build = builder(folder, mode, settings, attention)
    model, component = build.meta_model(), COMPONENT_OF[method]
    tensors = read_tensors(folder, parameter_names(model, component), dtype)
    for name in quantized_names(model, component, quant):
        tensors[name] = quantize_tensor(tensors[name], quant)
    (module,) = build.build([method], tensors, dtype)
    return module


def bound(
    folder: Path,
    method: Method,
    mode: Mode,
    attention: AttentionFamily,
    quant: Quant,
    dtype: torch.dtype = torch.float32,
) -> ExportedProgram:
    """A method's graph, exported without weights, and its weights."""
    program = export_method(builder(folder, mode, attention=attention), method, quant, dtype)
    module = eager(folder, method, mode, attention=attention, quant=quant, dtype=dtype)
    return bind_weights(program, module)


def random_mel(frames: int, seed: int = 0) -> torch.Tensor:
    """(1, 128, frames) in the range of log-mel values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(1, 128, frames, generator=generator) * 1.5 - 0.625


def random_embeds(length: int, dim: int, seed: int = 0) -> torch.Tensor:
    """(1, length, dim)."""
    return torch.randn(1, length, dim, generator=torch.Generator().manual_seed(seed))


def stream_encode(encode: nn.Module, mel: torch.Tensor) -> torch.Tensor:
    """mel (1, bins, T) through a streaming encoder, 8 frames a call."""
    outputs = [
        encode(mel[..., 8 * i : 8 * i + 8].contiguous(), torch.arange(4 * i, 4 * i + 4))
        for i in range(mel.shape[-1] // 8)
    ]
    return torch.cat(outputs, dim=1)


def stream_decode(decode: nn.Module, embeds: torch.Tensor, prefill: int) -> torch.Tensor:
    """The first `prefill` positions in one call, then one a call."""
    outputs = [decode(embeds[:, :prefill].contiguous(), torch.arange(prefill))]
    outputs += [
        decode(embeds[:, i : i + 1].contiguous(), torch.tensor([i]))
        for i in range(prefill, embeds.shape[1])
    ]
    return torch.cat(outputs, dim=1)


# Methods whose outputs depend on what came before, by mode.
OVER_TIME: list[tuple[Method, Mode]] = [
    ("audio_encoder", "offline"),
    ("encode_audio_chunk", "streaming"),
    ("text_decoder", "offline"),
    ("text_decoder", "streaming"),
]


@torch.no_grad()
def over_time(method: Method, step: Any, dtype: torch.dtype) -> torch.Tensor:
    """A method's outputs on random inputs, past several wraps of the rings, as float32."""
    if method == "audio_encoder":
        return step(random_mel(400).to(dtype)).float()
    if method == "encode_audio_chunk":
        return stream_encode(step, random_mel(400).to(dtype)).float()
    return stream_decode(step, random_embeds(120, 96).to(dtype), 16).float()
