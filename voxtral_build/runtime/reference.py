"""What the model itself makes of a recording, kept small.

Of each position's logits the file has the largest and the normalizer: enough for the most
likely tokens, and for the Kullback-Leibler divergence with all others taken together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from voxtral_build.files import whole_file

SPEECH = "(speech)"  # the name of what methods are compared on; no file is called so
_KEPT = 32  # logits of a position


@dataclass(frozen=True)
class Reference:
    """Greedy decoding of one recording by the model in float32.

    T positions, silence around the audio included; P of them are the prompt's.

    Attributes:
        audio: (T, dim) float32, audio embeddings.
        ids: (T,) int64, tokens at the input.
        top_ids: (T - P + 1, K) int64, the most likely outputs, the likeliest first, from the
            prompt's last position on.
        top_log_probs: (T - P + 1, K) float32, natural logarithms of their probabilities.
    """

    audio: Tensor
    ids: Tensor
    top_ids: Tensor
    top_log_probs: Tensor

    @classmethod
    def of(cls, audio: Tensor, ids: Sequence[int], logits: Tensor, prompt: int) -> Self:
        """From what `LayerwiseModel` gives: (1, T, dim), T tokens, (1, T, vocab_size)."""
        log_probs, top_ids = logits[0, prompt - 1 :].log_softmax(-1).topk(_KEPT)
        return cls(audio[0].contiguous(), torch.tensor(ids), top_ids, log_probs)

    @property
    def said(self) -> list[int]:
        """The tokens that the model gives out."""
        return self.top_ids[:, 0].tolist()

    def divergence(self, logits: Tensor) -> float:
        """Mean Kullback-Leibler divergence of other logits from the model's, in nats.

        Outputs that are not kept count as one: the true divergence is never less.

        Args:
            logits: (T - P + 1, vocab_size).
        """
        other = logits.float().log_softmax(-1).gather(-1, self.top_ids)
        ours = torch.cat((self.top_log_probs, _rest(self.top_log_probs)), dim=-1)
        theirs = torch.cat((other, _rest(other)), dim=-1)
        # Rounding can take what is zero below it.
        return max(0.0, float((ours.exp() * (ours - theirs)).sum(-1).mean()))

    def top1_agreement(self, logits: Tensor) -> float:
        """Share of positions whose likeliest output is the model's; logits as above."""
        return float((logits.argmax(-1) == self.top_ids[:, 0]).float().mean())


def save_references(path: Path, references: Mapping[str, Reference]) -> None:
    """Write references by name, whole or not at all."""
    tensors = {
        f"{name}/{part}": tensor
        for name, reference in references.items()
        for part, tensor in asdict(reference).items()
    }
    with whole_file(path) as temporary:
        # `save_file` would make it readable to its owner alone.
        temporary.write_bytes(save(tensors))


def load_references(path: Path) -> dict[str, Reference]:
    """Read what `save_references` wrote."""
    tensors = load_file(path)
    names = dict.fromkeys(key.rpartition("/")[0] for key in tensors)
    parts = [field.name for field in fields(Reference)]
    return {name: Reference(*(tensors[f"{name}/{part}"] for part in parts)) for name in names}


def _rest(log_probs: Tensor) -> Tensor:
    """Log probability of everything else, (T, 1), at least 1e-9."""
    return (1 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=1e-9).log()
