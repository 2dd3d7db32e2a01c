"""Words that an artifact gets wrong."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jiwer
import numpy as np
import numpy.typing as npt

from voxtral_build import sound
from voxtral_build.clips import Clip
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.session import OfflineSession, StreamingSession, Token

# Of a recording that is streamed: a quarter of a second, and no multiple of a token.
_FED = 4000


@dataclass(frozen=True)
class WordErrors:
    """Word errors of recordings, by the fewest changes that make the words of the text.

    Attributes:
        spoken: words that were said.
    """

    spoken: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def rate(self) -> float | None:
        """Word error rate; None where nothing was said."""
        errors = self.substitutions + self.deletions + self.insertions
        return errors / self.spoken if self.spoken else None

    @classmethod
    def of(cls, spoken: str, written: str) -> WordErrors:
        """Compare two texts; case and punctuation do not count."""
        reference, hypothesis = plain_words(spoken), plain_words(written)
        if not reference:  # jiwer refuses a reference without words
            return cls(0, 0, 0, len(hypothesis))
        found = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
        return cls(len(reference), found.substitutions, found.deletions, found.insertions)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(
            self.spoken + other.spoken,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


def plain_words(text: str) -> list[str]:
    """Words in lower case, without punctuation around or in them; an apostrophe stays."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    return re.sub(r"[^\w\s']|_", " ", text).split()


def transcribe(artifact: Artifact, samples: npt.NDArray[np.float32]) -> str:
    """The text of one recording, by the session of the artifact's mode."""
    return artifact.vocabulary.text(token.id for token in _tokens(artifact, samples))


def _tokens(artifact: Artifact, samples: npt.NDArray[np.float32]) -> Iterator[Token]:
    if artifact.mode == "offline":
        yield from OfflineSession(artifact).transcribe(samples)
        return
    session = StreamingSession(artifact)
    for start in range(0, len(samples), _FED):
        yield from session.feed_audio(samples[start : start + _FED])
    yield from session.flush()


def transcripts(artifact: Artifact, clips: Iterable[Clip]) -> Iterator[tuple[Clip, str]]:
    """Each recording and its text."""
    for clip in clips:
        samples = sound.read(clip.path, artifact.sample_rate).samples
        yield clip, transcribe(artifact, samples)
