"""Recordings as microphones make them: sentences, pauses, rooms, noise, levels.

Everything here comes from a random generator, so that the same seed makes the same sound.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import soxr

from demo.language import held_out, sentence
from demo.synthesizers import SpeechError, Voice, speak

RATE = 16_000


@dataclass
class Recording:
    """A recording and what is in it; times in seconds from its start.

    Attributes:
        samples: (N,) float32 at 16 kHz.
        words: each word and its end.
        phones: each sound's symbol, led by its synthesizer's initial, and its end; what no
            entry covers is silence.
    """

    samples: np.ndarray
    words: list[tuple[str, float]] = field(default_factory=list)
    phones: list[tuple[str, float]] = field(default_factory=list)


def training_sentence(rng: random.Random) -> list[str]:
    """One that is not held out."""
    while True:
        words = sentence(rng)
        if not held_out(words):
            return words


def say(voice: Voice, words: list[str], stretch: float = 1.0) -> Recording:
    """A sentence without silence around it.

    Args:
        stretch: plays it so much slower, and all its frequencies lower: another throat.
    """
    speech = speak(voice, words)
    samples = soxr.resample(speech.samples, speech.sample_rate / stretch, RATE)
    initial = voice.synthesizer[0]
    phones = [
        (symbol if symbol == "_" else initial + symbol, end * stretch)
        for symbol, end in speech.phones
    ]
    ends = [end * stretch for end in speech.word_ends]
    return _trimmed(Recording(samples, list(zip(words, ends, strict=False)), phones))


def _trimmed(recording: Recording) -> Recording:
    """Less the silence before and after, by level: 50 dB below the peak."""
    samples = recording.samples
    loud = np.flatnonzero(np.abs(samples) > 0.003 * np.abs(samples).max())
    first, last = (int(loud[0]), int(loud[-1]) + 1) if len(loud) else (0, len(samples))
    shift = first / RATE
    length = (last - first) / RATE
    words = [(word, min(end - shift, length)) for word, end in recording.words]
    phones = [(symbol, min(end - shift, length)) for symbol, end in recording.phones]
    return Recording(samples[first:last], words, [p for p in phones if p[1] > 0])


def joined(parts: list[tuple[float, Recording]], seconds: float) -> Recording:
    """Recordings at their start times, on silence; what reaches past `seconds` is cut off."""
    count = round(seconds * RATE)
    whole = Recording(np.zeros(count, np.float32))
    for start, part in parts:
        first = round(start * RATE)
        piece = part.samples[: max(0, count - first)]
        whole.samples[first : first + len(piece)] += piece
        whole.words += [(word, start + end) for word, end in part.words if start + end <= seconds]
        whole.phones += [("_", start)] + [(symbol, start + end) for symbol, end in part.phones]
    return whole


def room(rng: random.Random, samples: np.ndarray) -> np.ndarray:
    """As a room and a microphone colour it: a decaying tail of noise, and a crooked response.

    The length stays; what would ring on after the end is cut off.
    """
    noise = np.random.default_rng(rng.getrandbits(32))
    size = 1 << (len(samples) + RATE // 2).bit_length()
    spectrum = np.fft.rfft(samples, size)
    if rng.random() < 0.4:
        decay = rng.uniform(0.08, 0.5)  # seconds to fall by 60 dB
        times = np.arange(int(decay * RATE)) / RATE
        tail = noise.standard_normal(len(times)) * 10 ** (-3 * times / decay)
        tail *= rng.uniform(0.1, 0.7) / np.sqrt((tail**2).sum())
        tail[0] += 1
        spectrum *= np.fft.rfft(tail, size)
    if rng.random() < 0.6:
        corners = np.linspace(0, 1, rng.randint(3, 8))
        decibels = np.interp(
            np.linspace(0, 1, len(spectrum)), corners, noise.uniform(-8, 8, len(corners))
        )
        spectrum *= 10 ** (decibels / 20)
    return np.asarray(np.fft.irfft(spectrum, size)[: len(samples)], np.float32)


def noise(rng: random.Random, count: int) -> np.ndarray:
    """Noise of some colour, steady or swelling, sometimes with tones or clicks.

    Returns:
        (count,) float32 of a root mean square of 1.
    """
    generator = np.random.default_rng(rng.getrandbits(32))
    size = 1 << count.bit_length()
    spectrum = np.fft.rfft(generator.standard_normal(size))
    frequencies = np.arange(len(spectrum)) + size / 200
    sound = np.fft.irfft(spectrum * frequencies ** -rng.uniform(0, 1.3), size)[:count]
    sound /= np.sqrt((sound**2).mean()) + 1e-9
    times = np.arange(count) / RATE
    if rng.random() < 0.4:
        corners = np.linspace(0, count / RATE, 2 + int(count / RATE * rng.uniform(0.5, 4)))
        sound *= np.interp(times, corners, generator.uniform(0.1, 1.5, len(corners)))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        start, length = rng.uniform(0, times[-1]), rng.uniform(0.1, 3)
        hull = np.clip(np.minimum(times - start, start + length - times) * 50, 0, 1)
        pitch = rng.choice((50, 100, 120, rng.uniform(150, 1500)))
        for harmonic in range(1, rng.randint(2, 9)):
            level = rng.uniform(0, 1.5) / harmonic
            sound += level * hull * np.sin(2 * np.pi * pitch * harmonic * times)
    if rng.random() < 0.15:
        for position in generator.integers(0, count, 1 + count // (RATE * 2)):
            click = generator.standard_normal(rng.randint(20, 400)) * rng.uniform(2, 12)
            sound[position : position + len(click)] += click[: count - position]
    sound /= np.sqrt((sound**2).mean()) + 1e-9
    return np.asarray(sound, np.float32)


def level(samples: np.ndarray) -> float:
    """Root mean square of the parts that are not silent."""
    loud = samples[np.abs(samples) > 0.02 * (np.abs(samples).max() + 1e-9)]
    return float(np.sqrt((loud**2).mean())) if len(loud) else 0.0


def training_recording(
    rng: random.Random,
    seconds: float,
    voice_of: Callable[[random.Random], Voice],
    hardness: float,
) -> Recording:
    """A recording as training hears it: from full speech to nothing but noise.

    Args:
        hardness: from 0, clean speech at one level, to 1, all that may befall it.
    """
    parts: list[tuple[float, Recording]] = []
    time = 0.0 if rng.random() < 0.25 else rng.expovariate(1.2)
    cut = rng.random() < 0.25  # ends in the middle of speech
    empty = rng.random() < 0.08
    voice, stretch = voice_of(rng), 1 + hardness * rng.uniform(-0.13, 0.15)
    failures = 0
    while time < seconds - 0.3 and failures < 4 and not empty:
        if rng.random() < 0.5:
            voice, stretch = voice_of(rng), 1 + hardness * rng.uniform(-0.13, 0.15)
        words = training_sentence(rng)
        # Near the end only a short sentence fits.
        words = words[: max(1, int((seconds - time) * 2.2))] if failures else words
        try:
            part = say(voice, words, stretch)
        except SpeechError:
            failures += 1
            continue
        length = len(part.samples) / RATE
        if time + length > seconds and not cut:
            failures += 1
            continue
        # From a whisper to a shout within one recording, too.
        if rng.random() < hardness:
            part.samples = room(rng, part.samples)
        part.samples *= 0.1 / (level(part.samples) + 1e-6)
        part.samples *= 10 ** (hardness * rng.uniform(-4, 4) / 20)
        parts.append((time, part))
        time += length + (rng.uniform(2, 7) if rng.random() < 0.1 else rng.expovariate(1.5))
    whole = joined(parts, seconds)
    if rng.random() < 0.65 * hardness:
        ratio = rng.uniform(45 - 39 * hardness, 45)
        whole.samples += 0.1 * 10 ** (-ratio / 20) * noise(rng, len(whole.samples))
    whole.samples *= 10 ** (hardness * rng.uniform(-24, 9) / 20)
    if rng.random() < 0.3 * hardness:
        whole.samples += 10 ** (-rng.uniform(60, 85) / 20) * noise(rng, len(whole.samples))
    np.clip(whole.samples, -1, 1, out=whole.samples)
    return whole
