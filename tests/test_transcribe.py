"""The command `transcribe`."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from tests.factory import SPEECH
from tests.sessions import FIRST, letters, scripted_artifact, speech
from voxtral_build import cli
from voxtral_build.errors import BuildError
from voxtral_build.manifest import FileRecord, Manifest
from voxtral_build.runtime.artifact import Artifact
from voxtral_build.variants import Variant

HELLO = {FIRST + 2: 33, **letters(" né ok", FIRST + 3)}
WORDS = [
    {"word": "né", "start": 0.16, "end": 0.56},
    {"word": "ok", "start": 0.56, "end": 0.8},
]


@pytest.fixture
def artifact(request, monkeypatch):
    """Says HELLO to whatever it hears; mode streaming, unless parametrized."""
    loaded = scripted_artifact(getattr(request, "param", "streaming"), HELLO)
    monkeypatch.setattr(Artifact, "load", lambda _: loaded)
    return loaded


both_modes = pytest.mark.parametrize("artifact", ["offline", "streaming"], indirect=True)


@pytest.fixture
def sounds(tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    for name, seconds in (("a.wav", 1), ("b.flac", 2)):
        soundfile.write(folder / name, speech(0, seconds), 16_000)
    (folder / "notes.txt").write_text("no sound")
    return folder


def transcribe(*arguments):
    return cli.main(["transcribe", "ARTIFACT", *map(str, arguments)])


# --- formats -----------------------------------------------------------------------------


@both_modes
def test_text(artifact, sounds, capsys):
    assert transcribe(sounds / "a.wav") == 0
    assert capsys.readouterr().out == "né ok\n"


@both_modes
def test_json(artifact, sounds, capsys):
    assert transcribe(sounds / "a.wav", sounds / "b.flac", "--format", "json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "file": str(sounds / "a.wav"),
        "duration": 1.0,
        "text": "né ok",
        "words": WORDS,
    }
    assert second["duration"] == 2.0


SUBTITLES = {
    "srt": "1\n00:00:00,160 --> 00:00:00,800\nné ok\n\n",
    "vtt": "WEBVTT\n\n00:00:00.160 --> 00:00:00.800\nné ok\n\n",
}


@pytest.mark.parametrize("output_format", SUBTITLES)
@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_subtitles(artifact, sounds, capsys, output_format, stream):
    assert transcribe(sounds / "a.wav", "--format", output_format, *stream) == 0
    assert capsys.readouterr().out == SUBTITLES[output_format]


def test_stream_of_words(artifact, sounds, capsys):
    assert transcribe(sounds / "a.wav", "--format", "json", "--stream") == 0
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == WORDS


def test_stream_prints_while_it_listens(artifact, monkeypatch, capsys):
    printed = []

    def blocks(*_):
        for _ in range(20):
            yield np.zeros(1280, np.float32)
            printed.append(capsys.readouterr().out)

    monkeypatch.setattr("voxtral_build.transcribe.listen", blocks)
    assert transcribe("microphone", "--stream") == 0
    assert "".join(printed) == "né ok"
    # A token of 80 ms each; é needs two, and the last of the prompt comes after seven.
    assert [text for text in printed if text] == ["n", "é", " ", "o", "k"]
    assert capsys.readouterr().out == "\n"


# --- folders -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output_format", "extension"), [("text", "txt"), ("json", "json"), ("srt", "srt")]
)
def test_folder_in_folder_out(artifact, sounds, tmp_path, capsys, output_format, extension):
    out = tmp_path / "out"
    assert transcribe(sounds, "--output", out, "--format", output_format) == 0
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in out.iterdir()) == [f"a.{extension}", f"b.{extension}"]
    text = (out / f"a.{extension}").read_text(encoding="utf-8")
    assert "né ok" in text


def test_one_bad_file_does_not_stop_the_others(artifact, sounds, capsys, caplog):
    (sounds / "aa.wav").write_bytes(b"RIFF, as they say, but not for long")
    caplog.set_level(logging.INFO, logger="voxtral_build")
    assert transcribe(sounds) == 2
    captured = capsys.readouterr()
    assert captured.out == "né ok\nné ok\n"
    assert "1 of 3 could not be transcribed" in captured.err
    assert any("aa.wav" in record.message for record in caplog.records)
    assert "2 files: 3.00 s of audio" in caplog.text


def test_names_that_collide_are_refused(artifact, sounds, tmp_path, capsys):
    shutil.copy(sounds / "a.wav", sounds / "b.wav")
    assert transcribe(sounds, "--output", tmp_path / "out") == 2
    assert "two transcripts would have one name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_speed_is_told(artifact, sounds, caplog):
    caplog.set_level(logging.INFO, logger="voxtral_build")
    assert transcribe(sounds / "a.wav") == 0
    assert re.search(r"1\.00 s of audio in \d+\.\d\d s, real-time factor \d", caplog.text)


def test_progress_is_told(artifact, sounds, caplog, monkeypatch):
    monkeypatch.setattr("voxtral_build.transcribe._PROGRESS_S", 0)
    caplog.set_level(logging.INFO, logger="voxtral_build")
    assert transcribe(sounds / "b.flac") == 0
    assert "b.flac: at 1 s of 2 s" in caplog.text


# --- live --------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("kind", ["wav", "raw"])
def test_standard_input(artifact, sounds, capsys, monkeypatch, kind):
    data = (sounds / "a.wav").read_bytes()
    data = data if kind == "wav" else data[44:]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert transcribe("-", "--format", "json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["file"], result["duration"], result["words"]) == ("stdin", 1.0, WORDS)


def microphone(blocks, error=KeyboardInterrupt):
    """A sounddevice whose microphone ends with `error`."""

    class InputStream:
        def __init__(self, **options):
            assert options["samplerate"] == 16_000
            assert options["channels"] == 1
            self.left = blocks

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def read(self, frames):
            if not self.left:
                raise error
            self.left -= 1
            return np.zeros((frames, 1), np.float32), self.left == 0

    return SimpleNamespace(InputStream=InputStream, PortAudioError=OSError)


@both_modes
def test_an_interruption_ends_listening(artifact, capsys, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sounddevice", microphone(8))
    assert transcribe("microphone") == 0
    assert capsys.readouterr().out == "né ok\n"
    assert "sound was lost" in caplog.text


def test_an_interruption_elsewhere_ends_the_program(artifact, sounds, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("voxtral_build.transcribe.StreamingSession.feed_audio", interrupt)
    assert transcribe(sounds / "a.wav") == 130


def test_without_sounddevice(artifact, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert transcribe("microphone") == 2
    assert "pip install sounddevice" in capsys.readouterr().err


def test_without_a_microphone(artifact, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", microphone(0, OSError("no device")))
    assert transcribe("microphone") == 2
    assert "no device" in capsys.readouterr().err


# --- edges -------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("samples", [0, 1, 1279, 1280, 1281, 160_000])
def test_lengths(artifact, tmp_path, capsys, samples):
    soundfile.write(tmp_path / "x.wav", np.zeros(samples, np.float32), 16_000)
    assert transcribe(tmp_path / "x.wav") == 0
    assert capsys.readouterr().out == ("né ok\n" if samples else "\n")


@both_modes
def test_nan_and_nothing_at_all(artifact, tmp_path, capsys):
    soundfile.write(
        tmp_path / "nan.wav", np.full(9000, np.nan, np.float32), 16_000, subtype="FLOAT"
    )
    (tmp_path / "nothing.wav").touch()
    for name, message in (("nan.wav", "nan"), ("nothing.wav", "empty"), ("none.wav", "No such")):
        assert transcribe(tmp_path / name) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message.lower() in captured.err.lower()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.wav", "--stream", "--output", "out"], "--stream prints as it goes"),
        (["a.wav", "b.wav", "--format", "srt"], "give a folder with --output"),
        (["x.wav", "--delay", "960"], "`delay_tokens: 12`"),
        (["x.wav", "--delay", "500"], "multiple of 80 ms"),
        (["."], "has no sound files"),
    ],
)
def test_mistakes(artifact, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert transcribe(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_the_delay_of_the_artifact_itself(artifact, sounds):
    assert transcribe(sounds / "a.wav", "--delay", "480") == 0


@pytest.mark.parametrize("artifact", ["offline"], indirect=True)
def test_offline_artifacts_do_not_stream(artifact, sounds, capsys):
    assert transcribe(sounds / "a.wav", "--stream") == 2
    error = capsys.readouterr().err
    assert "streaming transcription" in error
    assert "mode: [streaming]" in error


@pytest.mark.parametrize("artifact", ["offline"], indirect=True)
def test_a_pipe_that_does_not_end_is_refused_in_time(artifact, monkeypatch, capsys):
    zeros = itertools.repeat(np.zeros(16_000, np.float32))
    monkeypatch.setattr("voxtral_build.transcribe.listen", lambda _: zeros)
    assert transcribe("microphone") == 2
    assert "allowed: 16.56 s" in capsys.readouterr().err


# --- artifacts ---------------------------------------------------------------------------


@pytest.fixture
def folder(lively_factory, tmp_path):
    """A copy of a lowered artifact, to be spoiled."""
    variant = Variant("xnnpack", "fp32", "none", "streaming")
    return shutil.copytree(lively_factory.artifact(variant), tmp_path / variant.slug)


@pytest.mark.lowering
def test_a_pipe_through_the_command(folder):
    """As users run it; and head, which reads one line and leaves."""
    data = np.tile(speech(), 2)
    pcm = (data * 32767).astype("<i2").tobytes()
    command = [sys.executable, "-m", "voxtral_build", "transcribe", str(folder), "-"]
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    given = {"input": pcm, "capture_output": True, "env": environment}
    done = subprocess.run([*command, "--stream", "--format", "json"], check=False, **given)
    assert done.returncode == 0
    words = [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]
    assert all(0 <= word["start"] < word["end"] <= 11 for word in words)
    assert b"10.00 s of audio" in done.stderr
    line = f"{' '.join(command)} --stream --format vtt | head -n 1"
    shown = subprocess.run(line, shell=True, check=True, **given)
    assert shown.stdout == b"WEBVTT\n"
    assert b"Traceback" not in shown.stderr


def _change_files(folder, change):
    manifest = Manifest.load(folder / "manifest.json")
    change(manifest.files)
    manifest.write(folder / "manifest.json")


@pytest.mark.lowering
def test_spoiled_artifacts_are_refused(lively_factory, folder, tmp_path, capsys):
    def refused():
        assert cli.main(["transcribe", str(folder), str(SPEECH)]) == 2
        return capsys.readouterr().err

    def spoil(name, change):
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(change(original))
        error = refused()
        (folder / name).write_bytes(original)
        assert f"{folder / name} is not the file that the artifact was made with" in error
        assert "snakemake --forcerun link" in error
        return error

    # Of the other mode, under the same name.
    other = lively_factory.preprocessor("offline").read_bytes()
    spoil("preprocessor.pte", lambda _: other)
    # Of the same length.
    assert "sha256" in spoil("tekken.json", lambda data: data.replace(b'"v7"', b'"v3"'))
    assert "bytes" in spoil("model.pte", lambda data: data[:-1])

    _change_files(folder, lambda files: files.pop("tekken.json"))
    assert "does not say what tekken.json has to be" in refused()

    (folder / "preprocessor.pte").unlink()
    assert "preprocessor.pte missing" in refused()
    shutil.rmtree(folder)
    assert "no folder" in refused()


@pytest.mark.lowering
def test_a_program_that_is_none(folder):
    (folder / "preprocessor.pte").write_bytes(b"x" * 100)
    record = FileRecord.of(folder / "preprocessor.pte")
    _change_files(folder, lambda files: files.update({"preprocessor.pte": record}))
    with pytest.raises(BuildError, match=r"preprocessor\.pte can't be loaded"):
        Artifact.load(folder)
