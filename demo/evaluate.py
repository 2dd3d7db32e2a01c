"""Word error rates of a checkpoint in eager PyTorch, or of artifacts, on the test recordings.

python -m demo.evaluate --checkpoint demo/checkpoint build/demo/recordings/known
python -m demo.evaluate --artifact artifacts/xnnpack-fp32-8da4w-streaming demo/clips
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import torch

from demo.command import run
from voxtral_build.axes import Mode
from voxtral_build.clips import read_clips
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.eager import eager_artifact
from voxtral_build.runtime.words import WordErrors, transcripts
from voxtral_build.settings import Settings

log = logging.getLogger("demo.evaluate")


def word_errors(artifact: Artifact, folder: Path) -> WordErrors:
    """Transcribe a set and count errors."""
    total = WordErrors()
    for clip, text in transcripts(artifact, read_clips(folder)):
        errors = WordErrors.of(clip.text, text)
        if errors.rate != 0:
            log.info("%s: %s\n%s", clip.path.name, clip.text, text)
        total += errors
    return total


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
    given = {"max_seq_len": 8192, "delay_tokens": arguments.delay_tokens}
    settings = Settings.checked(given, "settings")
    chosen = [eager_artifact(path, mode, settings) for path in arguments.checkpoint]
    chosen += [Artifact.load(path) for path in arguments.artifact]
    for artifact in chosen:
        for folder in arguments.sets:
            result = word_errors(artifact, folder)
            rate = "-" if result.rate is None else f"{100 * result.rate:.2f} %"
            print(
                f"{artifact.name} {artifact.mode}\t{folder.name}\t{result.spoken} words\t{rate}"
                f"\t{result.substitutions} wrong, {result.deletions} missing, "
                f"{result.insertions} made up",
                flush=True,
            )


if __name__ == "__main__":
    run(main)
