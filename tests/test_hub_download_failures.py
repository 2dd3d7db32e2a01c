"""`download --repo` when it is interrupted, refused, or answered with something else."""

from __future__ import annotations

import time

import pytest

from tests.downloading import (
    FILES,
    LOCK,
    MIB,
    OUTPUT,
    PARAMS,
    REPO,
    STORED,
    TOKENIZER,
    WEIGHTS,
    checkpoint,
    contents,
    download,
    got,
    is_one_message,
    machine,
    parts,
    published,
    seen,
    sent,
    serving,
    sha256,
    written,
)
from tests.hub import (
    READ_TOKEN,
    Cut,
    Endless,
    HubServer,
    Slow,
    Stall,
    Status,
    Whole,
    Wrong,
)
from tests.hub_runs import Ended, Here


@pytest.fixture
def hub(tmp_path):
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def here(tmp_path, hub):
    return machine(tmp_path, hub)


@pytest.fixture
def revision(hub):
    return published(hub)


# --- going on ----------------------------------------------------------------------------

LONG = checkpoint(40_000_000)


@pytest.fixture
def killed(hub, here):
    """A revision whose download was killed after 25 of 40 MB."""
    hub.create(REPO)
    revision = hub.commit(REPO, LONG)
    hub.fail(STORED, Stall(after=25_000_000))

    def arrived():
        assert not list(here.folder.rglob(WEIGHTS)), "half a file under the whole one's name"
        return sum(path.stat().st_size for path in parts(here)) > 25_000_000 - MIB

    arguments = ("--repo", REPO, "--revision", revision)
    here.kill_when(arrived, "download", *arguments, OUTPUT)
    return revision


def test_a_killed_download_goes_on_where_the_file_ends(hub, here, killed):
    (part,) = parts(here)
    size = part.stat().st_size
    assert LONG[WEIGHTS].startswith(part.read_bytes())
    assert not got(here)
    download(here, killed)
    assert got(here) == LONG
    first, second = seen(hub, STORED)
    assert "range" not in first.headers
    assert second.headers["range"] == f"bytes={size}-"
    assert second.status == 206
    assert first.sent + second.sent <= len(LONG[WEIGHTS]) + MIB
    assert not parts(here)


def test_what_has_arrived_is_not_joined_with_another_revisions_content(hub, here, killed):
    others = checkpoint(40_000_000, seed=1)
    revision = hub.commit(REPO, others)
    download(here, revision)
    assert got(here) == others
    assert "range" not in seen(hub, STORED)[-1].headers
    download(here, killed)
    assert got(here) == LONG
    assert "range" in seen(hub, STORED)[-1].headers
    assert sent(hub) < 80_000_000 + MIB + 50_000


def test_a_part_with_other_bytes_is_not_taken_for_the_file(hub, here, killed):
    """The tail is right, the start is not: only a hash of the whole tells."""
    (part,) = parts(here)
    with part.open("r+b") as file:
        file.write(b"\xff" * 8)
    ended = download(here, killed, code=2)
    assert is_one_message(ended)
    assert WEIGHTS in ended.err
    assert WEIGHTS not in written(here)
    assert not parts(here)
    download(here, killed)
    assert got(here) == LONG


@pytest.mark.parametrize("fault", [Cut(2_500_000), Cut(2_500_000, reset=True), Stall(2_500_000)])
def test_a_connection_that_ends_too_early_goes_on(hub, here, revision, fault):
    here.more["HF_HUB_DOWNLOAD_TIMEOUT"] = "1"
    hub.fail(STORED, fault)
    download(here, revision)
    assert got(here) == FILES
    first, second = seen(hub, STORED)
    assert first.sent == 2_500_000
    if fault == Cut(2_500_000, reset=True):  # which throws away what was on its way
        return
    assert int(second.headers["range"].removeprefix("bytes=").removesuffix("-")) > 0
    assert first.sent + second.sent <= len(FILES[WEIGHTS]) + MIB


def test_a_connection_that_is_cut_again_and_again_goes_on_while_something_arrives(
    hub, here, revision
):
    hub.fail(STORED, Cut(100_000), times=5)
    download(here, revision)
    assert got(here) == FILES
    assert [item.sent for item in seen(hub, STORED)] == [100_000] * 5 + [2_500_000]


def test_a_server_that_knows_no_ranges_is_listened_to_from_the_start(hub, here, revision):
    hub.fail(STORED, Cut(1_000_000))
    hub.fail(STORED, Whole())
    download(here, revision)
    assert got(here) == FILES
    assert "range" in seen(hub, STORED)[1].headers
    assert seen(hub, STORED)[1].status == 200


# --- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "token", "told"),
    [
        ({"private": True}, None, ["private", "no HF_TOKEN is set", "set HF_TOKEN"]),
        ({"private": True}, READ_TOKEN, ["private", "the token has no access", "HF_TOKEN"]),
        ({"gated": True}, None, ["gated", "no HF_TOKEN is set", "terms", "HF_TOKEN"]),
        ({"gated": True}, READ_TOKEN, ["gated", "the token has no access", "terms", "HF_TOKEN"]),
        ({}, "hf_notavalidtoken", ["401", "Invalid credentials", "a valid token"]),
    ],
)
def test_who_may_not_read_it_is_told_so(hub, here, about, token, told):
    hub.create(REPO, **about)
    revision = hub.commit(REPO, FILES)
    hub.strangers.add(READ_TOKEN)
    here.token = token
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert not [text for text in [REPO, *told] if text not in ended.err]
    assert contents(hub) == []
    assert written(here) == []


def test_a_token_opens_a_private_repository_and_a_gated_one(hub, here):
    hub.granted.add(READ_TOKEN)
    here.token = READ_TOKEN
    hub.create(REPO, private=True, gated="manual")
    download(here, hub.commit(REPO, FILES))
    assert got(here) == FILES


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("repository", "no such repository"),
        ("revision", "no such revision"),
        ("file", "no such file"),
    ],
)
def test_what_is_not_there_is_told(hub, here, missing, told):
    revision = "0" * 40
    if missing != "repository":
        hub.create(REPO)
        head = hub.commit(REPO, {name: FILES[name] for name in (PARAMS, WEIGHTS)})
        revision = head if missing == "file" else revision
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert told in ended.err
    assert (TOKENIZER if missing == "file" else PARAMS) in ended.err
    assert contents(hub) == []
    assert written(here) == []


@pytest.mark.parametrize("pattern", ["HEAD .*/resolve/", "GET .*/resolve/.*params", STORED])
def test_a_refusal_for_good_is_told_at_once(hub, here, revision, pattern):
    hub.fail(pattern, Status(403, message="Not from your country"))
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert "HTTP 403" in ended.err
    assert "--create-pr" not in ended.err  # which is for those who write
    assert "may write" not in ended.err
    assert WEIGHTS not in written(here)
    assert len(seen(hub, pattern.partition(" ")[0])) <= 5
    download(here, revision)
    assert got(here) == FILES


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("HEAD .*/resolve/.*safetensors", Status(500)),
        ("HEAD .*/resolve/.*safetensors", Cut(reset=True)),
        ("GET .*/resolve/.*safetensors", Cut()),
        ("GET .*/resolve/.*params", Status(504)),
        (STORED, Status(500)),
        (STORED, Status(503)),
    ],
)
def test_what_may_pass_is_tried_again(hub, here, revision, pattern, fault):
    hub.fail(pattern, fault)
    download(here, revision)
    assert got(here) == FILES


@pytest.mark.parametrize("pattern", ["HEAD .*/resolve/.*safetensors", STORED])
def test_a_server_that_asks_to_wait_is_waited_for(hub, here, revision, pattern):
    hub.fail(pattern, Status(429, {"Retry-After": "2"}))
    started = time.monotonic()
    download(here, revision)
    assert time.monotonic() - started >= 2
    assert got(here) == FILES


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """Two downloads in trouble that lasts, side by side, as each tries for some 20 seconds."""
    folder = tmp_path_factory.mktemp("lasting")
    (folder / "troubled").mkdir()
    (folder / "absent").mkdir()
    with HubServer(folder / "hub") as hub, HubServer(folder / "none") as none:
        hub.create(REPO)
        revision = hub.commit(REPO, FILES)
        hub.fail(STORED, Cut(2 * MIB))
        hub.fail(STORED, Status(503, message="We are sorry"), times=4)
        none.close()
        troubled, absent = Here(folder / "troubled", hub), Here(folder / "absent", none)
        arguments = ("download", "--repo", REPO, "--revision", revision, OUTPUT)
        other = absent.start(*arguments)
        first = troubled.run(*arguments, code=2)
        out, err = other.communicate(timeout=100)
        yield revision, (troubled, first), (absent, Ended(other.returncode, out, err))
        assert not hub.errors
        assert not hub.faults_left


def test_trouble_that_lasts_is_told_and_what_has_arrived_stays(lasting):
    revision, (here, ended), _ = lasting
    hub = here.hub
    assert is_one_message(ended)
    assert not [text for text in (REPO, WEIGHTS, "503", "We are sorry") if text not in ended.err]
    (part,) = parts(here)
    assert written(here) == sorted([part.name, PARAMS, TOKENIZER])
    assert FILES[WEIGHTS].startswith(part.read_bytes())
    before = len(hub.requests)
    download(here, revision)
    assert got(here) == FILES
    assert sum(item.sent for item in hub.requests[before:]) < MIB


def test_a_hub_that_is_not_there_is_told(lasting):
    _, _, (here, ended) = lasting
    assert ended.code == 2
    assert is_one_message(ended)
    assert "Traceback" not in ended.err
    assert not [text for text in (REPO, "network", "HF_ENDPOINT") if text not in ended.err]
    assert written(here) == []


def test_a_slow_connection_is_no_failure(hub, here, revision):
    """Slower than the time limit for all of it, and never silent for as long."""
    here.more["HF_HUB_DOWNLOAD_TIMEOUT"] = "1"
    hub.fail(STORED, Slow(bytes_per_second=2_000_000))
    download(here, revision)
    assert got(here) == FILES
    assert len(seen(hub, STORED)) == 1


@pytest.mark.parametrize(
    ("name", "pattern"), [(WEIGHTS, STORED), (PARAMS, "GET .*/resolve/.*/params.json")]
)
@pytest.mark.parametrize("fault", [Wrong(), Endless()])
def test_wrong_bytes_are_refused_and_removed(hub, here, revision, name, pattern, fault):
    hub.fail(pattern, fault)
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert f"{REPO}: {name} " in ended.err
    assert name not in written(here)
    assert not parts(here)
    assert not got(here)
    assert not (here.folder / LOCK).exists()
    download(here, revision)
    assert got(here) == FILES
    assert contents(hub).count(name if name == PARAMS else sha256(FILES[WEIGHTS])) == 2


def test_an_answer_without_end_is_not_read_to_its_end(hub, here, revision):
    hub.fail(STORED, Endless(times=100))
    download(here, revision, code=2)
    assert seen(hub, STORED)[0].sent < 10 * len(FILES[WEIGHTS])


def test_a_file_that_is_shorter_than_told_is_refused(hub, here, tmp_path, revision):
    (stored,) = (tmp_path / "hub").rglob(f"lfs/{sha256(FILES[WEIGHTS])}")
    stored.write_bytes(FILES[WEIGHTS][:-1])
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert not [text for text in (WEIGHTS, "2,999,999", "3,000,000") if text not in ended.err]
    assert written(here) == [PARAMS, TOKENIZER]
    stored.write_bytes(FILES[WEIGHTS])
    download(here, revision)
    assert got(here) == FILES


@pytest.mark.parametrize("status", [Status(200), Status(302, {"Location": "http://localhost/in"})])
def test_a_page_in_the_hubs_place_is_told(hub, here, revision, status):
    """Of a network that wants a login first."""
    hub.fail("HEAD .*/resolve/", status)
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert not [text for text in (REPO, PARAMS, "proxies") if text not in ended.err]
    assert written(here) == []


# As many as the library follows, and httpx.
@pytest.mark.parametrize(("method", "times"), [("HEAD", 20), ("GET", 21)])
def test_redirects_in_a_circle_are_told(hub, here, revision, method, times):
    circle = f"{hub.url}/{REPO}/resolve/{revision}/{PARAMS}?X-Amz-Signature=0123456789"
    hub.fail(f"{method} .*/resolve/", Status(302, {"Location": circle}), times=times)
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert PARAMS in ended.err
    assert "0123456789" not in ended.err


def test_an_endpoint_that_is_no_address_is_told(here, hub):
    here.more["HF_ENDPOINT"] = "huggingface.example"
    ended = download(here, "0" * 40, code=2)
    assert is_one_message(ended)
    assert "HF_ENDPOINT" in ended.err
