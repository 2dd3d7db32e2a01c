"""manifest.json, and what `verify` finds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess

import pytest

from voxtral_build import cli, manifest
from voxtral_build.checkpoint import Release
from voxtral_build.errors import BuildError
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.variants import Variant
from voxtral_build.verify import verify

VARIANT = Variant("xnnpack", "fp32", "8da4w", "streaming")
EXAMPLE = Manifest(
    variant="xnnpack-fp32-none-offline",
    release=Release("org/name", "2" * 40),
    settings={"max_seq_len": 256, "sliding_window": None},
    components={"encoder": {"quantization": {"type": "none"}}},
    files={"model.pte": FileRecord(3, hashlib.sha256(b"abc").hexdigest())},
    dependencies={"checkpoint/params.json": FileRecord(1, "0" * 64)},
    builder={"torch": "2.13.0"},
    source={"commit": "1" * 40, "modified": True},
    host={"system": "Linux"},
)


def test_it_is_an_in_toto_statement_of_slsa_provenance(tmp_path):
    """Field names by hand from in-toto's Statement v1 and SLSA's provenance v1."""
    EXAMPLE.write(tmp_path / "manifest.json")
    statement = json.loads((tmp_path / "manifest.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    (subject,) = statement["subject"]
    assert (subject["name"], subject["digest"]) == (
        "model.pte",
        {"sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    )
    predicate = statement["predicate"]
    assert set(predicate) == {"buildDefinition", "runDetails"}
    assert {"buildType", "externalParameters", "resolvedDependencies"} <= set(
        predicate["buildDefinition"]
    )
    assert set(predicate["runDetails"]["builder"]) == {"id", "version"}
    assert predicate["buildDefinition"]["resolvedDependencies"][-1]["digest"] == {
        "gitCommit": "1" * 40
    }


@pytest.mark.parametrize("source", [EXAMPLE.source, None])
def test_it_reads_what_it_wrote(tmp_path, source):
    given = dataclasses.replace(EXAMPLE, source=source)
    given.write(tmp_path / "manifest.json")
    assert Manifest.load(tmp_path / "manifest.json") == given


@pytest.mark.parametrize(
    "change",
    [
        lambda statement: statement.pop("subject"),
        lambda statement: statement.update(predicateType="https://slsa.dev/provenance/v0.2"),
        lambda statement: statement["subject"][0].update(name=3),
        lambda statement: statement["subject"][0]["annotations"].update(bytes="3"),
        lambda statement: statement["subject"].append(statement["subject"][0]),
        lambda statement: statement.update(predicate=[]),
        lambda statement: statement["predicate"]["buildDefinition"].update(buildType="other"),
        lambda statement: statement["subject"].append("model.pte"),
    ],
)
def test_what_is_no_manifest(tmp_path, change):
    path = tmp_path / "manifest.json"
    EXAMPLE.write(path)
    statement = json.loads(path.read_text())
    change(statement)
    path.write_text(json.dumps(statement))
    with pytest.raises(BuildError) as error:
        Manifest.load(path)
    assert f"{path} is no manifest of an artifact" in str(error.value)


def test_the_source_is_the_commit_of_tracked_files(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert manifest.source(package) is None
    git("init")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-m", "other")
    # As an environment lies in somebody's repository.
    assert manifest.source(package) is None
    git("add", ".")
    git("commit", "-m", "package")
    commit = git("rev-parse", "HEAD")
    assert manifest.source(package) == {"commit": commit, "modified": False}
    (tmp_path / "other").write_text("changed")
    assert manifest.source(package) == {"commit": commit, "modified": False}
    (package / "__init__.py").write_text("changed")
    assert manifest.source(package) == {"commit": commit, "modified": True}


# --- verify, on a real artifact ---


@pytest.fixture(scope="module")
def made(factory, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / VARIANT.slug
    shutil.copytree(factory.artifact(VARIANT), folder)
    factory.validate(VARIANT, folder / "report.json", artifact=folder)
    return factory, folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[1], tmp_path / VARIANT.slug)


@pytest.mark.lowering
def test_what_it_was_made_from(made):
    factory, folder = made
    found = verify(folder)
    assert found.variant == VARIANT.slug
    names = set(found.dependencies)
    assert {
        "checkpoint/params.json",
        "checkpoint/consolidated.safetensors",
        "checkpoint/tekken.json",
        "preprocessors/preprocessor-streaming.pte",
    } < names
    assert {name.partition("/")[0] for name in names} == {
        "checkpoint",
        "weights",
        "units",
        "preprocessors",
    }
    assert sum(name.startswith("units/") for name in names) == 3
    places = {"checkpoint": factory.checkpoint, "preprocessors": factory.folder}
    for name, record in found.dependencies.items():
        kind, _, file = name.partition("/")
        path = places.get(kind, factory.folder) / file
        assert path.stat().st_size == record.bytes
        assert hashlib.sha256(path.read_bytes()).hexdigest() == record.sha256, name


@pytest.mark.lowering
def test_verify_tells_what_is_right(folder, capsys):
    assert cli.main(["verify", str(folder)]) == 0
    assert "xnnpack-fp32-8da4w-streaming" in capsys.readouterr().out


def _flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _settings(folder, **changes):
    """A manifest, and a report of it, that say another setting."""
    old = Manifest.load(folder / "manifest.json")
    new = dataclasses.replace(old, settings={**old.settings, **changes})
    new.write(folder / "manifest.json")
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    _edit(folder / "report.json", lambda report: report.update(manifest_sha256=digest))


@pytest.mark.lowering
@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda f: _flip(f / "model.pte", -100), "model.pte: sha256"),
        (lambda f: (f / "model.pte").write_bytes(b"x" * 10), "model.pte: 10 bytes, not"),
        (lambda f: (f / "tekken.json").unlink(), "tekken.json: missing"),
        (lambda f: (f / ".env").write_text("TOKEN=1"), ".env: belongs to no artifact"),
        (lambda f: (f / "report.json").unlink(), "report.json: missing, it was not validated"),
        (
            lambda f: _edit(f / "report.json", lambda r: r.update(status="failed")),
            "report.json: status failed, not validated",
        ),
        (
            lambda f: (f / "report.json").rename(f / "report.failed.json"),
            "report.failed.json: it failed its validation",
        ),
        (
            lambda f: _edit(f / "report.json", lambda r: r.update(variant="other")),
            "report.json: variant other",
        ),
        # Somebody has written another status over that of a failed one.
        (
            lambda f: _edit(
                f / "report.json", lambda r: r["gates"][-1].update(passed=False, figure=7.0)
            ),
            "token_agreement 7, at least 0.9, and yet validated",
        ),
        (
            lambda f: (f / "report.json").write_text("{}"),
            "report.json is no report of this version",
        ),
        # The report is of another build of the same variant.
        (
            lambda f: dataclasses.replace(
                Manifest.load(f / "manifest.json"), host={"system": "Other"}
            ).write(f / "manifest.json"),
            "report.json: manifest_sha256",
        ),
        (lambda f: _settings(f, delay_tokens=7), "model.pte: delay_tokens 6, not 7"),
        (
            lambda f: dataclasses.replace(
                Manifest.load(f / "manifest.json"), files={"../escape": FileRecord(1, "0" * 64)}
            ).write(f / "manifest.json"),
            "../escape: no name of a file in this folder",
        ),
    ],
)
def test_verify_finds_what_is_wrong(folder, capsys, spoil, fault):
    spoil(folder)
    assert cli.main(["verify", str(folder)]) == 2
    error = capsys.readouterr().err
    assert fault in error
    assert "Traceback" not in error


@pytest.mark.lowering
def test_a_link_is_no_file_of_an_artifact(folder, tmp_path, capsys):
    (folder / "model.pte").rename(tmp_path / "model.pte")
    (folder / "model.pte").symlink_to(tmp_path / "model.pte")
    assert cli.main(["verify", str(folder)]) == 2
    assert "model.pte: a link" in capsys.readouterr().err


def test_a_folder_that_is_none(tmp_path, capsys):
    assert cli.main(["verify", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "manifest.json cannot be read" in error
