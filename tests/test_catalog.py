"""catalog.json: what it says of folders, and that it is what its schema describes."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest
import yaml

from tests import folders
from tests.catalogs import catalog
from voxtral_build import cli
from voxtral_build.catalog.collect import artifact_entry, collect
from voxtral_build.catalog.entries import Catalog, json_schema
from voxtral_build.checkpoint import known_release
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.matrix import Matrix


@pytest.fixture
def matrix(matrix_data):
    return Matrix.parse(matrix_data)


def entry_of(matrix, artifacts, variant):
    (entry,) = (e for e in collect(matrix, artifacts).entries if e.variant == variant)
    return entry


NAME = "xnnpack-fp32-none-offline"


def test_every_variant_is_there_in_the_order_of_the_matrix(matrix, tmp_path):
    entries = collect(matrix, tmp_path).entries
    assert [entry.variant for entry in entries] == [variant.slug for variant in matrix.variants]
    assert {entry.status for entry in entries} == {"not built"}
    for entry in entries:
        assert (entry.report, entry.provenance, entry.files, entry.failures) == (None, None, {}, [])
    quantized = entry_of(matrix, tmp_path, "xnnpack-fp32-8da4w-streaming")
    assert (quantized.encoder, quantized.embedding) == ("8da4w.g32", "8w.axis")


def test_what_a_validated_artifact_is(matrix, tmp_path):
    folder = folders.artifact(tmp_path, NAME)
    written = folders.report(folder)
    entry = entry_of(matrix, tmp_path, NAME)
    assert entry.status == "validated"
    assert entry.failures == []
    assert json.loads(entry.report.model_dump_json())["speed"] == written["speed"]
    assert (entry.files["model.pte"].bytes, entry.size_bytes) == (2_500_000, 2_500_000)
    made_from = entry.provenance
    assert made_from.checkpoint.files.keys() == {"consolidated.safetensors"}
    assert made_from.dependencies.keys() == {"units/a.pte"}
    assert made_from.source.commit == "4" * 40
    # The same from the folder alone.
    assert artifact_entry(folder) == entry


def test_a_model_is_as_large_as_both_of_its_files(matrix, tmp_path):
    folder = folders.artifact(tmp_path, NAME)
    manifest = Manifest.load(folder / "manifest.json")
    others = {"model.ptd": FileRecord(30_000_000, "5" * 64), "tekken.json": FileRecord(7, "6" * 64)}
    files = {**manifest.files, **others}
    dataclasses.replace(manifest, files=files).write(folder / "manifest.json")
    entry = entry_of(matrix, tmp_path, NAME)
    assert (entry.model_bytes, entry.size_bytes) == (32_500_000, 32_500_007)
    assert entry_of(matrix, tmp_path / "none", NAME).model_bytes is None


def test_what_a_failed_artifact_is(matrix, tmp_path):
    folder = folders.artifact(tmp_path, NAME)
    folders.report(folder, status="failed")
    entry = entry_of(matrix, tmp_path, NAME)
    assert entry.status == "failed"
    assert [str(outcome) for outcome in entry.failures] == ["divergence 0.013, at most 0.001"]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda f: (f / "report.json").write_text("{"), id="not_json"),
        pytest.param(lambda f: (f / "report.json").write_text("{}"), id="of_another_version"),
        pytest.param(lambda f: folders.report(f, manifest_sha256="0" * 64), id="of_another_build"),
    ],
)
def test_a_report_that_does_not_count(matrix, tmp_path, spoil):
    folder = folders.artifact(tmp_path, NAME)
    folders.report(folder)
    assert entry_of(matrix, tmp_path, NAME).status == "validated"
    spoil(folder)
    entry = entry_of(matrix, tmp_path, NAME)
    assert (entry.status, entry.report) == ("built", None)


def test_a_manifest_that_does_not_count(matrix, tmp_path):
    folder = folders.artifact(tmp_path, NAME)
    folders.report(folder)
    (folder / "manifest.json").write_text("{}")
    entry = entry_of(matrix, tmp_path, NAME)
    assert (entry.status, entry.files, entry.report) == ("built", {}, None)


def test_the_schema_file_is_current(repository):
    file = repository / "workflow" / "schemas" / "catalog.schema.json"
    assert json.loads(file.read_text(encoding="utf-8")) == json_schema(), (
        "run: python -m voxtral_build schema catalog > workflow/schemas/catalog.schema.json"
    )


def test_catalogs_are_what_the_schema_describes():
    """By jsonschema, not by what wrote them."""
    validator = jsonschema.Draft202012Validator(json_schema())
    content = json.loads(catalog(60).model_dump_json())
    validator.validate(content)
    del content["entries"][0]["report"]["gates"][0]["reason"]
    content["entries"][1]["status"] = "fine"
    assert len(list(validator.iter_errors(content))) == 2


def test_the_command_writes_all_three(matrix_data, tmp_path):
    config = tmp_path / "matrix.yaml"
    config.write_text(yaml.safe_dump(matrix_data), encoding="utf-8")
    folders.report(folders.artifact(tmp_path / "artifacts", NAME))
    folders.report(
        folders.artifact(tmp_path / "artifacts", "xnnpack-fp32-8w-offline"), status="failed"
    )
    arguments = ["--config", str(config), "--artifacts", str(tmp_path / "artifacts")]
    assert cli.main(["catalog", *arguments, "--output", str(tmp_path / "catalog")]) == 0
    assert {path.name for path in (tmp_path / "catalog").iterdir()} == {
        *("catalog.json", "index.html", "README.md")
    }
    read = Catalog.load(tmp_path / "catalog" / "catalog.json")
    assert [e.status for e in read.entries].count("not built") == len(read.entries) - 2
    for name in ("index.html", "README.md"):
        text = (tmp_path / "catalog" / name).read_text(encoding="utf-8")
        assert NAME in text


def test_no_card_for_what_failed(tmp_path, capsys):
    folder = folders.artifact(tmp_path, NAME)
    folders.report(folder, status="failed")
    output = folder / "README.md"
    assert cli.main(["card", "--artifact", str(folder), "--output", str(output)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not output.exists()
    (folder / "report.failed.json").unlink()
    folders.report(folder)
    assert cli.main(["card", "--artifact", str(folder), "--output", str(output)]) == 0
    assert NAME in output.read_text(encoding="utf-8")


def test_a_release_is_known_by_its_content():
    """Hashes of the repository's files, as the Hub has them."""
    hashes = {
        "params.json": "2ace010ebf7f0b62c60747d91c6d140e3c7238632d3e9c63d60a2bd2065ea301",
        "consolidated.safetensors": (
            "263f178fe752c90a2ae58f037a95ed092db8b14768b0978b8c48f66979c8345d"
        ),
        "tekken.json": "8434af1d39eba99f0ef46cf1450bf1a63fa941a26933a1ef5dbbf4adf0d00e44",
    }
    assert known_release(hashes) == (
        "mistralai/Voxtral-Mini-4B-Realtime-2602",
        "2769294da9567371363522aac9bbcfdd19447add",
    )
    for name in hashes:
        assert known_release({**hashes, name: "0" * 64}) is None
