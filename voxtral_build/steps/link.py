"""Link a variant's units and constant methods into `model.pte`; add the tokenizer."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from voxtral_build.checkpoint import PARAMS, TOKENIZER
from voxtral_build.files import whole_file
from voxtral_build.matrix import Mode, Settings
from voxtral_build.metadata import constant_methods
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.link import link

log = logging.getLogger(__name__)

MODEL = "model.pte"


def run(
    *, checkpoint: Path, mode: Mode, settings: Settings, units: Sequence[Path], output: Path
) -> None:
    """Write `model.pte` and `tekken.json` into the artifact folder `output`."""
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, mode)
    output.mkdir(parents=True, exist_ok=True)
    with whole_file(output / TOKENIZER) as temporary:
        shutil.copyfile(checkpoint / TOKENIZER, temporary)
    link(units, output / MODEL, constant_methods(config, runtime))
    log.info("%s: %d bytes", output / MODEL, (output / MODEL).stat().st_size)
