"""The workflow for real: one command from a checkpoint to artifacts that transcribe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from voxtral_build.manifest import FileRecord
from voxtral_build.pte.inspect import describe
from voxtral_build.verify import verify

pytestmark = pytest.mark.lowering

TARGET = "artifacts/portable-fp32-none-streaming/report.json"
QUANTIZED = "artifacts/xnnpack-fp32-8da4w-streaming/report.json"


def snakemake(repository: Path, folder: Path, *arguments: str) -> str:
    """Run Snakemake in `folder`; returns what it printed, and fails if it failed."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(repository / "Snakefile")]
    command += ["--directory", str(folder), "--configfile", str(repository / "config/matrix.yaml")]
    result = subprocess.run(
        [*command, "--cores", "2", *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-3000:]
    return output


def test_one_variant_from_nothing_and_then_nothing_to_do(repository, tmp_path):
    snakemake(repository, tmp_path, "--", TARGET)
    report = json.loads((tmp_path / TARGET).read_text())
    assert report["status"] == "validated"
    assert report["token_agreement"] == 1.0
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
