"""The bridge from encoder frames to the decoder's embedding space."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from voxtral_build.model.config import ModelConfig


class AudioLanguageAdapter(nn.Module):
    """Joins consecutive encoder frames and projects them: Linear, GELU, Linear, no biases.

    `w_in` and `w_out` are `audio_language_projection.0` and `.2` of the checkpoint.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.downsample_factor = config.downsample_factor
        self.w_in = nn.Linear(config.encoder.dim * config.downsample_factor, config.dim, bias=False)
        self.w_out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, enc_dim), T a multiple of the factor -> (B, T // factor, dim)."""
        batch, length, dim = x.shape
        factor = self.downsample_factor
        x = x.reshape(batch, length // factor, dim * factor)
        return self.w_out(F.gelu(self.w_in(x)))
