"""Exported graphs in the form that ExecuTorch's CUDA kernels take."""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from voxtral_build.backends.int4 import Int4Linear, add_parameter, as_rows, int4_linears
from voxtral_build.backends.rewrites import call

# Of aten::_weight_int4pack_mm: a tile is 8 rows of the weight by 16 columns, 8 tiles side by
# side make what a warp reads at once.
_ROWS, _COLUMNS = 8, 8 * 16

# Names of constants that are no part of the model.
_COUNTED = re.compile(r"(?:_lifted_tensor_)?constant\d+")


def widen_convolutions(program: ExportedProgram) -> None:
    """Make convolutions over time ones over an image of height 1, in place.

    Of the former AOTInductor makes calls of a kernel that the runtime does not have; of the
    latter, Triton code.
    """
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.conv1d.default):
        with node.graph.inserting_before(node):
            wide = _conv2d(*node.args, **node.kwargs)
        wide.meta = dict(node.meta)
        node.replace_all_uses_with(wide)
        node.graph.erase_node(node)
    program.graph_module.recompile()


def _conv2d(
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = (1,),
    padding: Any = (0,),
    dilation: Any = (1,),
    groups: int = 1,
) -> Node:
    """A `conv1d` of these arguments, as a `conv2d`."""
    image, kernel = (call(torch.ops.aten.unsqueeze.default, part, 2) for part in (x, weight))
    sizes = [[1, *stride], [0, *padding], [1, *dilation]]
    y = call(torch.ops.aten.conv2d.default, image, kernel, bias, *sizes, groups)
    return call(torch.ops.aten.squeeze.dim, y, 2)


def pack_linears(program: ExportedProgram) -> None:
    """Give int4 weights to `aten::_weight_int4pack_mm`, in its layout, in place."""
    for linear in list(int4_linears(program)):
        _pack(program, linear)
    program.graph_module.recompile()


def _pack(program: ExportedProgram, linear: Int4Linear) -> None:
    weight, size = linear.weight, linear.group_size
    height, width = weight.shape
    # A layer narrower than the layout is filled up: value 0 and scale 0.
    below, beside = -height % _ROWS, -width % _COLUMNS
    values = F.pad(weight.qdata, (0, beside, 0, below))
    scale = F.pad(weight.scale, (0, beside // size, 0, below))
    parts = {
        "packed": tile_pack(values),
        # For each group, then each row: a scale, and what is added after scaling.
        "scale_and_zero": torch.stack((scale, torch.zeros_like(scale)), dim=-1)
        .transpose(0, 1)
        .contiguous(),
    }
    packed, scale_and_zero = (
        add_parameter(program, linear, part, data) for part, data in parts.items()
    )
    with linear.node.graph.inserting_before(linear.node):
        rows = as_rows(linear)
        filled = call(torch.ops.aten.pad.default, rows, [0, beside]) if beside else rows
        out = call(torch.ops.aten._weight_int4pack_mm.default, filled, packed, size, scale_and_zero)
        if below:
            out = call(torch.ops.aten.slice.Tensor, out, 1, 0, height)
    linear.replace(program, out, rows)


def tile_pack(values: Tensor) -> Tensor:
    """int4 values in the order in which tensor cores take them (m16n8k16's B operand).

    What `aten::_convert_weight_to_int4pack` does with 8 inner tiles, which runs on a GPU only.

    Args:
        values: int8 (N, K), -8 to 7; N a multiple of 8, K of 128.

    Returns:
        int32 (N / 8, K / 128, 32, 4). Of a warp's 32 lanes, lane t has row t // 4. Its word w
        has columns 32 w + 2 (t % 4) + (0, 8, 16, 24), then the same plus 1, from the lowest
        4 bits up, each value plus 8.
    """
    height, width = values.shape
    nibbles = (values + 8).view(torch.uint8)
    # row tile, row; 128 columns, word, eight columns, lane, parity
    tiles = nibbles.view(height // _ROWS, _ROWS, width // _COLUMNS, 4, 4, 4, 2)
    words = tiles.permute(0, 2, 1, 5, 3, 6, 4).reshape(-1, 4, 2)
    packed = (words[..., 0] | words[..., 1] << 4).contiguous().view(torch.int32)
    return packed.view(height // _ROWS, width // _COLUMNS, 32, 4)


def name_scalars_apart() -> None:
    """Give scalars of different methods different names among a model's data, from now on.

    ExecuTorch names a weight by its place in the model, which is one model's over all methods,
    and what belongs to one compiled library by that library's hash. Constants lifted out of a
    graph, or folded by AOTInductor, are counted anew in each method, and it takes them for the
    former: the fifth of the encoder and the decoder's are two contents under one name.
    """
    from executorch.backends.cuda import cuda_weight_collector as collector

    known = collector._is_aoti_library_local_fqn

    def is_local(name: str) -> bool:
        return bool(known(name)) or _COUNTED.fullmatch(name) is not None

    if not known("_lifted_tensor_constant0"):
        collector._is_aoti_library_local_fqn = is_local
