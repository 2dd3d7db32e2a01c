"""Bring a checkpoint to where the build expects it: made, or linked from a folder."""

from __future__ import annotations

import logging
from pathlib import Path

from voxtral_build.checkpoint import PARAMS, TOKENIZER, WEIGHTS
from voxtral_build.errors import CheckpointError
from voxtral_build.matrix import CheckpointSource
from voxtral_build.tensor_file import read_header

log = logging.getLogger(__name__)

FILES = (PARAMS, WEIGHTS, TOKENIZER)


def run(*, source: CheckpointSource, output: Path) -> None:
    """Make a synthetic checkpoint in `output`, or link the files of a folder there.

    Raises:
        CheckpointError: the folder lacks one of the three files, or its weights are a
            Git-LFS pointer or cut short.
    """
    if source.synth is not None:
        from voxtral_build.steps import synth

        synth.run(size=source.synth.size, seed=source.synth.seed, output=output)
        return
    assert source.path is not None  # CheckpointSource has exactly one
    folder = source.path.expanduser().resolve()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"checkpoint folder {folder}: {', '.join(missing)} missing",
            got=_listing(folder),
            allowed=FILES,
            next_step="point checkpoint.path in config/matrix.yaml at a folder that has "
            "Mistral's three files",
        )
    header = read_header(folder / WEIGHTS)
    log.info("%s: %d tensors", folder / WEIGHTS, len(header.tensors))
    output.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        link = output / name
        link.unlink(missing_ok=True)
        link.symlink_to((folder / name).resolve())


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "not a folder"
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") or "an empty folder"
