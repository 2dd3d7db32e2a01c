"""Make an artifact: units linked into `model.pte`, preprocessor, tokenizer and manifest."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxtral_build.artifact_files import MANIFEST, MODEL, PREPROCESSOR
from voxtral_build.checkpoint import PARAMS, TOKENIZER
from voxtral_build.errors import BuildError
from voxtral_build.files import sha256, whole_file, write_text
from voxtral_build.matrix import COMPONENTS, Component, Scheme, Settings, Variant
from voxtral_build.metadata import constant_methods
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.link import link

log = logging.getLogger(__name__)


def run(
    *,
    checkpoint: Path,
    variant: Variant,
    scheme: Scheme,
    weights: Mapping[Component, Path],
    settings: Settings,
    units: Sequence[Path],
    preprocessor: Path,
    output: Path,
) -> None:
    """Write all files of the artifact folder `output`, except the report.

    Args:
        weights: quantized weights of the components that have some; `quantize` wrote a
            report beside each, which the manifest takes over.
        preprocessor: the one of the variant's mode.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, variant.mode)
    output.mkdir(parents=True, exist_ok=True)
    for source, name in ((checkpoint / TOKENIZER, TOKENIZER), (preprocessor, PREPROCESSOR)):
        with whole_file(output / name) as temporary:
            shutil.copyfile(source, temporary)
    link(units, output / MODEL, constant_methods(config, runtime))
    manifest = {
        "variant": variant.slug,
        "settings": settings.model_dump(),
        "components": {
            component: _component(scheme, component, weights.get(component))
            for component in COMPONENTS
        },
        # By which a file of another artifact is told.
        "files": {name: _file(output / name) for name in (MODEL, PREPROCESSOR, TOKENIZER)},
    }
    write_text(output / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    log.info("%s: %d bytes", output / MODEL, (output / MODEL).stat().st_size)


def _file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _component(scheme: Scheme, component: Component, weights: Path | None) -> dict[str, Any]:
    """How a component is quantized, and which of its layers are not."""
    description: dict[str, Any] = {"quantization": scheme.of(component).model_dump()}
    if weights is not None:
        report = _report(weights.with_suffix(".json"))
        description |= {
            "weights_sha256": report["sha256"],
            "left_as_is": report["left_as_is"],
        }
    return description


def _report(path: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(
            f"{path} cannot be read",
            got=error.strerror,
            allowed="the report that quantize writes beside the weights",
            next_step="make the weights again with `voxtral-build quantize`",
        ) from None
    return report
