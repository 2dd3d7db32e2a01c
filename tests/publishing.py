"""What tests of `publish` have in common: a matrix with its artifacts, and what a server got."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hub import HubServer, Request
from tests.hub_runs import MLX, PORTABLE, XNNPACK, Here, write_artifact, write_matrix
from voxtral_build.variants import Variant

REPO = "tester/voxtral"
QUANTIZED = "xnnpack-fp32-8w-streaming"
# Of what an artifact's folder holds, what goes up as it is; its card is made.
AS_THEY_ARE = ("model.pte", "preprocessor.pte", "tekken.json", "manifest.json", "report.json")
OWN = {"README.md", "catalog.json", "index.html"}


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Here]:
    """A Hub, and a machine that talks to it; afterwards, every fault has to have happened."""
    with HubServer(folder / "hub", keep_bodies=True, **options) as hub:
        yield machine(folder, "here", hub)
    assert not hub.errors
    assert not hub.faults_left


def machine(folder: Path, name: str, hub: HubServer) -> Here:
    """With nothing on it yet."""
    (folder / name).mkdir()
    return Here(folder / name, hub)


def ready(
    here: Here, *built: str, matrix: tuple[str, ...] = (XNNPACK, PORTABLE, QUANTIZED, MLX)
) -> Path:
    """A matrix, and artifacts of some of its variants; returns their folder."""
    write_matrix(here.folder, list(matrix))
    for variant in built:
        write_artifact(here.folder / "artifacts", variant)
    return here.folder / "artifacts"


def place(variant: str) -> str:
    """An artifact's folder in a repository."""
    return f"{Variant.parse(variant).backend}/{variant}"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def expected(artifacts: Path, *variants: str) -> dict[str, str]:
    """Paths and hashes of what goes up as it is, from the folders here."""
    return {
        f"{place(variant)}/{name}": sha256((artifacts / variant / name).read_bytes())
        for variant in variants
        for name in AS_THEY_ARE
    }


def there(hub: HubServer, repo: str = REPO, revision: str = "main") -> dict[str, str]:
    """Paths and hashes of what a repository holds."""
    return {path: sha256(hub.read(repo, path, revision)) for path in hub.tree(repo, revision)}


def seen(hub: HubServer, pattern: str) -> list[Request]:
    return [item for item in hub.requests if pattern in f"{item.method} {item.path}"]


def writes(hub: HubServer) -> list[str]:
    """Requests that do anything but read."""
    asked = [f"{item.method} {item.path}" for item in hub.requests]
    return [item for item in asked if not item.startswith(("GET", "HEAD"))]


def lines(request: Request) -> list[tuple[str, dict[str, str]]]:
    """Of a commit: its header, and what it does."""
    found = [json.loads(line) for line in request.body.splitlines()]
    return [(line["key"], line["value"]) for line in found]


def committed(hub: HubServer) -> set[str]:
    """Paths that the last commit's request names."""
    return {value["path"] for key, value in lines(seen(hub, "/commit/")[-1]) if key != "header"}


def texts(hub: HubServer) -> Iterator[bytes]:
    """All that was received: addresses, headers but that of the token, bodies, decoded too."""
    for item in hub.requests:
        headers = {name: text for name, text in item.headers.items() if name != "authorization"}
        yield f"{item.path}?{item.query} {headers}".encode()
        yield item.body
        for line in item.body.splitlines():
            try:
                yield from _decoded(json.loads(line))
            except ValueError:
                continue


def _decoded(value: object) -> Iterator[bytes]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _decoded(part)
    elif isinstance(value, list):
        for part in value:
            yield from _decoded(part)
    elif isinstance(value, str):
        try:
            yield base64.b64decode(value, validate=True)
        except ValueError:
            return


def objects(hub: HubServer) -> list[str]:
    """Large contents that arrived, one for each time."""
    return [item.path.split("/")[4] for item in seen(hub, "PUT /storage") if item.status == 200]


def titles(hub: HubServer) -> list[str]:
    return [commit.title for commit in hub.commits(REPO)]


def message(text: str) -> str:
    """What a command says when it ends with 2: one error, with what to do."""
    begins = re.findall("^error: .*", text, re.MULTILINE)
    assert len(begins) == 1
    told = text[text.index(begins[0]) :]
    assert "\n  next:    " in told
    return told
