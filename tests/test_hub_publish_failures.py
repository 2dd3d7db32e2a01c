"""`publish` when the Hub, the network, another publisher or a kill gets in between."""

from __future__ import annotations

import json
import re

import pytest

from tests.hub import READ_TOKEN, Before, Cut, HubServer, Lost, Stall, Status
from tests.hub_runs import PORTABLE, XNNPACK, Here, write_artifact
from tests.publishing import (
    QUANTIZED,
    REPO,
    committed,
    expected,
    lines,
    place,
    ready,
    seen,
    sha256,
    there,
    writes,
)
from voxtral_build.errors import HubError
from voxtral_build.hub.upload import told_without_cause

COMMIT = "POST /api/models/tester/voxtral/commit/"
PARTS = pytest.mark.parametrize("server", [{}, {"part_bytes": 1000}], indirect=True)
PAGE = b"<html>Sign in to this network</html>"


@pytest.fixture
def server(request, tmp_path):
    options = getattr(request, "param", {})
    with HubServer(tmp_path / "hub", keep_bodies=True, **options) as hub:
        yield hub
    assert not hub.errors
    assert not hub.faults_left


@pytest.fixture
def here(tmp_path, server):
    (tmp_path / "here").mkdir()
    return Here(tmp_path / "here", server)


@pytest.fixture
def hub(server):
    return server


@pytest.fixture
def other(tmp_path, server):
    """Another machine with the same Hub."""
    (tmp_path / "other").mkdir()
    return Here(tmp_path / "other", server)


def objects(hub):
    """Large contents that arrived, one for each time."""
    return [item.path.split("/")[4] for item in seen(hub, "PUT /storage") if item.status == 200]


def titles(hub):
    return [commit.title for commit in hub.commits(REPO)]


def message(text):
    """What a command says when it ends with 2: one error, with what to do."""
    begins = re.findall("^error: .*", text, re.MULTILINE)
    assert len(begins) == 1
    told = text[text.index(begins[0]) :]
    assert "\n  next:    " in told
    return told


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


# --- trouble that passes -----------------------------------------------------------------


def test_whatever_fails_once_is_tried_again(hub, here):
    artifacts = ready(here, XNNPACK, PORTABLE)
    at_once = {"Retry-After": "0"}
    hub.fail("GET .*/revision/main", Status(503, at_once))
    hub.fail("POST /api/repos/create", Status(500))
    hub.fail("GET .*/tree/", Status(502))
    hub.fail("/preupload/", Status(503, at_once, body=PAGE))
    hub.fail("/objects/batch", Status(429, at_once))
    hub.fail("PUT /storage", Status(500, at_once))
    hub.fail("/lfs/verify", Status(504, at_once))
    hub.fail(COMMIT, Status(429, {"Retry-After": "1"}))
    here.run("publish", REPO)
    assert expected(artifacts, XNNPACK, PORTABLE).items() <= there(hub).items()
    assert titles(hub) == ["Publish 2 artifacts", "initial commit"]
    assert [item.status for item in seen(hub, COMMIT)] == [429, 200]


@PARTS
@pytest.mark.parametrize("reset", [True, False])
def test_a_connection_that_breaks_in_a_file_is_made_again(hub, here, reset):
    artifacts = ready(here, XNNPACK)
    hub.fail("PUT /storage", Cut(after=900, reset=reset), skip=1)
    here.run("publish", REPO)
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()
    assert 900 in [item.received for item in seen(hub, "PUT") if not item.status]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub, here):
    artifacts = ready(here, XNNPACK)
    hub.fail(COMMIT, Lost())
    hub.fail("POST /api/repos/create", Lost())
    here.run("publish", REPO)
    assert titles(hub) == ["Publish 1 artifacts", "initial commit"]
    assert len(seen(hub, COMMIT)) == 1
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()


def test_a_lost_answer_and_somebody_else_on_top(hub, here):
    hub.create(REPO)
    artifacts = ready(here, XNNPACK)
    theirs = Before(lambda: hub.commit(REPO, {"LICENSE": b"ours"}, title="theirs"))
    hub.fail(COMMIT, Lost())
    hub.fail("GET .*/revision/main", theirs, skip=1)
    here.run("publish", REPO)
    assert titles(hub) == ["theirs", "Publish 1 artifacts", "initial commit"]
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()


def test_a_pull_request_whose_answer_was_lost_is_not_opened_twice(hub, here):
    hub.create(REPO)
    artifacts = ready(here, XNNPACK)
    hub.fail(COMMIT, Lost())
    here.run("publish", REPO, "--create-pr")
    (pull,) = hub.pull_requests(REPO)
    assert expected(artifacts, XNNPACK).items() <= there(hub, revision=pull.revision).items()
    assert titles(hub) == ["initial commit"]


# --- trouble that stays ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        ("GET .*/revision/main", 401, "set HF_TOKEN"),
        ("/preupload/", 403, "token that may write"),
        ("/objects/batch", 404, "HTTP 404"),
        ("PUT /storage", 403, "run it again"),
        ("/lfs/verify", 404, "HTTP 404"),
        ("/api/validate-yaml", 400, "bad head"),
        (COMMIT, 400, "bad head"),
        (COMMIT, 401, "set HF_TOKEN"),
        (COMMIT, 403, "token that may write"),
        (COMMIT, 404, "HTTP 404"),
        (COMMIT, 413, "HTTP 413"),
    ],
)
def test_a_refusal_is_told_and_changes_nothing(hub, here, request_, code, said):
    hub.create(REPO)
    head = hub.head(REPO)
    ready(here, XNNPACK)
    hub.fail(request_, Status(code, message="bad head"), times=1)
    ended = here.run("publish", REPO, code=2)
    assert said in message(ended.err)
    assert "signature" not in ended.err.lower()
    assert hub.head(REPO) == head
    assert len(seen(hub, COMMIT)) <= 1


def test_a_file_that_the_storage_refuses_is_no_matter_of_the_token(hub, here):
    """Addresses for uploads end after a while, and no token is sent to them."""
    hub.create(REPO)
    ready(here, XNNPACK)
    hub.fail("PUT /storage", Status(403))
    assert "HF_TOKEN" not in message(here.run("publish", REPO, code=2).err)


def test_a_token_that_may_only_read_is_told_of_pull_requests(hub, here):
    hub.create(REPO)
    head = hub.head(REPO)
    ready(here, XNNPACK)
    here.token = READ_TOKEN
    told = message(here.run("publish", REPO, code=2).err)
    assert "token that may write" in told
    assert "--create-pr" in told
    assert hub.head(REPO) == head
    assert not seen(hub, "PUT")


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (READ_TOKEN, "token that may make"),
        (None, "set HF_TOKEN"),
        ("hf_unknown0123456789", "valid token"),
    ],
)
def test_a_token_that_may_not_make_the_repository(hub, here, token, said):
    ready(here, XNNPACK)
    here.token = token
    told = message(here.run("publish", REPO, code=2).err)
    assert said in told
    assert "--create-pr" not in told  # there is nothing yet to propose it to
    assert not hub.exists(REPO)


def test_a_repository_that_is_there_and_not_ours_to_see(hub, here):
    hub.create(REPO, private=True)
    hub.strangers.add(here.token)
    head = hub.head(REPO)
    ready(here, XNNPACK)
    assert "cannot be read" in message(here.run("publish", REPO, code=2).err)
    assert hub.head(REPO) == head
    assert not seen(hub, "/preupload/")


@pytest.mark.parametrize(
    "request_",
    [
        "GET .*/revision/main",
        "GET .*/tree/",
        "POST /api/repos/create",
        "/preupload/",
        "/objects/batch",
    ],
)
def test_a_page_of_a_proxy_instead_of_an_answer_is_told(hub, here, request_):
    ready(here, XNNPACK)
    hub.fail(request_, Status(200, {"Content-Type": "text/html"}, body=PAGE))
    told = message(here.run("publish", REPO, code=2).err)
    assert "proxies" in told
    assert not seen(hub, COMMIT)


def test_a_page_of_a_proxy_instead_of_a_commits_answer(hub, here):
    """Nobody knows whether it landed: so it is looked up."""
    artifacts = ready(here, XNNPACK)
    hub.fail(COMMIT, Status(200, {"Content-Type": "text/html"}, body=PAGE))
    here.run("publish", REPO)
    assert titles(hub) == ["Publish 1 artifacts", "initial commit"]
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()


def test_offline_nothing_is_asked(hub, here):
    ready(here, XNNPACK)
    here.more = {"HF_HUB_OFFLINE": "1"}
    assert "HF_HUB_OFFLINE" in message(here.run("publish", REPO, code=2).err)
    assert not hub.requests


def test_trouble_that_does_not_end_ends_in_one_message(tmp_path):
    """Side by side, for each takes half a minute of waiting between tries."""
    busy = Status(503, {"Retry-After": "1"})
    troubles = {"info": "GET /api/models", "file": "PUT /storage", "commit": COMMIT, "others": ""}
    hubs, runs = {}, {}
    try:
        for name, pattern in troubles.items():
            hub = hubs[name] = HubServer(tmp_path / name / "hub", keep_bodies=True)
            hub.create(REPO)
            if name == "others":
                keep_on = Before(lambda hub=hub: hub.commit(REPO, {"theirs": str(hub).encode()}))
                hub.fail(COMMIT, keep_on, times=99)
            else:
                hub.fail(pattern, busy, times=999)
            (tmp_path / name / "here").mkdir()
            here = Here(tmp_path / name / "here", hub)
            ready(here, XNNPACK)
            runs[name] = here.start("publish", REPO)
        ended = {name: run.communicate(timeout=120)[1] for name, run in runs.items()}
        for name, text in ended.items():
            assert runs[name].returncode == 2, text
            assert "Traceback" not in text
            told = message(text)
            assert "run it again" in told
            assert ("HTTP 412" if name == "others" else "HTTP 503") in told
            assert hubs[name].tree(REPO).keys() <= {".gitattributes", "theirs"}
            assert not hubs[name].errors
        commits = {name: [item.status for item in seen(hubs[name], COMMIT)] for name in hubs}
        assert commits == {"info": [], "file": [], "commit": [503] * 5, "others": [412] * 5}
        assert len(hubs["others"].commits(REPO)) == 6  # theirs, and the first
        # However often it is tried: what arrived is there.
        assert len(objects(hubs["others"])) == 2
    finally:
        for run in runs.values():
            run.kill()
            run.communicate()
        for hub in hubs.values():
            hub.close()


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


# --- Xet ---------------------------------------------------------------------------------


def test_without_xet_on_the_other_side_plain_http_is_told_of(hub, here):
    pytest.importorskip("hf_xet")
    ready(here, XNNPACK)
    here.more = {"HF_HUB_DISABLE_XET": "0"}
    assert "HF_HUB_DISABLE_XET=1" in message(here.run("publish", REPO, code=2).err)
    assert seen(hub, "/xet-write-token/")
    assert list(hub.tree(REPO)) == [".gitattributes"]


@pytest.mark.parametrize("name", ["XetAuthenticationError", "XetObjectNotFoundError"])
def test_errors_of_xets_own_types_are_told(name):
    error = getattr(pytest.importorskip("hf_xet"), name)
    with pytest.raises(HubError, match="HF_HUB_DISABLE_XET=1"), told_without_cause(REPO):
        raise error("expired")
    with pytest.raises(FileNotFoundError), told_without_cause(REPO):
        raise FileNotFoundError("an error of ours")
