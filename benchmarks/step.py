"""Where the time of one 80 ms step of a streaming artifact goes.

    python benchmarks/step.py ARTIFACT AUDIO [--minutes N]

Feeds the audio a token at a time, again and again for N minutes of it, and prints for each
minute the median of a step in ms: the preprocessor, the encoder, the token embedding, the
decoder, sampling, and what is left, which is Python's own; then the memory of the process.
A part's time is that of its calls, with what the runtime's binding takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from voxtral_build import sound
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.runtime.session import StreamingSession

PARTS = ("preprocessor", "encoder", "embedding", "decoder", "sampling")


class Timers:
    """Seconds that each part took since the last `take`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            started = time.perf_counter()
            output = function(*inputs)
            self.seconds[part] += time.perf_counter() - started
            return output

        return call

    def take(self) -> dict[str, float]:
        seconds, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return seconds


def timed_session(artifact: Artifact, timers: Timers) -> StreamingSession:
    """A session whose parts are timed."""
    artifact.preprocess = timers.timed("preprocessor", artifact.preprocess)
    methods = artifact.methods
    artifact.methods = dataclasses.replace(
        methods,
        encode=timers.timed("encoder", methods.encode),
        embed=timers.timed("embedding", methods.embed),
        decode=timers.timed("decoder", methods.decode),
    )
    session = StreamingSession(artifact)
    session.decoder.sample = timers.timed("sampling", session.decoder.sample)
    return session


def memory_mb() -> float:
    """Resident memory of this process now."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1000


def main() -> None:
    """Run the stream and print a line a minute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT")
    parser.add_argument("audio", type=Path, metavar="AUDIO")
    parser.add_argument("--minutes", type=int, default=1, metavar="N")
    args = parser.parse_args()
    timers = Timers()
    session = timed_session(Artifact.load(args.artifact), timers)
    step, rate = session.artifact.step, session.artifact.sample_rate
    samples = sound.read(args.audio, rate).samples
    pieces = [samples[i : i + step] for i in range(0, len(samples) - step + 1, step)]
    for piece in pieces[:20]:  # loads methods, and decodes the prompt
        session.feed_audio(piece)
    timers.take()
    print("minute" + "".join(f"{name:>14}" for name in (*PARTS, "Python", "step", "share", "MB")))
    fed = 0
    for minute in range(1, args.minutes + 1):
        steps = []
        for _ in range(60 * rate // step):
            started = time.perf_counter()
            session.feed_audio(pieces[fed % len(pieces)])
            total = time.perf_counter() - started
            fed += 1
            parts = timers.take()
            steps.append((*parts.values(), total - sum(parts.values()), total))
        medians = [1000 * statistics.median(column) for column in zip(*steps, strict=True)]
        cells = "".join(f"{value:14.3f}" for value in medians)
        share = f"{100 * medians[-2] / medians[-1]:13.1f}%"
        print(f"{minute:6}{cells}{share}{memory_mb():14.1f}", flush=True)


if __name__ == "__main__":
    main()
