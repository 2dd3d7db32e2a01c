"""Building blocks that encoder and decoder share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RuntimeBuffers(nn.Module, ABC):
    """A module with buffers that no checkpoint holds: caches, frequencies, conditions.

    They are registered as non-persistent, so that a strict `load_state_dict` speaks of
    the checkpoint alone, and made by `reset_runtime_buffers`, since a model built on the
    meta device has only their shapes.
    """

    @abstractmethod
    def reset_runtime_buffers(self, dtype: torch.dtype) -> None:
        """Make this module's own runtime buffers on the CPU (not its children's).

        Args:
            dtype: the model's dtype; what must stay in float32 ignores it.
        """


def reset_runtime_buffers(module: nn.Module, dtype: torch.dtype) -> None:
    """Make the runtime buffers of `module` and everything in it."""
    for child in module.modules():
        if isinstance(child, RuntimeBuffers):
            child.reset_runtime_buffers(dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, with a learned scale.

    `dim` is kept as an attribute: source transformations of ExecuTorch's LLM tools look
    for it.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.dim,), self.weight, self.eps)


class SwiGLU(nn.Module):
    """Gated feed-forward: w2(silu(w1 x) * w3 x), (B, T, dim) to the same shape."""

    def __init__(self, dim: int, hidden_dim: int, *, down_bias: bool) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=down_bias)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))
