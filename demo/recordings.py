"""Recordings to test with: sentences that no training has seen, by known and new voices.

    python -m demo.recordings build/demo/recordings
    python -m demo.recordings --clips demo/clips

A set is a folder of FLAC files and `words.tsv`: a file's name, and what is said in it. The
clips are the set that the repository holds.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import soundfile

from demo import voices
from demo.command import run
from demo.language import held_out, sentence
from demo.mixing import RATE, Recording, joined, level, noise, say
from demo.synthesizers import FLITE_VOICES, SpeechError, Voice
from voxtral_build.clips import WORDS
from voxtral_build.files import write_text

log = logging.getLogger("demo.recordings")

WORDS_A_SET = 1200


def known_voice(rng: random.Random) -> Voice:
    """One trained with, at ordinary rates and pitches."""
    if rng.random() < 0.25:
        return _at_ease(rng, Voice("flite", rng.choice(FLITE_VOICES)))
    return _at_ease(rng, voices.espeak(rng.choice(voices.ACCENTS), rng.choice(voices.VARIANTS)))


def new_variant(rng: random.Random) -> Voice:
    """A throat never trained with, in accents that were."""
    accent, variant = rng.choice(voices.ACCENTS), rng.choice(voices.NEW_VARIANTS)
    return _at_ease(rng, voices.espeak(accent, variant))


def new_accent(rng: random.Random) -> Voice:
    """An accent never trained with, by throats that were."""
    return _at_ease(rng, voices.espeak(voices.NEW_ACCENT, rng.choice(voices.VARIANTS)))


def new_synthesizer(rng: random.Random) -> Voice:
    """A synthesizer, and in it a speaker, never trained with."""
    return _at_ease(rng, voices.NEW_SYNTHESIZER)


NEW_VOICES = {"variants": new_variant, "accent": new_accent, "synthesizer": new_synthesizer}


def _at_ease(rng: random.Random, voice: Voice) -> Voice:
    return Voice(voice.synthesizer, voice.name, rng.uniform(0.85, 1.2), rng.uniform(0.8, 1.25))


def spoken(
    rng: random.Random, voice_of: Callable[[random.Random], Voice], sentences: int
) -> Recording:
    """One voice, some sentences and pauses, 20 dB below full scale."""
    voice = voice_of(rng)
    time = rng.uniform(0.1, 1)
    parts: list[tuple[float, Recording]] = []
    while len(parts) < sentences:
        words = sentence(rng)
        if not held_out(words):
            continue
        try:
            part = say(voice, words)
        except SpeechError:  # not all was said: another sentence will do
            continue
        part.words = part.words or [(word, 0.0) for word in words]
        part.samples *= 0.1 / level(part.samples)
        parts.append((time, part))
        time += len(part.samples) / RATE + rng.uniform(0.2, 1.5)
    return joined(parts, time)


def with_noise(recording: Recording, rng: random.Random, ratio: float) -> Recording:
    """Noise `ratio` dB below the speech."""
    recording.samples += 0.1 * 10 ** (-ratio / 20) * noise(rng, len(recording.samples))
    return recording


def quiet(recording: Recording, decibels: float) -> Recording:
    recording.samples *= 10 ** (-decibels / 20)
    return recording


def _set(
    name: str,
    voice_of: Callable[[random.Random], Voice],
    change: Callable[[Recording, random.Random], Recording] = lambda recording, _: recording,
) -> Iterator[Recording]:
    rng = random.Random(f"test/{name}")
    count = 0
    while count < WORDS_A_SET:
        recording = change(spoken(rng, voice_of, rng.randint(1, 3)), rng)
        count += len(recording.words)
        yield recording


def _in_turn(rng: random.Random, seconds: float) -> Recording:
    """Known voices, one after another."""
    parts, time = [], 0.0
    while time < seconds:
        part = spoken(rng, known_voice, 2)
        parts.append((time, part))
        time += len(part.samples) / RATE
    return joined(parts, time)


def _wordless() -> Iterator[Recording]:
    """Minutes without a word: silence, and noises of three colours at three levels."""
    yield Recording(np.zeros(60 * RATE, np.float32))
    rng = random.Random("test/wordless")
    for decibels in (20, 35, 50):
        yield quiet(Recording(noise(rng, 60 * RATE)), decibels)


SETS: dict[str, Callable[[], Iterable[Recording]]] = {
    "known": lambda: _set("known", known_voice),
    "variants": lambda: _set("variants", new_variant),
    "accent": lambda: _set("accent", new_accent),
    "synthesizer": lambda: _set("synthesizer", new_synthesizer),
    "noise": lambda: _set("noise", known_voice, lambda r, rng: with_noise(r, rng, 15)),
    "quiet": lambda: _set("quiet", known_voice, lambda r, _: quiet(r, 30)),
    "long": lambda: [_in_turn(random.Random("test/long"), 300)],
    "wordless": _wordless,
}


def clips() -> dict[str, Recording]:
    """A recording of each kind, by its file's name."""
    rng = random.Random("clips")
    flite = Voice("flite", "cmu_us_slt")
    return {
        "known-voice": spoken(rng, known_voice, 2),
        "flite": spoken(rng, lambda _: flite, 2),
        "new-variant": spoken(rng, new_variant, 2),
        "new-accent": spoken(rng, new_accent, 2),
        "new-synthesizer": spoken(rng, new_synthesizer, 2),
        "noise": with_noise(spoken(rng, known_voice, 1), rng, 15),
        "quiet": quiet(spoken(rng, known_voice, 1), 30),
        "from-first-sample": _bare(spoken(rng, known_voice, 1), after=1.0),
        "to-last-sample": _bare(spoken(rng, known_voice, 1), before=1.0),
        "minute": _in_turn(rng, 60),
    }


def _bare(recording: Recording, before: float = 0.0, after: float = 0.0) -> Recording:
    """The speech alone, or with seconds of silence on one side."""
    loud = np.flatnonzero(np.abs(recording.samples) > 0.002)
    speech = recording.samples[loud[0] : loud[-1] + 1]
    around = (round(before * RATE), round(after * RATE))
    return Recording(np.pad(speech, around), recording.words)


def write_set(recordings: Mapping[str, Recording], folder: Path) -> int:
    """Write a set's folder and give the number of its words."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, count = [], 0
    for name, recording in recordings.items():
        samples = np.clip(recording.samples, -1, 1)
        soundfile.write(folder / f"{name}.flac", samples, RATE, subtype="PCM_16")
        lines.append(f"{name}.flac\t{' '.join(word for word, _ in recording.words)}\n")
        count += len(recording.words)
    write_text(folder / WORDS, "".join(lines))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--clips", action="store_true", help="write the clips alone")
    arguments = parser.parse_args()
    if arguments.clips:
        write_set(clips(), arguments.output)
        return
    for name, make in SETS.items():
        numbered = {f"{index:03}": recording for index, recording in enumerate(make())}
        log.info("%s: %d words", name, write_set(numbered, arguments.output / name))


if __name__ == "__main__":
    run(main)
