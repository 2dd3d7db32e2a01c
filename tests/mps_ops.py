"""The attention kernel that PyTorch has for MPS only, on the CPU, for tests.

Written from what ExecuTorch's Metal kernel does (backends/apple/metal/runtime/ops/op_sdpa.mm):
products and sums in float32, whatever the dtype; a mask read as numbers of the queries' dtype;
keys left out whose mask is -1e9 or less.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NAME = "aten::_scaled_dot_product_attention_math_for_mps"


@torch.library.impl(NAME, "CPU")
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
