"""The audio encoder one token (80 ms) at a time, with state."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxtral_build.model.attention import AttentionFamily
from voxtral_build.model.config import CONV_STRIDES, ModelConfig, RuntimeConfig
from voxtral_build.model.encoder import CausalConv1d
from voxtral_build.model.kv_cache import Cache
from voxtral_build.model.layers import RuntimeBuffers
from voxtral_build.model.rope import RotaryEmbedding
from voxtral_build.model.voxtral import VoxtralRealtimeModel


class StreamingAudioEncoderExport(RuntimeBuffers):
    """`encode_audio_chunk`: shares all weights with the offline encoder of `model`.

    Instead of zero padding, each convolution gets the last frames of the chunk before,
    and each attention layer a ring of the encoder's window. A chunk at position 0 starts
    a new utterance: the convolutions' states then count as zeros.
    """

    conv1_state: Tensor
    conv2_state: Tensor

    def __init__(
        self,
        model: VoxtralRealtimeModel,
        config: ModelConfig,
        runtime: RuntimeConfig,
        attention: AttentionFamily,
    ) -> None:
        super().__init__()
        params = config.encoder
        self.attention = attention
        self.conv1, self.conv2 = (
            cast("CausalConv1d", layer).conv for layer in model.encoder.conv_layers
        )
        self.layers = model.encoder.layers
        self.enc_norm = model.encoder.norm
        self.adapter = model.adapter
        self.rope = RotaryEmbedding(params.head_dim, params.rope_theta)
        self.sdpa = attention.sdpa(params.n_heads, params.n_heads, params.head_dim)
        self.kv_caches = nn.ModuleList(
            attention.ring_cache(runtime.max_enc_len, params.n_heads, params.head_dim)
            for _ in range(params.n_layers)
        )
        pads = [runtime.conv_left_padding(stride) for stride in CONV_STRIDES]
        self.state_shapes = [
            (1, channels, pad)
            for channels, pad in zip((config.audio.num_mel_bins, params.dim), pads, strict=True)
        ]
        for name, shape in zip(("conv1_state", "conv2_state"), self.state_shapes, strict=True):
            self.register_buffer(name, torch.empty(shape), persistent=False)

    def reset_runtime_buffers(self, dtype: torch.dtype) -> None:
        self.conv1_state = torch.zeros(self.state_shapes[0], dtype=dtype)
        self.conv2_state = torch.zeros(self.state_shapes[1], dtype=dtype)

    def forward(self, mel_chunk: Tensor, enc_input_pos: Tensor) -> Tensor:
        """Encode the mel frames of one token.

        Args:
            mel_chunk: (1, num_mel_bins, 2 * downsample_factor).
            enc_input_pos: (downsample_factor,) int64, consecutive encoder frame positions.

        Returns:
            (1, 1, dim): one audio embedding.
        """
        started = enc_input_pos[:1] > 0
        x = _continue_conv(self.conv1, self.conv1_state, started, mel_chunk)
        x = _continue_conv(self.conv2, self.conv2_state, started, F.gelu(x))
        x = F.gelu(x).transpose(1, 2)

        first = cast("Cache", self.kv_caches[0])
        positions = self.attention.positions(enc_input_pos, first)
        rope = self.rope(enc_input_pos)
        mask = self.sdpa.make_mask(positions, first, x.dtype)
        for layer, kv_cache in zip(self.layers, self.kv_caches, strict=True):
            x = layer(x, rope, positions, kv_cache, self.sdpa, mask)
        return self.adapter(self.enc_norm(x))


def _continue_conv(conv: nn.Conv1d, state: Tensor, started: Tensor, x: Tensor) -> Tensor:
    """Run `conv` on the state's frames and `x`, and keep the last frames of `x` as state."""
    # where, not a product with 0: a runtime may hand over memory that was never written.
    before = torch.where(started, state, torch.zeros_like(state))
    y = conv(torch.cat((before, x), dim=2))
    state.copy_(x[:, :, -state.shape[2] :])
    return y
