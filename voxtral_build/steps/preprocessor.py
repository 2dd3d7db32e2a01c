"""Compile the preprocessor of a mode: samples to log-mel, the same for every variant.

Without a delegate, so that any runtime of the model runs it, in float64 where it matters.
On XNNPACK, 30 s of sound would take 20 ms instead of 160, which is nothing beside the
model; but all in float32, which misses the reference by 2e-4 on loud tones, and in half as
much memory again.
"""

from __future__ import annotations

import logging
from pathlib import Path

from voxtral_build.axes import Mode
from voxtral_build.backends import KERNELS_ONLY
from voxtral_build.backends.lowering import lower_program
from voxtral_build.files import whole_file
from voxtral_build.model.config import ModelConfig
from voxtral_build.preprocessor import export_preprocessor
from voxtral_build.settings import Settings

log = logging.getLogger(__name__)

METHOD = "forward"  # as ExecuTorch's runner calls it


def run(*, params: Path, mode: Mode, settings: Settings, output: Path) -> None:
    """Write the preprocessor as `.pte`.

    Args:
        params: `params.json`.
        settings: `max_seq_len` bounds an offline recording; no other is used.

    Raises:
        CheckpointError: `params.json` is another model's.
    """
    config = ModelConfig.load(params)
    program = export_preprocessor(config, mode, settings.max_seq_len)
    lowered = lower_program(METHOD, program, KERNELS_ONLY)
    with whole_file(output) as temporary, temporary.open("wb") as file:
        lowered.write_to_file(file)
    log.info("%s: %d bytes", output, output.stat().st_size)
