"""Build one variant with ExecuTorch's example and with this project, and compare.

    python benchmarks/peer.py [--mode offline|streaming] [--checkpoint DIR]

Both get the same checkpoint, scheme (8da4w, embedding 8w), backend (XNNPACK) and one core.
Prints, for both and as a ratio (example / ours): wall and CPU time, size, planned memory of
each method, delegates, and the time of one 80 ms step over the same input. The example's
encoder has another padding and its weights other scales (HQQ), so outputs are not compared.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml

from voxtral_build.axes import METHODS_OF
from voxtral_build.checkpoint import PARAMS
from voxtral_build.model.config import ModelConfig
from voxtral_build.pte.inspect import describe
from voxtral_build.runtime.program import Program
from voxtral_build.steps import synth

ROOT = Path(__file__).resolve().parent.parent
MAX_SEQ_LEN = 512
STEPS = 200


def main() -> None:
    """Run both builds and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("offline", "streaming"), default="streaming")
    parser.add_argument("--checkpoint", type=Path, help="default: a synthetic toy")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        checkpoint = args.checkpoint
        if checkpoint is None:
            checkpoint = work / "checkpoint"
            synth.run(size="toy", seed=0, output=checkpoint)
        rows = [
            measure(build, checkpoint.resolve(), args.mode, work / name)
            for name, build in (("example", build_example), ("ours", build_ours))
        ]
    print(f"{'':34}{'example':>14}{'ours':>14}{'ratio':>9}")
    for name in rows[1]:
        theirs, ours = (row[name] for row in rows)
        ratio = f"{theirs / ours:9.2f}" if ours else ""
        print(f"{name:34}{theirs:14,.2f}{ours:14,.2f}{ratio}")


def build_example(checkpoint: Path, mode: str, work: Path) -> Path:
    """The example's own command, with the encoder's window of params.json."""
    window = ModelConfig.load(checkpoint / PARAMS).encoder.sliding_window
    run(
        [
            *("-m", "executorch.examples.models.voxtral_realtime.export_voxtral_rt"),
            *("--model-path", str(checkpoint), "--output-dir", str(work)),
            *("--backend", "xnnpack", "--max-seq-len", str(MAX_SEQ_LEN)),
            *("--max-enc-len", str(window)),
            *("--qlinear", "8da4w", "--qlinear-encoder", "8da4w", "--qembedding", "8w"),
            *(["--streaming"] if mode == "streaming" else []),
        ]
    )
    return work / "model.pte"


def build_ours(checkpoint: Path, mode: str, work: Path) -> Path:
    """Snakemake in an empty folder, up to the linked artifact."""
    config = yaml.safe_load((ROOT / "config" / "matrix.yaml").read_text(encoding="utf-8"))
    config["checkpoint"] = {"path": str(checkpoint)}
    config["settings"]["max_seq_len"] = MAX_SEQ_LEN
    file = work / "matrix.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    target = f"artifacts/xnnpack-fp32-8da4w-{mode}/model.pte"
    run(
        [
            *("-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"),
            *("--directory", str(work), "--configfile", str(file), "--quiet", "all"),
            *("--", target),
        ]
    )
    return work / target


def run(arguments: Sequence[str]) -> None:
    """Run Python; its output is shown only if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])


def measure(build: object, checkpoint: Path, mode: str, work: Path) -> dict[str, float]:
    """Build and describe; times in seconds, sizes in MB."""
    assert callable(build)
    work.mkdir()
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    path = build(checkpoint, mode, work)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "wall, s": wall,
        "CPU, s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "size, MB": path.stat().st_size / 1e6,
    }
    description = describe(path)
    for name, method in sorted(description.methods.items()):
        figures[f"{name} memory, MB"] = method.planned_bytes / 1e6
        figures[f"{name} delegates"] = float(sum(method.delegates.values()))
    return figures | step_times(path, mode, description.constant_methods)


def step_times(path: Path, mode: str, constants: object) -> dict[str, float]:
    """Milliseconds of one decoder step, and of one encoder chunk where there is one."""
    assert isinstance(constants, dict)
    program = Program(path)
    decode = program.method("text_decoder")
    embeds = torch.randn(1, 1, constants["dim"])
    calls = {"decoder step, ms": lambda i: decode(embeds, torch.tensor([i]))}
    if mode == "streaming":
        encode = program.method(METHODS_OF["streaming"][0])
        mel = torch.rand(1, constants["num_mel_bins"], constants["chunk_mel_len"])
        frames = constants["downsample_factor"]
        calls["encoder chunk, ms"] = lambda i: encode(
            mel, torch.arange(i * frames, (i + 1) * frames)
        )
    figures = {}
    for name, call in calls.items():
        for i in range(20):
            call(i)
        started = time.perf_counter()
        for i in range(20, STEPS):
            call(i)
        figures[name] = 1000 * (time.perf_counter() - started) / (STEPS - 20)
    return figures


if __name__ == "__main__":
    main()
