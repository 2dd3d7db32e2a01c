"""Scaled dot-product attention, one class per kind of kernel, behind one face.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads (G divides H),
D head dimension. Queries come as (B, T, H, D); keys and values come in the layout of the
cache that the attention family pairs with the kernel; the result is (B, T, H * D).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxtral_build.model import custom_ops
from voxtral_build.model.kv_cache import (
    KVCache,
    Positions,
    RingKVCache,
    SequenceKV,
    StandardRingKVCache,
    StaticKVCache,
    start_position,
)

# Finite, so that a kernel that meets a block of masked keys computes exp(0) - to be scaled
# away later - and not exp(-inf + inf), which is NaN.
MASKED = -1e9
# A power of two, so that bf16 holds it: -1e9 rounded to bf16 is above -1e9, from where on
# ExecuTorch's Metal kernel leaves masked keys out.
_MPS_MASKED = -(2.0**30)


class KeyValues(Protocol):
    """What attention asks of a cache; see `kv_cache`."""

    window: int | None
    limit: int | None

    def update(self, positions: Positions, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...

    def key_positions(self, positions: Positions) -> Tensor: ...


def visible(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """Which keys each query may attend to: itself and the window - 1 positions before it.

    Args:
        query_positions: (T,) int64.
        key_positions: (S,) int64; negative where a slot holds nothing.
        window: in positions, or None for all that came before.

    Returns:
        (T, S) bool.
    """
    # int32 halves the largest temporary; positions beyond 2^31 are five years of audio.
    keys = key_positions.to(torch.int32).unsqueeze(0)
    distance = query_positions.to(torch.int32).unsqueeze(1) - keys
    seen = (keys >= 0) & (distance >= 0)
    return seen if window is None else seen & (distance < window)


class SDPA(nn.Module):
    """Attention by `llama::custom_sdpa`: keys and values [B, S, G, D], float32 inside."""

    heads_first = False

    def __init__(self, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
        custom_ops.load()
        super().__init__()
        self.dim = n_heads * head_dim

    def make_mask(self, positions: Positions, kv: KeyValues, dtype: torch.dtype) -> Tensor | None:
        """(T, S) float32 additive mask, or None where the kernel's own causal rule serves."""
        if kv.window is None:
            return None
        seen = visible(positions.absolute, kv.key_positions(positions), kv.window)
        return torch.where(seen, 0.0, MASKED)

    def forward(
        self, positions: Positions, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> Tensor:
        batch, length = q.shape[:2]
        # With a mask the kernel reads all S keys and its start argument plays no part.
        start = positions.start if mask is None else 0
        y = torch.ops.llama.custom_sdpa(
            q.float(), k.float(), v.float(), start, mask, 0.0, mask is None
        )
        return y.view(batch, length, self.dim).type_as(q)


class StandardSDPA(nn.Module):
    """Attention by `F.scaled_dot_product_attention`: keys and values [B, G, S, D]."""

    heads_first = True

    def __init__(self, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.dim = n_heads * head_dim
        self.enable_gqa = n_heads != n_kv_heads

    def make_mask(self, positions: Positions, kv: KeyValues, dtype: torch.dtype) -> Tensor | None:
        """(1, 1, T, S) bool, True where a query attends."""
        seen = visible(positions.absolute, kv.key_positions(positions), kv.window)
        return seen.unsqueeze(0).unsqueeze(0)

    def forward(
        self, positions: Positions, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> Tensor:
        batch, length = q.shape[:2]
        y = self.attend(q.transpose(1, 2), k, v, mask)
        return y.transpose(1, 2).reshape(batch, length, self.dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q (B, H, T, D), k and v (B, G, S, D) -> (B, H, T, D)."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.enable_gqa)


class MpsSDPA(StandardSDPA):
    """Attention by the kernel that PyTorch has for MPS: keys and values [B, G, S, D].

    It reads each key/value head for all query heads of its group, without copies of it, and
    the mask as numbers of the queries' dtype, whatever dtype the mask has
    (https://github.com/pytorch/executorch/pull/17997).
    """

    def make_mask(self, positions: Positions, kv: KeyValues, dtype: torch.dtype) -> Tensor:
        """(T, S) additive mask of `dtype`; finite, since -inf came out as an empty transcript
        (https://github.com/pytorch/executorch/pull/19695)."""
        seen = visible(positions.absolute, kv.key_positions(positions), kv.window)
        return torch.where(seen, 0.0, max(_MPS_MASKED, torch.finfo(dtype).min)).to(dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        y, _ = torch.ops.aten._scaled_dot_product_attention_math_for_mps(
            q, k, v, mask, enable_gqa=self.enable_gqa
        )
        return cast("Tensor", y)


@dataclass(frozen=True)
class AttentionFamily:
    """Cache and attention classes that belong together; a backend hands one to the model.

    Attributes:
        name: names the graphs that are exported with it.
        sdpa: attention class.
        flat_cache: decoder cache of the offline mode.
        ring_cache: cache of the streaming mode, decoder and encoder.
        scalar_start: whether the classes want the start position as a scalar; compilers
            that can't carry a data-dependent scalar get tensors only.
        symbolic_sizes: whether an input's size that varies has to be a symbol of its own,
            and not a multiple of one: code that AOTInductor generates learns the sizes of
            its inputs only.
    """

    name: str
    sdpa: type[SDPA | StandardSDPA]
    flat_cache: type[KVCache | StaticKVCache]
    ring_cache: type[RingKVCache | StandardRingKVCache]
    scalar_start: bool
    symbolic_sizes: bool

    def sequence(self, window: int | None) -> SequenceKV:
        """Keys and values of a whole sequence, in the layout of `sdpa`."""
        return SequenceKV(window, heads_first=self.sdpa.heads_first)

    def positions(self, absolute: Tensor, kv: KeyValues) -> Positions:
        """Positions of one call on a cache; the scalar only where something reads it."""
        if self.scalar_start and kv.limit is not None:
            return Positions(absolute, start_position(absolute, kv.limit))
        return Positions(absolute, None)


CUSTOM_SDPA = AttentionFamily(
    "custom_sdpa", SDPA, KVCache, RingKVCache, scalar_start=True, symbolic_sizes=False
)
STANDARD = AttentionFamily(
    "standard",
    StandardSDPA,
    StaticKVCache,
    StandardRingKVCache,
    scalar_start=False,
    symbolic_sizes=False,
)
MPS_MATH = AttentionFamily(
    "mps_math",
    MpsSDPA,
    StaticKVCache,
    StandardRingKVCache,
    scalar_start=False,
    symbolic_sizes=True,
)
FAMILIES = {family.name: family for family in (CUSTOM_SDPA, STANDARD, MPS_MATH)}
