"""The int4 product that PyTorch has for CUDA only, on the CPU, for tests.

Written from its kernel (aten/src/ATen/native/cuda/int4mm.cu): which lane of a warp finds which
weight where, in the operand B of the tensor cores' m16n8k16 product.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from unittest.mock import MagicMock

import torch
from torch import Tensor


@functools.lru_cache(maxsize=64)  # a model's weights, at every step
def unpack(packed: Tensor) -> Tensor:
    """int32 (N / 8, K / 128, 32, 4) -> int64 (N, K) of -8 to 7, word by word.

    A word is what a lane has of two tiles side by side, each 16 columns: of tile i the columns
    0, 1, 8 and 9 from twice the lane's place among four. Its eight values were put in as
    v[7] v[5] v[3] v[1] v[6] v[4] v[2] v[0], the last in the lowest bits.
    """
    row_tiles, super_tiles, lanes, words = packed.shape
    values = torch.empty(8 * row_tiles, 128 * super_tiles, dtype=torch.int64)
    for lane in range(lanes):
        for word in range(words):
            bits = packed[:, :, lane, word].long() & 0xFFFFFFFF
            for place, v in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
                tile, of_tile = 2 * word + v // 4, v % 4
                column = 16 * tile + 2 * (lane % 4) + (0, 1, 8, 9)[of_tile]
                values[lane // 4 :: 8, column::128] = (bits >> (4 * place) & 15) - 8
    return values


@torch.library.impl("aten::_weight_int4pack_mm", "CPU")
def weight_int4pack_mm(
    x: Tensor, packed: Tensor, group_size: int, scale_and_zero: Tensor
) -> Tensor:
    """x (M, K), packed as above, scales and zeros (K / group size, N, 2) -> (M, N)."""
    assert x.dtype == scale_and_zero.dtype == torch.bfloat16
    assert x.is_contiguous()
    assert group_size in (32, 64, 128, 256)
    values = unpack(packed)
    assert x.shape[1] == values.shape[1]
    assert scale_and_zero.shape == (x.shape[1] // group_size, values.shape[0], 2)
    scale, zero = (
        part.T.float().repeat_interleave(group_size, dim=1) for part in scale_and_zero.unbind(-1)
    )
    weight = (values * scale + zero).bfloat16()
    return (x.float() @ weight.float().T).bfloat16()


def cuda_backend():
    """ExecuTorch's CUDA backend; it imports Triton, which PyTorch's CPU build lacks.

    Nothing here runs a kernel: a stand-in serves, and is gone afterwards.
    """
    for name in ("torch._inductor.compile_fx", "torch._higher_order_ops.triton_kernel_wrap"):
        importlib.import_module(name)  # these must not find the stand-in
    stubs = {}
    with contextlib.suppress(ImportError):
        importlib.import_module("triton")
    if "triton" not in sys.modules:
        stubs = {name: MagicMock(name=name) for name in ("triton", "triton.language")}
        stubs["triton"].jit = lambda function=None, **_: function or (lambda kernel: kernel)
        stubs["triton"].language = stubs["triton.language"]
    sys.modules.update(stubs)
    try:
        return importlib.import_module("executorch.backends.cuda.cuda_backend").CudaBackend
    finally:
        for name in stubs:
            del sys.modules[name]
