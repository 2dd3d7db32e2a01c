"""Linears with packed weights, on kernels that ExecuTorch's runtime has without a delegate.

torchao's own ops have no kernels. What has is the lookup of rows in a quantized table
(`quantized_decomposed::embedding_byte`, `embedding_4bit`), scales per row or group, and the
quantization of each token's activations. A linear is then the lookup of all rows of its
weight and a product in float: the program holds the packed weight, and each call unpacks
it. That is slow, right, and as small as the scheme says.
"""

from __future__ import annotations

import operator
from typing import cast

import executorch.kernels.quantized  # noqa: F401  # out variants of its per-token ops
import torch
import torch.ao.quantization.fx._decomposed  # defines the ops of quantized_decomposed
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from voxtral_build.backends.rewrites import cast_to, is_dequantization, linears


def rewrite_quantized_linears(program: ExportedProgram) -> None:
    """Bring linears with quantized weights into the form described above, in place.

    The lookups are written as `embedding(dequantize(weight), rows)`: ExecuTorch's quantization
    fusion knows that as an embedding's, packs the weight and chooses the kernel.
    """
    graph = program.graph
    rows: dict[int, Node] = {}
    for linear in linears(graph):
        activation, weight = cast("list[Node]", linear.args[:2])
        if not is_dequantization(weight):
            continue
        values = weight.meta["val"]
        count = values.shape[0]
        if count not in rows:
            rows[count] = _row_numbers(graph, values.new_empty(count, dtype=torch.int64))
        with graph.inserting_before(linear):
            looked_up = graph.call_function(torch.ops.aten.embedding.default, (weight, rows[count]))
        looked_up.meta["val"] = values
        linear.update_arg(1, looked_up)
        if is_dequantization(activation):
            linear.update_arg(0, _round_per_token(graph, activation))
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _row_numbers(graph: Graph, like: Tensor) -> Node:
    """0, 1, ... as many as in `like`, of its dtype, at the head of the graph.

    Summed up from ones as the program runs: constant propagation, which leaves `full` alone,
    would fold a known index and the lookup with it, and write the weight in float.
    """
    first = next(node for node in graph.nodes if node.op == "call_function")
    aten = torch.ops.aten
    with graph.inserting_before(first):
        ones = graph.call_function(aten.full.default, ([like.shape[0]], 1), {"dtype": like.dtype})
        sums = graph.call_function(aten.cumsum.default, (ones, 0))
        numbers = graph.call_function(aten.sub.Scalar, (sums, 1))
    for node in (ones, sums, numbers):
        node.meta["val"] = like
    return numbers


def _round_per_token(graph: Graph, dequantized: Node) -> Node:
    """torchao's rounding of activations to int8 and back, by ops that have kernels.

    The kernel that chooses scales takes float32 only: of bf16 it ends the process.
    """
    quantized = cast("Node", dequantized.args[0])
    x = cast("Node", quantized.args[0])
    dtype, low, high = quantized.args[4:7]
    ops = torch.ops.quantized_decomposed
    model_dtype = x.meta["val"].dtype
    with graph.inserting_before(dequantized):
        x = cast_to(x, torch.float32)
        chosen = graph.call_function(ops.choose_qparams_per_token_asymmetric.default, (x, dtype))
        scale, zero_point = (
            graph.call_function(operator.getitem, (chosen, index)) for index in range(2)
        )
        rounded = graph.call_function(
            ops.quantize_per_token.default, (x, scale, zero_point, low, high, dtype)
        )
        back = graph.call_function(
            ops.dequantize_per_token.default,
            (rounded, scale, zero_point, low, high, dtype, torch.float32),
        )
        values = x.meta["val"]
        per_token = values[..., :1]
        scale.meta["val"] = per_token.to(torch.float64)
        zero_point.meta["val"] = per_token.to(torch.int64)
        rounded.meta["val"] = values.to(torch.int8)
        chosen.meta["val"] = (scale.meta["val"], zero_point.meta["val"])
        back.meta["val"] = values
        return cast_to(back, model_dtype)
