"""What an artifact has to reach before it is one: figures, bounds on them, and why.

Bounds are the configuration's (`gates` in config/matrix.yaml), each with its reason. What
has no number is not there: every method has to run, no linear may be left out of a
delegate, files have to be the manifest's. Those hold for all, in `steps.validate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from voxtral_build.strict_config import StrictModel, mistake

Figure = Literal[
    "relative_difference",
    "noise_ratio",
    "draw_ratio",
    "preprocessor_difference",
    "token_agreement",
    "audio_cosine",
    "top1_agreement",
    "divergence",
    "word_error_increase",
    "size_ratio",
    "word_error_rate",
    "real_time_factor",
    "step_ms_p95",
    "load_s",
    "peak_rss_mb",
]

FIGURES: dict[Figure, str] = {
    "relative_difference": "of a method that rounds no activations: its largest difference from "
    "the same model and quantization in eager, over eager's largest output (at least 1)",
    "noise_ratio": "of a method that rounds activations: what its rounding costs, over what "
    "eager's costs",
    "draw_ratio": "of a method that rounds activations: its distance from eager, over what "
    "eager's rounding costs",
    "preprocessor_difference": "largest difference of the preprocessor's log-mel",
    "token_agreement": "share of tokens that are those of the same quantization in eager",
    "audio_cosine": "cosine of the audio embeddings and the model's in float32",
    "top1_agreement": "share of positions whose likeliest token is the model's in float32",
    "divergence": "mean Kullback-Leibler divergence from the model in float32, in nats",
    "word_error_increase": "word error rate on the recordings, less that of the model in float32",
    "size_ratio": "bytes of a method's weights in the program, over what the scheme promises",
    "word_error_rate": "word error rate on the recordings",
    "real_time_factor": "time to transcribe, over the length of the audio",
    "step_ms_p95": "time of a step of 80 ms, 95th percentile, in ms",
    "load_s": "time to load and first run every method, in seconds",
    "peak_rss_mb": "largest resident memory of a process that transcribes, in MB",
}
# Of these, every variant needs a bound. What is left depends on the machine, or on how hard
# the recordings are.
REQUIRED: tuple[Figure, ...] = get_args(Figure)[:10]
AXES = ("backend", "dtype", "scheme", "mode")


def _said(reason: str) -> str:
    if not reason.strip():
        raise mistake("a bound without a reason", got=repr(reason), next_step="say why it is so")
    return reason


class Gate(StrictModel):
    """A bound on one figure, for all variants or some."""

    figure: Figure = Field(description="What is measured.")
    min: FiniteFloat | None = Field(default=None, description="The least that passes.")
    max: FiniteFloat | None = Field(default=None, description="The most that passes.")
    backend: list[str] | None = Field(default=None, min_length=1, description="Default: all.")
    dtype: list[str] | None = Field(default=None, min_length=1, description="Default: all.")
    scheme: list[str] | None = Field(default=None, min_length=1, description="Default: all.")
    mode: list[str] | None = Field(default=None, min_length=1, description="Default: all.")
    reason: Annotated[str, AfterValidator(_said)] = Field(description="Why this bound.")

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.min is None and self.max is None:
            raise mistake("bounds nothing", got="neither min nor max", allowed="min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise mistake("nothing can pass", got=f"min {self.min}, max {self.max}")
        return self

    def applies(self, cell: Mapping[str, str]) -> bool:
        """Whether it is one for this cell: its backend, dtype, scheme and mode."""
        return all(
            getattr(self, axis) is None or cell[axis] in getattr(self, axis) for axis in AXES
        )


class Outcome(StrictModel):
    """A gate, and how an artifact did.

    Attributes:
        gate: the figure's name, or that of a condition without a number; behind a method's
            name and a dot where each method has its own.
        figure: what was measured; None where that was not possible, or has no number.
        detail: what there is to say beside the figure.
    """

    gate: str
    passed: bool
    figure: float | None = None
    min: float | None = None
    max: float | None = None
    detail: str | None = None
    reason: str

    def __str__(self) -> str:
        """Gate, figure and bound in a line."""
        parts = [self.gate if self.figure is None else f"{self.gate} {self.figure:.4g}"]
        if self.detail is not None:
            parts.append(self.detail)
        if bound := bounds(self.min, self.max):
            parts.append(bound)
        return ", ".join(parts)


def bounds(low: float | None, high: float | None) -> str:
    """Bounds in words."""
    if low is None:
        return "" if high is None else f"at most {high:.4g}"
    return f"at least {low:.4g}" if high is None else f"{low:.4g} to {high:.4g}"


def check(gates: Iterable[Gate], figures: Mapping[Figure, Mapping[str, float]]) -> list[Outcome]:
    """Hold figures against bounds.

    A figure that was not measured has no outcome: that is for the caller to refuse.

    Args:
        figures: of each, the values by method; the key is empty for the whole artifact's.
    """
    return [
        _outcome(gate, f"{method}.{gate.figure}" if method else gate.figure, value)
        for gate in gates
        for method, value in figures.get(gate.figure, {}).items()
    ]


def _outcome(gate: Gate, name: str, value: float) -> Outcome:
    finite = math.isfinite(value)  # JSON knows no other numbers
    return Outcome(
        gate=name,
        figure=value if finite else None,
        detail=None if finite else str(value),
        min=gate.min,
        max=gate.max,
        # NaN compares false, and so fails.
        passed=(gate.min is None or value >= gate.min) and (gate.max is None or value <= gate.max),
        reason=gate.reason,
    )


def unbounded(gates: Sequence[Gate], cell: Mapping[str, str]) -> list[Figure]:
    """Figures that need a bound for this cell and have none."""
    bounded = {gate.figure for gate in gates if gate.applies(cell)}
    return [figure for figure in REQUIRED if figure not in bounded]


def condition(gate: str, passed: bool, reason: str, detail: str | None = None) -> Outcome:
    """The outcome of what has no number."""
    return Outcome(gate=gate, passed=passed, detail=detail, reason=reason)


def parse_all(data: Any, origin: str) -> list[Gate]:
    """Gates from plain data.

    Raises:
        ConfigError: one of them is none.
    """
    return [Gate.checked(item, f"{origin}[{index}]") for index, item in enumerate(data)]
