"""Quantize one component, one tensor at a time, from file to file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from voxtral_build.checkpoint import PARAMS
from voxtral_build.matrix import Component, Dtype, Quant, Settings
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.quantization import write_component
from voxtral_build.weights import TORCH_DTYPES, parameter_names, read_tensors

log = logging.getLogger(__name__)


def run(
    *, checkpoint: Path, component: Component, quant: Quant, dtype: Dtype, output: Path
) -> None:
    """Write the component's weights, quantized, as safetensors.

    They serve both modes and every backend that takes the format.

    Raises:
        ConfigError: the group size does not fit a layer.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, Settings(), "offline")
    model = MethodBuilder(config, runtime, STANDARD).meta_model()
    names = parameter_names(model, component)
    torch_dtype = TORCH_DTYPES[dtype]

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for index, name in enumerate(names):
            yield name, read_tensors(checkpoint, [name], torch_dtype)[name]
            if (index + 1) * 10 // len(names) > index * 10 // len(names):
                log.info("%s %s: %d of %d tensors", component, quant.slug, index + 1, len(names))

    digest = write_component(output, model, component, quant, torch_dtype, tensors())
    log.info("%s: %d bytes, sha256 %s", output.name, output.stat().st_size, digest)
