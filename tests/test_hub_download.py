"""`download --repo`: what is fetched, what is held against what, and what is here already."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys

import pytest

from tests.downloading import (
    FILES,
    LOCK,
    NAMES,
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
    kept,
    machine,
    parts,
    pins,
    published,
    safetensors,
    seen,
    sent,
    serving,
    sha256,
    written,
)
from tests.hub import File, Slow
from tests.hub_runs import REPOSITORY, wait_until


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


# --- other revisions, other processes ----------------------------------------------------


def test_what_another_commit_left_as_it_was_is_not_fetched_again(hub, here, revision):
    download(here, revision)
    later = hub.commit(REPO, {PARAMS: b'{"dim": 3}', "README.md": b"better"})
    before = len(hub.requests)
    download(here, later)
    assert got(here) == FILES | {PARAMS: b'{"dim": 3}'}
    fetched = {item.path.rpartition("/")[2] for item in hub.requests[before:] if item.sent > 1000}
    assert fetched == set()
    assert not kept(here).stat().st_mode & 0o222
    # The first one's is still there, and is its own.
    shutil.rmtree(here.folder / "build")
    download(here, revision)
    assert got(here) == FILES


def test_two_processes_fetch_a_file_once(hub, here, revision):
    hub.fail(STORED, Slow(bytes_per_second=1_500_000))
    arguments = ("download", "--repo", REPO, "--revision", revision)
    first = here.start(*arguments, "one")
    wait_until(lambda: bool(parts(here)) and bool(seen(hub, STORED)), first)
    here.run(*arguments, "two")
    assert first.wait(timeout=60) == 0
    assert len(seen(hub, STORED)) == 1
    for output in ("one", "two"):
        folder = here.folder / output
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert not parts(here)


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
