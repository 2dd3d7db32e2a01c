"""Train the demo checkpoint: a small Voxtral Realtime that understands some 160 words.

    python -m demo.train --output build/demo/checkpoint --work build/demo/training

It goes on where an interrupted run stopped. Data are made as they are needed, by another
process; two cores are busy for an hour and a half. `--steps 20` proves the script.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from demo.command import run
from demo.examples import Batch, Examples
from demo.language import WORDS
from demo.student import Student, losses, params, write_checkpoint, write_tokenizer
from demo.synthesizers import FLITE_VOICES, Voice, speak
from demo.voices import ACCENTS
from voxtral_build.errors import BuildError
from voxtral_build.model.config import ModelConfig

log = logging.getLogger("demo.train")

STEPS = 8_000
TOKENS_A_STEP = 560  # 45 seconds of audio
PEAK_RATE, WARM_UP = 1e-3, 100
PHONE_WEIGHT = 0.5
SAVE_EVERY, TELL_EVERY = 100, 20


def learning_rate(step: int, steps: int) -> float:
    """A short warm-up, then half a cosine down to nothing."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    return PEAK_RATE * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def hardness(step: int, steps: int) -> tuple[float, float]:
    """Least and most of what befalls a recording.

    Clean speech until the sounds are known: with noise and rooms from the start, they took
    three times the steps to be told apart. Then more and more, and in the second half all
    degrees, as there will be.
    """
    most = min(1.0, max(0.0, (step / steps - 0.06) / 0.19))
    return (most if step < steps / 2 else 0.0), most


def disturbance(step: int, steps: int) -> float:
    """Share of the pieces told wrong: few while words are learned, three in ten after that.

    With one in ten, a word that was misheard led to a sentence that was made up.
    """
    return 0.1 if step < steps / 4 else 0.3


def word_weight(step: int, steps: int) -> float:
    """What positions that say something count for: much while they are learned, then 1.

    With a weight of 4 to the end, the model would speak up where it is one fifth sure.
    """
    return 4.0 - 3.0 * min(1.0, max(0.0, (step / steps - 0.5) / 0.4))


def phone_symbols() -> list[str]:
    """Silence, and all sounds that the training's synthesizers make of the words."""
    symbols = set()
    voices = [Voice("espeak", accent) for accent in ACCENTS] + [Voice("flite", FLITE_VOICES[0])]
    for voice in voices:
        for word in WORDS:
            symbols |= {voice.synthesizer[0] + symbol for symbol, _ in speak(voice, [word]).phones}
    return ["_", *sorted(symbols)]


class _Batches(Dataset[Batch]):
    """The batches from step `first` on."""

    def __init__(self, examples: Examples, first: int, steps: int) -> None:
        self.examples, self.first, self.steps = examples, first, steps

    def __len__(self) -> int:
        return self.steps - self.first

    def __getitem__(self, index: int) -> Batch:
        step = self.first + index
        return self.examples.batch(
            step, TOKENS_A_STEP, hardness(step, self.steps), disturbance(step, self.steps)
        )


class Training:
    """A run: the student, its optimizer, and how far they are.

    Args:
        work: where the state is kept that an interrupted run goes on from.

    Raises:
        BuildError: no steps, or the state there is another run's.
    """

    def __init__(self, steps: int, seed: int, work: Path) -> None:
        if steps < 1:
            raise BuildError("nothing to train", got=f"{steps} steps", allowed="1 and more")
        self.steps, self.seed, self.step = steps, seed, 0
        work.mkdir(parents=True, exist_ok=True)
        self.state = work / "state.pt"
        config = ModelConfig.parse(params())
        symbols = phone_symbols()
        self.examples = Examples(write_tokenizer(work), symbols, config.audio, seed)
        torch.manual_seed(seed)
        self.student = Student(config, len(symbols))
        size = sum(parameter.numel() for parameter in self.student.model.parameters())
        log.info("%.2f million parameters, %d sounds", size / 1e6, len(symbols))
        decayed = [parameter for parameter in self.student.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in self.student.parameters() if parameter.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.03}, {"params": others, "weight_decay": 0.0}],
            lr=PEAK_RATE,
            betas=(0.9, 0.98),
        )
        if self.state.exists():
            self._load()

    def _load(self) -> None:
        saved: dict[str, Any] = torch.load(self.state)
        if saved["task"] != (self.steps, self.seed):
            raise BuildError(
                f"{self.state} is another run's",
                got="steps {}, seed {}".format(*saved["task"]),
                allowed=f"steps {self.steps}, seed {self.seed}",
                next_step="remove it, or name another --work folder",
            )
        self.student.load_state_dict(saved["student"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]
        log.info("going on after step %d", self.step)

    def _save(self) -> None:
        saved = {
            "task": (self.steps, self.seed),
            "step": self.step,
            "student": self.student.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        whole = self.state.with_suffix(".tmp")
        torch.save(saved, whole)
        whole.replace(self.state)

    def run(self) -> None:
        """Train to the end, telling how it goes."""
        begun, first = time.monotonic(), self.step
        sums = dict.fromkeys(("text", "sounds", "right"), 0.0)
        for batch in self._batches():
            for name, value in self._learn(batch).items():
                sums[name] += value
            self.step += 1
            if self.step % TELL_EVERY == 0:
                pace = (time.monotonic() - begun) / (self.step - first)
                means = {name: value / TELL_EVERY for name, value in sums.items()}
                log.info(
                    "step %d of %d: text %.3f, sounds %.3f, pieces right %.1f %%; "
                    "%.2f s a step, %d min left",
                    *(self.step, self.steps, means["text"], means["sounds"], means["right"]),
                    *(pace, pace * (self.steps - self.step) / 60),
                )
                sums = dict.fromkeys(sums, 0.0)
            if self.step % SAVE_EVERY == 0 or self.step == self.steps:
                self._save()

    def _batches(self) -> Iterator[Batch]:
        if self.step == self.steps:
            return iter(())
        batches = _Batches(self.examples, self.step, self.steps)
        return iter(DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=6))

    def _learn(self, batch: Batch) -> dict[str, float]:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps)
        text, phones = self.student(batch)
        weight = word_weight(self.step, self.steps)
        said, heard = losses(text, phones, batch, self.examples.tokens.streaming_pad, weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss = said + PHONE_WEIGHT * heard
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        pieces = batch.targets >= self.examples.specials
        right = (text.argmax(-1) == batch.targets)[pieces].float().mean()
        return {"text": said.item(), "sounds": heard.item(), "right": 100 * right.item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--work", type=Path, required=True, help="keeps the state of the run")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # One core for the model; the other one makes data.
    torch.set_num_threads(1)
    training = Training(arguments.steps, arguments.seed, arguments.work)
    training.run()
    write_checkpoint(training.student.model, arguments.output)


if __name__ == "__main__":
    run(main)
