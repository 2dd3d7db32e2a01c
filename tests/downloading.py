"""What tests of `download --repo` have in common: a checkpoint on a Hub, and what arrived."""

from __future__ import annotations

import hashlib
import json
import random
from contextlib import contextmanager

from tests.hub import (
    HubServer,
)
from tests.hub_runs import Here

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


@contextmanager
def serving(folder):
    """A Hub; afterwards, every fault has to have happened."""
    with HubServer(folder / "hub") as server:
        yield server
    assert not server.errors
    assert not server.faults_left


def machine(folder, hub):
    """With nothing on it yet."""
    (folder / "here").mkdir()
    return Here(folder / "here", hub)


def published(hub):
    """A revision of a repository that has the checkpoint."""
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
