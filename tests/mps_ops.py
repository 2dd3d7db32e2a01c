"""Kernels for MPS only, on the CPU, for tests: PyTorch's attention and torchao's linear.

Written from what ExecuTorch's Metal kernels do (backends/apple/metal/runtime/ops/op_sdpa.mm and
op_linear_4bit.mm): products and sums in float32, whatever the dtype; a mask read as numbers of
the queries' dtype; keys left out whose mask is -1e9 or less.
"""

from __future__ import annotations

import importlib
import math

import torch
from torch import Tensor

_SDPA = "aten::_scaled_dot_product_attention_math_for_mps"


@torch.library.impl(_SDPA, "CPU")
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """q (B, H, T, D), k and v (B, G, S, D) -> (B, H, T, D) and the weights (B, H, T, S)."""
    heads, groups = q.shape[1], k.shape[1]
    assert attn_mask is not None
    assert attn_mask.dtype == q.dtype == k.dtype == v.dtype
    assert torch.isfinite(attn_mask).all()
    assert (dropout_p, is_causal, dropout_mask, scale) == (0.0, False, None, None)
    assert enable_gqa == (heads != groups)
    mask = attn_mask.float()
    weights = torch.empty(*q.shape[:3], k.shape[2])
    out = torch.empty(q.shape)
    for head in range(heads):
        group = head // (heads // groups)
        scores = q[:, head].float() @ k[:, group].float().mT / math.sqrt(q.shape[-1]) + mask
        scores = scores.masked_fill(mask <= -1e9, -math.inf)
        weights[:, head] = scores.softmax(dim=-1)
        out[:, head] = weights[:, head] @ v[:, group].float()
    return out.to(q.dtype), weights.to(q.dtype)


def define_linears() -> None:
    """Define torchao's ops, which its library for macOS brings; their shapes are its own."""
    if hasattr(torch.ops.torchao, "_linear_fp_act_4bit_weight"):
        return
    for bits in range(1, 8):
        _TORCHAO.define(f"_pack_weight_{bits}bit(Tensor W) -> Tensor")
        _TORCHAO.define(
            f"_linear_fp_act_{bits}bit_weight"
            "(Tensor A, Tensor B, int group_size, Tensor S, Tensor Z) -> Tensor"
        )
    _TORCHAO.impl("_linear_fp_act_4bit_weight", linear_4bit, "CPU")
    importlib.import_module("torchao.experimental.ops.mps")


_TORCHAO = torch.library.Library("torchao", "FRAGMENT")


def linear_4bit(x: Tensor, packed: Tensor, group_size: int, scale: Tensor, zero: Tensor) -> Tensor:
    """x (M, K), packed uint8 (N, K / 2), scale and zero (N, K / group_size) -> (M, N)."""
    assert x.dim() == 2
    assert packed.dtype == torch.uint8
    assert x.dtype == scale.dtype == zero.dtype
    assert group_size in (32, 64, 128, 256)
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
    scale, zero = (part.float().repeat_interleave(group_size, dim=1) for part in (scale, zero))
    weight = nibbles * scale + zero
    return (x.float() @ weight.T).to(x.dtype)
