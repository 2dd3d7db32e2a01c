"""What must not be in a log or a message: secrets, and what a terminal would obey.

Storage URLs of the Hub carry a signature in their query: whoever has one can read the file of
a private repository. Names and texts of a repository may be anybody's.
"""

from __future__ import annotations

import logging
import os
import re

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SHORTEST = 8  # characters of a secret; a shorter value would make texts unreadable
_PATTERNS = (
    # Of users, and those that are longer and say what they are: hf_oauth_, hf_jwt_.
    (re.compile(r"\bhf_(?:[a-z]+_[\w.-]{20,}|[A-Za-z0-9]{6,})"), "hf_..."),
    (re.compile(r"\b(Bearer|Basic)\s+\S+", re.IGNORECASE), r"\1 ..."),
    (re.compile(r"(https?://)[^/\s@\"']+@"), r"\1...@"),
    (re.compile(r"(https?://[^\s?\"'<>]+)\?[^\s\"'<>]*"), r"\1?..."),
)


def redacted(text: str) -> str:
    """`text` without tokens, passwords in URLs, queries of URLs, and control characters."""
    for name in TOKEN_VARIABLES:
        secret = os.environ.get(name, "").strip()
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, "...")
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return _escaped(text, keep="\n\t")


def one_line(text: object, longest: int = 300) -> str:
    """What somebody else wrote, so that it looks like nothing but a part of a line."""
    line = _escaped(str(text), keep="")
    return line if len(line) <= longest else f"{line[:longest]}..."


def _escaped(text: str, keep: str) -> str:
    """With escapes, as Python writes them, in place of what cannot be printed."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in keep else sign.encode("unicode_escape").decode()
        for sign in text
    )


class RedactingFormatter(logging.Formatter):
    """Formats records, and redacts what comes of it, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))
