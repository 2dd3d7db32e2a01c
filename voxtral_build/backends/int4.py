"""Linears with int4 weights and float activations, for backends with kernels for just those.

In an exported graph such a linear is three things: the weight's parts, their dequantization
by torchao's op, a linear. A backend's kernel takes the place of the latter two, and its own
form of the weight the place of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torchao.quantization import IntxUnpackedToInt8Tensor

from voxtral_build.backends.rewrites import bias_of, call, is_dequantization, linears


@dataclass(frozen=True)
class Int4Linear:
    """A linear whose weight is int4 with groups.

    Attributes:
        node: (activation, dequantized weight[, bias]).
        parameter: the weight's placeholder.
        weight: (N, K), values -8 to 7.
    """

    node: Node
    parameter: Node
    weight: IntxUnpackedToInt8Tensor

    @property
    def group_size(self) -> int:
        size: int = self.weight.block_size[1]
        return size

    def replace(self, program: ExportedProgram, kernel: Node, rows: Node) -> None:
        """Put a kernel's result, (rows, N), in the linear's place, and drop the weight.

        Args:
            rows: what `as_rows` gave.
        """
        activation, bias = cast("Node", self.node.args[0]), bias_of(self.node)
        with self.node.graph.inserting_before(self.node):
            out = (
                kernel if rows is activation else call(torch.ops.aten.unsqueeze.default, kernel, 0)
            )
            if bias is not None:
                out = call(torch.ops.aten.add.Tensor, out, bias)
        out.meta = dict(self.node.meta)
        self.node.replace_all_uses_with(out)
        dequantization = cast("Node", self.node.args[1])
        for node in (self.node, dequantization, *dequantization.all_input_nodes):
            node.graph.erase_node(node)
        _delete_parameter(program, self.parameter)


def int4_linears(program: ExportedProgram) -> Iterator[Int4Linear]:
    """All of a graph's, before weights are lifted out of torchao's tensor class."""
    names = program.graph_signature.inputs_to_parameters
    for node in linears(program.graph):
        weight = cast("Node", node.args[1])
        if not is_dequantization(weight):
            continue
        parameter = cast("Node", cast("Node", weight.args[0]).args[0])
        tensor = program.state_dict[names[parameter.name]]
        is_int4 = tensor.target_dtype == torch.int4  # type: ignore[attr-defined]
        if is_int4 and tensor.activation_quantization is None:
            yield Int4Linear(node, parameter, tensor)


def as_rows(linear: Int4Linear) -> Node:
    """A linear's activation (1, T, K) or (T, K) as (T, K), before the node that uses it.

    The batch is one in all methods: no size has to be computed to restore it.
    """
    activation = cast("Node", linear.node.args[0])
    if activation.meta["val"].dim() == 2:
        return activation
    return call(torch.ops.aten.reshape.default, activation, [-1, linear.weight.shape[1]])


def add_parameter(program: ExportedProgram, linear: Int4Linear, part: str, data: Tensor) -> Node:
    """A new weight of a graph, in front of the one that it is made from."""
    signature, old = program.graph_signature, linear.parameter
    target = f"{signature.inputs_to_parameters[old.name]}.{part}"
    with old.graph.inserting_before(old):
        node = old.graph.placeholder(f"{old.name}_{part}")
    node.meta["val"] = linear.node.meta["val"].fake_mode.from_tensor(data, static_shapes=True)
    spec = InputSpec(InputKind.PARAMETER, TensorArgument(node.name), target)
    signature.input_specs.insert(_index(program, old), spec)
    program.state_dict[target] = nn.Parameter(data, requires_grad=False)
    return node


def _delete_parameter(program: ExportedProgram, node: Node) -> None:
    spec = program.graph_signature.input_specs.pop(_index(program, node))
    del program.state_dict[cast("str", spec.target)]
    node.graph.erase_node(node)


def _index(program: ExportedProgram, placeholder: Node) -> int:
    specs = program.graph_signature.input_specs
    return next(i for i, spec in enumerate(specs) if spec.arg.name == placeholder.name)
