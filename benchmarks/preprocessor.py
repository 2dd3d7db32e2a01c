"""The preprocessors against ExecuTorch's own: memory, speed, and distance from transformers.

Run from the repository: `python -m benchmarks.preprocessor`. Best of five runs each.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch
from executorch.extension.audio.mel_spectrogram import export_processor

from tests import transformers_reference
from voxtral_build import sound
from voxtral_build.axes import Mode
from voxtral_build.pte.inspect import describe
from voxtral_build.runtime.program import Program
from voxtral_build.settings import Settings
from voxtral_build.steps import preprocessor
from voxtral_build.steps.synth import SIZES, make_params

SPEECH = Path(__file__).resolve().parent.parent / "tests" / "data" / "jfk_5s.wav"
SETTINGS = Settings(max_seq_len=4096)
SECONDS = SETTINGS.max_seq_len * 1280 // 16_000


def build(folder: Path, mode: Mode) -> tuple[Path, Path]:
    """Ours and theirs."""
    params, ours, theirs = (folder / name for name in ("params.json", f"{mode}.pte", f"et-{mode}"))
    params.write_text(json.dumps(make_params(SIZES["toy"])), encoding="utf-8")
    preprocessor.run(params=params, mode=mode, settings=SETTINGS, output=ours)
    export_processor(
        str(theirs), feature_size=128, max_audio_len=SECONDS, streaming=mode == "streaming"
    )
    return ours, theirs


def measure(path: Path, samples: torch.Tensor) -> dict[str, float]:
    """Of one program over one input."""
    forward = Program(path).method("forward")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        mel = forward(samples)
        times.append(time.perf_counter() - started)
    expected = transformers_reference.log_mel(samples.numpy())
    return {
        "arena_bytes": describe(path).methods["forward"].planned_bytes,
        "milliseconds": round(1000 * min(times), 2),
        # The first two frames of a stream's window are not used.
        "max_abs_difference": float((mel - expected)[..., 2:].abs().max()),
    }


def main() -> None:
    """Print the figures as JSON."""
    speech = torch.from_numpy(sound.read(SPEECH, 16_000).samples)
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        for mode, samples in (
            ("offline", speech.repeat(7)[: 30 * 16_000]),  # theirs fills it up to 30 s
            ("streaming", speech[16_000:17_640].contiguous()),
        ):
            ours, theirs = build(Path(name), mode)
            figures[mode] = {"ours": measure(ours, samples), "theirs": measure(theirs, samples)}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
