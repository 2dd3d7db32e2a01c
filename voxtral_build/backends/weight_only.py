"""Linears with quantized weights and float activations, on XNNPACK.

XNNPACK has the kernels (fp32 activations; int8 or int4 weights with a scale per row), and
ExecuTorch's runtime runs them, but its partitioner knows quantized weights only beside
quantized activations. It then decomposes the linear and its dequantization, takes the
pieces without the scales, and the program computes nonsense in four times the size,
without an error. What is missing is here: a partitioner config that takes such a linear
whole, and a graph in the form that the serializer can write.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.ao.quantization.fx._decomposed  # defines dequantize_per_channel
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.config.gemm_configs import LinearConfig
from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, tag_as_implicit_q_dq
from torch.export import ExportedProgram
from torch.fx import Node

from voxtral_build.backends.rewrites import is_dequantization, linears, split_bias


class WeightOnlyLinearConfig(LinearConfig):  # type: ignore[misc]  # executorch has no types
    """ExecuTorch's config of linears, and those of which only the weight is quantized."""

    def get_deps(self, node: Node, ep: ExportedProgram) -> tuple[bool, list[Node]]:
        """Whether the linear can be taken, and what must be taken with it."""
        activation, weight = cast("list[Node]", node.args[:2])
        if not is_dequant(weight) or is_dequant(activation):
            return cast("tuple[bool, list[Node]]", super().get_deps(node, ep))
        # The precision only says where to look for the weight: behind its dequantization.
        valid, deps = self._get_weight_deps(node, ep, ConfigPrecisionType.STATIC_QUANT)
        tag_as_implicit_q_dq(weight)  # part of the linear, not an op to run
        return valid, deps


def partitioner_configs() -> list[type[Any]]:
    """All of XNNPACK's configs, with ours for linears."""
    return [
        WeightOnlyLinearConfig if config is LinearConfig else config
        for config in ALL_PARTITIONER_CONFIGS
    ]


def rewrite_weight_only_linears(program: ExportedProgram) -> None:
    """Bring linears of which only the weight is quantized into XNNPACK's form, in place.

    - The bias becomes an addition: for a bias the serializer asks how the activation is
      quantized.
    - The weight's dequantization becomes one per channel: of torchao's the serializer makes
      one group as wide as the row, for which, with int4, there is no kernel.
    """
    graph = program.graph
    for linear in linears(graph):
        activation, weight = cast("list[Node]", linear.args[:2])
        if not is_dequantization(weight) or is_dequantization(activation):
            continue
        qdata, _, scale, zero_point, dtype, low, high = weight.args[:7]
        with graph.inserting_before(linear):
            per_channel = graph.call_function(
                torch.ops.quantized_decomposed.dequantize_per_channel.default,
                (qdata, scale, zero_point, 0, low, high, dtype),
            )
        per_channel.meta = dict(weight.meta)
        linear.update_arg(1, per_channel)
        split_bias(linear)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
