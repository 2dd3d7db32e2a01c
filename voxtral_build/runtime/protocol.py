"""What surrounds the audio of an utterance: silence, the prompt, and when it ends.

Source: mistral-common's streaming transcription requests; vLLM and transformers run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from voxtral_build.tokenizer import BUFFER_TOKENS, StreamingTokens

Prompt = Literal["reference", "none"]

_RUNNER_TEXT_STEPS = 500  # max_new_tokens of ExecuTorch's runner


@dataclass(frozen=True)
class Protocol:
    """How an utterance is decoded; lengths in tokens.

    Attributes:
        prompt: ids at the first positions; output begins at the last of them.
        left_pad: silence before the audio.
        tail: silence after the audio and what fills its last token.
        delay: how far the text stays behind the audio.
        stop_at: the id that ends the utterance, or None: it ends with the audio.
        text_steps: positions after the audio of an offline utterance that `stop_at` has
            not ended.
    """

    prompt: tuple[int, ...]
    left_pad: int
    tail: int
    delay: int
    stop_at: int | None = None
    text_steps: int = 0

    @classmethod
    def of(cls, prompt: Prompt, mode: str, tokens: StreamingTokens, delay: int) -> Self:
        """The protocol by its name."""
        if prompt == "reference":
            return cls.reference(tokens, delay)
        return cls.executorch(tokens, delay, mode)

    @classmethod
    def reference(cls, tokens: StreamingTokens, delay: int) -> Self:
        """The model's own, offline and streaming."""
        prompt = tuple(tokens.prompt(delay))
        return cls(prompt, tokens.left_pad, tail=delay + 1 + BUFFER_TOKENS, delay=delay)

    @classmethod
    def executorch(cls, tokens: StreamingTokens, delay: int, mode: str) -> Self:
        """That of ExecuTorch's C++ runner: no prompt but BOS, and EOS ends it.

        Source: examples/models/voxtral_realtime/voxtral_realtime_runner.cpp. It lets a
        stream's delay run out in silence; offline it goes on without audio.
        """
        prompt, offline = (tokens.bos,), mode == "offline"
        return cls(
            prompt,
            left_pad=0,
            tail=0 if offline else delay,
            delay=delay,
            stop_at=tokens.eos,
            text_steps=_RUNNER_TEXT_STEPS if offline else 0,
        )

    def positions(self, samples: int, step: int) -> int:
        """How many positions hear something, for `samples` of audio at `step` a token."""
        return self.left_pad + -(-samples // step) + self.tail

    def pad(self, samples: Tensor, step: int) -> Tensor:
        """(N,) -> (`positions` x step,): silence around the audio."""
        before = self.left_pad * step
        after = self.positions(samples.shape[0], step) * step - before - samples.shape[0]
        return torch.nn.functional.pad(samples, (before, after))

    def tokens_heard(self, position: int) -> int:
        """Tokens of audio before the one that the token at `position` speaks of.

        Negative in silence before the audio.
        """
        return position - self.left_pad - self.delay
