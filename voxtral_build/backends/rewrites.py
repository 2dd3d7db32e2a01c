"""Changes to exported graphs that more than one backend needs."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Graph, Node


def linears(graph: Graph) -> list[Node]:
    """The graph's linears: (activation, weight[, bias])."""
    return list(graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))


def bias_of(linear: Node) -> Node | None:
    """A linear's bias, where it has one."""
    return cast("Node", linear.args[2]) if len(linear.args) > 2 else None


def split_bias(linear: Node) -> None:
    """Make the bias of a linear an addition of its own."""
    bias = bias_of(linear)
    if bias is None:
        return
    with linear.graph.inserting_after(linear):
        add = linear.graph.call_function(torch.ops.aten.add.Tensor, (linear, bias))
    add.meta = dict(linear.meta)
    linear.replace_all_uses_with(add, delete_user_cb=lambda user: user is not add)
    linear.args = linear.args[:2]


def is_dequantization(node: Node) -> bool:
    """Whether it is torchao's: of a quantized weight, or of activations."""
    return node.target is torch.ops.torchao.dequantize_affine.default


def cast_to(node: Node, dtype: torch.dtype) -> Node:
    """The node, or at the insertion point of its graph a cast of it."""
    if node.meta["val"].dtype == dtype:
        return node
    converted = node.graph.call_function(torch.ops.aten.to.dtype, (node, dtype))
    converted.meta["val"] = node.meta["val"].to(dtype)
    return converted


def call(target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call of an op, at the insertion point of its first argument's graph.

    Its shape is the op's own, from those of its arguments.
    """
    graph = next(arg for arg in args if isinstance(arg, Node)).graph
    node = graph.call_function(target, args, kwargs)
    values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
    # As in tracing: ops made of others would take a size that varies for its example.
    with enable_python_dispatcher():
        node.meta["val"] = target(*values, **kwargs)
    return node
