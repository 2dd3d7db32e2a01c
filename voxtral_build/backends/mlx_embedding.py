"""Embeddings of int8 weights in bf16, with the precision that they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node, map_arg


def scale_in_float32(program: ExportedProgram) -> None:
    """Take rows of int8 first, and scale them in float32, in place.

    MLX keeps a weight w = s q as s (q + 128) - 128 s, and its dequantization computes that
    in the dtype of s. In bf16 the product alone is off by up to half of s: as much as
    quantizing to int8 costs. (Of int4 it is a thirtieth of s; and matrix products dequantize
    in float32.) The graph then has what torchao computes in eager.

    Source: `affine_dequantize` and `dequantize` of the Metal kernels of MLX 0.32.2, which
    ExecuTorch 1.5.1 is built with.
    """
    graph = program.graph
    for embedding in graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default):
        weight, ids = embedding.args[:2]
        if weight.target is not torch.ops.torchao.dequantize_affine.default:
            continue
        qdata, block, scale, _, _, low, high = weight.args[:7]  # zero points are zeros
        if high - low < 255 or embedding.meta["val"].dtype != torch.bfloat16:
            continue
        with graph.inserting_before(embedding):
            rows = _wide(graph, _call(graph, torch.ops.aten.embedding.default, qdata, ids))
            scales = _wide(graph, _call(graph, torch.ops.aten.embedding.default, scale, ids))
            groups = scale.meta["val"].shape[1]
            rows = _call(graph, torch.ops.aten.unflatten.int, rows, -1, [groups, block[1]])
            scales = _call(graph, torch.ops.aten.unsqueeze.default, scales, -1)
            scaled = _call(graph, torch.ops.aten.mul.Tensor, rows, scales)
            scaled = _call(graph, torch.ops.aten.flatten.using_ints, scaled, -2, -1)
            result = _call(graph, torch.ops.aten.to.dtype, scaled, torch.bfloat16)
        embedding.replace_all_uses_with(result)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _wide(graph: Graph, node: Node) -> Node:
    return _call(graph, torch.ops.aten.to.dtype, node, torch.float32)


def _call(graph: Graph, op: Callable[..., Any], *args: Any) -> Node:
    """A call, with the shape and dtype of its result."""
    node = graph.call_function(op, args)
    node.meta["val"] = op(*map_arg(args, lambda argument: argument.meta["val"]))
    return node
