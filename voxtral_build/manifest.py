"""manifest.json: the files of an artifact, and all that they were made from.

An in-toto statement whose predicate is SLSA provenance: `subject` are the files,
`externalParameters` what was asked for, `resolvedDependencies` what was used, by hash. It
holds no time: the same inputs give the same bytes.

Source: in-toto Statement v1, SLSA provenance v1 (slsa.dev/spec/v1.0/provenance).
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from voxtral_build.artifact_files import MODEL, PREPROCESSOR
from voxtral_build.checkpoint import TOKENIZER, Release, read_json
from voxtral_build.errors import BuildError
from voxtral_build.files import sha256, write_text
from voxtral_build.provenance import PACKAGE
from voxtral_build.redaction import one_line

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:voxtral-build:artifact:v1"
BUILDER = "urn:voxtral-build"
REQUIRED = (MODEL, PREPROCESSOR, TOKENIZER)
_SHA256 = re.compile("[0-9a-f]{64}")
# What decides about the bytes of an artifact, beside this package.
_TOOLS = ("executorch", "numpy", "pydantic", "safetensors", "torch", "torchao")


@dataclass(frozen=True)
class FileRecord:
    """A file's size in bytes, and the hash of its content."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file through."""
        return cls(path.stat().st_size, sha256(path))


@dataclass(frozen=True)
class Manifest:
    """What a manifest says.

    Attributes:
        variant: `<backend>-<dtype>-<scheme>-<mode>`.
        release: the published checkpoint that it was made from; None for another.
        settings: of the build, as config/matrix.yaml has them.
        components: each component's `quantization`, as config/matrix.yaml has it, and of a
            quantized one `left_as_is`, its layers that were skipped.
        files: what the artifact is, by name.
        dependencies: what it was made from, by name: the checkpoint's files, quantized
            weights, units and the preprocessor.
        builder: versions of what made it.
        source: commit of this project, or None outside a repository; `modified` if its
            files differed from that.
        host: where it was linked: `system`, `machine`, `python`.
    """

    variant: str
    release: Release | None
    settings: Mapping[str, Any]
    components: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, FileRecord]
    dependencies: Mapping[str, FileRecord]
    builder: Mapping[str, str]
    source: Mapping[str, Any] | None
    host: Mapping[str, str]

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        dependencies = _descriptors(self.dependencies)
        if self.source is not None:
            dependencies.append(
                {
                    "name": "voxtral-build",
                    "digest": {"gitCommit": self.source["commit"]},
                    "annotations": {"modified": self.source["modified"]},
                }
            )
        statement = {
            "_type": STATEMENT,
            "subject": _descriptors(self.files),
            "predicateType": PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "variant": self.variant,
                        "checkpoint": self.release and self.release._asdict(),
                        "settings": self.settings,
                        "components": self.components,
                    },
                    "internalParameters": {"host": self.host},
                    "resolvedDependencies": dependencies,
                },
                "runDetails": {"builder": {"id": BUILDER, "version": self.builder}},
            },
        }
        write_text(path, json.dumps(statement, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a manifest.

        Raises:
            BuildError: the file is missing or is none.
        """
        statement = read_json(path)
        try:
            if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
                raise ValueError(f"{statement['_type']} of {statement['predicateType']}")
            definition = statement["predicate"]["buildDefinition"]
            if definition["buildType"] != BUILD_TYPE:
                raise ValueError(f"buildType {definition['buildType']}")
            asked = definition["externalParameters"]
            *_, source = [None, *filter(_is_source, definition["resolvedDependencies"])]
            used = [item for item in definition["resolvedDependencies"] if not _is_source(item)]
            return cls(
                variant=asked["variant"],
                release=asked["checkpoint"] and Release(**asked["checkpoint"]),
                settings=dict(asked["settings"]),
                components=dict(asked["components"]),
                files=_records(statement["subject"]),
                dependencies=_records(used),
                builder=dict(statement["predicate"]["runDetails"]["builder"]["version"]),
                source=source
                and {
                    "commit": source["digest"]["gitCommit"],
                    "modified": source["annotations"]["modified"],
                },
                host=dict(definition["internalParameters"]["host"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BuildError(
                f"{path} is no manifest of an artifact",
                got=one_line(f"{type(error).__name__}: {error}"),
                allowed=f"an in-toto statement of {PREDICATE}, as link writes it",
                next_step="link the artifact again: `snakemake --forcerun link`",
            ) from None


def file_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What is wrong with the files that a manifest lists: every size and every hash."""
    for name in REQUIRED:
        if name not in manifest.files:
            yield f"{name}: not in the manifest"
    for name, record in manifest.files.items():
        path = folder / name
        # A name that leads out of the folder is nobody's honest file.
        if Path(name).name != name:
            yield f"{name}: no name of a file in this folder"
        elif path.is_symlink() or not path.is_file():
            yield f"{name}: missing" if not path.is_symlink() else f"{name}: a link"
        elif (size := path.stat().st_size) != record.bytes:
            yield f"{name}: {size:,} bytes, not {record.bytes:,}"
        elif (got := FileRecord.of(path)) != record:
            yield f"{name}: sha256 {got.sha256}, not {record.sha256}"


def _descriptors(records: Mapping[str, FileRecord]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "digest": {"sha256": record.sha256},
            "annotations": {"bytes": record.bytes},
        }
        for name, record in records.items()
    ]


def _records(descriptors: Sequence[Any]) -> dict[str, FileRecord]:
    records = {}
    for item in descriptors:
        name, size, digest = item["name"], item["annotations"]["bytes"], item["digest"]["sha256"]
        if not isinstance(name, str) or type(size) is not int or not isinstance(digest, str):
            raise TypeError(f"{item}")
        if size < 0 or not _SHA256.fullmatch(digest):  # it becomes part of files' names
            raise ValueError(f"{item}")
        if name in records:
            raise ValueError(f"{name} twice")
        records[name] = FileRecord(size, digest)
    return records


def _is_source(descriptor: Any) -> bool:
    return "gitCommit" in descriptor["digest"]


def builder_versions() -> dict[str, str]:
    """Versions of this package and of the tools that decide about an artifact's bytes."""
    return {name: metadata.version(name) for name in _TOOLS}


def host() -> dict[str, str]:
    """The machine that this runs on."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def source(package: Path = PACKAGE) -> dict[str, Any] | None:
    """The commit that this package is at; None where it is not under git's control.

    An environment within somebody's repository is not: its files are not tracked there.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return {
            "commit": git("rev-parse", "HEAD"),
            "modified": bool(git("status", "--porcelain", "--", ".")),
        }
    except (OSError, subprocess.CalledProcessError):
        return None
