"""Special tokens of a Tekken file, and the prompt that starts a transcription."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxtral_build.checkpoint import REPOSITORY, read_json
from voxtral_build.errors import CheckpointError

BUFFER_TOKENS = 10  # silence after the delay has run out; mistral-common's value
_NEXT_STEP = f"take tekken.json from the checkpoint's own repository, such as {REPOSITORY}"


@dataclass(frozen=True)
class StreamingTokens:
    """What the streaming protocol needs of `tekken.json`.

    Attributes:
        bos, eos: ids of the tokens that start and end a text.
        streaming_pad: id of the token that says nothing for 80 ms.
        streaming_word: id of the token that starts a word, and adds no text.
        left_pad: tokens of silence before the audio.
    """

    bos: int
    eos: int
    streaming_pad: int
    streaming_word: int
    left_pad: int

    @classmethod
    def load(cls, path: Path) -> StreamingTokens:
        """Read `tekken.json`.

        Raises:
            CheckpointError: the file lacks a special token or the streaming settings.
        """
        return cls.parse(read_json(path), path)

    @classmethod
    def parse(cls, tekken: dict[str, Any], path: Path) -> StreamingTokens:
        """Take them from the content of `tekken.json`; `path` names it in messages."""
        try:
            ids = {token["token_str"]: token["rank"] for token in tekken["special_tokens"]}
            return cls(
                bos=ids["<s>"],
                streaming_pad=ids["[STREAMING_PAD]"],
                left_pad=tekken["audio"]["streaming_n_left_pad_tokens"],
                eos=ids["</s>"],
                streaming_word=ids["[STREAMING_WORD]"],
            )
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is no tokenizer of a realtime model",
                got=f"{type(error).__name__}: {error}",
                allowed="a Tekken file with <s>, </s>, [STREAMING_PAD], [STREAMING_WORD] and "
                "audio.streaming_n_left_pad_tokens",
                next_step=_NEXT_STEP,
            ) from None

    def prompt(self, delay_tokens: int) -> list[int]:
        """The ids of the first positions; output begins at the last of them."""
        return [self.bos] + [self.streaming_pad] * (self.left_pad + delay_tokens)


def check_tokenizer(path: Path, vocab_size: int) -> None:
    """Hold `tekken.json` against the model's vocabulary.

    Args:
        path: the file.
        vocab_size: as `params.json` has it.

    Raises:
        CheckpointError: no Tekken file, of another model, or of another size.
    """
    tekken = read_json(path)
    StreamingTokens.parse(tekken, path)
    try:
        config = tekken["config"]
        size, specials = config["default_vocab_size"], config["default_num_special_tokens"]
        # A file may have more pieces than it uses: the real one has 150,000, and readers
        # take as many as default_vocab_size leaves room for.
        available = specials + len(tekken["vocab"])
        too_few = available < size
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is no Tekken tokenizer",
            got=f"{type(error).__name__}: {error}",
            allowed="config.default_vocab_size, config.default_num_special_tokens and vocab",
            next_step=_NEXT_STEP,
        ) from None
    if size != vocab_size:
        raise CheckpointError(
            f"{path} is of another vocabulary than params.json",
            got=f"config.default_vocab_size {size}",
            allowed=f"{vocab_size}, vocab_size of params.json",
            next_step=_NEXT_STEP,
        )
    if too_few:
        raise CheckpointError(
            f"{path} lacks tokens of its own vocabulary",
            got=f"{specials} special tokens and {len(tekken['vocab'])} pieces",
            allowed=f"{size} in all, its config.default_vocab_size",
            next_step=_NEXT_STEP,
        )
