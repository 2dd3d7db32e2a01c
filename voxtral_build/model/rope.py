"""Rotary position embedding, computed as positions come, so that none is too large.

Source: Su et al., RoFormer (2021), with Mistral's interleaved pairs: dimensions 2i and
2i + 1 turn together, as the checkpoint's q and k rows are ordered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voxtral_build.model.layers import RuntimeBuffers


class RotaryEmbedding(RuntimeBuffers):
    """Cosines and sines of the rotation at given positions."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        self.register_buffer("inv_freq", torch.empty(head_dim // 2), persistent=False)

    def reset_runtime_buffers(self, dtype: torch.dtype) -> None:
        # Always float32: a bf16 frequency is wrong by whole turns after some minutes.
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        self.inv_freq = 1.0 / (self.theta**exponents)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions (T,) int64 -> cos, sin: (1, T, 1, head_dim // 2) float32."""
        angles = torch.outer(positions.float(), self.inv_freq)
        angles = angles.unsqueeze(0).unsqueeze(2)  # broadcasts over batch and heads
        return angles.cos(), angles.sin()


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys.

    Args:
        x: (B, T, n_heads, head_dim), any float dtype; rotated in float32.
        cos, sin: (1, T, 1, head_dim // 2) float32.

    Returns:
        The rotated tensor, in shape and dtype of `x`.
    """
    # reshape + unbind, not stride-2 slices: slices export to index arithmetic that
    # compilers handle badly.
    real, imag = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack((real * cos - imag * sin, real * sin + imag * cos), dim=-1)
    return turned.flatten(-2).type_as(x)
