"""catalog.json: every variant of a matrix, what is known of it, and what it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from voxtral_build.artifact_files import DATA, MODEL
from voxtral_build.checkpoint import read_json
from voxtral_build.files import write_text
from voxtral_build.gates import Outcome
from voxtral_build.report import Report
from voxtral_build.strict_config import StrictModel

Status = Literal["validated", "inspected", "failed", "built", "not built"]


class FileEntry(StrictModel):
    """A file by its content."""

    bytes: int
    sha256: str


class Checkpoint(StrictModel):
    """What artifacts were made from."""

    name: str | None = Field(
        description="The repository on the Hub that published it, told by its content; null for "
        "any other checkpoint."
    )
    revision: str | None = Field(description="A commit of that repository.")
    files: dict[str, FileEntry]


class Source(StrictModel):
    """The commit of this project that linked an artifact."""

    commit: str
    modified: bool = Field(description="Whether files differed from it.")


class Provenance(StrictModel):
    """What an artifact was made from, and by what; its manifest has all of it."""

    checkpoint: Checkpoint
    settings: dict[str, Any]
    left_as_is: dict[str, list[str]] = Field(
        description="Layers that quantization skipped, by component."
    )
    dependencies: dict[str, FileEntry] = Field(description="Quantized weights, units.")
    versions: dict[str, str]
    source: Source | None = Field(description="None: not from a repository.")
    host: dict[str, str] = Field(description="Where it was linked.")
    manifest_sha256: str


class Entry(StrictModel):
    """One variant."""

    variant: str = Field(description="<backend>-<dtype>-<scheme>-<mode>, its folder's name.")
    backend: str
    dtype: str
    scheme: str
    mode: str
    encoder: str = Field(description="Quantization of the encoder's linears.")
    decoder: str = Field(description="Quantization of the decoder's linears.")
    embedding: str = Field(description="Quantization of the embedding.")
    host: str = Field(description="Where it can be lowered: any, or what that takes.")
    status: Status = Field(
        description="validated: it was run, and passed every gate. inspected: what was written was "
        "read back and is right, but no runtime at hand could run it. failed: it did not pass. "
        "built: no report on it "
        "yet. not built: there is no model."
    )
    files: dict[str, FileEntry] = Field(description="By name; empty unless there is a manifest.")
    provenance: Provenance | None
    report: Report | None

    @property
    def failures(self) -> list[Outcome]:
        """The gates that it did not pass."""
        return [] if self.report is None else self.report.failures

    @property
    def model_bytes(self) -> int | None:
        """Of the model, with what it keeps outside of itself; None where there is none."""
        if MODEL not in self.files:
            return None
        return sum(self.files[name].bytes for name in (MODEL, DATA) if name in self.files)

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.bytes for file in self.files.values())


class Catalog(StrictModel):
    """All variants of a matrix, in its order."""

    version: Literal[1] = Field(default=1, description="Of this format.")
    entries: list[Entry]

    def write(self, path: Path) -> None:
        """Write catalog.json, whole or not at all."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read catalog.json.

        Raises:
            BuildError: missing, or of another form.
        """
        return cls.checked(read_json(path), str(path))


def json_schema() -> dict[str, Any]:
    """The JSON schema of catalog.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Catalog.model_json_schema(mode="serialization"),
    }
