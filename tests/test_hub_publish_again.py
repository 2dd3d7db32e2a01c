"""`publish` to a repository that has something: by us, by other hosts, by others."""

from __future__ import annotations

import json
import re

import pytest
from huggingface_hub import ModelCard

from tests.hub import READ_TOKEN, WRITE_TOKEN
from tests.hub_runs import (
    MLX,
    PORTABLE,
    XNNPACK,
    write_artifact,
    write_matrix,
)
from tests.publishing import (
    OWN,
    QUANTIZED,
    REPO,
    expected,
    machine,
    place,
    ready,
    serving,
    sha256,
    there,
    writes,
)

THEIRS = {"LICENSE": b"ours", "some/other.txt": b"x", "xnnpack/plot.png": b"\x89PNG\0"}


@pytest.fixture
def here(tmp_path):
    with serving(tmp_path) as made:
        yield made


@pytest.fixture
def hub(here):
    return here.hub


@pytest.fixture
def other(here):
    """Another machine with the same Hub."""
    return machine(here.folder.parent, "other", here.hub)


def catalog(hub):
    entries = json.loads(hub.read(REPO, "catalog.json"))["entries"]
    return {entry["variant"]: entry for entry in entries}


# --- pull requests -----------------------------------------------------------------------


@pytest.mark.parametrize("token", [WRITE_TOKEN, READ_TOKEN])
def test_a_pull_request_holds_all_and_leaves_the_branch_alone(hub, here, token):
    hub.create(REPO)
    head = hub.commit(REPO, THEIRS)
    artifacts = ready(here, XNNPACK, PORTABLE)
    here.token = token
    first = here.run("publish", REPO, "--create-pr")
    assert hub.head(REPO) == head
    (pull,) = hub.pull_requests(REPO)
    assert pull.base == head
    found = there(hub, revision=pull.revision)
    assert expected(artifacts, XNNPACK, PORTABLE).items() <= found.items()
    assert found.keys() >= OWN | THEIRS.keys()
    assert f"{REPO}/discussions/1" in first.err
    hub.requests.clear()
    again = here.run("publish", REPO, "--create-pr")
    assert len(hub.pull_requests(REPO)) == 1
    assert not writes(hub)
    assert f"{REPO}/discussions/1" in again.err


def test_another_artifact_is_another_pull_request(hub, here):
    hub.create(REPO)
    artifacts = ready(here, XNNPACK)
    here.run("publish", REPO, "--create-pr")
    write_artifact(artifacts, XNNPACK, seed=1)
    here.run("publish", REPO, "--create-pr")
    second = hub.pull_requests(REPO)[1]
    assert expected(artifacts, XNNPACK).items() <= there(hub, revision=second.revision).items()


def test_a_closed_pull_request_is_opened_anew(hub, here):
    hub.create(REPO)
    ready(here, XNNPACK)
    here.run("publish", REPO, "--create-pr")
    hub.close_pull_request(REPO, 1)
    here.run("publish", REPO, "--create-pr")
    assert [pull.status for pull in hub.pull_requests(REPO)] == ["closed", "open"]
    hub.close_pull_request(REPO, 2, merge=True)
    assert "no commit" in here.run("publish", REPO, "--create-pr").err
    assert len(hub.pull_requests(REPO)) == 2


# --- what left the matrix ----------------------------------------------------------------


def test_what_left_the_matrix_stays_until_it_is_pruned(hub, here):
    ready(here, XNNPACK, PORTABLE, matrix=(XNNPACK, PORTABLE))
    here.run("publish", REPO)
    strangers = {f"{place(PORTABLE)}/notes.txt": b"mine", "portable/mine/model.pte": b"\0"}
    hub.commit(REPO, THEIRS | strangers)
    before = there(hub)
    write_matrix(here.folder, [XNNPACK])
    here.run("publish", REPO)
    assert there(hub) == before
    assert PORTABLE in catalog(hub)
    assert f"{place(PORTABLE)}/README.md".encode() in hub.read(REPO, "README.md")
    here.run("publish", REPO, "--prune")
    after = there(hub)
    gone = {path for path in before if path.startswith(place(PORTABLE))} - strangers.keys()
    assert before.keys() - after.keys() == gone
    assert catalog(hub).keys() == {XNNPACK}
    assert PORTABLE.encode() not in hub.read(REPO, "README.md")
    assert PORTABLE.encode() not in hub.read(REPO, "index.html")
    same = before.keys() - gone - OWN
    assert {path: after[path] for path in same} == {path: before[path] for path in same}


def test_what_a_new_version_lacks_goes_with_it(hub, here):
    """A data file that a model no longer has would be loaded with it."""
    artifacts = ready(here, XNNPACK, PORTABLE)
    here.run("publish", REPO)
    there_too = {f"{place(variant)}/model.ptd": b"weights\0" for variant in (XNNPACK, MLX)}
    hub.commit(REPO, there_too | {f"{place(XNNPACK)}/notes.txt": b"mine"})
    write_artifact(artifacts, XNNPACK, seed=1)
    here.run("publish", REPO)
    tree = hub.tree(REPO)
    assert f"{place(XNNPACK)}/model.ptd" not in tree
    assert f"{place(XNNPACK)}/notes.txt" in tree
    assert f"{place(MLX)}/model.ptd" in tree  # of a variant that is not ours to replace


# --- several hosts -----------------------------------------------------------------------


def test_what_another_host_published_stays_in_the_catalog(hub, here, other):
    theirs = ready(other, PORTABLE)
    other.run("publish", REPO)
    published = catalog(hub)[PORTABLE]
    ours = ready(here, XNNPACK)
    here.run("publish", REPO)
    assert catalog(hub)[PORTABLE] == published
    assert catalog(hub)[XNNPACK]["status"] == "validated"
    card = hub.read(REPO, "README.md").decode()
    assert all(f"({place(variant)}/README.md)" in card for variant in (PORTABLE, XNNPACK))
    found = there(hub)
    assert expected(theirs, PORTABLE).items() <= found.items()
    assert expected(ours, XNNPACK).items() <= found.items()
    # And neither takes the other's away when it runs again.
    assert "no commit" in other.run("publish", REPO).err
    assert there(hub) == found


def test_what_fails_here_leaves_what_was_published(hub, here):
    artifacts = ready(here, XNNPACK, PORTABLE)
    here.run("publish", REPO)
    published = catalog(hub)[PORTABLE]
    write_artifact(artifacts, PORTABLE, seed=1, status="failed")
    write_artifact(artifacts, XNNPACK, seed=1)
    here.run("publish", REPO)
    assert catalog(hub)[PORTABLE] == published
    assert f"({place(PORTABLE)}/README.md)" in hub.read(REPO, "README.md").decode()


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff\xfe", b"[]", b'{"version": 2, "entries": []}', b"", b"null", b"[" * 100_000],
)
def test_a_catalog_that_cannot_be_read_is_a_warning(hub, here, content):
    artifacts = ready(here, XNNPACK)
    hub.create(REPO)
    hub.commit(REPO, {"catalog.json": content})
    ended = here.run("publish", REPO)
    assert "catalog.json cannot be read" in ended.err
    assert catalog(hub)[XNNPACK]["status"] == "validated"
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()


@pytest.mark.parametrize(
    "changes",
    [
        {"provenance": None},
        {"status": "failed"},
        {"variant": "../../x"},
        {"backend": "../.."},
        {"files": {"../../LICENSE": {"bytes": 4, "sha256": sha256(b"ours")}}},
    ],
)
def test_a_catalog_that_says_what_is_not_so_stops_nothing(hub, here, other, changes):
    ready(other, PORTABLE)
    other.run("publish", REPO)
    content = json.loads(hub.read(REPO, "catalog.json"))
    (entry,) = (item for item in content["entries"] if item["variant"] == PORTABLE)
    entry |= changes
    hub.commit(REPO, {"catalog.json": json.dumps(content).encode()})
    artifacts = ready(here, XNNPACK)
    here.run("publish", REPO)
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()
    targets = re.findall(r"\]\(((?!https?:)[^)]+)\)", hub.read(REPO, "README.md").decode())
    assert set(targets) <= hub.tree(REPO).keys()


# --- the card ----------------------------------------------------------------------------


def test_the_cards_links_lead_to_files_and_the_hub_reads_its_head(hub, here):
    artifacts = ready(here, XNNPACK, PORTABLE)
    write_artifact(artifacts, MLX, status="inspected")
    here.run("publish", REPO)
    card = ModelCard(hub.read(REPO, "README.md").decode())
    assert card.data.library_name == "executorch"
    assert {"xnnpack", "portable"} <= set(card.data.tags)
    targets = re.findall(r"\]\(((?!https?:)[^)]+)\)", card.text)
    assert set(targets) == {f"{place(variant)}/README.md" for variant in (XNNPACK, PORTABLE)}
    assert set(targets) <= hub.tree(REPO).keys()
    here_, _, not_here = card.text.partition("## Not here")
    assert MLX not in here_
    assert re.search(f"`{MLX}` *\\| *inspected", not_here)
    assert re.search(f"`{QUANTIZED}` *\\| *not built", not_here)
    for variant in (XNNPACK, PORTABLE):
        own = ModelCard(hub.read(REPO, f"{place(variant)}/README.md").decode())
        assert own.data.library_name == "executorch"
