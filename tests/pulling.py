"""What tests of `pull` have in common: a Hub with artifacts, and what came of it."""

from __future__ import annotations

import re
from contextlib import contextmanager

from huggingface_hub import constants

from tests.hub import (
    WRITE_TOKEN,
    HubServer,
)
from tests.hub_runs import MLX, PORTABLE, XNNPACK, Ended, Here, write_artifact
from voxtral_build.cli import main

REPO = "acme/voxtral"
FOLDER = f"portable/{PORTABLE}"
NAMES = {
    "README.md",
    "manifest.json",
    "model.pte",
    "preprocessor.pte",
    "report.json",
    "tekken.json",
}
WORK = f".{PORTABLE}.pull"
CARD = b"# An artifact\n"
MODEL_ARRIVES, MODEL_ASKED = "GET /storage/.*/{}", f"GET .*/resolve/.*{PORTABLE}/model[.]pte"


def write_artifacts(folder):
    """Of two backends that can be run, and one that was read back."""
    write_artifact(folder, PORTABLE)
    write_artifact(folder, XNNPACK)
    write_artifact(folder, MLX, status="inspected")
    return folder


@contextmanager
def serving(tmp_path, monkeypatch):
    """A folder in a folder, so that what is written above it is seen."""
    folder = tmp_path / "above" / "here"
    folder.mkdir(parents=True)
    (tmp_path / "above" / "mine.txt").write_text("mine", encoding="utf-8")
    with HubServer(tmp_path / "hub") as hub:
        hub.create(REPO)
        # Of this process, for `pull_within`.
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield Here(folder, hub, more={"HF_HOME": str(tmp_path / "home")})
    assert not hub.errors
    assert not hub.faults_left


def files_of(artifact):
    """By path in a repository; with a card, which publishing makes."""
    base = f"{artifact.name.partition('-')[0]}/{artifact.name}"
    files = {f"{base}/{path.name}": path.read_bytes() for path in artifact.iterdir()}
    return files | {f"{base}/README.md": CARD}


def large_artifact(folder, seed=0):
    """A model of some blocks, so that a part of it can have arrived."""
    return files_of(write_artifact(folder / f"seed{seed}", PORTABLE, seed=seed, size=4_000_000))


def pull(here, *arguments, variant=PORTABLE, code=0):
    return here.run("pull", REPO, variant, *arguments, code=code)


def pull_within(capsys, *arguments, variant=PORTABLE, code=0):
    """In this process: of many repositories, a new one for each would take minutes."""
    assert main(["pull", REPO, variant, *arguments]) == code
    return Ended(code, *capsys.readouterr())


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def named(files, variant=PORTABLE):
    """Files of one artifact by their own names."""
    return {path.rpartition("/")[2]: data for path, data in files.items() if f"/{variant}/" in path}


def everything(folder):
    """All that is in a folder, links not followed."""
    return {
        str(path.relative_to(folder)): (
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        for path in folder.rglob("*")
    }


def asked_for(hub, start=0):
    """Paths in the repository whose content was asked for."""
    found = [re.fullmatch("/.+?/resolve/[^/]+/(.+)", item.path) for item in hub.requests[start:]]
    return [match.group(1) for match in found if match]


def from_storage(hub):
    return [item for item in hub.requests if item.path.startswith("/storage")]


def is_one_message(ended):
    """No output, and one error of at most four parts that a terminal shows as it is."""
    assert ended.out == ""
    assert all(sign.isprintable() or sign == "\n" for sign in ended.err)
    assert len(ended.err) < 5000
    for part in ("error: ", "  got: ", "  allowed: ", "  next: "):
        assert len(re.findall(f"^{part}", ended.err, re.MULTILINE)) <= 1
    return ended.err[ended.err.index("error: ") :]


def refused(here, capsys):
    """A pull that ends in one message, and after which nothing has changed on disk."""

    def check(*arguments, variant=PORTABLE):
        before = everything(here.folder.parent)
        message = is_one_message(pull_within(capsys, *arguments, variant=variant, code=2))
        assert everything(here.folder.parent) == before
        return message

    return check


# What is fetched
