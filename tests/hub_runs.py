"""Commands run against a test Hub, and artifacts of a few kilobytes to publish to it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests import folders
from tests.hub import WRITE_TOKEN, HubServer
from tests.pte_programs import plan, write_by_hand
from voxtral_build.axes import METHODS_OF
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.variants import Variant

REPOSITORY = Path(__file__).resolve().parent.parent
XNNPACK, PORTABLE = "xnnpack-fp32-none-offline", "portable-fp32-none-streaming"
MLX = "mlx-bf16-8w-streaming"


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@dataclass
class Here:
    """A folder that commands are run in, and the Hub that they talk to."""

    folder: Path
    hub: HubServer
    token: str | None = WRITE_TOKEN
    more: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Of a user who has nothing but a token: no cache, no login, no settings."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "SNAKEMAKE"))}
        own |= {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.folder / "home"),
            # The test Hub speaks the LFS protocol, and not Xet's.
            "HF_HUB_DISABLE_XET": "1",
            "PYTHONPATH": str(REPOSITORY),
        }
        if self.token is not None:
            own["HF_TOKEN"] = self.token
        return own | self.more

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `voxtral-build` with these arguments; for what is to be killed."""
        return subprocess.Popen(
            [sys.executable, "-m", "voxtral_build", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0) -> Ended:
        """Run it to its end; fails where that is another one than `code`."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == code, out + err
        assert "Traceback" not in err, err
        return Ended(process.returncode, out, err)

    def kill_when(self, condition: Callable[[], bool], *arguments: str) -> None:
        """Run it, and kill it (-9) as soon as `condition` holds."""
        process = self.start(*arguments)
        try:
            wait_until(condition, process)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == -signal.SIGKILL


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while a process runs."""
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited for two minutes"
        time.sleep(0.02)


def write_artifact(
    artifacts: Path, variant: str, *, seed: int = 0, size: int = 3000, status: str = "validated"
) -> Path:
    """A folder that `verify` finds right: methods without a kernel, random bytes as weights.

    Args:
        size: of the weights; what a seed gives differs from what another one does.
        status: of its report: validated, inspected or failed.
    """
    folder = artifacts / variant
    folder.mkdir(parents=True, exist_ok=True)
    plans = [plan(name) for name in METHODS_OF[Variant.parse(variant).mode]]
    write_by_hand(
        folder / "model.pte", plans, constants=[random.Random(f"{variant}{seed}").randbytes(size)]
    )
    write_by_hand(folder / "preprocessor.pte", [plan("forward")], constants=[b"mel" * 100])
    (folder / "tekken.json").write_text(json.dumps({"vocab": list(range(300))}), encoding="utf-8")
    names = ("model.pte", "preprocessor.pte", "tekken.json")
    Manifest(
        variant=variant,
        release=None,
        settings={"max_seq_len": 256},
        components=folders.QUANTIZATIONS,
        files={name: FileRecord.of(folder / name) for name in names},
        dependencies={"checkpoint/consolidated.safetensors": FileRecord(7, "2" * 64)},
        builder={"torch": "2.13.0"},
        source={"commit": "4" * 40, "modified": False},
        host={"system": "Linux"},
    ).write(folder / "manifest.json")
    write_report(folder, status)
    return folder


def write_report(folder: Path, status: str) -> None:
    """Of the artifact as it is."""
    for name in ("report.json", "report.failed.json"):
        (folder / name).unlink(missing_ok=True)
    if status == "inspected":
        folders.report(folder, status="validated")
        path = folder / "report.json"
        report = json.loads(path.read_text(encoding="utf-8"))
        nothing = dict.fromkeys(("speech", "against_float32", "words", "speed"))
        report |= {
            "status": "inspected",
            "not_run": "the runtime here has no such backend",
        } | nothing
        path.write_text(json.dumps(report), encoding="utf-8")
    else:
        folders.report(folder, status=status)


def write_matrix(folder: Path, variants: list[str], **changes: object) -> Path:
    """config/matrix.yaml: the project's own, with these variants."""
    text = (REPOSITORY / "config" / "matrix.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text) | changes
    axes = ("backend", "dtype", "scheme", "mode")
    data["variants"] = [
        {axis: [getattr(Variant.parse(variant), axis)] for axis in axes} for variant in variants
    ]
    path = folder / "config" / "matrix.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def digests(files: Mapping[str, object]) -> dict[str, tuple[int, str | None]]:
    """Sizes and hashes of a tree of the test Hub, to compare states by."""
    return {path: (file.size, file.sha256 or file.sha1) for path, file in files.items()}  # type: ignore[attr-defined]
