"""From a repository on the Hub to another one, and back: everything for real but the Hub."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from tests.hub import WRITE_TOKEN, HubServer
from tests.hub_runs import REPOSITORY, Here
from voxtral_build.files import sha256
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.verify import verify

pytestmark = pytest.mark.lowering

VARIANT = "xnnpack-fp32-8da4w-streaming"
DEMO = REPOSITORY / "demo" / "checkpoint"
CHECKPOINT = ("params.json", "consolidated.safetensors", "tekken.json")


def snakemake(here: Here, *arguments: str) -> str:
    """Run Snakemake as a user would; returns what it printed."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")]
    command += ["--directory", str(here.folder), "--configfile", "config/matrix.yaml"]
    with watched_arguments():
        done = subprocess.run(
            [*command, "--cores", "2", "--printshellcmds", *arguments],
            cwd=here.folder,
            env=here.environment,
            capture_output=True,
            text=True,
            check=False,
        )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    return output


class watched_arguments:  # noqa: N801 - a context manager
    """Sees that no process on this machine has the token in its arguments."""

    def __enter__(self) -> None:
        self._ended, self._found, self._seen = threading.Event(), set[str](), 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    arguments = path.read_bytes()
                except OSError:  # it has ended
                    continue
                self._seen += b"voxtral_build" in arguments
                if WRITE_TOKEN.encode() in arguments:
                    self._found.add(arguments.decode(errors="replace"))

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self._seen > 0
        assert self._found == set()


def test_from_download_to_publish_and_pulled_again(tmp_path: Path) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    (work / "config").mkdir(parents=True)
    elsewhere.mkdir()
    with HubServer(tmp_path / "hub") as hub:
        hub.create("demo/model", private=True)
        files: dict[str, bytes | Path | None] = {name: DEMO / name for name in CHECKPOINT}
        # The same weights once more, as the real repository has them.
        files |= {"model.safetensors": b"\0" + bytes(5_000_000), "README.md": b"# A model\n"}
        revision = hub.commit("demo/model", files)
        write_matrix(work, revision)
        here = Here(work, hub)

        output = snakemake(here, "publish", "--config", "hub_repo=demo/artifacts")

        fetched = [r.path for r in hub.requests if "demo/model/resolve" in r.path]
        assert {path.rpartition("/")[2] for path in fetched} == set(CHECKPOINT)
        # Nobody gave hashes: the lock has them now.
        lock = yaml.safe_load((work / "config" / "checkpoint.lock.json").read_text())
        assert lock == {
            f"demo/model@{revision}": {
                name: {"bytes": (DEMO / name).stat().st_size, "sha256": sha256(DEMO / name)}
                for name in CHECKPOINT
            }
        }
        tree = hub.tree("demo/artifacts")
        folder = f"xnnpack/{VARIANT}"
        names = ("model.pte", "preprocessor.pte", "tekken.json")
        names += ("manifest.json", "report.json", "README.md")
        assert set(tree) == {
            ".gitattributes",
            *("README.md", "catalog.json", "index.html"),
            *(f"{folder}/{name}" for name in names),
        }
        manifest = Manifest.load(work / "artifacts" / VARIANT / "manifest.json")
        assert manifest.dependencies["checkpoint/params.json"] == FileRecord.of(
            DEMO / "params.json"
        )
        for name, record in manifest.files.items():
            assert tree[f"{folder}/{name}"].size == record.bytes

        # Again: nothing is fetched, built or committed.
        head, before = hub.head("demo/artifacts"), len(hub.requests)
        output += snakemake(here, "publish", "--config", "hub_repo=demo/artifacts")
        assert hub.head("demo/artifacts") == head
        asked = {r.method for r in hub.requests[before:]}
        assert asked == {"GET"}
        assert not any("demo/model" in r.path for r in hub.requests[before:])

        # Somebody else, who has nothing but the name.
        user = Here(elsewhere, hub, token=None)
        pulled = user.run("pull", "demo/artifacts", VARIANT)
        assert f"voxtral-build transcribe {VARIANT} speech.wav" in pulled.out
        assert verify(elsewhere / VARIANT) == manifest
        clip = REPOSITORY / "demo" / "clips" / "known-voice.flac"
        heard = user.run("transcribe", VARIANT, str(clip)).out.split()
        said = dict(
            line.split("\t")[:2]
            for line in (clip.parent / "words.tsv").read_text(encoding="utf-8").splitlines()
        )[clip.name].split()
        assert len(set(heard) & set(said)) > 0.8 * len(set(said))

        assert WRITE_TOKEN not in output
        assert files_with_token(work, elsewhere) == []
        assert not hub.errors


def write_matrix(folder: Path, revision: str) -> None:
    text = (REPOSITORY / "config" / "matrix.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    data["checkpoint"] = {"repo": "demo/model", "revision": revision}
    data["variants"] = [
        {"backend": ["xnnpack"], "dtype": ["fp32"], "scheme": ["8da4w"], "mode": ["streaming"]}
    ]
    (folder / "config" / "matrix.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")


def files_with_token(*folders: Path) -> list[Path]:
    """Whatever was written: logs, Snakemake's metadata, manifests, reports, caches."""
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any(".snakemake" in path.parts for path in paths)
    return [path for path in paths if WRITE_TOKEN.encode() in path.read_bytes()]
