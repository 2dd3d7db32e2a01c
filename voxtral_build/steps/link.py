"""Make an artifact: units linked into `model.pte`, preprocessor, tokenizer and manifest.

Where the units have data files, those are joined into `model.ptd`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from voxtral_build import manifest
from voxtral_build.artifact_files import DATA, MANIFEST, MODEL, PREPROCESSOR
from voxtral_build.axes import COMPONENTS, Component
from voxtral_build.checkpoint import PARAMS, TOKENIZER, known_release, read_json
from voxtral_build.errors import BuildError
from voxtral_build.files import whole_file
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.metadata import constant_methods
from voxtral_build.model.config import ModelConfig, RuntimeConfig
from voxtral_build.pte.data_file import DATA_SUFFIX
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
    data_files: Sequence[Path],
    preprocessor: Path,
    output: Path,
) -> None:
    """Write all files of the artifact folder `output`, except the report.

    Args:
        inventory: of the checkpoint, from `meta_load`; it has the files' hashes.
        weights: quantized weights of the components that have some; `quantize` wrote a
            report beside each, which the manifest takes over.
        data_files: those of the units, each of its unit's name; or none.
        preprocessor: the one of the variant's mode.

    Raises:
        BuildError: a file is missing or not what it should be, or units do not fit together.
    """
    config = ModelConfig.load(checkpoint / PARAMS)
    runtime = RuntimeConfig.resolve(config, settings, variant.mode)
    reports = {component: _report(path) for component, path in weights.items()}
    output.mkdir(parents=True, exist_ok=True)
    for source, name in ((checkpoint / TOKENIZER, TOKENIZER), (preprocessor, PREPROCESSOR)):
        with whole_file(output / name) as temporary:
            shutil.copyfile(source, temporary)
    data = _data_files(units, data_files)
    (output / DATA).unlink(missing_ok=True)  # of an earlier build
    link(units, output / MODEL, constant_methods(config, runtime), data)
    names = (MODEL, *((DATA,) if data else ()), PREPROCESSOR, TOKENIZER)
    used = _checkpoint(inventory)
    Manifest(
        variant=variant.slug,
        release=known_release({name: record.sha256 for name, record in used.items()}),
        settings=settings.model_dump(),
        components={
            component: _component(scheme, component, reports.get(component))
            for component in COMPONENTS
        },
        files={name: FileRecord.of(output / name) for name in names},
        dependencies={
            **{f"checkpoint/{name}": record for name, record in used.items()},
            **{
                f"weights/{path.name}": FileRecord(path.stat().st_size, reports[of]["sha256"])
                for of, path in weights.items()
            },
            **{f"units/{path.name}": FileRecord.of(path) for path in (*units, *data_files)},
            f"preprocessors/{preprocessor.name}": FileRecord.of(preprocessor),
        },
        builder=manifest.builder_versions(),
        source=manifest.source(),
        host=manifest.host(),
    ).write(output / MANIFEST)
    log.info("%s: %d bytes", output / MODEL, (output / MODEL).stat().st_size)


def _data_files(units: Sequence[Path], data_files: Sequence[Path]) -> dict[Path, Path]:
    """Data files by unit.

    Raises:
        BuildError: one is of none of the units.
    """
    by_name = {unit.stem: unit for unit in units}
    for path in data_files:
        if path.stem not in by_name:
            raise BuildError(
                f"{path} is the data file of no unit that is given",
                got=path.name,
                allowed=[unit.with_suffix(DATA_SUFFIX).name for unit in units],
                next_step="give the .ptd files that lower wrote beside the units",
            )
    return {by_name[path.stem]: path for path in data_files}


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
