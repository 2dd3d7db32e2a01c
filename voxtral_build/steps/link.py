"""Make an artifact: units linked into `model.pte`, preprocessor, tokenizer and manifest."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxtral_build import manifest
from voxtral_build.artifact_files import MANIFEST, MODEL, PREPROCESSOR
from voxtral_build.axes import COMPONENTS, Component
from voxtral_build.checkpoint import PARAMS, TOKENIZER, known_release, read_json
from voxtral_build.errors import BuildError
from voxtral_build.files import whole_file
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.metadata import constant_methods
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.link import link
from voxtral_build.quant import Scheme
from voxtral_build.settings import Settings
from voxtral_build.variants import Variant

log = logging.getLogger(__name__)


def run(
    *,
    checkpoint: Path,
    inventory: Path,
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
        inventory: of the checkpoint, from `meta_load`; it has the files' hashes.
        weights: quantized weights of the components that have some; `quantize` wrote a
            report beside each, which the manifest takes over.
        preprocessor: the one of the variant's mode.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, variant.mode)
    reports = {component: _report(path) for component, path in weights.items()}
    output.mkdir(parents=True, exist_ok=True)
    for source, name in ((checkpoint / TOKENIZER, TOKENIZER), (preprocessor, PREPROCESSOR)):
        with whole_file(output / name) as temporary:
            shutil.copyfile(source, temporary)
    link(units, output / MODEL, constant_methods(config, runtime))
    used = _checkpoint(inventory)
    Manifest(
        variant=variant.slug,
        release=known_release({name: record.sha256 for name, record in used.items()}),
        settings=settings.model_dump(),
        components={
            component: _component(scheme, component, reports.get(component))
            for component in COMPONENTS
        },
        files={name: FileRecord.of(output / name) for name in (MODEL, PREPROCESSOR, TOKENIZER)},
        dependencies={
            **{f"checkpoint/{name}": record for name, record in used.items()},
            **{
                f"weights/{path.name}": FileRecord(path.stat().st_size, reports[of]["sha256"])
                for of, path in weights.items()
            },
            **{f"units/{path.name}": FileRecord.of(path) for path in units},
            f"preprocessors/{preprocessor.name}": FileRecord.of(preprocessor),
        },
        builder=manifest.builder_versions(),
        source=manifest.source(),
        host=manifest.host(),
    ).write(output / MANIFEST)
    log.info("%s: %d bytes", output / MODEL, (output / MODEL).stat().st_size)


def _checkpoint(inventory: Path) -> dict[str, FileRecord]:
    files = read_json(inventory)["files"]
    return {name: FileRecord(**record) for name, record in files.items()}


def _component(
    scheme: Scheme, component: Component, report: Mapping[str, Any] | None
) -> dict[str, Any]:
    """How a component is quantized, and which of its layers are not."""
    description: dict[str, Any] = {"quantization": scheme.of(component).model_dump()}
    return description if report is None else description | {"left_as_is": report["left_as_is"]}


def _report(weights: Path) -> dict[str, Any]:
    path = weights.with_suffix(".json")
    if not path.is_file():
        raise BuildError(
            f"{path} is missing",
            allowed="the report that quantize writes beside the weights",
            next_step="make the weights again with `voxtral-build quantize`",
        )
    report: dict[str, Any] = read_json(path)
    return report
