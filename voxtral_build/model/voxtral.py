"""The whole model, and the thin modules that are exported as methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxtral_build.model.adapter import AudioLanguageAdapter
from voxtral_build.model.attention import AttentionFamily
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.model.decoder import MistralDecoder, time_embedding
from voxtral_build.model.encoder import CausalWhisperEncoder
from voxtral_build.model.layers import RuntimeBuffers


class VoxtralRealtimeModel(nn.Module):
    """Encoder, adapter and decoder; its parameters are exactly the checkpoint's."""

    def __init__(
        self, config: ModelConfig, runtime: RuntimeConfig, attention: AttentionFamily
    ) -> None:
        super().__init__()
        self.encoder = CausalWhisperEncoder(config, runtime, attention)
        self.adapter = AudioLanguageAdapter(config)
        self.decoder = MistralDecoder(config, runtime, attention)


class AudioEncoderExport(nn.Module):
    """`audio_encoder`: mel (1, num_mel_bins, T_mel) -> embeddings (1, T_mel // 8, dim).

    T_mel is a multiple of the mel frames of one token (8 in the real model).
    """

    def __init__(self, model: VoxtralRealtimeModel) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.adapter = model.adapter

    def forward(self, mel: Tensor) -> Tensor:
        return self.adapter(self.encoder(mel))


class TextDecoderExport(RuntimeBuffers):
    """`text_decoder`: embeddings (1, T, dim) and positions (T,) -> logits (1, T, vocab).

    The delay's embedding is a constant of the method.
    """

    t_cond: Tensor

    def __init__(
        self, model: VoxtralRealtimeModel, config: ModelConfig, runtime: RuntimeConfig
    ) -> None:
        super().__init__()
        self.decoder = model.decoder.without_embedding()
        self.dim = config.dim
        self.delay_tokens = runtime.delay_tokens
        self.register_buffer("t_cond", torch.empty(1, config.dim), persistent=False)

    def reset_runtime_buffers(self, dtype: torch.dtype) -> None:
        self.t_cond = time_embedding(self.delay_tokens, self.dim).to(dtype)

    def forward(self, input_embeds: Tensor, cache_position: Tensor) -> Tensor:
        return self.decoder(input_embeds, cache_position, self.t_cond)


class TokenEmbeddingExport(nn.Module):
    """`token_embedding`: ids (1, T) int64 -> embeddings (1, T, dim)."""

    def __init__(self, model: VoxtralRealtimeModel) -> None:
        super().__init__()
        self.tok_embeddings = model.decoder.tok_embeddings

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.tok_embeddings(token_ids)
