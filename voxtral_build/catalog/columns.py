"""Figures of the table of variants: what they are, where they come from, how they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from voxtral_build.catalog import figures
from voxtral_build.catalog.entries import Entry
from voxtral_build.report import AgainstFloat32, Speed, WordReport


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes:
        key: names it in the page's address.
        group: stands above columns that belong together.
        figure: None where it was not measured, NaN where that is what was measured.
        show: as text, without the unit.
        about: what it means, in a sentence or two.
    """

    key: str
    group: str
    heading: str
    unit: str
    figure: Callable[[Entry], float | None]
    show: Callable[[float], str]
    about: str

    def cell(self, entry: Entry) -> Cell:
        """Its figure of one variant."""
        figure = self.figure(entry)
        if figure is None:
            return Cell(None, figures.MISSING)
        if not math.isfinite(figure):
            return Cell(None, str(figure))
        return Cell(figure, self.show(figure))


@dataclass(frozen=True)
class Cell:
    """A figure to sort by, None where there is none, and to read."""

    figure: float | None
    text: str


def decimals(digits: int, scale: float = 1.0) -> Callable[[float], str]:
    """How to show figures with so many digits behind the point, and thousands apart."""
    return lambda figure: f"{figure * scale:,.{digits}f}"


def _bits_per_weight(entry: Entry) -> float | None:
    return None if entry.report is None else entry.report.bits_per_weight


def _of_words(figure: Callable[[WordReport], float]) -> Callable[[Entry], float | None]:
    def get(entry: Entry) -> float | None:
        words = None if entry.report is None else entry.report.words
        return None if words is None else figure(words)

    return get


def _of_speed(figure: Callable[[Speed], float]) -> Callable[[Entry], float | None]:
    def get(entry: Entry) -> float | None:
        speed = None if entry.report is None else entry.report.speed
        return None if speed is None else figure(speed)

    return get


def _of_distance(figure: Callable[[AgainstFloat32], float]) -> Callable[[Entry], float | None]:
    def get(entry: Entry) -> float | None:
        distance = None if entry.report is None else entry.report.against_float32
        return None if distance is None else figure(distance)

    return get


COLUMNS = (
    Column(
        *("size", "Size", "Model", "MB", lambda entry: entry.model_bytes, decimals(1, 1e-6)),
        "Size of model.pte in megabytes (10⁶ bytes), with that of model.ptd where there is one. "
        "It is what has to be downloaded and kept.",
    ),
    Column(
        *("bits", "Size", "Bits", "per weight", _bits_per_weight, decimals(2)),
        "What a parameter takes in the program on average, with the scales that belong to it.",
    ),
    Column(
        *("wer", "Accuracy", "WER", "%"),
        *(_of_words(lambda words: words.rate), decimals(1, 100)),
        "Word error rate: words substituted, left out or added, as a share of the words spoken "
        "in the test recordings. Read it beside that of the model in float32: only the "
        "difference is due to dtype and quantization.",
    ),
    Column(
        *("kl", "Accuracy", "KL", "nats"),
        *(_of_distance(lambda distance: distance.divergence), figures.small),
        "Mean Kullback-Leibler divergence of the probabilities for the next token from those "
        "of the model in float32. 0 is the same model; it shows loss long before words change.",
    ),
    Column(
        *("top1", "Accuracy", "Top-1", "%"),
        *(_of_distance(lambda distance: distance.top1_agreement), decimals(2, 100)),
        "How often the likeliest next token is that of the model in float32.",
    ),
    Column(
        *("step", "Speed and memory", "Step", "ms, median"),
        *(_of_speed(lambda speed: speed.step_ms_median), decimals(1)),
        "Time of one step, which hears 80 ms of audio. Streaming: all that a step takes, so it "
        "has to stay below 80 ms. Offline: embedding and decoder alone, because the whole "
        "recording is encoded before.",
    ),
    Column(
        *("p95", "Speed and memory", "Step", "ms, p95"),
        *(_of_speed(lambda speed: speed.step_ms_p95), decimals(1)),
        "The time that 95 of 100 steps stay below.",
    ),
    Column(
        *("rtf", "Speed and memory", "Real-time", "factor"),
        *(_of_speed(lambda speed: speed.real_time_factor), decimals(3)),
        "Time to transcribe a recording, as a share of its length. Below 1 it keeps up with "
        "speech; 0.1 is ten times as fast.",
    ),
    Column(
        *("load", "Speed and memory", "Load", "s"),
        *(_of_speed(lambda speed: speed.load_s), decimals(2)),
        "Time until the program is loaded and every method has run once.",
    ),
    Column(
        *("memory", "Speed and memory", "Peak", "MB"),
        *(_of_speed(lambda speed: speed.peak_rss_bytes), decimals(0, 1e-6)),
        "Most resident memory of a Python process that transcribes, its libraries included.",
    ),
)
