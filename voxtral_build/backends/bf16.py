"""Graphs in bf16 whose kernels would lose more than rounding does."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from voxtral_build.backends.rewrites import bias_of, cast_to, linears, split_bias


def add_up_in_float32(program: ExportedProgram) -> None:
    """Keep bf16 away from portable kernels that add up in it, in place.

    ExecuTorch's convolution and its linear with a bias add up in the tensors' dtype. In
    bf16, over the hundreds of products of one output, that makes 12 and 7 times the
    error of rounding inputs and outputs. A linear without a bias adds up in float32.
    """
    for linear in linears(program.graph):
        if bias_of(linear) is not None and _is_bf16(linear):
            split_bias(linear)
    convolutions = program.graph.find_nodes(
        op="call_function", target=torch.ops.aten.conv1d.default
    )
    for convolution in convolutions:
        if _is_bf16(convolution):
            _compute_in_float32(convolution)
    program.graph_module.recompile()


def _is_bf16(node: Node) -> bool:
    return bool(node.meta["val"].dtype == torch.bfloat16)


def _compute_in_float32(node: Node) -> None:
    """Cast a node's tensors to float32, and what it makes back to bf16."""
    graph = node.graph
    with graph.inserting_before(node):
        for argument in node.all_input_nodes:
            node.replace_input_with(argument, cast_to(argument, torch.float32))
    bf16 = dict(node.meta)
    node.meta["val"] = node.meta["val"].float()
    with graph.inserting_after(node):
        back = cast_to(node, torch.bfloat16)
    back.meta = bf16
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
