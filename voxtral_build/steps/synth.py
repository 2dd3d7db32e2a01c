"""Write a random checkpoint in Mistral's format: right in every name, shape and dtype.

It proves structure, sizes and parity, and says nothing in any language. `full` has the
real checkpoint's 711 tensors and 8.86 GB; all sizes are streamed to disk.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxtral_build.checkpoint import PARAMS, TOKENIZER, WEIGHTS
from voxtral_build.errors import CheckpointError
from voxtral_build.files import write_text
from voxtral_build.model.config import ModelConfig
from voxtral_build.progress import Tenths
from voxtral_build.tensor_file import write_tensors
from voxtral_build.weights import expected_tensors

log = logging.getLogger(__name__)

_BLOCK = 4 * 2**20  # values drawn at a time: bounds memory at some 32 MB


@dataclass(frozen=True)
class Size:
    """Dimensions of a synthetic model: encoder, decoder, vocabulary, windows."""

    enc_dim: int
    enc_layers: int
    enc_heads: int
    enc_head_dim: int
    enc_hidden: int
    enc_window: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    window: int


SIZES = {
    # Windows so small that a few seconds of audio exceed both and wrap the rings.
    "toy": Size(96, 2, 3, 32, 192, 100, 128, 2, 4, 2, 32, 256, 1280, 64),
    "mid": Size(512, 8, 8, 64, 2048, 750, 1024, 8, 16, 4, 64, 3072, 8192, 2048),
    "full": Size(1280, 32, 32, 64, 5120, 750, 3072, 26, 32, 8, 128, 9216, 131072, 8192),
}


def run(*, size: str, seed: int, output: Path) -> None:
    """Write params.json, consolidated.safetensors and tekken.json.

    Args:
        size: a key of `SIZES`.
        seed: of the random weights; the same seed gives the same bytes.
        output: the folder, made if missing.
    """
    if size not in SIZES:
        raise CheckpointError(f"unknown size {size}", got=size, allowed=SIZES)
    write_checkpoint(make_params(SIZES[size]), seed, output)


def write_checkpoint(params: dict[str, Any], seed: int, output: Path) -> None:
    """Write a random checkpoint for any `params.json` content."""
    config = ModelConfig.parse(params)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / TOKENIZER, json.dumps(make_tekken(config.vocab_size, params), indent=1))
    shapes = expected_tensors(config)
    announced = {key: ("BF16", shape) for key, shape in shapes.items()}
    total = sum(math.prod(shape) for shape in shapes.values())
    progress = Tenths(log, "wrote", 2 * total, "MB")
    with write_tensors(output / WEIGHTS, announced, {}) as writer:
        for index, (key, shape) in enumerate(shapes.items()):
            rng = np.random.Generator(np.random.Philox(key=[seed, index]))
            writer.add(key, _random_bf16(key, shape, rng))
            progress.add(2 * math.prod(shape))
    # Last: a folder with params.json is complete.
    write_text(output / PARAMS, json.dumps(params, indent=2) + "\n")


def _random_bf16(key: str, shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[bytes]:
    """Values that keep activations of order one through any depth, in bf16."""
    scale, mean = 1.0 / math.sqrt(math.prod(shape[1:]) or 1), 0.0
    if key.endswith("norm.weight"):
        scale, mean = 0.1, 1.0
    elif key.endswith(".bias"):
        scale = 0.1
    elif "tok_embeddings" in key:
        scale = 0.5
    left = math.prod(shape)
    while left:
        count = min(left, _BLOCK)
        values = mean + scale * rng.standard_normal(count, dtype=np.float32)
        # bf16 is the upper half of float32; adding half a unit rounds to nearest.
        yield ((values.view(np.uint32) + 0x8000) >> 16).astype("<u2").tobytes()
        left -= count


def make_params(size: Size) -> dict[str, Any]:
    """`params.json` with the real one's fields."""
    encoder = {
        "audio_encoding_args": {
            "sampling_rate": 16000,
            "frame_rate": 12.5,
            "num_mel_bins": 128,
            "hop_length": 160,
            "window_size": 400,
            "chunk_length_s": None,
            "global_log_mel_max": 1.5,
            "transcription_format": "streaming",
        },
        "dim": size.enc_dim,
        "n_layers": size.enc_layers,
        "head_dim": size.enc_head_dim,
        "hidden_dim": size.enc_hidden,
        "n_heads": size.enc_heads,
        "n_kv_heads": size.enc_heads,
        "vocab_size": size.vocab,
        "use_biases": True,
        "rope_theta": 1_000_000.0,
        "causal": True,
        "norm_eps": 1e-5,
        "pos_embed": "rope",
        "ffn_type": "swiglu",
        "norm_type": "rms_norm",
        "sliding_window": size.enc_window,
    }
    return {
        "dim": size.dim,
        "n_layers": size.layers,
        "head_dim": size.head_dim,
        "hidden_dim": size.hidden,
        "n_heads": size.heads,
        "n_kv_heads": size.kv_heads,
        "use_biases": False,
        "causal": True,
        "rope_theta": 1_000_000.0,
        "norm_eps": 1e-5,
        "vocab_size": size.vocab,
        "tied_embeddings": True,
        "sliding_window": size.window,
        "model_max_length": 131072,
        "multimodal": {
            "whisper_model_args": {
                "encoder_args": encoder,
                "downsample_args": {"downsample_factor": 4},
            }
        },
        "ada_rms_norm_t_cond": True,
        "ada_rms_norm_t_cond_dim": 32,
    }


_NAMED_SPECIALS = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    3: "[INST]",
    4: "[/INST]",
    11: "<pad>",
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    32: "[STREAMING_PAD]",
    33: "[STREAMING_WORD]",
}
_NUM_SPECIALS = 1000


def make_tekken(
    vocab_size: int, params: dict[str, Any], merges: Sequence[bytes] | None = None
) -> dict[str, Any]:
    """A valid Tekken file (v7): the bytes, then pieces that merge from earlier ones.

    Args:
        vocab_size: of the model; at least 1256 (1000 special tokens and 256 bytes).
        params: content of params.json, for the audio side.
        merges: pieces after the bytes, each made of two before it; every string of letters,
            shortest first, if not given.
    """
    count = vocab_size - _NUM_SPECIALS
    if count < 256:
        raise CheckpointError(
            "the vocabulary is too small for a Tekken file", got=vocab_size, allowed="1256 or more"
        )
    pieces = []
    for rank, piece in zip(range(count), _pieces(merges), strict=False):
        try:
            text: str | None = piece.decode()
        except UnicodeDecodeError:
            text = None
        pieces.append(
            {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": text}
        )
    audio = params["multimodal"]["whisper_model_args"]["encoder_args"]["audio_encoding_args"]
    return {
        "config": {
            "pattern": r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
            "num_vocab_tokens": count,
            "default_vocab_size": vocab_size,
            "default_num_special_tokens": _NUM_SPECIALS,
            "version": "v7",
        },
        "vocab": pieces,
        "special_tokens": [
            {
                "rank": rank,
                "token_str": _NAMED_SPECIALS.get(rank, f"<SPECIAL_{rank}>"),
                "is_control": True,
            }
            for rank in range(_NUM_SPECIALS)
        ],
        "version": 1,
        "type": "Tekken",
        "audio": {
            "sampling_rate": audio["sampling_rate"],
            "frame_rate": audio["frame_rate"],
            "audio_encoding_config": {
                key: audio[key] for key in ("num_mel_bins", "hop_length", "window_size")
            },
            "chunk_length_s": None,
            "transcription_format": "streaming",
            "transcription_delay_ms": 480,
            "streaming_look_ahead_ms": 2.5,
            "streaming_look_back_ms": 52.5,
            "streaming_n_left_pad_tokens": 32,
        },
    }


def _pieces(merges: Sequence[bytes] | None) -> Iterator[bytes]:
    for value in range(256):
        yield bytes([value])
    yield from _letters() if merges is None else merges


def _letters() -> Iterator[bytes]:
    """Every string of letters, shortest first: each merges from two before it."""
    letters = [letter.encode() for letter in " " + string.ascii_lowercase + string.ascii_uppercase]
    shorter = letters
    while True:
        longer = [first + second for first in shorter for second in letters[1:]]
        yield from longer
        shorter = longer
