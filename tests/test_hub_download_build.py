"""`download --repo` in a build; and what nobody may learn from it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.downloading import (
    FILES,
    OUTPUT,
    PARAMS,
    REPO,
    STORED,
    download,
    got,
    is_one_message,
    machine,
    published,
    seen,
    serving,
    sha256,
)
from tests.hub import (
    READ_TOKEN,
    WRITE_TOKEN,
    Cut,
    Status,
    Wrong,
)
from tests.hub_runs import REPOSITORY, XNNPACK, write_matrix


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
