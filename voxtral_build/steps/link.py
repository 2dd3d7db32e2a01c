"""Link a variant's units and constant methods into `model.pte`; add tokenizer and manifest."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxtral_build.checkpoint import PARAMS, TOKENIZER
from voxtral_build.errors import BuildError
from voxtral_build.files import whole_file, write_text
from voxtral_build.matrix import COMPONENTS, Component, Scheme, Settings, Variant
from voxtral_build.metadata import constant_methods
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.link import link

log = logging.getLogger(__name__)

MODEL = "model.pte"
MANIFEST = "manifest.json"


def run(
    *,
    checkpoint: Path,
    variant: Variant,
    scheme: Scheme,
    weights: Mapping[Component, Path],
    settings: Settings,
    units: Sequence[Path],
    output: Path,
) -> None:
    """Write `model.pte`, `tekken.json` and `manifest.json` into the artifact folder `output`.

    Args:
        weights: quantized weights of the components that have some; `quantize` wrote a
            report beside each, which the manifest takes over.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, variant.mode)
    output.mkdir(parents=True, exist_ok=True)
    with whole_file(output / TOKENIZER) as temporary:
        shutil.copyfile(checkpoint / TOKENIZER, temporary)
    link(units, output / MODEL, constant_methods(config, runtime))
    manifest = {
        "variant": variant.slug,
        "settings": settings.model_dump(),
        "components": {
            component: _component(scheme, component, weights.get(component))
            for component in COMPONENTS
        },
    }
    write_text(output / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    log.info("%s: %d bytes", output / MODEL, (output / MODEL).stat().st_size)


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
