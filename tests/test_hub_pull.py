"""`pull`: one artifact, whole and verified; and what is not there, or not for everybody."""

from __future__ import annotations

import shlex
import shutil

import pytest

from tests.hub import (
    READ_TOKEN,
    WRITE_TOKEN,
    Status,
)
from tests.hub_runs import MLX, PORTABLE, XNNPACK, Ended, write_artifact, write_matrix
from tests.pulling import (
    FOLDER,
    NAMES,
    REPO,
    asked_for,
    content,
    everything,
    files_of,
    from_storage,
    is_one_message,
    named,
    pull,
    pull_within,
    refused,
    serving,
    write_artifacts,
)
from voxtral_build.cli import main


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return write_artifacts(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    with serving(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def is_refused(here, capsys):
    return refused(here, capsys)


def test_one_artifact_is_fetched_whole_and_nothing_else_is(here, artifacts):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files | files_of(artifacts / XNNPACK) | {f"{FOLDER}/more.bin": b"\0"})
    pull(here)
    assert sorted(asked_for(here.hub)) == sorted(f"{FOLDER}/{name}" for name in NAMES)
    assert len(from_storage(here.hub)) == 2
    assert [path.name for path in here.folder.iterdir()] == [PORTABLE]
    assert content(here.folder / PORTABLE) == named(files)


@pytest.mark.parametrize(
    ("variant", "commands"),
    [
        (XNNPACK, ["speech.wav"]),
        (PORTABLE, ["speech.wav", "microphone --stream"]),
    ],
)
def test_it_says_how_to_run(here, capsys, artifacts, variant, commands):
    here.hub.commit(REPO, files_of(artifacts / variant))
    printed = pull_within(capsys, "--output", "a b", variant=variant).out
    lines = [line for line in printed.splitlines() if line.startswith("voxtral-build")]
    assert [shlex.split(line) for line in lines] == [
        ["voxtral-build", "transcribe", "a b", *command.split()] for command in commands
    ]


def test_it_says_that_an_inspected_one_was_not_run(here, capsys, artifacts):
    here.hub.commit(REPO, files_of(artifacts / MLX))
    printed = pull_within(capsys, variant=MLX).out
    assert "could not be run: the runtime here has no such backend" in printed
    assert "transcribe" not in printed


def test_what_was_published_is_what_is_pulled(here, artifacts):
    """To the byte, as `publish` sent it and `verify` finds it."""
    shutil.copytree(artifacts, here.folder / "artifacts")
    write_matrix(here.folder, [XNNPACK, MLX])
    here.run("publish", REPO, "--inspected", "--artifacts", "artifacts")
    for variant in (XNNPACK, MLX):
        pull(here, variant=variant)
        card = here.hub.read(REPO, f"{variant.partition('-')[0]}/{variant}/README.md")
        assert content(here.folder / variant) == content(artifacts / variant) | {"README.md": card}
        assert "right" in here.run("verify", variant).out


def test_revisions(here, capsys):
    """A commit, a tag and a pull request keep what they have, whatever main becomes."""
    write_matrix(here.folder, [PORTABLE])
    models = []
    for seed, more in ((0, ()), (1, ("--create-pr",)), (2, ())):
        made = write_artifact(here.folder / "artifacts", PORTABLE, seed=seed)
        models.append((made / "model.pte").read_bytes())
        here.run("publish", REPO, *more)
        if seed == 0:
            here.hub.tag(REPO, "v1")
    first = here.hub.commits(REPO)[1].id
    for revision, model in (
        (first, models[0]),
        ("v1", models[0]),
        ("refs/pr/1", models[1]),
        ("main", models[2]),
    ):
        pull_within(capsys, "--revision", revision, "--output", "got")
        assert (here.folder / "got" / "model.pte").read_bytes() == model
        shutil.rmtree(here.folder / "got")


def test_a_deep_folder(here, capsys, artifacts):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    printed = pull_within(capsys, "--output", "some/deep/folder").out
    assert "in some/deep/folder" in printed
    assert content(here.folder / "some/deep/folder") == named(files)
    assert [path.name for path in (here.folder / "some/deep").iterdir()] == ["folder"]


def test_what_is_there_is_not_fetched_again(here, artifacts, capsys, caplog):
    here.hub.commit(REPO, files_of(artifacts / PORTABLE))
    first = pull_within(capsys)
    here.hub.commit(REPO, {"catalog.json": b"{}"})
    before, count = everything(here.folder), len(here.hub.requests)
    second = pull_within(capsys)
    assert second.out == first.out
    assert f"{PORTABLE} is there already" in caplog.text
    assert set(asked_for(here.hub, count)) <= {f"{FOLDER}/manifest.json"}
    assert everything(here.folder) == before


@pytest.mark.parametrize("there", ["file", "empty", "folder", "older", "damaged", "broken link"])
def test_something_else_at_the_output_is_refused_and_stays(
    here, capsys, artifacts, there, is_refused
):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    output = here.folder / PORTABLE
    if there == "file":
        output.write_text("a file", encoding="utf-8")
    elif there == "broken link":
        output.symlink_to("nowhere")
    elif there in ("empty", "folder"):
        output.mkdir()
        if there == "folder":
            (output / "notes.txt").write_text("mine", encoding="utf-8")
    else:
        pull_within(capsys)
        if there == "older":
            changed = write_artifact(here.folder.parent.parent / "new", PORTABLE, seed=1)
            here.hub.commit(REPO, files_of(changed))
        else:
            (output / "model.pte").write_bytes(b"\0" + files[f"{FOLDER}/model.pte"][1:])
    count = len(here.hub.requests)
    message = is_refused()
    assert PORTABLE in message
    assert f"{FOLDER}/model.pte" not in asked_for(here.hub, count)


@pytest.mark.parametrize("output", [".", "..", "/", "../mine.txt/below"])
def test_places_that_can_be_no_output(here, artifacts, output, is_refused):
    here.hub.commit(REPO, files_of(artifacts / PORTABLE))
    is_refused("--output", output)


# What is not there, or not for everybody


def test_an_unknown_variant_is_told_what_is_there(here, artifacts, is_refused):
    here.hub.commit(REPO, files_of(artifacts / PORTABLE) | files_of(artifacts / XNNPACK))
    message = is_refused(variant="xnnpack-bf16-none-offline")
    assert f"{REPO} has no xnnpack-bf16-none-offline" in message
    for variant in (PORTABLE, XNNPACK):
        assert variant in message
    assert f'did you mean "{XNNPACK}"?' in message


def test_a_repository_without_artifacts(here, is_refused):
    here.hub.commit(REPO, {"README.md": b"# Another model", "model.pte": b"\0"})
    assert "no artifact is there" in is_refused()


def test_names_that_cannot_be(here, capsys):
    for arguments in (["no-organization", PORTABLE], [REPO, "xnnpack"], [REPO, "../../evil"]):
        with pytest.raises(SystemExit) as caught:
            main(["pull", *arguments])
        assert caught.value.code == 2
    assert not here.hub.requests


@pytest.mark.parametrize("revision", ["nowhere", "", "0" * 40, "../main", "refs/pr/7", "a b"])
def test_an_unknown_revision(here, artifacts, is_refused, revision):
    here.hub.commit(REPO, files_of(artifacts / PORTABLE))
    assert "revision" in is_refused("--revision", revision)


def test_an_unknown_repository(here, capsys):
    before = everything(here.folder.parent)
    assert main(["pull", "acme/nothing", PORTABLE]) == 2
    message = is_one_message(Ended(2, *capsys.readouterr()))
    assert "acme/nothing is not there" in message
    assert everything(here.folder.parent) == before


@pytest.mark.parametrize(
    ("token", "code"), [(None, 2), (READ_TOKEN, 2), (WRITE_TOKEN, 0)], ids=["no", "other", "right"]
)
def test_a_private_repository(here, artifacts, token, code):
    """One that somebody may not read looks like one that is not there."""
    here.hub.create("acme/private", private=True)
    files = files_of(artifacts / PORTABLE)
    here.hub.commit("acme/private", files)
    here.hub.strangers.add(READ_TOKEN)
    here.token = token
    ended = here.run("pull", "acme/private", PORTABLE, code=code)
    if code == 0:
        assert content(here.folder / PORTABLE) == named(files)
    else:
        assert "set HF_TOKEN" in is_one_message(ended)
        assert not list(here.folder.iterdir())


@pytest.mark.parametrize("token", [None, WRITE_TOKEN], ids=["no token", "a token"])
def test_a_gated_repository(here, artifacts, token):
    here.hub.create("acme/gated", gated=True)
    files = files_of(artifacts / PORTABLE)
    here.hub.commit("acme/gated", files)
    here.token = token
    message = is_one_message(here.run("pull", "acme/gated", PORTABLE, code=2))
    assert "a gated repository" in message
    assert f"accept its terms on {here.hub.url}/acme/gated" in message
    assert "HF_TOKEN" in message
    assert not list(here.folder.iterdir())


def test_a_gated_repository_that_was_granted(here, artifacts):
    here.hub.create("acme/gated", gated=True)
    files = files_of(artifacts / PORTABLE)
    here.hub.commit("acme/gated", files)
    here.hub.granted.add(WRITE_TOKEN)
    here.run("pull", "acme/gated", PORTABLE)
    assert content(here.folder / PORTABLE) == named(files)


# The token


def test_the_token_goes_to_the_hub_and_nowhere_else(here, tmp_path, artifacts):
    """Not even when the Hub sends it back in what it says."""
    here.hub.create("acme/private", private=True)
    here.hub.commit("acme/private", files_of(artifacts / PORTABLE))
    here.hub.fail("GET .*/tekken", Status(503, message=f"{WRITE_TOKEN} is tired"))
    here.hub.fail("GET .*/README", Status(403, message=f"not for {WRITE_TOKEN}"))
    refused = here.run("pull", "acme/private", PORTABLE, code=2)
    ended = here.run("pull", "acme/private", PORTABLE)
    for text in (refused.out, refused.err, ended.out, ended.err):
        assert WRITE_TOKEN not in text
        assert "X-Amz-Signature" not in text
    assert "is tired" in refused.err
    assert from_storage(here.hub)
    for item in here.hub.requests:
        bearer = f"Bearer {WRITE_TOKEN}"
        if item.path.startswith("/storage"):
            assert WRITE_TOKEN not in str(item)
        elif "acme" in item.path:
            assert item.headers.get("authorization") == bearer
    for folder in (here.folder, tmp_path / "home"):
        for path in folder.rglob("*"):
            assert WRITE_TOKEN not in str(path)
            assert not path.is_file() or WRITE_TOKEN.encode() not in path.read_bytes()
