"""Bring a checkpoint to where the build expects it: made, or linked from a folder."""

from __future__ import annotations

import logging
from pathlib import Path

from voxtral_build.checkpoint import FILES, WEIGHTS, require_files
from voxtral_build.errors import CheckpointError
from voxtral_build.settings import CheckpointSource
from voxtral_build.tensor_file import read_header

log = logging.getLogger(__name__)


def run(*, source: CheckpointSource, output: Path) -> None:
    """Make a synthetic checkpoint in `output`, or link the files of a folder there.

    Raises:
        CheckpointError: the folder lacks one of the three files, one of them is a Git-LFS
            pointer or a web page, or the header of the weights is wrong.
    """
    if source.synth is not None:
        from voxtral_build.steps import synth

        synth.run(size=source.synth.size, seed=source.synth.seed, output=output)
        return
    assert source.path is not None  # CheckpointSource has exactly one
    folder = source.path.expanduser().resolve()
    if folder == output.resolve():
        raise CheckpointError(
            "a checkpoint folder cannot be linked into itself",
            got=folder,
            next_step="name another output folder",
        )
    require_files(folder)
    header = read_header(folder / WEIGHTS)
    log.info("%s: %d tensors", folder / WEIGHTS, len(header.tensors))
    output.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        link = output / name
        link.unlink(missing_ok=True)
        link.symlink_to((folder / name).resolve())
