"""What is known of every variant of a matrix, from the folders of artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from voxtral_build.artifact_files import FAILED_REPORT, MANIFEST, MODEL, REPORT
from voxtral_build.axes import COMPONENTS
from voxtral_build.backends import BACKENDS
from voxtral_build.catalog.entries import (
    Catalog,
    Checkpoint,
    Entry,
    FileEntry,
    Provenance,
    Source,
    Status,
)
from voxtral_build.errors import BuildError
from voxtral_build.files import sha256
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.matrix import Matrix
from voxtral_build.quant import Scheme
from voxtral_build.report import Report
from voxtral_build.variants import Variant

_CHECKPOINT = "checkpoint/"  # in front of the names of its files, in a manifest


def collect(matrix: Matrix, artifacts: Path) -> Catalog:
    """Every variant of the matrix, with what `artifacts` has of it.

    A report counts for the manifest that it names only: an artifact that was built again is
    not what an older report speaks of.
    """
    return Catalog(
        entries=[
            _entry(variant, matrix.scheme(variant), artifacts / variant.slug)
            for variant in matrix.variants
        ]
    )


def artifact_entry(folder: Path) -> Entry:
    """What is known of one artifact, from its folder alone.

    Raises:
        BuildError: there is no manifest that could be read.
    """
    manifest = Manifest.load(folder / MANIFEST)
    quants = {name: manifest.components[name]["quantization"] for name in COMPONENTS}
    return _entry(Variant.parse(manifest.variant), Scheme.checked(quants, MANIFEST), folder)


def _entry(variant: Variant, scheme: Scheme, folder: Path) -> Entry:
    provenance, files = _made_from(folder)
    report = None if provenance is None else _report(folder, provenance.manifest_sha256)
    status: Status = "not built"
    if report is not None:
        status = report.status
    elif (folder / MODEL).is_file():
        status = "built"
    return Entry(
        variant=variant.slug,
        **variant.axes,
        encoder=scheme.encoder.slug,
        decoder=scheme.decoder.slug,
        embedding=scheme.embedding.slug,
        host=BACKENDS[variant.backend].capability.host,
        status=status,
        files=files,
        provenance=provenance,
        report=report,
    )


def _made_from(folder: Path) -> tuple[Provenance | None, dict[str, FileEntry]]:
    """What the manifest says, where there is one and the model that it is of."""
    path = folder / MANIFEST
    if not (folder / MODEL).is_file() or not path.is_file():
        return None, {}
    try:
        manifest = Manifest.load(path)
    except BuildError:  # of another version: it says nothing
        return None, {}
    own = {
        name.removeprefix(_CHECKPOINT): record
        for name, record in manifest.dependencies.items()
        if name.startswith(_CHECKPOINT)
    }
    others = {
        name: record
        for name, record in manifest.dependencies.items()
        if not name.startswith(_CHECKPOINT)
    }
    provenance = Provenance(
        checkpoint=Checkpoint(
            name=manifest.release and manifest.release.repository,
            revision=manifest.release and manifest.release.revision,
            files=_files(own),
        ),
        settings=dict(manifest.settings),
        left_as_is={
            component: list(described["left_as_is"])
            for component, described in manifest.components.items()
            if described.get("left_as_is")
        },
        dependencies=_files(others),
        versions=dict(manifest.builder),
        source=None if manifest.source is None else Source(**manifest.source),
        host=dict(manifest.host),
        manifest_sha256=sha256(path),
    )
    return provenance, _files(manifest.files)


def _files(records: Mapping[str, FileRecord]) -> dict[str, FileEntry]:
    return {
        name: FileEntry(bytes=record.bytes, sha256=record.sha256)
        for name, record in records.items()
    }


def _report(folder: Path, manifest_sha256: str) -> Report | None:
    for name in (REPORT, FAILED_REPORT):
        path = folder / name
        if not path.is_file():
            continue
        try:
            report = Report.load(path)
        except BuildError:  # of another version
            continue
        if report.manifest_sha256 == manifest_sha256:
            return report
    return None
