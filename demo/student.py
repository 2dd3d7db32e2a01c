"""The demo model as it learns, and the checkpoint that comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.examples import IGNORED, Batch
from demo.language import merges
from voxtral_build.checkpoint import PARAMS, TOKENIZER, WEIGHTS
from voxtral_build.files import write_text
from voxtral_build.model.attention import STANDARD
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.model.decoder import MistralDecoderLayer, time_embedding
from voxtral_build.model.layers import reset_runtime_buffers
from voxtral_build.model.voxtral import VoxtralRealtimeModel
from voxtral_build.settings import Settings
from voxtral_build.steps.synth import Size, make_params, make_tekken
from voxtral_build.tensor_file import write_tensors
from voxtral_build.weights import TIED, checkpoint_key

MERGES = 440  # all but seven of the words become one piece
VOCABULARY = 1000 + 256 + MERGES
# Windows of 3.2 s in the encoder and 5.1 s in the decoder: training leaves both behind, and
# so does every recording of a minute.
SIZE = Size(
    enc_dim=160, enc_layers=4, enc_heads=5, enc_head_dim=32, enc_hidden=448, enc_window=160,
    dim=192, layers=4, heads=6, kv_heads=2, head_dim=32, hidden=448, vocab=VOCABULARY, window=64,
)  # fmt: skip
_MAX_DELAY = 30  # tokens


class Student(nn.Module):
    """The model as it is trained: whole sequences, no caches.

    `phones` names the sound in each encoder frame. It shows the encoder the way in the first
    minutes, and no checkpoint holds it.

    Args:
        phones: number of sounds.
    """

    conditions: Tensor

    def __init__(self, config: ModelConfig, phones: int) -> None:
        super().__init__()
        runtime = RuntimeConfig.resolve(config, Settings(), "offline")
        self.model = VoxtralRealtimeModel(config, runtime, STANDARD)
        for layer in cast("list[MistralDecoderLayer]", self.model.decoder.layers):
            del layer.attention.kv_cache
            layer.attention.kv_cache = cast("Any", STANDARD.sequence(config.sliding_window))
        reset_runtime_buffers(self.model, torch.float32)
        self.phones = nn.Linear(config.encoder.dim, phones)
        delays = [time_embedding(delay, config.dim) for delay in range(_MAX_DELAY + 1)]
        self.register_buffer("conditions", torch.cat(delays), persistent=False)
        for name, parameter in self.model.named_parameters():
            if "tok_embeddings" in name:
                nn.init.normal_(parameter, std=0.05)
            elif "ada_rms_norm_t_cond.2" in name:
                nn.init.zeros_(parameter)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits of the text (B, N, vocabulary) and of the sounds (B, 4 N, phones)."""
        decoder = self.model.decoder
        frames = self.model.encoder(batch.mel)
        embeds = self.model.adapter(frames) + decoder.tok_embeddings(batch.ids)
        condition = self.conditions[batch.delays].unsqueeze(1)
        text = decoder(embeds, torch.arange(embeds.shape[1]), condition)
        return text, self.phones(frames)


def losses(
    text: Tensor, phones: Tensor, batch: Batch, silence: int, word_weight: float
) -> tuple[Tensor, Tensor]:
    """Cross entropies of what `Student` gives.

    Args:
        silence: id of [STREAMING_PAD].
        word_weight: of positions that say something; the others' is 1.
    """
    targets = batch.targets.flatten()
    each = F.cross_entropy(text.flatten(0, 1), targets, ignore_index=IGNORED, reduction="none")
    weights = torch.where(targets == silence, 1.0, word_weight) * (targets != IGNORED)
    sounds = F.cross_entropy(phones.flatten(0, 1), batch.phones.flatten())
    return (each * weights).sum() / weights.sum(), sounds


def params() -> dict[str, Any]:
    """Content of params.json."""
    return make_params(SIZE)


def tekken() -> dict[str, Any]:
    """A Tekken file whose pieces are the bytes and what the words merge from."""
    return make_tekken(VOCABULARY, params(), merges(MERGES))


def write_tokenizer(folder: Path) -> Path:
    """Write tekken.json."""
    path = folder / TOKENIZER
    write_text(path, json.dumps(tekken(), indent=0) + "\n")
    return path


def write_checkpoint(model: VoxtralRealtimeModel, folder: Path) -> None:
    """The model as Mistral ships one, weights in bf16; params.json last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    tensors = {
        checkpoint_key(name): tensor.to(torch.bfloat16)
        for name, tensor in model.state_dict().items()
        if name not in TIED
    }
    announced = {key: ("BF16", tuple(tensor.shape)) for key, tensor in tensors.items()}
    with write_tensors(folder / WEIGHTS, announced, {}) as writer:
        for key, tensor in tensors.items():
            writer.add(key, [tensor.contiguous().view(torch.uint16).numpy().tobytes()])
    write_text(folder / PARAMS, json.dumps(params(), indent=2) + "\n")
