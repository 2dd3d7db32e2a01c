"""The causal audio encoder: log-mel frames to encoder frames, offline."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxtral_build.model.attention import SDPA, AttentionFamily, KeyValues, StandardSDPA
from voxtral_build.model.config import (
    CONV_KERNEL,
    CONV_STRIDES,
    EncoderParams,
    ModelConfig,
    RuntimeConfig,
)
from voxtral_build.model.kv_cache import Positions
from voxtral_build.model.layers import RMSNorm, SwiGLU
from voxtral_build.model.rope import RotaryEmbedding, apply_rotary_emb


class CausalConv1d(nn.Module):
    """Conv1d that sees only the past: padded on the left by `left_padding` frames."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, left_padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, CONV_KERNEL, stride=stride)
        self.left_padding = left_padding

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, T) -> (B, out_channels, T // stride)."""
        return self.conv(F.pad(x, (self.left_padding, 0)))


class EncoderSwiGLU(SwiGLU):
    """The encoder's feed-forward: biases w1 no, w2 yes, w3 no."""

    def __init__(self, params: EncoderParams) -> None:
        super().__init__(params.dim, params.hidden_dim, down_bias=True)


class EncoderAttention(nn.Module):
    """Multi-head self-attention with RoPE: biases wq yes, wk no, wv yes, wo yes.

    It owns no cache: offline it attends to the sequence, streaming to a ring.
    """

    def __init__(self, params: EncoderParams) -> None:
        super().__init__()
        self.n_heads = params.n_heads
        self.head_dim = params.head_dim
        width = params.n_heads * params.head_dim
        self.wq = nn.Linear(params.dim, width, bias=True)
        self.wk = nn.Linear(params.dim, width, bias=False)
        self.wv = nn.Linear(params.dim, width, bias=True)
        self.wo = nn.Linear(width, params.dim, bias=True)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        positions: Positions,
        kv: KeyValues,
        sdpa: SDPA | StandardSDPA,
        mask: Tensor | None,
    ) -> Tensor:
        heads = (*x.shape[:2], self.n_heads, self.head_dim)
        q = apply_rotary_emb(self.wq(x).view(heads), *rope)
        k = apply_rotary_emb(self.wk(x).view(heads), *rope)
        k, v = kv.update(positions, k, self.wv(x).view(heads))
        return self.wo(sdpa(positions, q, k, v, mask))


class CausalEncoderLayer(nn.Module):
    """norm -> attention -> residual -> norm -> SwiGLU -> residual, (B, T, dim)."""

    def __init__(self, params: EncoderParams) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(params.dim, params.norm_eps)
        self.attention = EncoderAttention(params)
        self.ffn_norm = RMSNorm(params.dim, params.norm_eps)
        self.feed_forward = EncoderSwiGLU(params)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        positions: Positions,
        kv: KeyValues,
        sdpa: SDPA | StandardSDPA,
        mask: Tensor | None,
    ) -> Tensor:
        """Args as `EncoderAttention`; the mask is the same for all layers."""
        x = x + self.attention(self.attention_norm(x), rope, positions, kv, sdpa, mask)
        return x + self.feed_forward(self.ffn_norm(x))


class CausalWhisperEncoder(nn.Module):
    """Two causal convolutions, transformer layers, a norm."""

    def __init__(
        self, config: ModelConfig, runtime: RuntimeConfig, attention: AttentionFamily
    ) -> None:
        super().__init__()
        params = config.encoder
        self.attention = attention
        self.window = runtime.offline_encoder_window
        self.conv_layers = nn.ModuleList(
            CausalConv1d(channels, params.dim, stride, runtime.conv_left_padding(stride))
            for channels, stride in zip(
                (config.audio.num_mel_bins, params.dim), CONV_STRIDES, strict=True
            )
        )
        self.layers = nn.ModuleList(CausalEncoderLayer(params) for _ in range(params.n_layers))
        self.norm = RMSNorm(params.dim, params.norm_eps)
        self.rope = RotaryEmbedding(params.head_dim, params.rope_theta)
        self.sdpa = attention.sdpa(params.n_heads, params.n_heads, params.head_dim)

    def forward(self, mel: Tensor) -> Tensor:
        """mel (B, num_mel_bins, T_mel), T_mel even -> (B, T_mel // 2, dim)."""
        x = F.gelu(self.conv_layers[0](mel))
        x = F.gelu(self.conv_layers[1](x)).transpose(1, 2)
        absolute = torch.arange(x.shape[1])
        positions = Positions(absolute, 0)
        kv = self.attention.sequence(self.window)
        rope = self.rope(absolute)
        mask = self.sdpa.make_mask(positions, kv, x.dtype)
        for layer in self.layers:
            x = layer(x, rope, positions, kv, self.sdpa, mask)
        return self.norm(x)
