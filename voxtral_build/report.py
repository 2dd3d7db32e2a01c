"""report.json: what was measured of an artifact, and which gates it passed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema

from voxtral_build.checkpoint import read_json
from voxtral_build.errors import BuildError, ConfigError
from voxtral_build.files import write_text
from voxtral_build.gates import Outcome
from voxtral_build.strict_config import StrictModel

# JSON has no NaN, which a broken artifact may well compute.
Measured = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    WithJsonSchema({"type": ["number", "null"]}),
]


class Parity(StrictModel):
    """One method's outputs against eager's with the same quantization, on the same inputs."""

    max_abs_difference: Measured = Field(description="Over all values.")
    max_abs_output: Measured = Field(description="Eager's largest, to read the former by.")
    cosine: Measured = Field(description="Of the two outputs as vectors.")
    top1_agreement: float | None = Field(
        description="Share of positions with the same likeliest token; of the decoder."
    )
    divergence: float | None = Field(
        description="Mean Kullback-Leibler divergence from eager, in nats; of the decoder."
    )
    noise_ratio: float | None = Field(
        description="Distance from the same weights with float32 activations, over eager's; "
        "where activations are rounded."
    )
    draw_ratio: float | None = Field(
        description="Distance from eager, over eager's from float32 activations; where "
        "activations are rounded."
    )


class MethodReport(StrictModel):
    """What one method of the program is made of, and how close to eager it computes."""

    delegates: dict[str, int] = Field(description="How many of each backend.")
    operators: dict[str, int] = Field(description="Kernel calls outside of delegates.")
    undelegated_linears: int
    planned_bytes: int = Field(description="Its memory arena.")
    ring_slots: int | None = Field(
        default=None,
        description="Positions that its ring of keys and values holds: encoder frames or tokens; "
        "of a stream.",
    )
    positions: int | None = Field(
        default=None, description="At which it was compared, counted as in the ring."
    )
    weights: int = Field(description="Parameters that it has.")
    weight_bytes: int = Field(description="Of these in the program.")
    promised_weight_bytes: int = Field(description="By the scheme: values and scales.")
    parity: Parity | None = Field(description="None where it can't be run.")

    @property
    def bits_per_weight(self) -> float:
        """Of what is in the program."""
        return 8 * self.weight_bytes / self.weights

    @property
    def promised_bits_per_weight(self) -> float:
        """By the scheme."""
        return 8 * self.promised_weight_bytes / self.weights


class AgainstFloat32(StrictModel):
    """What quantization and dtype cost: against the model itself."""

    audio_cosine: Measured = Field(description="Of the audio embeddings.")
    top1_agreement: Measured = Field(description="Share of positions with its likeliest token.")
    divergence: Measured = Field(description="Mean Kullback-Leibler divergence, in nats.")
    token_agreement: Measured = Field(description="Share of tokens as its own, decoding freely.")


class Speech(StrictModel):
    """What was made of the speech that methods are compared on."""

    audio_s: float
    text: str
    text_float32: str = Field(description="By the model itself.")
    token_agreement: float = Field(description="With the same quantization in eager.")


class ClipReport(StrictModel):
    """One recording."""

    spoken: str = Field(description="What is said.")
    written: str
    written_float32: str = Field(description="By the model itself.")


class WordReport(StrictModel):
    """Word errors over all recordings."""

    spoken: int = Field(description="Words said.")
    substitutions: int
    deletions: int
    insertions: int
    rate: float
    rate_float32: float = Field(description="Of the model itself.")
    clips: dict[str, ClipReport]


class Machine(StrictModel):
    """Where it was measured."""

    system: str
    machine: str
    processor: str
    cores: int = Field(description="That the process may use.")
    memory_bytes: int


class Speed(StrictModel):
    """Times and memory of a process that transcribes, and does nothing else."""

    load_s: float = Field(description="Loading, until every method has run once.")
    prefill_s: float = Field(
        description="Computing of an utterance up to its first token. Offline, the whole "
        "recording is encoded in it."
    )
    step_ms_median: float = Field(
        description="Of the steps after it. Streaming: all that 80 ms of audio take. Offline: "
        "embedding and decoder."
    )
    step_ms_p95: float
    steps: int
    real_time_factor: float = Field(description="Time to transcribe, over `audio_s`.")
    audio_s: float = Field(description="Length of the recording.")
    peak_rss_bytes: int
    libraries_rss_bytes: int = Field(
        description="Of these before the artifact was loaded: Python, torch and ExecuTorch."
    )
    machine: Machine


class Report(StrictModel):
    """All of it. What could not be measured is None; then a gate says so."""

    variant: str
    status: Literal["validated", "inspected", "failed"] = Field(
        description="inspected: read back and right, but not run, as `not_run` says."
    )
    not_run: str | None = Field(
        default=None, description="Why the program could not be run where it was looked at."
    )
    gates: list[Outcome] = Field(description="In the order of their checking.")
    manifest_sha256: str = Field(description="The manifest of the artifact that was measured.")
    model_bytes: int
    methods: dict[str, MethodReport]
    preprocessor_difference: float | None = Field(description="Largest, of its log-mel.")
    speech: Speech | None
    against_float32: AgainstFloat32 | None
    words: WordReport | None = Field(description="None without `clips`, too.")
    speed: Speed | None

    @property
    def failures(self) -> list[Outcome]:
        """Gates that it did not pass."""
        return [outcome for outcome in self.gates if not outcome.passed]

    @property
    def bits_per_weight(self) -> float | None:
        """Of all methods; None where the program could not be read."""
        weights = sum(method.weights for method in self.methods.values())
        bits = 8 * sum(method.weight_bytes for method in self.methods.values())
        return bits / weights if weights else None

    @property
    def promised_bits_per_weight(self) -> float | None:
        """By the scheme."""
        weights = sum(method.weights for method in self.methods.values())
        bits = 8 * sum(method.promised_weight_bytes for method in self.methods.values())
        return bits / weights if weights else None

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a report.

        Raises:
            BuildError: missing, or of another form.
        """
        try:
            return cls.checked(read_json(path), str(path))
        except ConfigError as error:
            raise BuildError(
                f"{path} is no report of this version",
                got=error.what,
                next_step="validate the artifact again: `snakemake --forcerun validate`",
            ) from None
