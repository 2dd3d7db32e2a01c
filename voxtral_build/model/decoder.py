"""The text decoder: a Mistral decoder whose feed-forward norms know the delay."""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn

from voxtral_build.model.attention import AttentionFamily
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.model.kv_cache import Cache, Positions
from voxtral_build.model.layers import RMSNorm, SwiGLU
from voxtral_build.model.rope import RotaryEmbedding, apply_rotary_emb

TIME_EMBEDDING_THETA = 10_000.0  # vLLM's and transformers' time embedding


def time_embedding(delay_tokens: int, dim: int) -> Tensor:
    """Sinusoidal embedding of the transcription delay.

    Args:
        delay_tokens: in tokens of 80 ms.
        dim: the decoder's width.

    Returns:
        (1, dim) float32: cosines, then sines, of delay x theta^(-i / (dim / 2)).
    """
    half = dim // 2
    inv_freq = torch.exp(-math.log(TIME_EMBEDDING_THETA) * torch.arange(half).float() / half)
    angles = delay_tokens * inv_freq
    return torch.cat((angles.cos(), angles.sin())).unsqueeze(0)


class LMMLP(SwiGLU):
    """The decoder's feed-forward: no biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.dim, config.hidden_dim, down_bias=False)


class LMAttention(nn.Module):
    """Grouped-query attention with RoPE over a cache; no biases."""

    def __init__(
        self, config: ModelConfig, runtime: RuntimeConfig, attention: AttentionFamily
    ) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_kv_heads
        self.head_dim = config.head_dim
        kv_width = config.n_kv_heads * config.head_dim
        self.wq = nn.Linear(config.dim, config.n_heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, kv_width, bias=False)
        self.wv = nn.Linear(config.dim, kv_width, bias=False)
        self.wo = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=False)
        shape = (config.n_kv_heads, config.head_dim)
        self.kv_cache: Cache
        if runtime.mode == "streaming":
            self.kv_cache = attention.ring_cache(runtime.sliding_window, *shape)
        else:
            self.kv_cache = attention.flat_cache(
                runtime.max_seq_len, *shape, window=runtime.offline_decoder_window
            )
        self.sdpa = attention.sdpa(config.n_heads, config.n_kv_heads, config.head_dim)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        positions: Positions,
        mask: Tensor | None,
    ) -> Tensor:
        """x (B, T, dim), rope (1, T, 1, head_dim // 2) each -> (B, T, dim)."""
        batch, length = x.shape[:2]
        q = self.wq(x).view(batch, length, self.n_heads, self.head_dim)
        k = self.wk(x).view(batch, length, self.n_kv_heads, self.head_dim)
        v = self.wv(x).view(batch, length, self.n_kv_heads, self.head_dim)
        k, v = self.kv_cache.update(positions, apply_rotary_emb(k, *rope), v)
        return self.wo(self.sdpa(positions, apply_rotary_emb(q, *rope), k, v, mask))


class MistralDecoderLayer(nn.Module):
    """norm -> attention -> residual -> adaptive norm -> feed-forward -> residual.

    The adaptive norm is unique to this model: after the plain RMSNorm the input is scaled
    by 1 + Linear(GELU(Linear(t_cond))), where t_cond embeds the delay.
    """

    def __init__(
        self, config: ModelConfig, runtime: RuntimeConfig, attention: AttentionFamily
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = LMAttention(config, runtime, attention)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.ada_rms_norm_t_cond = nn.Sequential(  # indices 0 and 2 are the checkpoint's
            nn.Linear(config.dim, config.ada_rms_norm_t_cond_dim, bias=False),
            nn.GELU(),
            nn.Linear(config.ada_rms_norm_t_cond_dim, config.dim, bias=False),
        )
        self.feed_forward = LMMLP(config)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        positions: Positions,
        mask: Tensor | None,
        t_cond: Tensor,
    ) -> Tensor:
        """x (B, T, dim), t_cond (1, dim) -> (B, T, dim)."""
        x = x + self.attention(self.attention_norm(x), rope, positions, mask)
        scale = 1.0 + self.ada_rms_norm_t_cond(t_cond)
        return x + self.feed_forward(self.ffn_norm(x) * scale)


class MistralDecoder(nn.Module):
    """Embedding, layers, norm and an output projection tied to the embedding."""

    def __init__(
        self, config: ModelConfig, runtime: RuntimeConfig, attention: AttentionFamily
    ) -> None:
        super().__init__()
        self.attention = attention
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(
            MistralDecoderLayer(config, runtime, attention) for _ in range(config.n_layers)
        )
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.output.weight = self.tok_embeddings.weight
        self.rope = RotaryEmbedding(config.head_dim, config.rope_theta)

    def without_embedding(self) -> MistralDecoder:
        """The same decoder, sharing all modules, less the embedding that `forward` never reads.

        A method exported from it does not carry the embedding's weights.
        """
        trunk = copy.copy(self)
        trunk._modules = {k: m for k, m in self._modules.items() if k != "tok_embeddings"}
        return trunk

    def forward(self, input_embeds: Tensor, input_pos: Tensor, t_cond: Tensor) -> Tensor:
        """Logits of every position of one call.

        Args:
            input_embeds: (1, T, dim): audio plus token embeddings, summed.
            input_pos: (T,) int64, consecutive absolute positions.
            t_cond: (1, dim): `time_embedding` of the delay.

        Returns:
            (1, T, vocab_size).
        """
        attention = cast("MistralDecoderLayer", self.layers[0]).attention
        positions = self.attention.positions(input_pos, attention.kv_cache)
        rope = self.rope(input_pos)
        mask = attention.sdpa.make_mask(positions, attention.kv_cache, input_embeds.dtype)
        x = input_embeds
        for layer in self.layers:
            x = layer(x, rope, positions, mask, t_cond)
        return self.output(self.norm(x))
