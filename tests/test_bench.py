"""Times and memory: taken in a process that transcribes. How long is nobody's to assert."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import soundfile

from tests.factory import SPEECH
from tests.sessions import scripted_artifact
from voxtral_build.report import Speed
from voxtral_build.runtime import bench
from voxtral_build.validation.speed import measured_speed
from voxtral_build.variants import Variant

STEPS = {"offline": 32 + 63 + 17 - 39, "streaming": 32 + 62 - 39}


@pytest.mark.lowering
@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_figures_of_a_real_artifact(factory, mode):
    """Five seconds, 62.5 tokens of 80 ms, after 32 of silence and before 17.

    The prompt has 39. Each token after it is a step: offline all, streaming those that the
    audio itself completes.
    """
    folder = factory.artifact(Variant("xnnpack", "fp32", "none", mode))
    command = [sys.executable, "-m", "voxtral_build", "bench", str(folder), str(SPEECH)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    speed = Speed.model_validate(json.loads(done.stdout))
    samples = soundfile.info(SPEECH).frames
    assert speed.audio_s == pytest.approx(samples / 16_000)
    assert speed.steps == pytest.approx(STEPS[mode], abs=1)
    assert 0 < speed.step_ms_median <= speed.step_ms_p95
    # Python, torch and ExecuTorch take some, and the artifact takes more.
    assert 1e8 < speed.libraries_rss_bytes < speed.peak_rss_bytes
    # All steps and what came before them are part of the whole.
    least = speed.prefill_s + speed.steps * speed.step_ms_median / 2 / 1000
    assert speed.real_time_factor * speed.audio_s > least


def test_the_memory_of_whoever_starts_it_is_not_counted():
    """On Linux, the peak that `getrusage` tells includes the parent's before exec."""
    ballast = np.ones(2**28, dtype=np.uint8)  # 256 MiB, all of it touched
    code = "from voxtral_build.runtime.bench import peak_rss; print(peak_rss())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = bench.peak_rss()
    assert own > ballast.nbytes
    assert int(run.stdout) < own - ballast.nbytes // 2


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_what_is_too_short(mode, tmp_path, monkeypatch, capsys):
    from voxtral_build import cli

    monkeypatch.setattr(bench.Artifact, "load", lambda _: scripted_artifact(mode, {}))
    monkeypatch.setattr(bench, "_run_each_method", lambda _: None)
    soundfile.write(tmp_path / "short.wav", np.zeros(800, dtype=np.float32), 16_000)
    code = cli.main(["bench", "a", str(tmp_path / "short.wav")])
    if mode == "streaming":
        assert code == 2
        assert "too short" in capsys.readouterr().err
    else:  # the silence around it is steps, too
        assert code == 0


def test_a_process_that_fails(tmp_path):
    from voxtral_build.errors import BuildError

    with pytest.raises(BuildError, match="a process that transcribes with it fails") as caught:
        measured_speed(tmp_path / "nowhere", SPEECH)
    assert "no folder" in str(caught.value)
