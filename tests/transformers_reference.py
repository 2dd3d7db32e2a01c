"""The reference: transformers' VoxtralRealtime with the weights of a Mistral checkpoint.

An implementation of its own, from its own key table down. Its RoPE turns halves where the
checkpoint turns neighbours, so that rows of query and key projections are reordered.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    VoxtralRealtimeConfig,
    VoxtralRealtimeFeatureExtractor,
    VoxtralRealtimeForConditionalGeneration,
)

_LANGUAGE, _AUDIO = "model.language_model.", "model.audio_tower."
_RENAMES = [
    (r"^mm_streams_embeddings\.embedding_module\.", "mm."),
    (r"^mm\.tok_embeddings\.", f"{_LANGUAGE}embed_tokens."),
    (r"^mm\.audio_language_projection\.0\.", "model.multi_modal_projector.linear_1."),
    (r"^mm\.audio_language_projection\.2\.", "model.multi_modal_projector.linear_2."),
    (r"^mm\.whisper_encoder\.conv_layers\.0\.conv\.", f"{_AUDIO}embedder.conv1."),
    (r"^mm\.whisper_encoder\.conv_layers\.1\.conv\.", f"{_AUDIO}embedder.conv2."),
    (r"^mm\.whisper_encoder\.transformer\.", _AUDIO),
    (r"^(layers|norm)\.", rf"{_LANGUAGE}\1."),
    (r"\.attention\.w([qkvo])\.", r".self_attn.\1_proj."),
    (rf"^({_AUDIO}.*)\.attention_norm\.", r"\1.self_attn_layer_norm."),
    (rf"^({_AUDIO}.*)\.ffn_norm\.", r"\1.final_layer_norm."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.ada_rms_norm_t_cond\.0\.", ".ada_rms_norm.linear1."),
    (r"\.ada_rms_norm_t_cond\.2\.", ".ada_rms_norm.linear2."),
]


def _rename(key: str) -> str:
    for pattern, replacement in _RENAMES:
        key = re.sub(pattern, replacement, key)
    return key


def _halves(rows: Tensor, n_heads: int) -> Tensor:
    """Rows (head, pair, 2) -> (head, 2, pair)."""
    return rows.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).reshape(rows.shape)


def _config(params: dict[str, Any]) -> VoxtralRealtimeConfig:
    whisper = params["multimodal"]["whisper_model_args"]
    encoder = whisper["encoder_args"]
    factor = whisper["downsample_args"]["downsample_factor"]

    def common(part: dict[str, Any]) -> dict[str, Any]:
        return {
            "vocab_size": part["vocab_size"],
            "hidden_size": part["dim"],
            "intermediate_size": part["hidden_dim"],
            "num_hidden_layers": part["n_layers"],
            "num_attention_heads": part["n_heads"],
            "head_dim": part["head_dim"],
            "rms_norm_eps": part["norm_eps"],
            "rope_parameters": {"rope_type": "default", "rope_theta": part["rope_theta"]},
            "sliding_window": part["sliding_window"],
        }

    return VoxtralRealtimeConfig(
        audio_config=common(encoder) | {"num_mel_bins": 128},
        text_config=common(params)
        | {"num_key_value_heads": params["n_kv_heads"], "tie_word_embeddings": True},
        projector_hidden_act="gelu",
        downsample_factor=factor,
        audio_length_per_tok=2 * factor,
    )


class Reference:
    """transformers' model in float32."""

    def __init__(self, checkpoint: Path) -> None:
        params = json.loads((checkpoint / "params.json").read_text())
        config = _config(params)
        encoder_heads = config.audio_config.num_attention_heads
        state = {}
        for key, tensor in load_file(checkpoint / "consolidated.safetensors").items():
            name, tensor = _rename(key), tensor.float()
            if ".q_proj." in name or ".k_proj." in name:
                decoder_heads = params["n_heads" if ".q_proj." in name else "n_kv_heads"]
                in_encoder = name.startswith(_AUDIO)
                tensor = _halves(tensor, encoder_heads if in_encoder else decoder_heads)
            state[name] = tensor
        state["lm_head.weight"] = state[f"{_LANGUAGE}embed_tokens.weight"]
        self.model = VoxtralRealtimeForConditionalGeneration(config).eval()
        self.model.load_state_dict(state, strict=True)

    @torch.no_grad()
    def audio_embeds(self, mel: Tensor) -> Tensor:
        """mel (1, bins, T) -> (1, T // 8, dim)."""
        return self.model.get_audio_features(
            input_features=mel, use_cache=False, return_dict=True
        ).pooler_output

    @torch.no_grad()
    def logits(self, embeds: Tensor, delay_tokens: int) -> Tensor:
        """Summed embeddings (1, T, dim) -> logits (1, T, vocab)."""
        inner = self.model.model
        condition = inner.time_embedding(torch.tensor([float(delay_tokens)]))[None]
        hidden = inner.language_model(inputs_embeds=embeds, use_cache=False, t_cond=condition)
        return self.model.lm_head(hidden.last_hidden_state)

    @torch.no_grad()
    def generate(self, mel: Tensor, prompt: list[int], delay_tokens: int) -> list[int]:
        """Greedy decoding by transformers' own loop, through the end-of-stream token.

        mel (1, bins, T) -> T // 8 - len(prompt) tokens: it leaves out the last frame's.
        """
        self.model.generation_config.eos_token_id = None
        ids = self.model.generate(
            input_ids=torch.tensor([prompt]),
            input_features=mel,
            num_delay_tokens=delay_tokens,
            do_sample=False,
            max_new_tokens=mel.shape[-1] // 8 - len(prompt),
        )
        return ids[0, len(prompt) :].tolist()

    @torch.no_grad()
    def token_embeds(self, ids: Tensor) -> Tensor:
        """ids (1, T) -> (1, T, dim)."""
        return self.model.model.get_input_embeddings()(ids)


def log_mel(samples: np.ndarray) -> Tensor:
    """transformers' feature extraction: (N,) -> (1, 128, N // 160)."""
    extractor = VoxtralRealtimeFeatureExtractor()
    return extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
