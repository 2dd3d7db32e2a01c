"""Hold an artifact's folder against its manifest, and the parts against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from voxtral_build.artifact_files import CARD, DATA, FAILED_REPORT, MANIFEST, MODEL, REPORT
from voxtral_build.axes import METHODS_OF
from voxtral_build.errors import BuildError, ValidationError
from voxtral_build.files import sha256
from voxtral_build.manifest import Manifest, file_faults
from voxtral_build.pte.data_file import read_data
from voxtral_build.pte.external import missing_data
from voxtral_build.pte.inspect import describe
from voxtral_build.pte.program_file import read
from voxtral_build.redaction import one_line
from voxtral_build.report import Report
from voxtral_build.variants import Variant

_BESIDE = {MANIFEST, REPORT, CARD}
# Constant methods of a program that say what was set for the build.
_SETTINGS = ("max_seq_len", "delay_tokens", "sliding_window", "max_enc_len")


def verify(folder: Path, *, alone: bool = True) -> Manifest:
    """Check every file of an artifact's folder.

    Sizes and hashes are the manifest's; the report is of this manifest; methods and
    constants of the model are those of the variant and its settings; what it keeps outside of
    itself is in its data file; nothing else lies there.

    Args:
        alone: without it, other files may lie there.

    Raises:
        BuildError: there is no manifest that could be read.
        ValidationError: lists everything that is wrong.
    """
    manifest = Manifest.load(folder / MANIFEST)
    faults = [
        *file_faults(folder, manifest),
        *(_stray_faults(folder, manifest) if alone else ()),
        *_report_faults(folder, manifest),
    ]
    if not faults:  # of the right bytes
        faults += _model_faults(folder / MODEL, manifest)
        faults += _data_faults(folder, manifest)
    if faults:
        raise ValidationError(
            f"{folder} is not the artifact that its manifest describes",
            got="\n           ".join(map(one_line, faults)),
            next_step="fetch or build it again; publish nothing of it",
        )
    return manifest


def strays(folder: Path, manifest: Manifest) -> list[str]:
    """Names of what lies in an artifact's folder and does not belong to it."""
    own = manifest.files.keys() | _BESIDE
    return sorted(path.name for path in folder.iterdir() if path.name not in own)


def _stray_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    for name in strays(folder, manifest):
        if name == FAILED_REPORT:
            yield f"{name}: it failed its validation"
        else:
            yield f"{name}: belongs to no artifact"


def _report_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    path = folder / REPORT
    if not path.is_file():
        yield f"{REPORT}: missing, it was not validated"
        return
    try:
        report = Report.load(path)
    except BuildError as error:
        yield f"{error.what}: {error.got}"
        return
    for name, got, expected in (
        ("variant", report.variant, manifest.variant),
        ("manifest_sha256", report.manifest_sha256, sha256(folder / MANIFEST)),
        ("status", report.status, "inspected" if report.not_run else "validated"),
    ):
        if got != expected:
            yield f"{REPORT}: {name} {got}, not {expected}"
    for outcome in report.failures:
        yield f"{REPORT}: {outcome}, and yet {report.status}"


def _model_faults(model: Path, manifest: Manifest) -> Iterator[str]:
    variant = Variant.parse(manifest.variant)
    description = describe(model)
    constants: Mapping[str, Any] = description.constant_methods
    got, expected = sorted(description.methods), sorted(METHODS_OF[variant.mode])
    if got != expected:
        yield f"{model.name}: methods {', '.join(got)}, not {', '.join(expected)}"
    for name in _SETTINGS:
        setting = manifest.settings.get(name)
        if setting is not None and name in constants and constants[name] != setting:
            yield f"{model.name}: {name} {constants[name]}, not {setting}"


def _data_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    data = read_data(folder / DATA) if DATA in manifest.files else None
    for fault in missing_data(read(folder / MODEL), data):
        yield f"{DATA}: {fault}"
