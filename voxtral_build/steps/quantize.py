"""Quantize one component, from file to file, a block of rows at a time."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path

from voxtral_build.axes import Component, Dtype
from voxtral_build.checkpoint import PARAMS
from voxtral_build.errors import ConfigError
from voxtral_build.files import write_text
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.quant import EMBEDDING_TYPES, LINEAR_TYPES, Quant
from voxtral_build.quantized_file import write_component
from voxtral_build.settings import Settings
from voxtral_build.weights import TORCH_DTYPES

log = logging.getLogger(__name__)


def run(
    *,
    checkpoint: Path,
    component: Component,
    quant: Quant,
    dtype: Dtype,
    threads: int,
    output: Path,
) -> None:
    """Write the component's weights, quantized, as safetensors; a report beside them.

    They serve both modes and every backend that takes the format. The report, `output`
    with the ending `.json`, has the file's sha256, each weight's error and bits, and which
    layers were left as they are.

    Raises:
        ConfigError: nothing that the component can be quantized to, or the group size does
            not fit a layer.
    """
    types = EMBEDDING_TYPES if component == "embedding" else LINEAR_TYPES
    if quant.type == "none" or quant.type not in types:
        raise ConfigError(
            f"the {component} cannot be quantized so",
            got=quant.slug,
            allowed=[name for name in types if name != "none"],
            next_step="take another type; what is not quantized needs no file of its own",
        )
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, Settings(), "offline")
    model = MethodBuilder(config, runtime, STANDARD).meta_model()
    started = time.monotonic()
    written = write_component(
        output, checkpoint, model, component, quant, TORCH_DTYPES[dtype], threads
    )
    report = {"component": component, "quant": quant.model_dump(), "dtype": dtype}
    write_text(output.with_suffix(".json"), json.dumps(report | asdict(written), indent=1) + "\n")
    if written.left_as_is:
        log.info("left unquantized: %s", ", ".join(written.left_as_is))
    log.info(
        "%s: %d bytes in %.0f s, sha256 %s",
        output.name,
        written.bytes,
        time.monotonic() - started,
        written.sha256,
    )
