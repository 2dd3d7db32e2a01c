"""Transcribing with an artifact: whole recordings, or streams as they come.

Both take mono samples at the artifact's rate and give tokens with their positions;
`text` and `transcript` make words of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from voxtral_build.errors import BuildError
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.greedy import GreedyDecoder, encode_offline
from voxtral_build.runtime.protocol import Prompt, Protocol

# Full scale is 1; no sound is 40 dB above it. What is larger was not scaled at all.
_LOUDEST = 100.0


class Token(NamedTuple):
    """An output of the decoder.

    Attributes:
        position: of the audio token after which it came; see `Protocol.tokens_heard`.
    """

    id: int
    position: int


def as_samples(samples: Any) -> npt.NDArray[np.float32]:
    """Check audio before it gets into caches, from where nothing would remove it.

    Args:
        samples: (N,) floats in [-1, 1], an array or a tensor on the CPU.

    Raises:
        BuildError: of another shape or type, not finite, or not scaled.
    """
    array = np.asarray(samples)
    mistake = None
    if array.ndim != 1:
        mistake = f"shape {list(array.shape)}"
    elif not np.issubdtype(array.dtype, np.floating):
        mistake = str(array.dtype)
    else:
        array = np.ascontiguousarray(array, dtype=np.float32)
        # The comparison is false for NaN, too.
        wrong = ~(np.abs(array) <= _LOUDEST)
        if wrong.any():
            first = int(wrong.argmax())
            mistake = f"{array[first]} at sample {first}, {int(wrong.sum())} such in {len(array)}"
    if mistake is None:
        return array
    raise BuildError(
        "audio that cannot be transcribed",
        got=mistake,
        allowed="mono samples, floats in [-1, 1]",
        next_step="mix channels, divide 16-bit integers by 32768, repair NaN",
    )


class _Utterance:
    """What both kinds of session share: the decoder, and when it has ended."""

    def __init__(self, artifact: Artifact, prompt: Prompt) -> None:
        self.artifact = artifact
        self.protocol = Protocol.of(prompt, artifact.mode, artifact.tokens, artifact.delay_tokens)
        self.decoder = GreedyDecoder(artifact.methods, self.protocol.prompt)
        self.ended = False

    def seconds(self, position: int) -> float:
        """Where in the audio the token at `position` speaks of; not before its start."""
        return max(0, self.protocol.tokens_heard(position)) * self.artifact.token_s

    def start(self) -> None:
        self.artifact.claim(self)
        self.decoder.reset()
        self.ended = False

    def step(self, heard: torch.Tensor | None) -> Iterator[Token]:
        self.artifact.check_claim(self)
        position = self.decoder.position
        token = self.decoder.step(heard)
        if token is not None:
            self.ended = token == self.protocol.stop_at
            yield Token(token, position)


class OfflineSession(_Utterance):
    """Transcribes recordings, one after another.

    Args:
        artifact: of mode offline.
        prompt: `reference`, or `none` for what ExecuTorch's C++ runner does: neither
            silence nor prompt, text-only steps after the audio, EOS ends it.

    Raises:
        BuildError: a streaming artifact.
    """

    def __init__(self, artifact: Artifact, prompt: Prompt = "reference") -> None:
        artifact.require("offline")
        super().__init__(artifact, prompt)

    def transcribe(self, samples: Any) -> Iterator[Token]:
        """The tokens of one recording, each as it is decoded.

        Args:
            samples: (N,) floats in [-1, 1]. Without samples there are no tokens.

        Raises:
            BuildError: audio that is none, see `as_samples`, or longer than the artifact's
                `max_seq_len` allows. Nothing is cut.
        """
        audio = as_samples(samples)
        self.require_length(len(audio))
        return self._decode(audio) if len(audio) else iter(())

    def require_length(self, samples: int) -> None:
        """Refuse a recording of so many samples that it can't be decoded.

        Raises:
            BuildError: with the longest that can.
        """
        step, bound = self.artifact.step, self.artifact.max_seq_len
        positions = self.protocol.positions(samples, step)
        if positions > bound:
            free = max(0, bound - self.protocol.positions(0, step))
            raise BuildError(
                f"the recording is too long for {self.artifact.name}",
                got=f"{samples / self.artifact.sample_rate:.2f} s or more: {positions} tokens "
                "with the silence around it",
                allowed=f"{free * self.artifact.token_s:.2f} s: max_seq_len is {bound}",
                next_step="take a streaming artifact, which has no bound, or build with a "
                "larger max_seq_len in config/matrix.yaml",
            )

    def _decode(self, audio: npt.NDArray[np.float32]) -> Iterator[Token]:
        self.start()
        padded = self.protocol.pad(torch.from_numpy(audio), self.artifact.step)
        mel = self.artifact.preprocess(padded)
        for heard in encode_offline(self.artifact.methods.encode, mel):
            yield from self.step(heard)
            if self.ended:
                return
        last = min(self.decoder.position + self.protocol.text_steps, self.artifact.max_seq_len)
        while self.decoder.position < last and not self.ended:
            yield from self.step(None)


class StreamingSession(_Utterance):
    """Transcribes audio as it comes, without end, in memory that does not grow.

    Args:
        artifact: of mode streaming.
        prompt: as for `OfflineSession`; with `none`, EOS ends the stream, and what is fed
            after it is dropped.

    Raises:
        BuildError: an offline artifact.
    """

    def __init__(self, artifact: Artifact, prompt: Prompt = "reference") -> None:
        artifact.require("streaming")
        super().__init__(artifact, prompt)
        constants = artifact.constants
        self._before = constants["stft_left_overlap"]
        self._window = self._before + artifact.step + constants["stft_right_lookahead"]
        skip = constants["mel_skip_frames"]
        self._frames = slice(skip, skip + constants["chunk_mel_len"])
        self._positions_per_token = constants["downsample_factor"]
        self.reset()

    def reset(self) -> None:
        """Start a new utterance; what was not flushed of the last one is dropped."""
        self.start()
        self.samples_fed = 0
        self._flushed = False
        self._encoded = 0  # tokens
        # From the first call on, less than a window between calls.
        self._pending = self._silence(self._before + self.protocol.left_pad * self.artifact.step)

    def feed_audio(self, samples: Any) -> list[Token]:
        """Take the next samples and give the tokens that they complete.

        The first call also hears the silence before the audio, which takes as long as
        `left_pad` steps; called with no samples, it does so before the audio comes.

        Args:
            samples: (N,) floats in [-1, 1], any N.

        Raises:
            BuildError: audio that is none, see `as_samples`, and then nothing was taken;
                the stream was flushed, or the artifact serves another session since.
        """
        audio = as_samples(samples)
        if self._flushed:
            raise BuildError(
                "the stream has ended",
                got="audio after flush()",
                next_step="call reset() to start another utterance",
            )
        self.artifact.check_claim(self)
        if self.ended:
            return []
        self.samples_fed += len(audio)
        return self._hear(audio)

    def flush(self) -> list[Token]:
        """End the stream: fill up the last token, let the delay run out in silence.

        Returns:
            The tokens that were still to come; none when nothing was ever fed, and none
            the second time.
        """
        if self._flushed or not self.samples_fed:
            return []
        self.artifact.check_claim(self)
        self._flushed = True
        step = self.artifact.step
        total = self.protocol.positions(self.samples_fed, step)
        heard = self.protocol.left_pad * step + self.samples_fed
        rest = self._hear(self._silence(total * step - heard + self._window))
        self._pending = self._silence(0)
        return rest

    def _hear(self, audio: npt.NDArray[np.float32]) -> list[Token]:
        samples = self._pending = np.concatenate((self._pending, audio))
        tokens: list[Token] = []
        while len(self._pending) >= self._window and not self._done():
            window = self._pending[: self._window]
            # Before the step: after an interruption, the stream can still be flushed.
            self._pending = self._pending[self.artifact.step :]
            tokens += self._step(window)
        if self._pending is not samples:  # a view keeps all of them in memory
            self._pending = self._pending.copy()
        return tokens

    def _done(self) -> bool:
        if not self._flushed:
            return self.ended
        total = self.protocol.positions(self.samples_fed, self.artifact.step)
        return self.ended or self._encoded >= total

    def _step(self, window: npt.NDArray[np.float32]) -> Iterator[Token]:
        mel = self.artifact.preprocess(torch.from_numpy(window))[..., self._frames]
        count = self._positions_per_token
        positions = torch.arange(self._encoded * count, (self._encoded + 1) * count)
        self._encoded += 1
        return self.step(self.artifact.methods.encode(mel.contiguous(), positions))

    @staticmethod
    def _silence(samples: int) -> npt.NDArray[np.float32]:
        return np.zeros(samples, dtype=np.float32)
