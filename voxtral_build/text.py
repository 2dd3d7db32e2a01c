"""Text from token ids, piece by piece, through tiktoken."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from voxtral_build.checkpoint import read_json
from voxtral_build.errors import CheckpointError


class Vocabulary:
    """The bytes of each token of a Tekken file.

    Ids below the number of special tokens are special and have no bytes; id i above them is
    piece i minus that number.

    Args:
        tekken: content of `tekken.json`.
        path: names it in messages.

    Raises:
        CheckpointError: no Tekken file, or one that tiktoken refuses.
    """

    def __init__(self, tekken: dict[str, Any], path: Path) -> None:
        from tiktoken import Encoding

        try:
            config = tekken["config"]
            self.specials = int(config["default_num_special_tokens"])
            # A file may have more pieces than the model has tokens: the first count.
            self.pieces = int(config["default_vocab_size"]) - self.specials
            vocab = tekken["vocab"][: self.pieces]
            ranks = {base64.b64decode(piece["token_bytes"]): piece["rank"] for piece in vocab}
            self._encoding = Encoding(
                path.stem, pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} is no Tekken tokenizer",
                got=f"{type(error).__name__}: {error}",
                allowed="config.pattern, config.default_vocab_size, "
                "config.default_num_special_tokens and vocab",
                next_step="take tekken.json from the checkpoint's own repository",
            ) from None

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read `tekken.json`."""
        return cls(read_json(path), path)

    def piece(self, token: int) -> bytes:
        """The token's bytes, which may end inside a character; none for a special token."""
        rank = token - self.specials
        if not 0 <= rank < self.pieces:  # the model's vocabulary may be padded
            return b""
        return self._encoding.decode_single_token_bytes(rank)

    def text(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without the blank before its first word."""
        assembly = TextAssembly()
        return ("".join(assembly.add(self.piece(t)) for t in tokens) + assembly.finish()).strip()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [self.specials + rank for rank in self._encoding.encode_ordinary(text)]


class TextAssembly:
    """Joins pieces; a character appears when its last byte has come.

    Bytes that no continuation can make a character come out as U+FFFD, as in a decoding of
    the whole.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, piece: bytes) -> str:
        """The characters that `piece` completes."""
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """U+FFFD if a character was left incomplete, else nothing; then a new text begins."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
