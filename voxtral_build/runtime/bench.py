"""Time and memory of a process that loads an artifact, transcribes, and does nothing else."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from voxtral_build import sound
from voxtral_build.errors import BuildError
from voxtral_build.report import Machine, Speed
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.program import register_kernels
from voxtral_build.runtime.session import OfflineSession, StreamingSession


def measure(folder: Path, audio: Path) -> Speed:
    """Transcribe a recording and take the times.

    To be called once in a process: its peak memory is what is measured.

    Raises:
        BuildError: no artifact, no recording, or one that is too short or too long.
    """
    register_kernels()
    libraries = peak_rss()
    started = time.perf_counter()
    artifact = Artifact.load(folder)
    _run_each_method(artifact)
    load_s = time.perf_counter() - started
    samples = sound.read(audio, artifact.sample_rate).samples
    seconds = len(samples) / artifact.sample_rate
    pieces = _offline if artifact.mode == "offline" else _streaming
    started = time.perf_counter()
    times: list[float] = []
    for _ in pieces(artifact, samples):
        now = time.perf_counter()
        times.append(now - started)
        started = now
    total = sum(times)
    prefill, steps = times[0], times[1:-1]
    if len(steps) < 2:
        raise BuildError(
            f"{audio} is too short to take times on",
            got=f"{seconds:.2f} s",
            allowed="some seconds",
            next_step="take a longer recording",
        )
    return Speed(
        load_s=load_s,
        prefill_s=prefill,
        step_ms_median=1000 * statistics.median(steps),
        step_ms_p95=1000 * float(np.percentile(steps, 95)),
        steps=len(steps),
        real_time_factor=total / seconds,
        audio_s=seconds,
        peak_rss_bytes=peak_rss(),
        libraries_rss_bytes=libraries,
        machine=machine(),
    )


def _run_each_method(artifact: Artifact) -> None:
    """Methods are loaded when they are first called."""
    if artifact.mode == "offline":
        mel = artifact.preprocess(torch.zeros(artifact.step))
        heard = artifact.methods.encode(mel)
    else:
        constants = artifact.constants
        window = constants["stft_left_overlap"] + constants["stft_right_lookahead"]
        mel = artifact.preprocess(torch.zeros(window + artifact.step))
        skip, length = constants["mel_skip_frames"], constants["chunk_mel_len"]
        positions = torch.arange(constants["downsample_factor"])
        heard = artifact.methods.encode(mel[..., skip : skip + length].contiguous(), positions)
    embeds = heard + artifact.methods.embed(torch.tensor([[0]]))
    artifact.methods.decode(embeds.contiguous(), torch.tensor([0]))


def _offline(artifact: Artifact, samples: npt.NDArray[np.float32]) -> Iterator[None]:
    """Stops after the first token, after each further one, and at the end."""
    for _ in OfflineSession(artifact).transcribe(samples):
        yield
    yield


def _streaming(artifact: Artifact, samples: npt.NDArray[np.float32]) -> Iterator[None]:
    """The same: a step a call, and the silence after the audio at once, at the end."""
    session = StreamingSession(artifact)
    for start in range(0, len(samples), artifact.step):
        if session.feed_audio(samples[start : start + artifact.step]):
            yield
    session.flush()
    yield


def peak_rss() -> int:
    """Largest resident memory of this process so far, in bytes."""
    # Linux keeps in ru_maxrss what the process was before exec: a fork of its parent.
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return 1024 * int(lines["VmHWM"].split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # else in KiB


def machine() -> Machine:
    """What this runs on."""
    return Machine(
        system=platform.system(),
        machine=platform.machine(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _processor() -> str:
    """Its name: Linux tells it in a file, others in `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def as_text(speed: Speed) -> str:
    """The figures for people."""
    of, peak, libraries = speed.machine, speed.peak_rss_bytes, speed.libraries_rss_bytes
    step = f"{speed.step_ms_median:.2f} ms, 95 % below {speed.step_ms_p95:.2f} ms"
    lines = {
        "load": f"{speed.load_s:.2f} s",
        "first token after": f"{1000 * speed.prefill_s:,.0f} ms of computing",
        "step": f"{step}, of {speed.steps}",
        "real-time factor": f"{speed.real_time_factor:.3f}, over {speed.audio_s:.1f} s",
        "peak memory": f"{peak / 1e6:,.0f} MB, of it libraries {libraries / 1e6:,.0f} MB",
        "machine": f"{of.processor}, {of.cores} cores, {of.system} {of.machine}",
    }
    return "\n".join(f"{name:17}  {text}" for name, text in lines.items())
