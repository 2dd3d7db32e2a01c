"""Compile one unit: a graph and its weights become a one-method `.pte`.

For a backend with data files, a `.ptd` of the same name beside it.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from voxtral_build.axes import COMPONENT_OF
from voxtral_build.backends import BACKENDS
from voxtral_build.backends.lowering import lower_program, write_unit
from voxtral_build.checkpoint import PARAMS
from voxtral_build.graph import bind_weights, load_graph
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.quantized_file import load_tensors
from voxtral_build.settings import Settings
from voxtral_build.variants import Unit
from voxtral_build.weights import TORCH_DTYPES

log = logging.getLogger(__name__)


def run(
    *,
    checkpoint: Path,
    graph: Path,
    unit: Unit,
    weights: Path | None,
    settings: Settings,
    output: Path,
) -> None:
    """Write the unit.

    Args:
        checkpoint: the folder; its weights are read where `weights` is None.
        graph: the method's graph.
        weights: the component's quantized weights.
        output: the one-method `.pte`.

    Raises:
        BuildError: the graph is another version's, or the unit has data outside of the `.pte`
            that its backend does not tell of.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, unit.mode)
    backend = BACKENDS[unit.backend]
    builder = MethodBuilder(config, runtime, backend.family())
    model, component = builder.meta_model(), COMPONENT_OF[unit.method]
    dtype = TORCH_DTYPES[unit.dtype]
    tensors = load_tensors(checkpoint, weights, model, component, unit.quant, dtype)
    (module,) = builder.build([unit.method], tensors, dtype)
    program = bind_weights(load_graph(graph), module)
    started = time.monotonic()
    lowered = lower_program(unit.method, program, backend, unit.quant.packing_format)
    write_unit(lowered, output, backend)
    log.info(
        "%s: lowered in %.0f s, %d bytes",
        unit.slug,
        time.monotonic() - started,
        output.stat().st_size,
    )
