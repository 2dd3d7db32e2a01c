"""`download --repo`: a checkpoint's files from the Hub, whatever happens on the way."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import stat
import subprocess
import sys
import time

import pytest

from tests.hub import (
    READ_TOKEN,
    WRITE_TOKEN,
    Cut,
    Endless,
    File,
    HubServer,
    Slow,
    Stall,
    Status,
    Whole,
    Wrong,
)
from tests.hub_runs import REPOSITORY, XNNPACK, Ended, Here, write_matrix

REPO = "tester/voxtral"
PARAMS, WEIGHTS, TOKENIZER = NAMES = ("params.json", "consolidated.safetensors", "tekken.json")
OUTPUT = "build/checkpoint"
LOCK = "config/checkpoint.lock.json"
STORED = "GET /storage"
MIB = 1 << 20


def safetensors(size, seed=0):
    """A right header and random bytes, `size` in all."""
    data = size - 128
    header = {"weight": {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}}
    text = json.dumps(header).encode().ljust(120)
    return len(text).to_bytes(8, "little") + text + random.Random(seed).randbytes(data)


def checkpoint(size=3_000_000, seed=0):
    return {
        PARAMS: json.dumps({"dim": 2, "seed": seed}).encode(),
        WEIGHTS: safetensors(size, seed),
        TOKENIZER: json.dumps({"vocab": list(range(500))}).encode(),
    }


FILES = checkpoint()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def pins(files, *names):
    """Arguments that pin files, all three unless named."""
    return [
        item for name in names or NAMES for item in ("--sha256", f"{name}={sha256(files[name])}")
    ]


@pytest.fixture
def hub(tmp_path):
    with HubServer(tmp_path / "hub") as server:
        yield server
    assert not server.errors
    assert not server.faults_left


@pytest.fixture
def here(tmp_path, hub):
    folder = tmp_path / "here"
    folder.mkdir()
    return Here(folder, hub)


@pytest.fixture
def revision(hub):
    """Of a repository that has the checkpoint."""
    hub.create(REPO)
    return hub.commit(REPO, FILES)


def download(here, revision, *more, code=0):
    return here.run("download", "--repo", REPO, "--revision", revision, *more, OUTPUT, code=code)


def got(here):
    """What the build finds."""
    folder = here.folder / OUTPUT
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def written(here):
    """Names of all files but the library's own, at any depth."""
    paths = here.folder.rglob("*")
    home = here.folder / "home"
    return sorted(path.name for path in paths if path.is_file() and not path.is_relative_to(home))


def kept(here, name=WEIGHTS):
    """Where a file that the build finds really lies."""
    return (here.folder / OUTPUT / name).resolve()


def parts(here):
    return [path for path in here.folder.rglob("*.part") if path.is_file()]


def seen(hub, pattern):
    return [item for item in hub.requests if pattern in f"{item.method} {item.path}"]


def contents(hub):
    """Requests that were answered with a file's content, or could have been."""
    found = [item.path for item in seen(hub, "GET ") if not item.path.startswith("/api/")]
    return [path.rpartition("/")[2] for path in found]


def sent(hub):
    return sum(item.sent for item in hub.requests)


def is_one_message(ended):
    """What went wrong, what was found, what to do; each once."""
    parts = ("error: ", "  got:  ", "  next: ")
    return [sum(line.startswith(part) for line in ended.err.splitlines()) for part in parts] == [
        1,
        1,
        1,
    ]


# --- what is fetched ---------------------------------------------------------------------


def test_of_a_repository_only_the_three_files_are_fetched(hub, here):
    demo = {name: (REPOSITORY / "demo" / "checkpoint" / name).read_bytes() for name in NAMES}
    hub.create(REPO)
    others = {
        "model.safetensors": safetensors(20_000_000),
        "README.md": b"# Voxtral\n",
        "config.json": b"{}",
        "original/consolidated.safetensors": safetensors(5_000_000),
    }
    revision = hub.commit(REPO, demo | others)
    download(here, revision)
    assert got(here) == demo
    asked = {item.path.partition("/resolve/")[2] for item in seen(hub, "/resolve/")}
    assert asked == {f"{revision}/{name}" for name in NAMES}
    (stored,) = seen(hub, STORED)
    assert stored.path.endswith(sha256(demo[WEIGHTS]))
    total = sum(len(content) for content in demo.values())
    assert total <= sent(hub) < total + 5000  # redirects have a body, too


def test_a_later_commit_is_not_what_is_fetched(hub, here, revision):
    hub.commit(REPO, checkpoint(seed=1))
    download(here, revision)
    assert got(here) == FILES


def test_what_the_build_finds_are_links_to_files_that_nothing_may_write(here, revision):
    download(here, revision, "--store", "kept")
    for name in NAMES:
        assert (here.folder / OUTPUT / name).is_symlink()
        path = kept(here, name)
        assert path.is_relative_to(here.folder / "kept")
        assert not path.is_symlink()
        assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    assert written(here) == sorted([*NAMES, *NAMES, "checkpoint.lock.json"])


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


# --- pins and the lock -------------------------------------------------------------------


def lock(here):
    return json.loads((here.folder / LOCK).read_text())


def hashes(files):
    return {
        name: {"bytes": len(content), "sha256": sha256(content)} for name, content in files.items()
    }


def test_with_pins_there_is_no_lock(hub, here, revision):
    download(here, revision, *pins(FILES))
    assert got(here) == FILES
    assert not (here.folder / LOCK).exists()


def test_a_wrong_pin_of_the_weights_is_told_before_any_byte(hub, here, revision):
    others = checkpoint(seed=1)
    ended = download(here, revision, *pins(others, WEIGHTS), code=2)
    assert is_one_message(ended)
    told = [REPO, WEIGHTS, sha256(others[WEIGHTS]), sha256(FILES[WEIGHTS]), "checkpoint.sha256"]
    assert not [text for text in told if text not in ended.err]
    assert contents(hub) == []
    assert written(here) == []


@pytest.mark.parametrize("name", [PARAMS, TOKENIZER])
def test_a_wrong_pin_of_a_small_file_is_told_and_the_file_is_removed(hub, here, revision, name):
    others = checkpoint(seed=1) | {TOKENIZER: b"{}"}
    ended = download(here, revision, *pins(others, name), code=2)
    assert is_one_message(ended)
    told = [REPO, name, sha256(others[name]), sha256(FILES[name])]
    assert not [text for text in told if text not in ended.err]
    assert name not in written(here)
    assert not got(here)


@pytest.mark.parametrize("name", NAMES)
def test_a_pin_that_is_wrong_of_a_file_that_is_here_is_told(hub, here, revision, name):
    """The file is what the Hub has: it stays, and no byte is asked for."""
    download(here, revision)
    hub.requests.clear()
    others = checkpoint(seed=1) | {TOKENIZER: b"{}"}
    ended = download(here, revision, *pins(others, name), code=2)
    assert is_one_message(ended)
    told = [REPO, name, sha256(others[name]), sha256(FILES[name]), "checkpoint.sha256"]
    assert not [text for text in told if text not in ended.err]
    assert "damaged" not in ended.err
    assert contents(hub) == []
    assert got(here) == FILES


def test_small_files_are_held_against_their_pins_before_the_weights_are_fetched(
    hub, here, revision
):
    """What comes last would cost all that comes before."""
    download(here, revision, *pins(checkpoint(seed=1) | {TOKENIZER: b"{}"}, TOKENIZER), code=2)
    assert seen(hub, STORED) == []


def test_what_was_fetched_without_pins_is_locked(hub, here, revision):
    download(here, revision)
    assert lock(here) == {f"{REPO}@{revision}": hashes(FILES)}


def test_only_what_has_no_pin_is_locked(hub, here, revision):
    download(here, revision, *pins(FILES, WEIGHTS))
    small = {name: FILES[name] for name in (PARAMS, TOKENIZER)}
    assert lock(here) == {f"{REPO}@{revision}": hashes(small)}


def test_another_revision_is_added_to_the_lock(hub, here, revision):
    download(here, revision)
    others = checkpoint(seed=1)
    later = hub.commit(REPO, others)
    download(here, later)
    assert got(here) == others
    assert lock(here) == {
        f"{REPO}@{revision}": hashes(FILES),
        f"{REPO}@{later}": hashes(others),
    }


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_lock_is_what_files_are_held_against(hub, here, revision, name, there):
    """Of a lock that came with the configuration, or was changed after the files were fetched."""
    if there:
        download(here, revision)
        hub.requests.clear()
    entry = hashes(FILES | {name: b"another"})
    (here.folder / LOCK).parent.mkdir(exist_ok=True)
    (here.folder / LOCK).write_text(json.dumps({f"{REPO}@{revision}": entry}))
    before = (here.folder / LOCK).read_bytes()
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    told = [REPO, name, sha256(b"another"), sha256(FILES[name]), LOCK]
    assert not [text for text in told if text not in ended.err]
    assert (here.folder / LOCK).read_bytes() == before
    assert seen(hub, STORED) == []
    assert there or name not in written(here)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"%s": 1}', '{"%s": {"params.json": "0"}}', "<html>"]
)
def test_a_lock_that_is_none_is_told(hub, here, revision, text):
    (here.folder / LOCK).parent.mkdir()
    (here.folder / LOCK).write_text(text.replace("%s", f"{REPO}@{revision}"))
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert "checkpoint.lock.json" in ended.err
    assert hub.requests == []


# --- what is here already ----------------------------------------------------------------


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
def test_with_all_files_here_nothing_is_asked_of_the_hub(hub, here, revision, offline, pinned):
    more = pins(FILES) if pinned else []
    download(here, revision, *more)
    hub.requests.clear()
    shutil.rmtree(here.folder / "build")
    if offline:
        here.more["HF_HUB_OFFLINE"] = "1"
    download(here, revision, *more)
    assert hub.requests == []
    assert got(here) == FILES


@pytest.mark.parametrize("pinned", [False, True])
def test_offline_without_the_files_is_told(hub, here, revision, pinned):
    here.more["HF_HUB_OFFLINE"] = "1"
    ended = download(here, revision, *(pins(FILES) if pinned else []), code=2)
    assert is_one_message(ended)
    told = [REPO, PARAMS, "HF_HUB_OFFLINE", "unset it", "checkpoint.path"]
    assert not [text for text in told if text not in ended.err]
    assert hub.requests == []
    assert written(here) == []


@pytest.mark.parametrize("damage", ["a byte", "shorter", "gone"])
@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_a_damaged_file_is_fetched_again_and_only_that(hub, here, revision, damage, name):
    download(here, revision)
    hub.requests.clear()
    path = kept(here, name)
    path.chmod(0o644)
    content = FILES[name][:-1] + (b"\x00" if damage == "a byte" else b"")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    download(here, revision)
    assert got(here) == FILES
    assert {item.path.rpartition("/")[2] for item in seen(hub, "/resolve/")} == {name}
    assert not path.stat().st_mode & stat.S_IWUSR


def test_a_file_that_somebody_put_there_is_not_believed(hub, here, revision):
    """Nothing is known of it, not even a lock: the Hub is asked."""
    folder = here.folder / "checkpoints" / "tester--voxtral" / revision
    folder.mkdir(parents=True)
    (folder / PARAMS).write_bytes(FILES[PARAMS][:-2] + b"7}")
    (folder / TOKENIZER).write_bytes(FILES[TOKENIZER])
    download(here, revision)
    assert got(here) == FILES
    assert contents(hub).count(TOKENIZER) == 0
    assert lock(here) == {f"{REPO}@{revision}": hashes(FILES)}


FETCH = """
import sys
from huggingface_hub import hf_hub_download
for name in sys.argv[3:]:
    hf_hub_download(sys.argv[1], name, revision=sys.argv[2])
"""


def cache(here, revision, *names):
    """Fetch into the library's own cache, as another tool of the user's does."""
    command = [sys.executable, "-c", FETCH, REPO, revision, *names]
    subprocess.run(command, env=here.environment, check=True, capture_output=True, timeout=60)


def test_files_of_the_librarys_cache_are_used(hub, here, revision):
    cache(here, revision, *NAMES)
    hub.requests.clear()
    here.more["HF_HUB_OFFLINE"] = "1"
    download(here, revision, *pins(FILES))
    assert hub.requests == []
    assert got(here) == FILES
    assert kept(here).is_relative_to(here.folder / "home")
    assert kept(here).stat().st_mode & stat.S_IWUSR  # the library's, not ours to protect


def test_a_damaged_file_of_the_librarys_cache_is_not_used(hub, here, revision):
    cache(here, revision, *NAMES)
    (blob,) = (here.folder / "home").rglob(f"blobs/{sha256(FILES[WEIGHTS])}")
    damaged = FILES[WEIGHTS][:-1] + b"\x00"
    blob.write_bytes(damaged)
    hub.requests.clear()
    download(here, revision, *pins(FILES))
    assert got(here) == FILES
    assert contents(hub) == [WEIGHTS, sha256(FILES[WEIGHTS])]
    assert blob.read_bytes() == damaged


@pytest.mark.parametrize("where", ["removed", "moved"])
def test_a_librarys_cache_that_went_away_is_no_failure(hub, here, revision, where):
    cache(here, revision, *NAMES)
    download(here, revision, *pins(FILES))
    if where == "removed":
        shutil.rmtree(here.folder / "home")
    else:
        (here.folder / "home").rename(here.folder / "elsewhere")
        here.more["HF_HOME"] = str(here.folder / "elsewhere")
    hub.requests.clear()
    download(here, revision, *pins(FILES))
    assert got(here) == FILES
    assert len(seen(hub, STORED)) == (where == "removed")


# --- space -------------------------------------------------------------------------------


def test_what_does_not_fit_on_the_disk_is_told_before_the_first_byte(hub, here):
    hub.create(REPO)
    vast = File(10**18, "0" * 40, "1" * 64)
    revision = hub.commit(REPO, FILES | {WEIGHTS: vast})
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert not [text for text in ("space", WEIGHTS, "1,000,000,000") if text not in ended.err]
    assert contents(hub) == []
    assert written(here) == []


# --- folders, and what may be asked for --------------------------------------------------


@pytest.fixture
def local(here):
    folder = here.folder / "mine"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_folders_files_are_held_against_pins(hub, here, local):
    here.run("download", "--path", "mine", *pins(FILES), OUTPUT)
    assert got(here) == FILES
    assert kept(here) == local / WEIGHTS
    assert not (here.folder / LOCK).exists()
    assert hub.requests == []


@pytest.mark.parametrize("name", NAMES)
def test_another_file_in_a_folder_than_pinned_is_told(here, local, name):
    others = FILES | {name: b"another"}
    ended = here.run("download", "--path", "mine", *pins(others), OUTPUT, code=2)
    assert is_one_message(ended)
    assert not [
        text for text in (name, sha256(b"another"), sha256(FILES[name])) if text not in ended.err
    ]
    assert not got(here)
    assert (local / name).read_bytes() == FILES[name]


COMMIT, HASH = "0" * 40, "0" * 64


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--repo", REPO], ["revision", "40 hexadecimal digits", "commits/main"]),
        (["--repo", REPO, "--revision", "main"], ["not a commit", "main", "40 hexadecimal"]),
        (["--repo", REPO, "--revision", COMMIT[:7]], ["not a commit", "40 hexadecimal"]),
        (["--repo", "voxtral", "--revision", COMMIT], ["voxtral", "organization/name"]),
        (["--repo", "../..", "--revision", COMMIT], ["../..", "organization/name"]),
        (["--repo", "a/b/c", "--revision", COMMIT], ["a/b/c", "organization/name"]),
        (["--path", "mine", "--revision", COMMIT], ["revision of no repository"]),
        (["--path", "mine", "--repo", REPO], ["not allowed with"]),
        (["--synth", "toy", "--sha256", f"{PARAMS}={HASH}"], ["random", "pins"]),
        (["--path", "mine", "--sha256", f"model.bin={HASH}"], ["model.bin", *NAMES]),
        (["--path", "mine", "--sha256", f"{PARAMS}={HASH[1:]}"], ["64 hexadecimal digits"]),
        (["--path", "mine", "--sha256", f"{PARAMS}=main"], ["64 hexadecimal digits"]),
        (["--path", "mine", "--sha256", PARAMS], ["64 hexadecimal digits"]),
        (["--path", "mine", "--sha256", HASH], [*NAMES]),
    ],
)
def test_what_cannot_be_asked_for_is_told(hub, here, local, arguments, told):
    ended = here.run("download", *arguments, OUTPUT, code=2)
    assert not [text for text in told if text not in ended.err], ended.err
    assert ended.err.count("error: ") == 1
    assert hub.requests == []
    assert not got(here)


def test_of_two_hashes_of_a_file_none_is_chosen(here, local):
    given = ["--sha256", f"{PARAMS}={HASH}", "--sha256", f"{PARAMS}={sha256(FILES[PARAMS])}"]
    ended = here.run("download", "--path", "mine", *given, OUTPUT, code=2)
    assert is_one_message(ended)
    assert not got(here)


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/tester--voxtral"])
def test_a_store_that_cannot_be_made_is_told(hub, here, revision, place):
    (here.folder / place).parent.mkdir(exist_ok=True)
    (here.folder / place).write_text("a file in the way")
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert f"checkpoints/tester--voxtral/{revision} cannot be made" in ended.err
    assert hub.requests == []


# --- secrets -----------------------------------------------------------------------------

SIGNATURE = "X-Amz-Signature"


def told_nobody(hub, here, texts, secret):
    """Neither who reads logs and files, nor the storage."""
    files = [path for path in here.folder.rglob("*") if path.is_file() and path.name != "token"]
    all_texts = [text.encode() for text in texts] + [path.read_bytes() for path in files]
    assert not [text for text in all_texts if secret.encode() in text or SIGNATURE.encode() in text]
    storage = [item for item in hub.requests if item.headers["host"].startswith("localhost")]
    assert storage
    assert SIGNATURE in storage[0].query
    assert not [item for item in storage if secret in str(item)]
    ours = [item for item in seen(hub, "/resolve/") if secret in item.headers["authorization"]]
    assert len(ours) == len(seen(hub, "/resolve/"))


def with_debugging(here, revision):
    """What a run prints, which may end in a traceback."""
    process = here.start("download", "--repo", REPO, "--revision", revision, OUTPUT)
    try:
        return process.communicate(timeout=100)
    finally:
        process.kill()


@pytest.mark.parametrize("variable", [None, "VOXTRAL_BUILD_DEBUG", "HF_DEBUG"])
def test_neither_the_token_nor_a_signature_gets_out(hub, here, revision, variable):
    """Over a run with tries that fail, two that end in an error, and one that is right."""
    if variable:
        here.more[variable] = "1"
    hub.fail("HEAD .*/resolve/", Status(503, {"Retry-After": "0"}, message=f"no {WRITE_TOKEN}"))
    hub.fail(STORED, Status(500))
    hub.fail(STORED, Cut(1_000_000))
    hub.fail(STORED, Status(403, message=f"no {WRITE_TOKEN}"))
    hub.fail(STORED, Wrong())
    texts = [text for _ in range(3) for text in with_debugging(here, revision)]
    assert got(here) == FILES
    told_nobody(hub, here, texts, WRITE_TOKEN)
    shown = {None: "error: ", "VOXTRAL_BUILD_DEBUG": "Traceback", "HF_DEBUG": "curl"}[variable]
    assert shown in "".join(texts)


@pytest.mark.parametrize("secret", ["hf_oauth_eyJhbGciOi.JIUzI1-NiIsInR5_cCI6", READ_TOKEN])
def test_a_token_of_a_login_is_kept_as_well(hub, here, revision, secret):
    here.token = None
    hub.tokens[secret] = "read"
    (here.folder / "home").mkdir()
    (here.folder / "home" / "token").write_text(secret)
    hub.fail(STORED, Status(403, message=f"{secret} may not read this"))
    texts = [text for _ in range(2) for text in with_debugging(here, revision)]
    assert got(here) == FILES
    assert "may not read this" in "".join(texts)
    told_nobody(hub, here, texts, secret)


def test_a_token_of_no_known_form_is_kept_as_well(hub, here, revision):
    here.token = secret = "0123456789-abcdef"
    hub.tokens[secret] = "read"
    hub.fail(STORED, Status(403, message=f"{secret} may not read this"))
    texts = [text for _ in range(2) for text in with_debugging(here, revision)]
    assert got(here) == FILES
    told_nobody(hub, here, texts, secret)


def test_a_token_with_a_character_that_no_token_has_is_told(hub, here, revision):
    here.token = f"{WRITE_TOKEN[:12]}…"
    ended = download(here, revision, code=2)
    assert is_one_message(ended)
    assert "HF_TOKEN" in ended.err
    assert WRITE_TOKEN[:12] not in ended.err


# --- in a build --------------------------------------------------------------------------


class Build:
    """The workflow's first target, in a folder of its own."""

    def __init__(self, here, revision):
        self.here = here
        self.checkpoint = {"repo": REPO, "revision": revision}
        self.output = ""

    def run(self, *more, code=0):
        """Returns how often the download ran."""
        write_matrix(self.here.folder, [XNNPACK], checkpoint=self.checkpoint)
        command = [sys.executable, "-m", "snakemake"]
        command += ["--snakefile", str(REPOSITORY / "Snakefile")]
        command += ["--directory", str(self.here.folder), "--cores", "1", *more]
        result = subprocess.run(
            [*command, "--", f"{OUTPUT}/{PARAMS}"],
            cwd=self.here.folder,
            env=self.here.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=200,
        )
        self.output = result.stdout
        assert result.returncode == code, self.output
        return self.output.count("download: checkpoint from --repo")


@pytest.fixture
def build(here, revision):
    return Build(here, revision)


def test_a_build_fetches_once(hub, here, build):
    assert build.run("--dry-run") == 1
    assert hub.requests == []
    assert build.run() == 1
    assert got(here) == FILES
    assert seen(hub, STORED)
    hub.requests.clear()
    assert build.run() == 0
    assert "Nothing to be done" in build.output

    # A changed parameter runs it again; so does a lost build folder.
    build.checkpoint["sha256"] = {name: sha256(content) for name, content in FILES.items()}
    assert build.run() == 1
    shutil.rmtree(here.folder / "build")
    assert build.run() == 1
    assert build.run("--forcerun", "download") == 1
    assert got(here) == FILES
    assert hub.requests == []


def test_a_build_tries_again_by_itself_and_keeps_the_token_to_itself(hub, here, build):
    hub.fail(STORED, Cut(1_000_000))
    hub.fail(STORED, Wrong())
    hub.fail(STORED, Status(403, message=f"no {WRITE_TOKEN}"))
    build.run()
    assert build.output.count("arrived with wrong bytes") == 1
    assert got(here) == FILES
    assert (here.folder / "logs" / "download" / "checkpoint.log").is_file()
    assert list((here.folder / ".snakemake" / "metadata").iterdir())
    told_nobody(hub, here, [build.output], WRITE_TOKEN)


def test_a_build_without_access_says_so(hub, here, build):
    here.token = "hf_notavalidtoken"
    build.run("--retries", "0", code=1)
    log = (here.folder / "logs" / "download" / "checkpoint.log").read_text()
    assert "set HF_TOKEN to a valid token" in log
    assert here.token not in build.output + log
