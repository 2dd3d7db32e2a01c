"""Key/value caches.

Layouts: [B, S, H, D] for ExecuTorch's custom ops, [B, H, S, D] for the standard ones.
Every cache has the same face: `update` writes the new keys and values (B, T, H, D) and
gives back all of them in its own layout; `key_positions` tells which absolute position
each slot then holds (negative: none yet); `window` is how far back a query may look.

No cache keeps a position as state. What a slot holds follows from the position of the
newest entry alone, so nothing has to be reset between utterances: entries of an earlier
one lie at positions that the mask excludes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from voxtral_build.model import custom_ops
from voxtral_build.model.layers import RuntimeBuffers


class Positions(NamedTuple):
    """Where the tokens of one call stand.

    Attributes:
        absolute: (T,) int64, consecutive.
        start: the first of them as a scalar, where the attention family wants one
            (a symbolic integer during export), else None.
    """

    absolute: Tensor
    start: int | None


def start_position(absolute: Tensor, limit: int | None) -> int:
    """The first position as a scalar that stays symbolic in an exported graph.

    Args:
        absolute: (T,) int64.
        limit: slots of a flat cache, or None for a ring.
    """
    start = cast("int", absolute[0].item())
    # For the tracer: without these the scalar's range is unknown to every slice after it.
    check: Callable[[bool], None] = torch._check
    check(start >= 0)
    if limit is not None:
        check(start < limit)
        check(start + absolute.shape[0] <= limit)
    return start


def ring_key_positions(positions: Positions, slots: int) -> Tensor:
    """Absolute position held by each slot of a ring after the call's entries are written.

    Slot j holds the largest position p <= newest with p % slots == j.

    Returns:
        (slots,) int64; negative where nothing was written yet.
    """
    slot = torch.arange(slots)
    newest = positions.absolute[-1:]
    return slot + torch.div(newest - slot, slots, rounding_mode="floor") * slots


class Cache(RuntimeBuffers):
    """What the four caches share: storage, and a window.

    Attributes:
        slots: how many entries it holds.
        limit: positions that fit, or None for a ring.
    """

    slots: int
    limit: int | None

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, shape: tuple[int, int, int, int], window: int | None) -> None:
        super().__init__()
        self.shape = shape
        self.window = window
        self.register_buffer("k_cache", torch.empty(shape), persistent=False)
        self.register_buffer("v_cache", torch.empty(shape), persistent=False)

    def reset_runtime_buffers(self, dtype: torch.dtype) -> None:
        # Zeros, not garbage: a masked slot still enters as 0 x value, and 0 x NaN is NaN.
        self.k_cache = torch.zeros(self.shape, dtype=dtype)
        self.v_cache = torch.zeros(self.shape, dtype=dtype)

    @abstractmethod
    def update(self, positions: Positions, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v (B, T, H, D); give back all keys and values in the cache's layout."""

    @abstractmethod
    def key_positions(self, positions: Positions) -> Tensor:
        """(slots,) int64: the position each slot holds once the call's entries are written."""


class KVCache(Cache):
    """Flat cache [B, S, H, D] on `llama::update_cache`."""

    def __init__(self, max_seq_len: int, n_heads: int, head_dim: int, window: int | None) -> None:
        custom_ops.load()
        super().__init__((1, max_seq_len, n_heads, head_dim), window)
        self.slots = max_seq_len
        self.limit = max_seq_len

    def update(self, positions: Positions, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        torch.ops.llama.update_cache(k, self.k_cache, positions.start)
        torch.ops.llama.update_cache(v, self.v_cache, positions.start)
        return self.k_cache, self.v_cache

    def key_positions(self, positions: Positions) -> Tensor:
        return torch.arange(self.slots)


class StaticKVCache(Cache):
    """Flat cache [B, H, S, D] on `index_copy_`."""

    def __init__(self, max_seq_len: int, n_heads: int, head_dim: int, window: int | None) -> None:
        super().__init__((1, n_heads, max_seq_len, head_dim), window)
        self.slots = max_seq_len
        self.limit = max_seq_len

    def update(self, positions: Positions, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k_cache.index_copy_(2, positions.absolute, k.transpose(1, 2))
        self.v_cache.index_copy_(2, positions.absolute, v.transpose(1, 2))
        return self.k_cache, self.v_cache

    def key_positions(self, positions: Positions) -> Tensor:
        return torch.arange(self.slots)


class RingKVCache(Cache):
    """Ring cache [B, S, H, D] on `llama::update_cache_with_indices`.

    It has twice the window in slots: entries are written before attention reads, and with
    one window only, a call of T entries would overwrite T keys that its own first
    queries still need.
    """

    def __init__(self, window: int, n_heads: int, head_dim: int) -> None:
        custom_ops.load()
        super().__init__((1, 2 * window, n_heads, head_dim), window)
        self.slots = 2 * window
        self.limit = None

    def update(self, positions: Positions, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        indices = (positions.absolute % self.slots).unsqueeze(0)
        # The op's start argument plays no part once indices are given.
        torch.ops.llama.update_cache_with_indices(k, self.k_cache, 0, indices)
        torch.ops.llama.update_cache_with_indices(v, self.v_cache, 0, indices)
        return self.k_cache, self.v_cache

    def key_positions(self, positions: Positions) -> Tensor:
        return ring_key_positions(positions, self.slots)


class StandardRingKVCache(Cache):
    """Ring cache [B, H, S, D] on `index_copy_`; twice the window, as `RingKVCache`."""

    def __init__(self, window: int, n_heads: int, head_dim: int) -> None:
        super().__init__((1, n_heads, 2 * window, head_dim), window)
        self.slots = 2 * window
        self.limit = None

    def update(self, positions: Positions, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        indices = positions.absolute % self.slots
        self.k_cache.index_copy_(2, indices, k.transpose(1, 2))
        self.v_cache.index_copy_(2, indices, v.transpose(1, 2))
        return self.k_cache, self.v_cache

    def key_positions(self, positions: Positions) -> Tensor:
        return ring_key_positions(positions, self.slots)


class SequenceKV:
    """No cache: the keys and values of the sequence itself, for the offline encoder.

    Args:
        window: how far back a query may look; None is full causal attention.
        heads_first: give back [B, H, T, D] instead of [B, T, H, D].
    """

    limit: int | None = None

    def __init__(self, window: int | None, *, heads_first: bool) -> None:
        self.window = window
        self.heads_first = heads_first

    def update(self, positions: Positions, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.heads_first:
            return k.transpose(1, 2), v.transpose(1, 2)
        return k, v

    def key_positions(self, positions: Positions) -> Tensor:
        return positions.absolute
