"""Artifacts whose methods are eager modules, or a script: sessions without lowering."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.models import SETTINGS, TWO_LAYERS, builder, checkpoint
from voxtral_build import sound
from voxtral_build.audio import log_mel
from voxtral_build.axes import Mode
from voxtral_build.checkpoint import WEIGHTS
from voxtral_build.metadata import constant_methods
from voxtral_build.runtime import eager
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.greedy import Methods
from voxtral_build.settings import Settings
from voxtral_build.steps.synth import Size
from voxtral_build.text import Vocabulary
from voxtral_build.tokenizer import StreamingTokens

SPEECH = Path(__file__).parent / "data" / "jfk_5s.wav"
FIRST = 38  # the first position with an output: 32 of silence, delay 6, from 0
_LIVELY = {"tok_embeddings": 0.1, "audio_language_projection.2": 3.0, "conv.weight": 5.0}


def speech(start: float = 0.0, end: float = 5.0) -> np.ndarray:
    """(N,) float32 of real speech, between seconds."""
    return sound.read(SPEECH, 16_000).samples[int(start * 16_000) : int(end * 16_000)]


@functools.cache
def lively_checkpoint(size: Size = TWO_LAYERS) -> Path:
    """A random checkpoint whose tokens follow the audio.

    With embeddings as large as the plain one's, every token finds itself most likely.
    """
    folder = Path(tempfile.mkdtemp(prefix="lively-"))
    shutil.copytree(checkpoint(size), folder, dirs_exist_ok=True)
    tensors = load_file(folder / WEIGHTS)
    for key in tensors:
        for part, factor in _LIVELY.items():
            if part in key:
                tensors[key] = tensors[key] * factor
    save_file(tensors, folder / WEIGHTS)
    return folder


def eager_artifact(mode: Mode, settings: Settings = SETTINGS) -> Artifact:
    """Of the lively checkpoint, with fresh caches."""
    return eager.eager_artifact(lively_checkpoint(), mode, settings)


def scripted_artifact(mode: Mode, script: dict[int, int], settings: Settings = SETTINGS):
    """Says token `script[position]`, whatever it hears; [STREAMING_PAD] elsewhere."""

    def encode(mel, *positions):
        return torch.zeros(1, mel.shape[-1] // 8, 1)

    def embed(ids):
        return torch.zeros(*ids.shape, 1)

    def decode(embeds, positions):
        ids = torch.tensor([script.get(int(position), 32) for position in positions])
        return torch.nn.functional.one_hot(ids, 1280).unsqueeze(0).float()

    return _artifact(mode, settings, Methods(encode, embed, decode, 256))


def _artifact(mode: Mode, settings: Settings, methods: Methods) -> Artifact:
    folder = lively_checkpoint()
    build = builder(folder, mode, settings)
    constants = constant_methods(build.config, build.runtime)
    return Artifact(
        name=f"test-{mode}",
        mode=mode,
        sample_rate=constants["sample_rate"],
        step=build.config.samples_per_token,
        delay_tokens=constants["delay_tokens"],
        max_seq_len=constants["max_seq_len"],
        constants=constants,
        preprocess=lambda samples: log_mel(samples, build.config.audio),
        methods=methods,
        tokens=StreamingTokens.load(folder / "tekken.json"),
        vocabulary=Vocabulary.load(folder / "tekken.json"),
    )


def letters(text: str, start: int) -> dict[int, int]:
    """A script that spells `text` byte by byte, one a position from `start`."""
    return {start + i: 1000 + byte for i, byte in enumerate(text.encode())}
