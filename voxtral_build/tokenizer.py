"""Special tokens of a Tekken file, and the prompt that starts a transcription."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxtral_build.errors import CheckpointError

BUFFER_TOKENS = 10  # silence after the delay has run out; mistral-common's value


@dataclass(frozen=True)
class StreamingTokens:
    """What the streaming protocol needs of `tekken.json`.

    Attributes:
        bos, streaming_pad: token ids.
        left_pad: tokens of silence before the audio.
    """

    bos: int
    streaming_pad: int
    left_pad: int

    @classmethod
    def load(cls, path: Path) -> StreamingTokens:
        """Read `tekken.json`.

        Raises:
            CheckpointError: the file lacks a special token or the streaming settings.
        """
        try:
            tekken: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            ids = {token["token_str"]: token["rank"] for token in tekken["special_tokens"]}
            left_pad = tekken["audio"]["streaming_n_left_pad_tokens"]
            return cls(ids["<s>"], ids["[STREAMING_PAD]"], left_pad)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is no tokenizer of a realtime model",
                got=f"{type(error).__name__}: {error}",
                allowed="a Tekken file with <s>, [STREAMING_PAD] and "
                "audio.streaming_n_left_pad_tokens",
                next_step="take tekken.json from the checkpoint's own repository",
            ) from None

    def prompt(self, delay_tokens: int) -> list[int]:
        """The ids of the first positions; output begins at the last of them."""
        return [self.bos] + [self.streaming_pad] * (self.left_pad + delay_tokens)
