"""Text and words from token ids."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from tests.models import checkpoint
from voxtral_build.errors import CheckpointError
from voxtral_build.subtitles import cues, srt_cue, vtt_cue
from voxtral_build.text import TextAssembly, Vocabulary
from voxtral_build.transcript import Transcriber, Word

PAD, WORD = 32, 33
TOKEN_S = 0.08


@pytest.fixture(scope="module")
def path() -> Path:
    return checkpoint() / "tekken.json"


@pytest.fixture(scope="module")
def vocabulary(path) -> Vocabulary:
    return Vocabulary.load(path)


def spell(text: str) -> list[int]:
    """A token a byte."""
    return [1000 + byte for byte in text.encode()]


# --- text --------------------------------------------------------------------------------


def test_pieces_are_those_of_mistral_common(path, vocabulary):
    reference = Tekkenizer.from_file(path)
    for token in range(1280):
        assert vocabulary.piece(token) == reference.id_to_byte_piece(token)
    assert vocabulary.piece(1280) == b""  # of a padded vocabulary


def test_text_is_that_of_mistral_common(path, vocabulary):
    reference = Tekkenizer.from_file(path)
    text = "Où? 東京 \N{GRINNING FACE} naïve"
    assembly = TextAssembly()
    for token in [*reference.encode(text, bos=True, eos=True), *spell(text)]:
        piece = assembly.add(vocabulary.piece(token))
        assert "\ufffd" not in piece
    tokens = reference.encode(text, bos=True, eos=True)
    assert "".join(assembly.add(vocabulary.piece(token)) for token in tokens) == text
    assert assembly.finish() == ""


def test_a_character_appears_with_its_last_byte(vocabulary):
    assembly = TextAssembly()
    # Silence between the bytes of a character changes nothing.
    tokens = [token for byte in spell("é\N{GRINNING FACE}") for token in (byte, PAD)]
    texts = [assembly.add(vocabulary.piece(token)) for token in tokens]
    assert texts == ["", "", "é", "", "", "", "", "", "", "", "\N{GRINNING FACE}", ""]


def test_an_unfinished_character_is_told_at_the_end():
    assembly = TextAssembly()
    assert assembly.add("é".encode()[:1]) == ""
    assert assembly.finish() == "\ufffd"
    assert assembly.add(b"a") == "a"


def test_any_bytes_give_what_decoding_the_whole_gives():
    rng = random.Random(0)
    for _ in range(200):
        data = rng.randbytes(40) + "naïve 東京".encode()
        assembly, text, rest = TextAssembly(), "", data
        while rest:
            size = rng.randint(1, 4)
            text, rest = text + assembly.add(rest[:size]), rest[size:]
        assert text + assembly.finish() == data.decode(errors="replace")


def test_what_is_no_tekken_file_is_refused(tmp_path, path):
    tekken = json.loads(path.read_text())
    for broken in ({}, tekken | {"vocab": [{"rank": 0}]}, tekken | {"config": None}):
        file = tmp_path / "tekken.json"
        file.write_text(json.dumps(broken))
        with pytest.raises(CheckpointError, match="no Tekken tokenizer"):
            Vocabulary.load(file)


# --- words -------------------------------------------------------------------------------


def words_of(vocabulary: Vocabulary, tokens: list[int]) -> tuple[str, list[Word]]:
    transcriber = Transcriber(vocabulary, WORD, TOKEN_S)
    text, words = "", []
    for i, token in enumerate(tokens):
        written = transcriber.add(token, i * TOKEN_S)
        text += written.text
        words += written.words
    written = transcriber.finish()
    text += written.text
    words += written.words
    assert "".join(word.text for word in words).strip() == text.strip()
    return text, words


def test_streaming_word_starts_a_word(vocabulary):
    tokens = [PAD, WORD, *spell(" ab"), PAD, WORD, *spell(" c"), PAD]
    text, words = words_of(vocabulary, tokens)
    assert text == " ab c"
    assert words == [Word(" ab", 0.08, 0.40), Word(" c", 0.48, 0.72)]


def test_a_blank_starts_a_word_without_streaming_word(vocabulary):
    _, words = words_of(vocabulary, spell("ab cd, e"))
    assert [word.text for word in words] == ["ab", " cd,", " e"]
    assert [word.start for word in words] == [0.0, 0.16, 0.48]


def test_words_without_blanks(vocabulary):
    _, words = words_of(vocabulary, [WORD, *spell("東"), WORD, *spell("京")])
    assert [word.text for word in words] == ["東", "京"]


def test_a_word_is_complete_after_a_second_of_silence(vocabulary):
    transcriber = Transcriber(vocabulary, WORD, TOKEN_S)
    transcriber.add(WORD, 0.0)
    transcriber.add(1000 + ord("a"), 0.08)
    told = [transcriber.add(PAD, 0.16 + i * 0.08).words for i in range(20)]
    assert told[11] == (Word("a", 0.0, 0.16),)
    assert not any(told[:11] + told[12:])


def test_silence_and_blanks_make_no_words(vocabulary):
    assert words_of(vocabulary, [PAD] * 40 + [WORD] * 3 + [2, 1]) == ("", [])
    assert words_of(vocabulary, spell("   "))[1] == []
    assert [word.text for word in words_of(vocabulary, spell("  a "))[1]] == ["  a"]


def test_words_take_bounded_memory(vocabulary):
    for text in ("x" * 3000, " " * 3000):
        transcriber = Transcriber(vocabulary, WORD, TOKEN_S)
        for i, token in enumerate(spell(text)):
            for word in transcriber.add(token, i * TOKEN_S).words:
                assert len(word.text) <= 201
        assert len(transcriber._text) <= 201


# --- subtitles ---------------------------------------------------------------------------


def said(text: str, start: float = 0.0, each: float = 0.3) -> list[Word]:
    return [
        Word(f" {word}", round(start + i * each, 3), round(start + (i + 1) * each, 3))
        for i, word in enumerate(text.split())
    ]


def test_cues_end_with_sentences_pauses_lines_and_time():
    def texts(words):
        return [cue.text for cue in cues(words)]

    assert texts(said("One two. Three? Four")) == ["One two.", "Three?", "Four"]
    assert texts(said("one two") + said("three", 2.0)) == ["one two", "three"]
    assert [len(text) for text in texts(said("word " * 40, each=0.1))] == [84, 84, 29]
    assert texts(said("a b c d", each=2.0)) == ["a b c", "d"]
    assert list(cues([])) == []
    (long,) = cues(said("x" * 200))
    assert len(long.text) == 200


def test_cues_in_their_formats():
    cue = Word("a <b> --> c & " + "word " * 10, 3661.5, 3661.58)
    assert srt_cue(7, cue).splitlines() == [
        "7",
        "01:01:01,500 --> 01:01:01,580",
        "a <b> -> c & word word word word word word",
        "word word word word",
        "",
    ]
    vtt = vtt_cue(cue)
    assert vtt.startswith("01:01:01.500 --> 01:01:01.580\na &lt;b&gt; --&gt; c &amp; word")
    assert vtt.endswith("word\n\n")
    assert vtt.count("-->") == 1
