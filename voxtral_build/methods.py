"""The exported methods: how each is built, what it takes, which of its sizes vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from voxtral_build.axes import COMPONENT_OF, Method
from voxtral_build.model.attention import AttentionFamily
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.model.layers import reset_runtime_buffers
from voxtral_build.model.streaming_encoder import StreamingAudioEncoderExport
from voxtral_build.model.voxtral import (
    AudioEncoderExport,
    TextDecoderExport,
    TokenEmbeddingExport,
    VoxtralRealtimeModel,
)
from voxtral_build.weights import load_component, restore_tie


@dataclass(frozen=True)
class MethodBuilder:
    """Builds methods of one model in one mode for one attention family."""

    config: ModelConfig
    runtime: RuntimeConfig
    attention: AttentionFamily

    def meta_model(self) -> VoxtralRealtimeModel:
        """The model on the meta device: names and shapes, no memory."""
        with torch.device("meta"):
            model = VoxtralRealtimeModel(self.config, self.runtime, self.attention)
        # Parameters assigned later inherit this, and integers can't have a gradient.
        return model.requires_grad_(False)

    def build(
        self, methods: Sequence[Method], tensors: Mapping[str, Tensor], dtype: torch.dtype
    ) -> tuple[nn.Module, ...]:
        """Methods of one model, ready to run in eager; what they share is in memory once.

        Args:
            tensors: of the methods' components, by the model's names (see
                `weights.load_component`).
            dtype: of the runtime buffers; the model's.
        """
        model = self.meta_model()
        with torch.device("meta"):
            modules = tuple(self._wrap(method, model).eval() for method in methods)
        for component in {COMPONENT_OF[method] for method in methods}:
            load_component(model, component, tensors)
        restore_tie(model)
        for module in modules:
            reset_runtime_buffers(module, dtype)
        return modules

    def _wrap(self, method: Method, model: VoxtralRealtimeModel) -> nn.Module:
        wrappers: dict[Method, Callable[[], nn.Module]] = {
            "audio_encoder": lambda: AudioEncoderExport(model),
            "encode_audio_chunk": lambda: StreamingAudioEncoderExport(
                model, self.config, self.runtime, self.attention
            ),
            "text_decoder": lambda: TextDecoderExport(model, self.config, self.runtime),
            "token_embedding": lambda: TokenEmbeddingExport(model),
        }
        return wrappers[method]()

    def example_inputs(self, method: Method, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Small valid inputs; a size that varies is neither 0 nor 1 in them."""
        config, chunk = self.config, self.config.mel_frames_per_token
        mels, length = config.audio.num_mel_bins, 4
        if method == "audio_encoder":
            return (torch.zeros(1, mels, 20 * chunk, dtype=dtype),)
        if method == "encode_audio_chunk":
            return (
                torch.zeros(1, mels, chunk, dtype=dtype),
                torch.arange(config.downsample_factor),
            )
        if method == "text_decoder":
            return torch.zeros(1, length, config.dim, dtype=dtype), torch.arange(length)
        return (torch.arange(length).unsqueeze(0),)

    def dynamic_shapes(self, method: Method) -> dict[str, Any] | None:
        """Which sizes of the inputs vary, and within which bounds.

        Audio is bounded by what the decoder can take: `max_seq_len` tokens.
        """
        longest, chunk = self.runtime.max_seq_len, self.config.mel_frames_per_token
        tokens = Dim("tokens", min=1, max=longest)
        if method == "audio_encoder":
            if self.attention.symbolic_sizes:
                return {"mel": {2: Dim.AUTO(min=chunk, max=chunk * longest)}}
            return {"mel": {2: chunk * tokens}}
        if method == "text_decoder":
            seq_len = Dim("seq_len", min=1, max=self.runtime.decode_bound)
            return {"input_embeds": {1: seq_len}, "cache_position": {0: seq_len}}
        if method == "token_embedding":
            return {"token_ids": {1: tokens}}
        return None
