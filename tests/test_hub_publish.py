"""`publish`: what goes to a repository on the Hub, and what stays here."""

from __future__ import annotations

import json
import re

import pytest

from tests.hub import WRITE_TOKEN, Before
from tests.hub_runs import (
    MLX,
    PORTABLE,
    XNNPACK,
    digests,
    write_artifact,
    write_matrix,
    write_report,
)
from tests.publishing import (
    OWN,
    QUANTIZED,
    REPO,
    committed,
    expected,
    lines,
    place,
    ready,
    seen,
    serving,
    sha256,
    texts,
    there,
    writes,
)
from voxtral_build.manifest import FileRecord, Manifest

THEIRS = {"LICENSE": b"ours", "some/other.txt": b"x", "xnnpack/plot.png": b"\x89PNG\0"}
PARTS = pytest.mark.parametrize("here", [{}, {"part_bytes": 1000, "page_size": 3}], indirect=True)


@pytest.fixture
def here(request, tmp_path):
    with serving(tmp_path, **getattr(request, "param", {})) as made:
        yield made


@pytest.fixture
def hub(here):
    return here.hub


def catalog(hub):
    entries = json.loads(hub.read(REPO, "catalog.json"))["entries"]
    return {entry["variant"]: entry for entry in entries}


# --- what goes up ------------------------------------------------------------------------


@PARTS
def test_every_file_is_at_its_place_with_its_bytes(hub, here):
    artifacts = ready(here, XNNPACK, PORTABLE, QUANTIZED)
    here.run("publish", REPO)
    as_they_are = expected(artifacts, XNNPACK, PORTABLE, QUANTIZED)
    found = there(hub)
    assert {path: found[path] for path in as_they_are} == as_they_are
    cards = {f"{place(variant)}/README.md" for variant in (XNNPACK, PORTABLE, QUANTIZED)}
    assert found.keys() - as_they_are.keys() == cards | OWN | {".gitattributes"}
    assert hub.read(REPO, f"{place(PORTABLE)}/README.md").count(PORTABLE.encode())


@PARTS
def test_each_content_is_sent_once(hub, here):
    """All variants have the same preprocessor; their models differ."""
    artifacts = ready(here, XNNPACK, PORTABLE, QUANTIZED)
    here.run("publish", REPO)
    large = {sha256(path.read_bytes()): path.stat().st_size for path in artifacts.glob("*/*.pte")}
    assert len(large) == 4
    received = dict.fromkeys(large, 0)
    for put in seen(hub, "PUT /storage"):
        received[put.path.split("/")[4]] += put.received
    assert received == large


def test_one_commit_on_top_of_the_head_that_was_seen(hub, here):
    hub.create(REPO)
    head = hub.commit(REPO, THEIRS)
    ready(here, XNNPACK, PORTABLE)
    here.run("publish", REPO)
    (commit,) = seen(hub, "POST /api/models/tester/voxtral/commit/")
    assert lines(commit)[0][1]["parentCommit"] == head
    assert [item.id for item in hub.commits(REPO)][1] == head
    # Large files are there before it, and are only named in it.
    kinds = {value["path"]: key for key, value in lines(commit)[1:]}
    assert {key for path, key in kinds.items() if path.endswith(".pte")} == {"lfsFile"}
    assert {key for path, key in kinds.items() if not path.endswith(".pte")} == {"file"}
    after = hub.requests[hub.requests.index(commit) :]
    assert not [item for item in after if item.method == "PUT"]
    description = hub.commits(REPO)[0].description
    assert XNNPACK in description
    assert PORTABLE in description


def test_files_of_others_stay(hub, here):
    hub.create(REPO)
    hub.commit(REPO, THEIRS)
    before = digests(hub.tree(REPO))
    ready(here, XNNPACK)
    here.run("publish", REPO)
    after = digests(hub.tree(REPO))
    assert {path: after[path] for path in before} == before


@PARTS
def test_a_rerun_sends_nothing(hub, here):
    ready(here, XNNPACK, PORTABLE)
    here.run("publish", REPO)
    head = hub.head(REPO)
    hub.requests.clear()
    again = here.run("publish", REPO)
    assert "no commit" in again.err
    assert not writes(hub)
    assert hub.head(REPO) == head


def test_of_a_change_only_what_it_makes_differ_is_sent(hub, here):
    artifacts = ready(here, XNNPACK, PORTABLE)
    here.run("publish", REPO)
    write_artifact(artifacts, XNNPACK, seed=1)
    hub.requests.clear()
    here.run("publish", REPO)
    model = sha256((artifacts / XNNPACK / "model.pte").read_bytes())
    assert [put.path.split("/")[4] for put in seen(hub, "PUT")] == [model]
    own = {
        f"{place(XNNPACK)}/{name}"
        for name in ("model.pte", "manifest.json", "report.json", "README.md")
    }
    # The repository's card has no hash in it, and sizes are as before.
    assert committed(hub) == own | {"catalog.json", "index.html"}
    found = there(hub)
    assert expected(artifacts, XNNPACK, PORTABLE).items() <= found.items()


# --- what stays here ---------------------------------------------------------------------


def test_nothing_else_goes_up(hub, here):
    secret = b"S3CRET-MARKER-" * 4
    artifacts = ready(here, XNNPACK, matrix=(XNNPACK, PORTABLE, QUANTIZED, MLX))
    write_artifact(artifacts, PORTABLE, status="failed")
    write_artifact(artifacts, MLX, status="inspected")
    (write_artifact(artifacts, QUANTIZED) / "report.json").unlink()
    write_artifact(artifacts, "xnnpack-fp32-4w-offline")  # of no variant of the matrix
    (artifacts / ".cache").mkdir()
    names = (".env", "consolidated.safetensors", "model.pte.tmp", "model.part", ".cache/token")
    for folder in (here.folder, artifacts, artifacts / XNNPACK):
        (folder / ".cache").mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_bytes(secret)
        (folder / "passwords").symlink_to("/etc/passwd")
    (artifacts / XNNPACK / "report.failed.json").write_bytes(secret)
    # As long as no manifest lists it, it is nothing of the artifact, whatever its name.
    (artifacts / XNNPACK / "model.ptd").write_bytes(secret)
    (artifacts / XNNPACK / "README.md").write_bytes(secret)
    ended = here.run("publish", REPO)
    mine = {*expected(artifacts, XNNPACK), f"{place(XNNPACK)}/README.md"}
    assert hub.tree(REPO).keys() == mine | OWN | {".gitattributes"}
    users = (b"root:x:0", secret[:14])
    assert not [text for text in texts(hub) if any(word in text for word in users)]
    for name in (".env", "model.ptd", "report.failed.json"):
        assert re.search(f"{XNNPACK}/{re.escape(name)}: .*stays here", ended.err)
    for variant in (PORTABLE, QUANTIZED, MLX):
        assert re.search(f"{variant}: .*stays here", ended.err)


def test_the_search_for_secrets_finds_what_is_sent(hub, here):
    """Of the test above: what does go up is found in requests."""
    artifacts = ready(here, XNNPACK)
    here.run("publish", REPO)
    for name in ("model.pte", "report.json"):
        assert (artifacts / XNNPACK / name).read_bytes() in list(texts(hub))


def test_what_was_only_read_back_goes_up_when_asked_for(hub, here):
    artifacts = ready(here, XNNPACK)
    write_artifact(artifacts, MLX, status="inspected")
    here.run("publish", REPO, "--inspected")
    assert expected(artifacts, XNNPACK, MLX).items() <= there(hub).items()
    assert catalog(hub)[MLX]["status"] == "inspected"


def elsewhere(folder):
    (folder / "model.pte").rename(folder.parent / "model.pte")
    (folder / "model.pte").symlink_to("../model.pte")


def other_bytes(folder):
    content = (folder / "model.pte").read_bytes()
    (folder / "model.pte").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def listing(name):
    """A manifest, and a report on it, that list one more file."""

    def change(folder):
        (folder / "extra").write_bytes(b"secret")
        manifest = Manifest.load(folder / "manifest.json")
        manifest.files[name] = FileRecord.of(folder / "extra")
        manifest.write(folder / "manifest.json")
        (folder / "extra").rename(folder / name)
        write_report(folder, "validated")

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (elsewhere, "model.pte: a link"),
        (other_bytes, "model.pte: sha256"),
        (lambda folder: (folder / "tekken.json").unlink(), "tekken.json: missing"),
        (lambda folder: (folder / "tekken.json").write_text("{}"), "tekken.json: 2 bytes"),
        (listing(".env"), ".env"),
        (listing("../.env"), "../.env: no name of a file in this folder"),
        (listing("report.failed.json"), "report.failed.json"),
    ],
)
def test_an_artifact_that_is_not_right_stops_all_before_anything_is_asked(hub, here, change, told):
    artifacts = ready(here, XNNPACK, PORTABLE)
    change(artifacts / PORTABLE)
    ended = here.run("publish", REPO, code=2)
    assert told in ended.err
    assert PORTABLE in ended.err
    assert not hub.requests


def test_with_nothing_validated_nothing_is_made(hub, here):
    write_artifact(ready(here), MLX, status="inspected")
    ended = here.run("publish", REPO, code=2)
    assert "nothing to publish" in ended.err
    assert not hub.requests


# --- the repository ----------------------------------------------------------------------


@pytest.mark.parametrize("private", [True, False])
def test_it_is_made_private_when_asked_for(hub, here, private):
    ready(here, XNNPACK)
    here.run("publish", REPO, *(["--private"] if private else []))
    assert hub.is_private(REPO) == private
    (made,) = seen(hub, "/api/repos/create")
    # Otherwise nothing is said of it, and the organization's own default holds.
    assert bool({"private", "visibility"} & json.loads(made.body).keys()) == private


def test_private_is_refused_of_a_public_one(hub, here):
    hub.create(REPO)
    ready(here, XNNPACK)
    ended = here.run("publish", REPO, "--private", code=2)
    assert f"{REPO} is public" in ended.err
    assert not writes(hub)


def test_private_is_refused_of_one_made_public_meanwhile(hub, here):
    hub.fail("POST /api/repos/create", Before(lambda: hub.create(REPO)))
    ready(here, XNNPACK)
    ended = here.run("publish", REPO, "--private", code=2)
    assert f"{REPO} is public" in ended.err
    assert list(hub.tree(REPO)) == [".gitattributes"]
    assert not seen(hub, "PUT")


def test_one_that_is_private_takes_more(hub, here):
    hub.create(REPO, private=True)
    artifacts = ready(here, XNNPACK)
    here.run("publish", REPO, "--private")
    assert expected(artifacts, XNNPACK).items() <= there(hub).items()


# --- --dry-run ---------------------------------------------------------------------------


def planned(text):
    """Sizes by mark and path of a printed plan."""
    found = re.findall(r"^(new|changed) +([\d,]+) +(\S+)$", text, re.MULTILINE)
    return {(mark, path): int(size.replace(",", "")) for mark, size, path in found}


def test_a_dry_run_prints_what_a_run_does(hub, here):
    ready(here, XNNPACK, PORTABLE)
    dry = here.run("publish", REPO, "--dry-run")
    assert not writes(hub)
    assert not hub.exists(REPO)
    assert "to be created" in dry.out
    plan = planned(dry.out)
    here.run("publish", REPO)
    sizes = {path: file.size for path, file in hub.tree(REPO).items() if path[0] != "."}
    assert plan == {("new", path): size for path, size in sizes.items()}
    assert f"{len(sizes)} files of {sum(sizes.values()):,} bytes to send, 0 to remove" in dry.out


def test_a_dry_run_names_what_changes_goes_and_stays(hub, here):
    """Of a change, a variant that left the matrix, and a data file that a model lost."""
    artifacts = ready(here, XNNPACK, PORTABLE)
    here.run("publish", REPO)
    hub.commit(REPO, {f"{place(XNNPACK)}/model.ptd": b"weights\0"})
    head = hub.head(REPO)
    write_artifact(artifacts, XNNPACK, seed=1)
    write_matrix(here.folder, [XNNPACK])
    hub.requests.clear()
    dry = here.run("publish", REPO, "--dry-run")
    pruning = here.run("publish", REPO, "--dry-run", "--prune", "--create-pr")
    assert not writes(hub)
    assert hub.head(REPO) == head
    assert head in dry.out
    removed = re.findall(r"^removed +(\S+)$", dry.out, re.MULTILINE)
    assert removed == [f"{place(XNNPACK)}/model.ptd"]
    assert re.search(f"^kept +{place(PORTABLE)}/", dry.out, re.MULTILINE)
    assert "one commit on main" in dry.out
    gone = set(re.findall(r"^removed +(\S+)$", pruning.out, re.MULTILINE))
    assert gone == {path for path in hub.tree(REPO) if PORTABLE in path} | set(removed)
    assert "kept" not in pruning.out
    assert "one pull request" in pruning.out
    here.run("publish", REPO)
    assert {path for _, path in planned(dry.out)} | set(removed) == committed(hub)
    assert "nothing to do: no commit" in here.run("publish", REPO, "--dry-run").out


# --- the token ---------------------------------------------------------------------------


@PARTS
def test_the_token_is_in_one_header_of_requests_to_the_hub_alone(hub, here):
    ready(here, XNNPACK, PORTABLE)
    dry = here.run("publish", REPO, "--dry-run")
    ended = here.run("publish", REPO)
    secret = WRITE_TOKEN.encode()
    assert not [text for text in texts(hub) if secret in text]
    with_token = [item for item in hub.requests if "authorization" in item.headers]
    assert with_token
    assert all(item.headers["host"] == f"127.0.0.1:{hub.port}" for item in with_token)
    assert not [item for item in with_token if item.path.startswith("/storage")]
    for text in (dry.out, dry.err, ended.out, ended.err):
        assert WRITE_TOKEN not in text
        assert "X-Amz-Signature" not in text
    written = [path for path in here.folder.rglob("*") if path.is_file()]
    assert not [path for path in written if secret in path.read_bytes()]


def test_no_argument_takes_a_token(here):
    assert "token" not in here.run("publish", "--help").out.lower()
    assert "unrecognized arguments" in here.run("publish", REPO, "--token", "x", code=2).err
