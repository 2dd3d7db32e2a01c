"""The workflow for real: one command from a checkpoint to artifacts that transcribe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from voxtral_build.catalog.entries import Catalog
from voxtral_build.manifest import FileRecord
from voxtral_build.pte.inspect import describe
from voxtral_build.verify import verify

pytestmark = pytest.mark.lowering

TARGET = "artifacts/portable-fp32-none-streaming/report.json"
QUANTIZED = "artifacts/xnnpack-fp32-8da4w-streaming/report.json"


def snakemake(repository: Path, folder: Path, *arguments: str, code: int = 0) -> str:
    """Run Snakemake in `folder`; returns what it printed, and fails if it ends otherwise."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(repository / "Snakefile")]
    command += ["--directory", str(folder), "--configfile", str(folder / "matrix.yaml")]
    result = subprocess.run(
        [*command, "--cores", "2", *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == code, output[-3000:]
    return output


def test_one_variant_from_nothing_and_then_nothing_to_do(repository, tmp_path, matrix_data):
    # The default matrix, less all but two variants.
    matrix_data["variants"] = [
        {"backend": ["portable"], "dtype": ["fp32"], "scheme": ["none"], "mode": ["streaming"]},
        {"backend": ["xnnpack"], "dtype": ["fp32"], "scheme": ["8da4w"], "mode": ["streaming"]},
    ]
    configure(tmp_path, matrix_data)
    snakemake(repository, tmp_path, "--", TARGET)
    report = json.loads((tmp_path / TARGET).read_text())
    assert report["status"] == "validated"
    assert report["speech"]["token_agreement"] == 1.0
    folder = (tmp_path / TARGET).parent
    assert {path.name for path in folder.iterdir()} == {
        "model.pte",
        "preprocessor.pte",
        "tekken.json",
        "manifest.json",
        "report.json",
    }
    made_from = verify(folder).dependencies
    for name in ("params.json", "consolidated.safetensors", "tekken.json"):
        path = tmp_path / "build" / "checkpoint" / name
        assert made_from[f"checkpoint/{name}"] == FileRecord.of(path)
    assert set(describe(folder / "preprocessor.pte").methods) == {"forward"}
    # Nothing half-written is left anywhere.
    assert list((tmp_path / "build").rglob("*.tmp")) == []
    assert set(describe(folder / "model.pte").methods) == {
        "encode_audio_chunk",
        "text_decoder",
        "token_embedding",
    }
    assert "Nothing to be done" in snakemake(repository, tmp_path, "--", TARGET)

    # Quantized, it still understands: within two points of float32.
    snakemake(repository, tmp_path, "--", QUANTIZED)
    words = [json.loads((tmp_path / file).read_text())["words"] for file in (TARGET, QUANTIZED)]
    assert words[0]["spoken"] == words[1]["spoken"] > 150
    assert words[0]["rate"] < 0.06
    assert words[1]["rate"] < words[0]["rate"] + 0.02

    # What was lost is made again, from the units that are there, to the same bytes.
    model = folder / "model.pte"
    before = model.read_bytes()
    model.unlink()
    snakemake(repository, tmp_path, "--", TARGET, TARGET.replace("report.json", "model.pte"))
    assert model.read_bytes() == before

    all_of_it_with_catalog_cards_and_report(repository, tmp_path)
    one_that_fails_stays_out_and_the_other_does_not(repository, tmp_path, matrix_data)


def configure(folder: Path, data: dict[str, Any]) -> None:
    (folder / "matrix.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")


def all_of_it_with_catalog_cards_and_report(repository: Path, folder: Path) -> None:
    snakemake(repository, folder)
    catalog = Catalog.load(folder / "catalog" / "catalog.json")
    assert [entry.status for entry in catalog.entries] == ["validated", "validated"]
    for entry in catalog.entries:
        assert entry.variant in (folder / "catalog" / "index.html").read_text(encoding="utf-8")
        artifact = folder / "artifacts" / entry.variant
        verify(artifact)
        card = (artifact / "README.md").read_text(encoding="utf-8")
        assert entry.files["model.pte"].sha256 in card
    assert "Nothing to be done" in snakemake(repository, folder)
    snakemake(repository, folder, "--report", "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    for part in ("index.html", "It loads nothing from anywhere", "all from", "the reason for it"):
        assert part in " ".join(text.replace("\\n", " ").split())


def one_that_fails_stays_out_and_the_other_does_not(
    repository: Path, folder: Path, matrix: dict[str, Any]
) -> None:
    """A bound that quantization can't reach, under --keep-going."""
    strict = {"figure": "divergence", "scheme": ["8da4w"], "max": 1e-6, "reason": "A test."}
    configure(folder, {**matrix, "gates": [*matrix["gates"], strict]})
    (folder / TARGET).unlink()
    output = snakemake(repository, folder, "--keep-going", code=1)
    assert "xnnpack-fp32-8da4w-streaming is not what it should be" in output
    assert re.search(r"divergence [\d.e-]+, at most 1e-06", output)
    assert (folder / TARGET).is_file()
    assert not (folder / QUANTIZED).exists()
    assert (folder / QUANTIZED).with_name("report.failed.json").is_file()
    # The catalog says so, though its rule could not run.
    catalog = Catalog.load(folder / "catalog" / "catalog.json")
    assert [entry.status for entry in catalog.entries] == ["validated", "failed"]
    (failure,) = catalog.entries[1].failures
    assert (failure.gate, failure.max) == ("divergence", 1e-6)
