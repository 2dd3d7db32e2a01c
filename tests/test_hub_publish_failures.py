"""`publish` when the Hub, the network or a token fails it."""

from __future__ import annotations

import pytest

from tests.hub import READ_TOKEN, Before, Cut, HubServer, Lost, Status
from tests.hub_runs import (
    PORTABLE,
    XNNPACK,
)
from tests.publishing import (
    REPO,
    expected,
    machine,
    message,
    objects,
    ready,
    seen,
    serving,
    there,
    titles,
)
from voxtral_build.errors import HubError
from voxtral_build.hub.upload import told_without_cause

COMMIT = "POST /api/models/tester/voxtral/commit/"
PARTS = pytest.mark.parametrize("here", [{}, {"part_bytes": 1000}], indirect=True)
PAGE = b"<html>Sign in to this network</html>"
# None of it is an answer of the Hub's.
NO_ANSWERS = (PAGE, b'{"ok": true}', b"[]")


@pytest.fixture
def here(request, tmp_path):
    with serving(tmp_path, **getattr(request, "param", {})) as made:
        yield made


@pytest.fixture
def hub(here):
    return here.hub


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
    ended = here.run("publish", REPO)
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()
    assert 900 in [item.received for item in seen(hub, "PUT") if not item.status]
    # The log has the address, which is signed, and not what makes it good.
    assert "/storage/" in ended.err
    assert "Signature" not in ended.err


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub, here):
    artifacts = ready(here, XNNPACK)
    hub.fail(COMMIT, Lost())
    hub.fail("POST /api/repos/create", Lost())
    here.run("publish", REPO)
    assert titles(hub) == ["Publish 1 artifact", "initial commit"]
    assert len(seen(hub, COMMIT)) == 1
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()


def test_a_lost_answer_and_somebody_else_on_top(hub, here):
    hub.create(REPO)
    artifacts = ready(here, XNNPACK)
    theirs = Before(lambda: hub.commit(REPO, {"LICENSE": b"ours"}, title="theirs"))
    hub.fail(COMMIT, Lost())
    hub.fail("GET .*/revision/main", theirs, skip=1)
    here.run("publish", REPO)
    assert titles(hub) == ["theirs", "Publish 1 artifact", "initial commit"]
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
    ("request_", "body"),
    [
        (request, body)
        for request in (
            "GET .*/revision/main",
            "GET .*/tree/",
            "POST /api/repos/create",
            "/preupload/",
            "/objects/batch",
        )
        for body in NO_ANSWERS
        if (request, body) != ("GET .*/tree/", b"[]")  # no files: that is an answer
    ],
)
def test_what_is_no_answer_of_the_hubs_is_told(hub, here, request_, body):
    ready(here, XNNPACK)
    hub.fail(request_, Status(200, {"Content-Type": "text/html"}, body=body))
    told = message(here.run("publish", REPO, code=2).err)
    assert "proxies" in told or "improperly formatted" in told or "Malformed" in told
    assert not seen(hub, COMMIT)


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_what_is_no_answer_to_a_commit(hub, here, body):
    """Nobody knows whether it landed: so it is looked up."""
    artifacts = ready(here, XNNPACK)
    hub.fail(COMMIT, Status(200, {"Content-Type": "text/html"}, body=body))
    here.run("publish", REPO)
    assert titles(hub) == ["Publish 1 artifact", "initial commit"]
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
            here = machine(tmp_path / name, "here", hub)
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
