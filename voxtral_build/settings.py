"""What a build decides about the model, and where its weights come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from voxtral_build.errors import ConfigError
from voxtral_build.strict_config import StrictModel, mistake

Fidelity = Literal["reference", "executorch"]
SynthSize = Literal["toy", "mid", "full"]
CheckpointFile = Literal["params.json", "consolidated.safetensors", "tekken.json"]

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


def _a_repository(name: str) -> str:
    try:
        return parse_repository(name)
    except ConfigError as error:
        raise mistake(error.what, got=error.got, allowed=error.allowed) from None


def parse_repository(name: str) -> str:
    """The name of a repository on the Hub.

    Raises:
        ConfigError: not of the form organization/name.
    """
    if not REPOSITORY_NAME.fullmatch(name):
        raise ConfigError("not a repository's name", got=name, allowed="organization/name")
    return name


def _a_commit(text: str) -> str:
    if not _COMMIT.fullmatch(text):
        raise mistake(
            "not a commit: what a branch or a tag has may change",
            got=text,
            allowed="40 hexadecimal digits",
            next_step="take the newest of https://huggingface.co/<repository>/commits/main",
        )
    return text


def _a_sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise mistake(
            "not a SHA-256",
            got=text,
            allowed="64 hexadecimal digits, in small letters",
            next_step="take what `sha256sum` prints, or the file's page on the Hub shows",
        )
    return text


REPOSITORY_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
Repository = Annotated[str, AfterValidator(_a_repository)]
Commit = Annotated[str, AfterValidator(_a_commit)]
Sha256 = Annotated[str, AfterValidator(_a_sha256)]


class CheckpointSource(StrictModel):
    """Where the checkpoint comes from: exactly one of synth, path and repo."""

    synth: SynthSource | None = Field(default=None, description="Make a random one.")
    path: Path | None = Field(
        default=None,
        description="A folder with params.json, consolidated.safetensors and tekken.json; "
        "relative to the working directory, or else to the Snakefile's folder.",
    )
    repo: Repository | None = Field(
        default=None,
        description="A repository on the Hugging Face Hub with these three files; no other file "
        "of it is fetched.",
    )
    revision: Commit | None = Field(default=None, description="The repository's commit.")
    sha256: dict[CheckpointFile, Sha256] = Field(
        default_factory=dict,
        description="What the files have to be, of a folder or a repository. A repository's files "
        "without one are held against the Hub's own hash, and from then on against "
        "config/checkpoint.lock.json.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        sources = ("synth", "path", "repo")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            nulls = " or ".join(f"`{name}: null`" for name in given)
            raise mistake(
                "exactly one source is needed",
                got=" and ".join(given) or "none",
                allowed="synth, path or repo",
                next_step=f"keep one, and set {nulls}: a file given by --configfile is merged "
                "into config/matrix.yaml"
                if given
                else "point path at a checkpoint folder",
            )
        return self

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        if self.repo is not None and self.revision is None:
            raise mistake(
                "a repository without a revision: what it has may change",
                got=self.repo,
                allowed="a commit, 40 hexadecimal digits",
                next_step=f"take the newest of https://huggingface.co/{self.repo}/commits/main",
                at=("revision",),
            )
        if self.repo is None and self.revision is not None:
            raise mistake(
                "a revision of no repository",
                got=self.revision,
                next_step="name the repository as `repo`, or remove it",
                at=("revision",),
            )
        if self.synth is not None and self.sha256:
            raise mistake(
                "a random checkpoint has no pins",
                got=", ".join(self.sha256),
                next_step="remove sha256: the seed decides",
                at=("sha256",),
            )
        return self

    def kept_in(self, store: Path) -> Path:
        """Where the files of a repository's revision are kept."""
        assert self.repo is not None  # and with it, a revision
        return store / self.repo.replace("/", "--") / str(self.revision)
