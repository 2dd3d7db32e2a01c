"""What a build decides about the model, and where its weights come from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from voxtral_build.strict_config import StrictModel, mistake

Fidelity = Literal["reference", "executorch"]
SynthSize = Literal["toy", "mid", "full"]

PROMPT_TOKENS = 33  # [BOS] and the 32 tokens of silence that open a stream; the delay comes on top


class Settings(StrictModel):
    """What a build decides about the model, the same for all variants."""

    max_seq_len: int = Field(
        default=4096,
        gt=0,
        strict=True,
        description="Positions of the offline decoder's cache, and bound of one call, in tokens "
        "(80 ms each).",
    )
    sliding_window: int | None = Field(
        default=None,
        gt=0,
        strict=True,
        description="The decoder's attention window, in tokens (80 ms each). "
        "Default: params.json's (8192 in the real model).",
    )
    max_enc_len: int | None = Field(
        default=None,
        gt=0,
        strict=True,
        description="The encoder's attention window, in encoder frames (20 ms each). "
        "Default: params.json's sliding_window (750 in the real model).",
    )
    delay_tokens: int = Field(
        default=6,
        ge=1,
        le=30,
        strict=True,
        description="Delay of the transcription behind the audio, in tokens (80 ms each).",
    )
    fidelity: Fidelity = Field(
        default="reference",
        description="reference: as the model was trained. executorch: as ExecuTorch's example, "
        "which pads the second convolution by one frame more and has no windows offline.",
    )


class SynthSource(StrictModel):
    """A random checkpoint, right in every name, shape and dtype."""

    size: SynthSize = Field(description="toy: seconds to build; full: the real one's 711 tensors.")
    seed: int = Field(default=0, ge=0, strict=True, description="Of the random weights.")


class CheckpointSource(StrictModel):
    """Where the checkpoint comes from: exactly one of the two."""

    synth: SynthSource | None = Field(default=None, description="Make a random one.")
    path: Path | None = Field(
        default=None,
        description="A folder with params.json, consolidated.safetensors and tekken.json; "
        "relative to the working directory, or else to the Snakefile's folder.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("synth", "path") if getattr(self, name) is not None]
        if len(given) != 1:
            raise mistake(
                "exactly one source is needed",
                got=" and ".join(given) or "none",
                allowed="synth or path",
                next_step="set `path: null` beside `synth`, or `synth: null` beside `path`: a "
                "file given by --configfile is merged into config/matrix.yaml"
                if given
                else "point path at a checkpoint folder",
            )
        return self
