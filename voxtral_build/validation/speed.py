"""Speed and memory, measured in a process of its own.

The one that validates has the eager model beside the artifact: its memory would tell nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from voxtral_build.errors import BuildError
from voxtral_build.report import Speed


def measured_speed(folder: Path, audio: Path) -> Speed:
    """Run `voxtral-build bench`.

    Raises:
        BuildError: it can't transcribe.
    """
    command = [sys.executable, "-m", "voxtral_build", "bench", str(folder), str(audio), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(
            "a process that transcribes with it fails",
            got=f"exit code {done.returncode}: {' '.join(lines[-4:])}",
            next_step=f"run it: {' '.join(command[1:])}",
        )
    return Speed.model_validate(json.loads(done.stdout))
