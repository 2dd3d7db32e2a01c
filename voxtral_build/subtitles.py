"""Words grouped into subtitles, in SubRip's and WebVTT's form.

Source: https://www.w3.org/TR/webvtt1/ for WebVTT; SubRip has no standard.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from voxtral_build.transcript import Word

# Usual bounds of subtitles, such as the BBC's and Netflix's guides give.
_LINE_LENGTH = 42
_CUE_LENGTH = 2 * _LINE_LENGTH
_CUE_S = 7.0
_PAUSE_S = 1.0
_SENTENCE_ENDS = (".", "!", "?", "\u2026", "\u3002", "\uff01", "\uff1f")

VTT_HEAD = "WEBVTT\n\n"


class Cues:
    """Groups words by sentences, pauses, two lines, and seven seconds."""

    def __init__(self) -> None:
        self._words: list[Word] = []

    def add(self, word: Word) -> Iterator[Word]:
        """Take a word; gives the cues that end before it or with it."""
        if self._words and not self._fits(word):
            yield from self.finish()
        self._words.append(word)
        if word.text.rstrip().endswith(_SENTENCE_ENDS):
            yield from self.finish()

    def finish(self) -> Iterator[Word]:
        """The cue that is still open, if one is."""
        if self._words:
            yield _joined(self._words)
            self._words = []

    def _fits(self, word: Word) -> bool:
        joined = _joined([*self._words, word])
        return (
            len(joined.text) <= _CUE_LENGTH
            and word.end - joined.start <= _CUE_S
            and word.start - self._words[-1].end <= _PAUSE_S
        )


def _joined(words: list[Word]) -> Word:
    text = "".join(word.text for word in words).strip()
    return Word(text, words[0].start, words[-1].end)


def cues(words: Iterable[Word]) -> Iterator[Word]:
    """The cues of a whole transcript."""
    grouping = Cues()
    for word in words:
        yield from grouping.add(word)
    yield from grouping.finish()


def srt_cue(number: int, cue: Word) -> str:
    """One cue of SubRip, with the empty line after it; `number` counts from 1."""
    text = _lines(cue.text.replace("-->", "->"))  # what separates times
    return f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{text}\n\n"


def vtt_cue(cue: Word) -> str:
    """One cue of WebVTT, with the empty line after it."""
    text = cue.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{_lines(text)}\n\n"


def _lines(text: str) -> str:
    # No empty line: it would end the cue.
    return "\n".join(textwrap.wrap(text, _LINE_LENGTH, break_long_words=False))


def _clock(seconds: float, point: str) -> str:
    total, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}{point}{milliseconds:03}"
