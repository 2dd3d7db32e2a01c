"""The axes of the matrix, and what the model's programs are made of."""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["offline", "streaming"]
UnitMode = Literal["offline", "streaming", "shared"]
Dtype = Literal["fp32", "bf16"]
Method = Literal["audio_encoder", "encode_audio_chunk", "text_decoder", "token_embedding"]
Component = Literal["encoder", "decoder", "embedding"]

COMPONENTS: tuple[Component, ...] = get_args(Component)
COMPONENT_OF: dict[Method, Component] = {
    "audio_encoder": "encoder",
    "encode_audio_chunk": "encoder",
    "text_decoder": "decoder",
    "token_embedding": "embedding",
}
METHODS_OF: dict[Mode, tuple[Method, ...]] = {
    "offline": ("audio_encoder", "text_decoder", "token_embedding"),
    "streaming": ("encode_audio_chunk", "text_decoder", "token_embedding"),
}
# One unit of these serves both modes.
SHARED_METHODS: frozenset[Method] = frozenset({"token_embedding"})
