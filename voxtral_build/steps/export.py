"""Export one method as a graph without weights; needs `params.json` only."""

from __future__ import annotations

import logging
from pathlib import Path

from voxtral_build.backends import attention_family
from voxtral_build.graph import export_method, save_graph, strip_weights
from voxtral_build.methods import MethodBuilder
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.settings import Settings
from voxtral_build.variants import Graph
from voxtral_build.weights import TORCH_DTYPES

log = logging.getLogger(__name__)


def run(*, params: Path, graph: Graph, settings: Settings, output: Path) -> None:
    """Write the graph of one method as `.pt2`."""
    config = ModelConfig.load(params)
    runtime = RuntimeConfig.resolve(config, settings, graph.mode)
    builder = MethodBuilder(config, runtime, attention_family(graph.attention))
    program = export_method(builder, graph.method, graph.quant, TORCH_DTYPES[graph.dtype])
    save_graph(strip_weights(program), output)
    log.info("%s: %d nodes", graph.slug, len(program.graph.nodes))
