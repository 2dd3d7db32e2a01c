"""From tokens to text, and to words with times.

Times come from the frame clock: a token at one position speaks of 80 ms of audio. They say
where the model wrote, in steps of 80 ms; nothing is aligned to the sound afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxtral_build.text import TextAssembly, Vocabulary

# A word waits for the next one to begin, but no longer than this: text of 80 ms each.
_PAUSE_TOKENS = 12
_LONGEST_WORD = 200  # characters; a text without blanks, or of blanks alone, is cut there


@dataclass(frozen=True)
class Word:
    """A word and its time in seconds from the start of the audio.

    Attributes:
        text: as the model wrote it, often with a blank before; joined, words are the text.
    """

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Written:
    """What one token added: characters, and the words that are now complete."""

    text: str
    words: tuple[Word, ...] = ()


class Transcriber:
    """Turns the tokens of one utterance into text and words, in memory that does not grow.

    A word begins with [STREAMING_WORD], or with text that begins with a blank; it ends
    where the next begins, or after a second without text.

    Args:
        streaming_word: id of [STREAMING_WORD].
        token_s: seconds a token.
    """

    def __init__(self, vocabulary: Vocabulary, streaming_word: int, token_s: float) -> None:
        self._vocabulary = vocabulary
        self._streaming_word = streaming_word
        self._token_s = token_s
        self._assembly = TextAssembly()
        self._text = ""
        self._start: float | None = None
        self._end = 0.0
        self._quiet = 0

    def add(self, token: int, seconds: float) -> Written:
        """Take the next token, which speaks of audio from `seconds` on."""
        if token == self._streaming_word:
            words = self._complete()
            self._start = seconds
            return Written("", words)
        piece = self._vocabulary.piece(token)
        text = self._assembly.add(piece)
        words = ()
        if text:
            # Blanks alone continue a word, so that none is empty.
            begins = text[0].isspace() and bool(self._text.strip())
            if begins or len(self._text) > _LONGEST_WORD:
                words = self._complete()
            self._text += text
        if piece:
            if self._start is None:
                self._start = seconds
            self._end, self._quiet = seconds + self._token_s, 0
        else:
            self._quiet += 1
            if self._quiet == _PAUSE_TOKENS:
                words = self._complete()
        return Written(text, words)

    def finish(self) -> Written:
        """The end of the utterance."""
        rest = self._assembly.finish()
        self._text += rest
        return Written(rest, self._complete())

    def _complete(self) -> tuple[Word, ...]:
        text, start, self._start = self._text, self._start, None
        if not text.strip():
            self._text = text[:_LONGEST_WORD]
            return ()
        self._text = ""
        start = self._end if start is None else start
        return (Word(text, round(start, 3), round(self._end, 3)),)
