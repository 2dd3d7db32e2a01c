"""`publish` when somebody else, a kill or the Hub itself gets in between."""

from __future__ import annotations

import json
import re

import pytest

from tests.hub import Before, Stall
from tests.hub_runs import (
    PORTABLE,
    XNNPACK,
    write_artifact,
)
from tests.publishing import (
    QUANTIZED,
    REPO,
    committed,
    expected,
    lines,
    machine,
    message,
    objects,
    place,
    ready,
    seen,
    serving,
    sha256,
    there,
    titles,
    writes,
)

COMMIT = "POST /api/models/tester/voxtral/commit/"
PARTS = pytest.mark.parametrize("here", [{}, {"part_bytes": 1000}], indirect=True)


@pytest.fixture
def here(request, tmp_path):
    with serving(tmp_path, **getattr(request, "param", {})) as made:
        yield made


@pytest.fixture
def hub(here):
    return here.hub


@pytest.fixture
def other(here):
    """Another machine with the same Hub."""
    return machine(here.folder.parent, "other", here.hub)


# --- others who commit meanwhile ---------------------------------------------------------


def test_a_commit_of_somebody_else_is_built_upon(hub, here):
    hub.create(REPO)
    artifacts = ready(here, XNNPACK, PORTABLE)
    hub.fail(COMMIT, Before(lambda: hub.commit(REPO, {"LICENSE": b"ours"}, title="theirs")))
    here.run("publish", REPO)
    assert [item.status for item in seen(hub, COMMIT)] == [412, 200]
    assert titles(hub) == ["Publish 2 artifacts", "theirs", "initial commit"]
    assert lines(seen(hub, COMMIT)[1])[0][1]["parentCommit"] == hub.commits(REPO)[1].id
    assert hub.read(REPO, "LICENSE") == b"ours"
    assert expected(artifacts, XNNPACK, PORTABLE).items() <= there(hub).items()
    assert len(objects(hub)) == len(set(objects(hub)))


def test_a_commit_to_the_very_same_files_is_built_upon(hub, here):
    artifacts = ready(here, XNNPACK)
    here.run("publish", REPO)
    write_artifact(artifacts, XNNPACK, seed=1)
    model, card = f"{place(XNNPACK)}/model.pte", f"{place(XNNPACK)}/README.md"
    theirs = {model: b"theirs\0", f"{place(XNNPACK)}/tekken.json": b"{}", card: None}
    hub.fail(COMMIT, Before(lambda: hub.commit(REPO, theirs, title="theirs")))
    here.run("publish", REPO)
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()
    # Planned anew: the tokenizer was to stay as it was, and now has to be sent.
    assert f"{place(XNNPACK)}/tekken.json" in committed(hub)
    assert hub.commits(REPO)[1].title == "theirs"
    assert hub.read(REPO, model, hub.commits(REPO)[1].id) == b"theirs\0"


def test_another_host_that_publishes_meanwhile_loses_nothing(hub, here, other):
    hub.create(REPO)
    ours, theirs = ready(here, XNNPACK), ready(other, PORTABLE)
    hub.fail(COMMIT, Before(lambda: other.run("publish", REPO)))
    here.run("publish", REPO)
    assert_both(hub, ours, theirs)


def test_another_host_that_makes_the_repository_meanwhile_loses_nothing(hub, here, other):
    ours, theirs = ready(here, XNNPACK), ready(other, PORTABLE)
    hub.fail("POST /api/repos/create", Before(lambda: other.run("publish", REPO)))
    here.run("publish", REPO)
    assert_both(hub, ours, theirs)


def assert_both(hub, ours, theirs):
    assert (expected(ours, XNNPACK) | expected(theirs, PORTABLE)).items() <= there(hub).items()
    entries = json.loads(hub.read(REPO, "catalog.json"))["entries"]
    statuses = {entry["variant"]: entry["status"] for entry in entries}
    assert (statuses[XNNPACK], statuses[PORTABLE]) == ("validated", "validated")
    assert f"({place(PORTABLE)}/README.md)" in hub.read(REPO, "README.md").decode()


# --- kills -------------------------------------------------------------------------------


@PARTS
def test_a_run_that_was_killed_in_a_file_goes_on(hub, here):
    hub.create(REPO)
    head = hub.head(REPO)
    artifacts = ready(here, XNNPACK, PORTABLE, QUANTIZED)
    large = {sha256(path.read_bytes()) for path in artifacts.glob("*/*.pte")}
    hub.fail("PUT /storage", Stall(after=500), skip=2)

    def stuck():
        arrived = {content for content in large if hub.has_object(REPO, content)}
        silent = [item for item in seen(hub, "PUT /storage") if not item.status]
        return len(arrived) == len(large) - 1 and bool(silent)

    here.kill_when(stuck, "publish", REPO)
    assert hub.head(REPO) == head
    missing = {content for content in large if not hub.has_object(REPO, content)}
    hub.requests.clear()
    here.run("publish", REPO)
    assert set(objects(hub)) == missing
    assert len(missing) == 1
    assert expected(artifacts, XNNPACK, PORTABLE, QUANTIZED).items() <= there(hub).items()
    assert hub.commits(REPO)[1].id == head


def test_a_run_that_was_killed_before_the_commit_goes_on(hub, here):
    hub.create(REPO)
    head = hub.head(REPO)
    artifacts = ready(here, XNNPACK, PORTABLE)
    hub.fail(COMMIT, Stall(after=500))
    here.kill_when(lambda: bool(seen(hub, COMMIT)), "publish", REPO)
    assert hub.head(REPO) == head
    hub.requests.clear()
    here.run("publish", REPO)
    assert not objects(hub)
    assert expected(artifacts, XNNPACK, PORTABLE).items() <= there(hub).items()
    assert len(hub.commits(REPO)) == 2


def test_a_run_that_was_killed_after_the_commit_has_nothing_to_do(hub, here):
    ready(here, XNNPACK)
    hub.fail("GET .*/revision/[0-9a-f]{40}", Stall())
    here.kill_when(lambda: bool(re.search("revision/[0-9a-f]{40}", paths(hub))), "publish", REPO)
    hub.requests.clear()
    assert "no commit" in here.run("publish", REPO).err
    assert not writes(hub)


def paths(hub):
    return " ".join(item.path for item in hub.requests)


# --- what the Hub made of it -------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--create-pr"]])
@pytest.mark.parametrize("name", ["tekken.json", "model.pte"])
def test_a_file_that_a_gitignore_keeps_out_is_missed(hub, here, name, options):
    hub.create(REPO)
    ready(here, XNNPACK)
    hub.ignored.add(f"{place(XNNPACK)}/{name}")
    told = message(here.run("publish", REPO, *options, code=2).err)
    assert f"{place(XNNPACK)}/{name}" in told
    assert ".gitignore" in told
    assert "tekken" not in told or name == "tekken.json"


def test_other_bytes_than_were_sent_are_noticed(hub, here):
    artifacts = ready(here, XNNPACK)
    tokenizer = (artifacts / XNNPACK / "tekken.json").read_bytes()
    path = f"{place(XNNPACK)}/tekken.json"
    hub.altered[path] = tokenizer[:-1] + b" "
    assert path in message(here.run("publish", REPO, code=2).err)
    # And set right by the next run.
    hub.altered.clear()
    here.run("publish", REPO)
    assert hub.read(REPO, path) == tokenizer
    assert committed(hub) == {path}


def replaced(folder):
    """By another build of the same size."""
    content = (folder / "model.pte").read_bytes()
    (folder / "model.pte").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def without_tokenizer(folder):
    (folder / "tekken.json").unlink()


def without_model(folder):
    (folder / "model.pte").unlink()


@pytest.mark.parametrize("change", [replaced, without_tokenizer, without_model])
@pytest.mark.parametrize("request_", ["GET .*/tree/", "/preupload/"])
def test_an_artifact_that_changes_under_way_is_not_committed(hub, here, change, request_):
    hub.create(REPO)
    head = hub.head(REPO)
    artifacts = ready(here, XNNPACK)
    hub.fail(request_, Before(lambda: change(artifacts / XNNPACK)))
    message(here.run("publish", REPO, code=2).err)
    assert hub.head(REPO) == head


def test_a_small_file_that_changes_under_way_is_noticed(hub, here):
    """Nobody holds its hash on the way: what is in the commit is read back."""
    tokenizer = ready(here, XNNPACK) / XNNPACK / "tekken.json"
    other = tokenizer.read_text().replace("1", "2")
    hub.fail("/preupload/", Before(lambda: tokenizer.write_text(other)))
    told = message(here.run("publish", REPO, code=2).err)
    assert f"{place(XNNPACK)}/tekken.json" in told
