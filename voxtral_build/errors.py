"""Errors that a user can cause, and how they are told.

Every mistake a user can make ends as a `BuildError`: the command line prints its
four parts (what went wrong, what was found, what is allowed, what to do next) and
exits with 2, without a traceback. Any other exception is a fault of this project
and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class BuildError(Exception):
    """A mistake in what the user gave.

    Args:
        what: one sentence, naming the file, field or argument at fault.
        got: what was found there.
        allowed: what would have been accepted; an iterable is joined by commas.
        next_step: what to do now.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        got: object = None,
        allowed: str | Iterable[object] | None = None,
        next_step: str | None = None,
    ) -> None:
        self.what = what
        self.got = None if got is None else str(got)
        if allowed is None or isinstance(allowed, str):
            self.allowed = allowed
        else:
            self.allowed = ", ".join(str(item) for item in allowed)
        self.next_step = next_step
        super().__init__(self.__str__())

    def __str__(self) -> str:
        parts = [
            self.what,
            f"  got:     {self.got}" if self.got is not None else None,
            f"  allowed: {self.allowed}" if self.allowed is not None else None,
            f"  next:    {self.next_step}" if self.next_step is not None else None,
        ]
        return "\n".join(part for part in parts if part is not None)


class ConfigError(BuildError):
    """A matrix, setting or argument that cannot be built."""


class CheckpointError(BuildError):
    """A checkpoint folder whose files, keys, shapes or dtypes are wrong."""


class PteError(BuildError):
    """A file that is not a readable or linkable ExecuTorch program."""


class HostError(BuildError):
    """A stage that this machine cannot run."""


class HubError(BuildError):
    """What the Hugging Face Hub, or the way to it, did not give or take."""


class ValidationError(BuildError):
    """An artifact that did not pass a gate."""
