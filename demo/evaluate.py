"""Word error rates of a checkpoint in eager PyTorch, or of artifacts, on the test recordings.

python -m demo.evaluate --checkpoint demo/checkpoint build/demo/recordings/known
python -m demo.evaluate --artifact artifacts/xnnpack-fp32-8da4w-streaming demo/clips
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import torch

from demo.command import run
from demo.recordings import read_set
from voxtral_build import sound
from voxtral_build.matrix import Mode, Settings
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.eager import eager_artifact
from voxtral_build.runtime.session import OfflineSession, StreamingSession, Token

log = logging.getLogger("demo.evaluate")


@dataclass(frozen=True)
class Score:
    """Word errors of a set, against what was said.

    Attributes:
        words: that were said.
    """

    words: int
    substitutions: int
    deletions: int
    insertions: int

    @property
    def rate(self) -> float:
        """Word error rate; of a set without words, the number of words made up."""
        errors = self.substitutions + self.deletions + self.insertions
        return errors / self.words if self.words else float(errors)


def transcribe(artifact: Artifact, samples: np.ndarray) -> str:
    """The text of one recording, by the session of the artifact's mode."""
    return artifact.vocabulary.text(token.id for token in _tokens(artifact, samples))


def _tokens(artifact: Artifact, samples: np.ndarray) -> Iterator[Token]:
    if artifact.mode == "offline":
        yield from OfflineSession(artifact).transcribe(samples)
        return
    session = StreamingSession(artifact)
    for start in range(0, len(samples), 4000):  # a quarter of a second, no multiple of a token
        yield from session.feed_audio(samples[start : start + 4000])
    yield from session.flush()


def score(artifact: Artifact, folder: Path) -> Score:
    """Transcribe a set and count errors."""
    counts = np.zeros(4, dtype=int)
    for path, words in read_set(folder):
        text = transcribe(artifact, sound.read(path, artifact.sample_rate).samples)
        if not words:
            counts += (0, 0, 0, len(text.split()))
            continue
        found = jiwer.process_words(" ".join(words), text)
        errors = (found.substitutions, found.deletions, found.insertions)
        counts += (len(words), *errors)
        if any(errors):
            log.info("%s: %s\n%s", path.name, " ".join(words), text)
    return Score(*counts.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+", help="folders of recordings")
    parser.add_argument("--checkpoint", type=Path, action="append", default=[])
    parser.add_argument("--mode", choices=("offline", "streaming"), default="offline")
    parser.add_argument("--delay-tokens", type=int, default=6)
    parser.add_argument("--artifact", type=Path, action="append", default=[])
    parser.add_argument("--verbose", action="store_true", help="show what was got wrong")
    arguments = parser.parse_args()
    log.setLevel(logging.INFO if arguments.verbose else logging.WARNING)
    torch.set_num_threads(1)
    mode: Mode = arguments.mode
    settings = Settings(max_seq_len=8192, delay_tokens=arguments.delay_tokens)
    chosen = [eager_artifact(path, mode, settings) for path in arguments.checkpoint]
    chosen += [Artifact.load(path) for path in arguments.artifact]
    for artifact in chosen:
        for folder in arguments.sets:
            result = score(artifact, folder)
            rate = f"{100 * result.rate:.2f} %" if result.words else "-"
            print(
                f"{artifact.name} {artifact.mode}\t{folder.name}\t{result.words} words\t{rate}"
                f"\t{result.substitutions} wrong, {result.deletions} missing, "
                f"{result.insertions} made up",
                flush=True,
            )


if __name__ == "__main__":
    run(main)
