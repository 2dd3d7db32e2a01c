"""Transcripts as text, JSON, SRT and WebVTT: whole, or as they come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TextIO

from voxtral_build.subtitles import VTT_HEAD, Cues, cues, srt_cue, vtt_cue
from voxtral_build.transcript import Word, Written

Format = Literal["text", "json", "srt", "vtt"]
EXTENSIONS: dict[Format, str] = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}


class Sink(Protocol):
    """Takes what is written, token by token."""

    def add(self, written: Written) -> None: ...

    def finish(self) -> None: ...


@dataclass
class Collected:
    """A whole transcript, to be rendered at the end."""

    text: str = ""
    words: list[Word] = field(default_factory=list)

    def add(self, written: Written) -> None:
        self.text += written.text
        self.words += written.words

    def finish(self) -> None:
        """Nothing is left open."""


def render(
    output_format: Format, name: str, text: str, duration: float, words: Sequence[Word]
) -> str:
    """A whole transcript.

    Args:
        name: of the recording; JSON has it.
        text: everything that was written.
        duration: of the recording, in seconds.

    Returns:
        The content of a file. Text and JSON are one line, unless the text itself has more.
    """
    if output_format == "json":
        content = {
            "file": name,
            "duration": round(duration, 3),
            "text": text.strip(),
            "words": [_word_fields(word) for word in words],
        }
        return json.dumps(content, ensure_ascii=False) + "\n"
    if output_format == "srt":
        return "".join(srt_cue(i, cue) for i, cue in enumerate(cues(words), 1))
    if output_format == "vtt":
        return VTT_HEAD + "".join(vtt_cue(cue) for cue in cues(words))
    return text.strip() + "\n"


def live_sink(output_format: Format, out: TextIO) -> Sink:
    """Writes to `out` as it goes: text by characters, JSON a word a line, cues."""
    if output_format == "text":
        return _LiveText(out)
    if output_format == "json":
        return _LiveWords(out)
    return _LiveCues(out, output_format)


class _LiveText:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._begun = False

    def add(self, written: Written) -> None:
        text = written.text if self._begun else written.text.lstrip()
        if text:
            self._begun = True
            _write(self._out, text)

    def finish(self) -> None:
        _write(self._out, "\n")


class _LiveWords:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def add(self, written: Written) -> None:
        for word in written.words:
            _write(self._out, json.dumps(_word_fields(word), ensure_ascii=False) + "\n")

    def finish(self) -> None:
        """Every line is whole."""


class _LiveCues:
    def __init__(self, out: TextIO, output_format: Format) -> None:
        self._out = out
        self._format = output_format
        self._cues = Cues()
        self._count = 0
        if output_format == "vtt":
            _write(out, VTT_HEAD)

    def add(self, written: Written) -> None:
        for word in written.words:
            for cue in self._cues.add(word):
                self._cue(cue)

    def finish(self) -> None:
        for cue in self._cues.finish():
            self._cue(cue)

    def _cue(self, cue: Word) -> None:
        self._count += 1
        _write(self._out, vtt_cue(cue) if self._format == "vtt" else srt_cue(self._count, cue))


def _write(out: TextIO, text: str) -> None:
    out.write(text)
    out.flush()


def _word_fields(word: Word) -> dict[str, object]:
    return {"word": word.text.strip(), "start": word.start, "end": word.end}
