"""Exported graphs in the form that ExecuTorch's Metal kernels take."""

from __future__ import annotations

from typing import cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from voxtral_build.backends.int4 import Int4Linear, add_parameter, as_rows, int4_linears
from voxtral_build.backends.rewrites import call, linears, split_bias
from voxtral_build.errors import BuildError
from voxtral_build.quantization import zeros
from voxtral_build.quantized_file import pack_int4

# Of backends/apple/metal/runtime/ops/op_sdpa.mm; another fails when the program runs.
HEAD_DIMS = (64, 96, 128, 256)


def check_heads(program: ExportedProgram) -> None:
    """See to it that there is an attention kernel.

    Raises:
        BuildError: there is none for the model's head dimension.
    """
    attention = torch.ops.aten._scaled_dot_product_attention_math_for_mps.default
    for node in program.graph.find_nodes(op="call_function", target=attention):
        head_dim = cast("Node", node.args[0]).meta["val"].shape[-1]
        if head_dim not in HEAD_DIMS:
            raise BuildError(
                "ExecuTorch's Metal backend has no attention kernel for this model",
                got=f"head dimension {head_dim}",
                allowed=f"head dimensions {', '.join(map(str, HEAD_DIMS))}",
                next_step="take another backend for this checkpoint",
            )


def prepare_linears(program: ExportedProgram) -> None:
    """Bring linears into the forms that the runtime has kernels for, in place.

    - An int4 weight goes to torchao's kernel, as it is in the file.
    - A bias becomes an addition: with one, the code that AOTInductor generates makes a view
      of the bias with a stride of 0, which the runtime refuses.
    """
    for linear in list(int4_linears(program)):
        _to_torchao(program, linear)
    for node in linears(program.graph):
        split_bias(node)
    program.graph_module.recompile()


def _to_torchao(program: ExportedProgram, linear: Int4Linear) -> None:
    """activation x (nibble * scale + zero), all in one kernel."""
    weight = linear.weight
    parts = {
        "packed": pack_int4(weight.qdata),
        "scale": weight.scale.contiguous(),
        "zero": zeros(weight),
    }
    packed, scale, zero = (
        add_parameter(program, linear, part, data) for part, data in parts.items()
    )
    with linear.node.graph.inserting_before(linear.node):
        rows = as_rows(linear)
        kernel = call(
            torch.ops.torchao._linear_fp_act_4bit_weight.default,
            rows,
            packed,
            linear.group_size,
            scale,
            zero,
        )
    linear.replace(program, kernel, rows)
