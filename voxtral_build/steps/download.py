"""Bring a checkpoint to where the build expects it: made, fetched, or linked from a folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from voxtral_build.checkpoint import FILES, WEIGHTS, require_files
from voxtral_build.errors import CheckpointError
from voxtral_build.files import sha256
from voxtral_build.settings import CheckpointFile, CheckpointSource
from voxtral_build.tensor_file import read_header

log = logging.getLogger(__name__)


def run(*, source: CheckpointSource, store: Path, lock: Path, output: Path) -> None:
    """Make a synthetic checkpoint in `output`, or link the files of one there.

    Args:
        source: with hashes, all files are held against them.
        store: where files from the Hub are kept, by repository and revision. What is there
            is not fetched again, and is write-protected.
        lock: what was fetched from the Hub without hashes to hold it against.
        output: the folder that the build reads.

    Raises:
        CheckpointError: the folder lacks one of the three files, one of them is a Git-LFS
            pointer or a web page or has another hash, or the header of the weights is wrong.
        HubError: the files could not be fetched.
    """
    if source.synth is not None:
        from voxtral_build.steps import synth

        synth.run(size=source.synth.size, seed=source.synth.seed, output=output)
        return
    if source.repo is not None:
        from voxtral_build.hub.checkpoint import fetch_checkpoint

        folder = fetch_checkpoint(source, store, lock).resolve()
    else:
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
    if source.path is not None:
        _check_pins(folder, source.sha256)
    output.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        link = output / name
        link.unlink(missing_ok=True)
        link.symlink_to((folder / name).resolve())


def _check_pins(folder: Path, pins: Mapping[CheckpointFile, str]) -> None:
    for name, expected in pins.items():
        got = sha256(folder / name)
        if got != expected:
            raise CheckpointError(
                f"{folder / name} is not the file that the configuration pins",
                got=f"sha256 {got}",
                allowed=f"sha256 {expected}, as checkpoint.sha256 has it",
                next_step="fetch the file again, or pin what you mean to build",
            )
        log.info("%s: sha256 as pinned", folder / name)
