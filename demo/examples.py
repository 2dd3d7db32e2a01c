"""Training examples: recordings under the model's protocol, and what it should answer.

The protocol: BOS and [STREAMING_PAD] for the silence before the audio and the delay, then one
token per 80 ms. A word is due once `delay` tokens of audio after its end were heard: first
[STREAMING_WORD], then its pieces, one a position; words that come faster wait their turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from demo.language import WORDS
from demo.mixing import RATE, Recording, training_recording
from demo.voices import training_voice
from voxtral_build.audio import log_mel
from voxtral_build.model.config import AudioParams
from voxtral_build.text import Vocabulary
from voxtral_build.tokenizer import BUFFER_TOKENS, StreamingTokens

STEP = 1280  # samples of a token
IGNORED = -100  # no loss here
_ENCODER_STEP = 0.02  # seconds
_PHONE_DELAY = 0.08  # a sound is named when this much of what follows it was heard


@dataclass(frozen=True)
class Batch:
    """B examples of N tokens.

    Attributes:
        mel: (B, 128, 8 N) float32.
        ids: (B, N) int64, what the decoder is told.
        targets: (B, N) int64, what it should answer; `IGNORED` within the prompt.
        delays: (B,) int64, tokens.
        phones: (B, 4 N) int64, the sound in each encoder frame.
    """

    mel: Tensor
    ids: Tensor
    targets: Tensor
    delays: Tensor
    phones: Tensor


def answer(
    words: list[tuple[list[int], float]],
    tokens: StreamingTokens,
    left_pad: int,
    delay: int,
    length: int,
) -> list[int]:
    """The right output at each position.

    Args:
        words: pieces of each word, and its end in seconds of the audio.
        left_pad: tokens of silence before the audio.
        length: positions.

    Returns:
        `length` ids; [STREAMING_PAD] where there is nothing to say.
    """
    ids = [tokens.streaming_pad] * length
    free = 0
    for pieces, end in words:
        position = max(free, left_pad + int(end * RATE / STEP) + delay)
        for token in (tokens.streaming_word, *pieces):
            if position < length:
                ids[position] = token
            position += 1
        free = position
    return ids


class Examples:
    """Makes batches of a training run, each the same for the same seed and number.

    (But for espeak-ng's flutter, which goes on from sentence to sentence.)

    Args:
        tokenizer: a Tekken file.
        phones: all sounds there are; the first is silence.
        seed: of the run.
    """

    def __init__(
        self, tokenizer: Path, phones: Sequence[str], audio: AudioParams, seed: int
    ) -> None:
        self.vocabulary = Vocabulary.load(tokenizer)
        self.tokens = StreamingTokens.load(tokenizer)
        self.phones = {symbol: index for index, symbol in enumerate(phones)}
        self.audio = audio
        self.seed = seed

    @property
    def specials(self) -> int:
        """The first id that is text."""
        return self.vocabulary.specials

    def batch(
        self, number: int, tokens_in_all: int, hardness: tuple[float, float], disturbance: float
    ) -> Batch:
        """Examples of one length, `tokens_in_all` tokens together.

        Args:
            hardness: least and most of the recordings; see `mixing.training_recording`.
            disturbance: share of the pieces that the decoder is told wrong.
        """
        rng = random.Random(f"{self.seed}/{number}")
        length = rng.choice((56, 80, 112, 160))
        left_pad = self.tokens.left_pad if rng.random() < 0.25 else rng.randint(3, 16)
        examples = [
            self._example(rng, length, left_pad, rng.uniform(*hardness), disturbance)
            for _ in range(tokens_in_all // length)
        ]
        return Batch(*(torch.stack(parts) for parts in zip(*examples, strict=True)))

    def _example(
        self,
        rng: random.Random,
        length: int,
        left_pad: int,
        hardness: float,
        disturbance: float,
    ) -> tuple[Tensor, ...]:
        delay = 6 if rng.random() < 0.6 else rng.randint(2, 12)
        tail = delay + 1 + BUFFER_TOKENS if rng.random() < 0.6 else 0
        content = length - left_pad - tail
        recording = training_recording(
            rng, content * STEP / RATE, lambda rng: training_voice(rng, hardness), hardness
        )
        samples = np.pad(recording.samples, (left_pad * STEP, tail * STEP))
        words = [(self.vocabulary.encode(f" {word}"), end) for word, end in recording.words]
        output = answer(words, self.tokens, left_pad, delay, length)
        start = left_pad + delay  # the first position that answers
        told = [self.tokens.bos, *output[:-1]]
        told = [self._disturbed(rng, token, disturbance) for token in told]
        told[1 : start + 1] = [self.tokens.streaming_pad] * start
        return (
            log_mel(torch.from_numpy(samples), self.audio)[0],
            torch.tensor(told),
            torch.tensor([IGNORED] * start + output[start:]),
            torch.tensor(delay),
            self.sounds(recording, left_pad, length),
        )

    def _disturbed(self, rng: random.Random, token: int, share: float) -> int:
        """A piece, or the beginning of another word in its place.

        Greedy decoding goes on from its own mistakes, and must hear what comes next all the
        same.
        """
        if token >= self.specials and rng.random() < share:
            return self.vocabulary.encode(f" {rng.choice(WORDS)}")[0]
        return token

    def sounds(self, recording: Recording, left_pad: int, length: int) -> Tensor:
        """The sound in each encoder frame, (4 length,) int64."""
        times = (np.arange(4 * length) + 0.5) * _ENCODER_STEP - _PHONE_DELAY
        times -= left_pad * STEP / RATE
        ends = np.array([end for _, end in recording.phones])
        # After the last one there is silence, as before the first.
        symbols = np.array([self.phones.get(symbol, 0) for symbol, _ in recording.phones] + [0])
        return torch.from_numpy(np.where(times < 0, 0, symbols[np.searchsorted(ends, times)]))
