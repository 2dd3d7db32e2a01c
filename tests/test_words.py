"""Recordings whose words are known, and the words that an artifact gets wrong."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from tests.sessions import letters, scripted_artifact
from voxtral_build.clips import Clip, read_clips
from voxtral_build.errors import BuildError
from voxtral_build.runtime.words import WordErrors, plain_words, transcribe, transcripts


def folder_of(path, lines):
    for line in lines:
        soundfile.write(path / line.partition("\t")[0], np.zeros(32_000), 16_000)
    (path / "words.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_set(tmp_path):
    lines = ["a.flac\tone two", "b.wav\t", "c.flac\tÜben, é!"]
    assert read_clips(folder_of(tmp_path, lines)) == [
        Clip(tmp_path / "a.flac", "one two"),
        Clip(tmp_path / "b.wav", ""),
        Clip(tmp_path / "c.flac", "Üben, é!"),
    ]


@pytest.mark.parametrize("line", ["a.flac", "none.flac\tone", "../a.flac\tone", "", "\tone"])
def test_a_line_that_is_none(tmp_path, line):
    inside = tmp_path / "set"
    inside.mkdir()
    folder_of(tmp_path, ["a.flac\tone"])
    folder_of(inside, ["a.flac\tone"])
    with (inside / "words.tsv").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(BuildError) as error:
        read_clips(inside)
    assert "words.tsv, line 2" in str(error.value)


def test_a_folder_that_is_no_set(tmp_path):
    with pytest.raises(BuildError, match="holds no set of recordings"):
        read_clips(tmp_path)


@pytest.mark.parametrize(
    ("spoken", "written", "errors"),
    [
        ("one two three", "one two three", (3, 0, 0, 0)),
        ("one two three", "", (3, 0, 3, 0)),
        ("one two three", "one too three four", (3, 1, 0, 1)),
        ("one two three", "two three", (3, 0, 1, 0)),
        ("", "two three", (0, 0, 0, 2)),
        ("don't stop", " Don’t stop!", (2, 0, 0, 0)),
        ("half past seven", "Half-past, seven.", (3, 0, 0, 0)),
        ("größe", "GRÖSSE", (1, 1, 0, 0)),
    ],
)
def test_word_errors(spoken, written, errors):
    """Counted by hand."""
    assert WordErrors.of(spoken, written) == WordErrors(*errors)


def test_rates_add_up_by_words():
    total = WordErrors(8, 1, 0, 0) + WordErrors(2, 0, 1, 2)
    assert total == WordErrors(10, 1, 1, 2)
    assert total.rate == pytest.approx(0.4)
    assert WordErrors(0, 0, 0, 2).rate is None


def test_plain_words():
    assert plain_words("  “Zero”—one_two, 3.5 o'clock…\n") == [
        "zero",
        "one",
        "two",
        "3",
        "5",
        "o'clock",
    ]


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_transcripts(tmp_path, mode):
    artifact = scripted_artifact(mode, letters(" one two", start=40))
    clips = read_clips(folder_of(tmp_path, ["a.flac\tone", "b.flac\ttwo"]))
    assert [text for _, text in transcripts(artifact, clips)] == ["one two"] * 2
    assert transcribe(artifact, np.zeros(32_000, np.float32)) == "one two"
