"""Recordings to validate with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from voxtral_build import sound

log = logging.getLogger(__name__)


def read_speech(paths: Sequence[Path], rate: int) -> Tensor:
    """The samples of recordings, one after the other.

    What was done to them, and what is doubtful, is logged.

    Returns:
        (N,) float32 at `rate`.
    """
    return torch.cat([_read(path, rate) for path in paths])


def _read(path: Path, rate: int) -> Tensor:
    recording = sound.read(path, rate)
    for note in recording.notes:
        log.info("%s: %s", path, note)
    for warning in recording.warnings:
        log.warning("%s: %s", path, warning)
    return torch.from_numpy(recording.samples)
