"""Sound of every kind: files by libsndfile, pipes, what is done to them, what is doubtful."""

from __future__ import annotations

import io
import os
import struct
import threading
import tracemalloc
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxtral_build.errors import BuildError
from voxtral_build.sound import PcmStream, RawFormat, read, sound_files, stream

RATE = 16_000
SPEECH = Path(__file__).parent / "data" / "jfk_5s.wav"


# --- sounds, written without the package's own code ---------------------------------------


def sine(rate: int = RATE, seconds: float = 2.0, level: float = 0.5, hertz: float = 440.0):
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)).astype(
        np.float32
    )


def speech() -> np.ndarray:
    with wave.open(str(SPEECH), "rb") as file:
        data = file.readframes(file.getnframes())
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768


def packed(samples: np.ndarray, encoding: str) -> bytes:
    """Samples in [-1, 1) as PCM; a frame a row."""
    flat = samples.astype(np.float64).reshape(-1)
    if encoding == "u8":
        return (np.round(flat * 127) + 128).astype("u1").tobytes()
    if encoding == "s24le":
        values = np.round(flat * (2**23 - 1)).astype(int)
        return b"".join(int(value).to_bytes(3, "little", signed=True) for value in values)
    if encoding in ("f32le", "f64le"):
        return flat.astype(
            "<" + encoding[0] + encoding[1:3].replace("32", "4").replace("64", "8")
        ).tobytes()
    bits = int(encoding[1:3])
    return np.round(flat * (2 ** (bits - 1) - 1)).astype(f"<i{bits // 8}").tobytes()


WIDTHS = {"u8": 1, "s16le": 2, "s24le": 3, "s32le": 4, "f32le": 4, "f64le": 8}


def wav(
    data: bytes,
    encoding: str = "s16le",
    rate: int = RATE,
    channels: int = 1,
    *,
    size: int | None = None,
    extensible: bool = False,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A WAV, with any size in its header."""
    width, tag = WIDTHS[encoding], 3 if encoding[0] == "f" else 1
    frame = width * channels
    shown = 0xFFFE if extensible else tag
    form = struct.pack("<HHIIHH", shown, channels, rate, rate * frame % 2**32, frame, 8 * width)
    if extensible:
        guid = bytes.fromhex("000000001000800000aa00389b71")
        form += struct.pack("<HHIH", 22, 8 * width, 0, tag) + guid
    size = len(data) if size is None else size
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + before
    chunks += b"data" + struct.pack("<I", size) + data + b"\0" * (len(data) & 1) + after
    riff = 4 + len(chunks) if size == len(data) else size
    return b"RIFF" + struct.pack("<I", riff) + b"WAVE" + chunks


class Pipe(io.RawIOBase):
    """Gives at most `step` bytes a read, like a slow writer."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step, self._at = data, step, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        step = self._step if size < 0 else min(size, self._step)
        data = self._data[self._at : self._at + step]
        self._at += len(data)
        return data


def piped(data: bytes, step: int = 1 << 16, raw: RawFormat | None = None, rate: int = RATE):
    blocks = stream(Pipe(data, step), rate, raw=raw)
    samples = [np.zeros(0, np.float32), *blocks]
    assert all(len(block) for block in samples[1:])
    assert all(block.dtype == np.float32 and block.ndim == 1 for block in samples)
    return np.concatenate(samples), blocks


def written(folder: Path, data: bytes, name: str = "a.wav") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def inside(samples: np.ndarray, margin: int = 400) -> np.ndarray:
    return samples[margin:-margin]


def relative_error(samples: np.ndarray) -> float:
    """Of speech, RMS; an offset of one sample is about 0.5."""
    length = min(len(samples), len(speech()))
    error = samples[:length] - speech()[:length]
    return float(np.sqrt((error**2).mean() / (speech() ** 2).mean()))


# --- files -------------------------------------------------------------------------------


def test_the_validation_audio_is_what_it_was():
    sound = read(SPEECH, RATE)
    assert sound.samples.dtype == np.float32
    assert np.array_equal(sound.samples, speech())
    assert (sound.notes, sound.warnings) == ((), ())


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("encoding", WIDTHS)
def test_every_width_and_channel_count(tmp_path, encoding, channels, extensible):
    frames = np.repeat(sine()[:, None], channels, axis=1)
    data = wav(packed(frames, encoding), encoding, channels=channels, extensible=extensible)
    sound = read(written(tmp_path, data), RATE)
    tolerance = 0.01 if encoding == "u8" else 1e-4
    np.testing.assert_allclose(sound.samples, sine(), atol=tolerance)
    assert sound.notes == ((f"{channels} channels mixed down",) if channels > 1 else ())
    assert sound.warnings == ()
    through, _ = piped(data)
    np.testing.assert_allclose(through, sound.samples, atol=1e-6)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "W64", "RF64"])
@pytest.mark.parametrize("name", ["a", "a.wav", "a.raw", "a.mp3", "a.txt"])
def test_every_kind_under_every_name(tmp_path, kind, name):
    path = tmp_path / name
    soundfile.write(path, speech(), RATE, format=kind)
    sound = read(path, RATE)
    assert abs(len(sound.samples) - len(speech())) <= 1
    assert relative_error(sound.samples) < (0.3 if kind in ("OGG", "MP3") else 1e-6)
    assert sound.warnings == ()


def test_other_encodings_of_wav_are_libsndfiles(tmp_path):
    for subtype in ("ALAW", "ULAW", "IMA_ADPCM"):
        soundfile.write(tmp_path / "a.wav", speech(), RATE, subtype=subtype)
        sound = read(tmp_path / "a.wav", RATE)
        assert relative_error(sound.samples) < 0.1
        with pytest.raises(BuildError, match="encoding that can't be read"):
            stream((tmp_path / "a.wav").open("rb"), RATE)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 32000, 44100, 48000, 96000, 192_000])
def test_a_sine_stays_that_sine(tmp_path, rate):
    path = tmp_path / "a.wav"
    soundfile.write(path, sine(rate), rate, subtype="FLOAT")
    sound = read(path, RATE)
    assert abs(len(sound.samples) - 2 * RATE) <= 1
    error = inside(sound.samples) - inside(sine()[: len(sound.samples)])
    assert np.abs(error).max() < 0.5e-3  # -60 dB
    assert sound.notes == (f"{rate} Hz resampled to {RATE} Hz",)
    assert sound.warnings == ()


def test_what_is_above_the_new_band_is_taken_out(tmp_path):
    path = tmp_path / "a.wav"
    mixed = sine(48_000, hertz=440) + sine(48_000, hertz=9000, level=0.4)  # 9 kHz would fold to 7
    soundfile.write(path, mixed, 48_000, subtype="FLOAT")
    assert np.abs(inside(read(path, RATE).samples) - inside(sine())).max() < 0.5e-3


def test_stereo_is_mixed_to_the_mean(tmp_path):
    left, right = sine(hertz=300), sine(hertz=500, level=0.2)
    path = tmp_path / "a.wav"
    soundfile.write(path, np.stack([left, right], axis=1), RATE, subtype="FLOAT")
    sound = read(path, RATE)
    np.testing.assert_allclose(sound.samples, (left + right) / 2, atol=1e-7)
    assert (sound.notes, sound.warnings) == (("2 channels mixed down",), ())


def test_rate_and_channels_together(tmp_path):
    data = packed(np.repeat(sine(48_000)[:, None], 2, axis=1), "s24le")
    sound = read(written(tmp_path, wav(data, "s24le", 48_000, 2)), RATE)
    assert np.abs(inside(sound.samples) - inside(sine())).max() < 0.5e-3
    assert sound.notes == ("2 channels mixed down", "48000 Hz resampled to 16000 Hz")


def test_another_model_rate(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, sine(), RATE)
    assert len(read(path, 24_000).samples) == 48_000


@pytest.mark.parametrize("length", [1, 2, 1279, 1280, 1281])
@pytest.mark.parametrize("rate", [RATE, 8000, 48_000])
def test_short_sounds(tmp_path, length, rate):
    data = wav(packed(sine(rate)[:length], "s16le"), rate=rate)
    sound = read(written(tmp_path, data), RATE)
    assert abs(len(sound.samples) - length * RATE / rate) <= 1
    through, blocks = piped(data, 7)
    assert np.array_equal(through, sound.samples)
    assert blocks.warnings == sound.warnings


def test_no_samples(tmp_path):
    for data in (wav(b""), wav(b"", channels=2, rate=48_000)):
        sound = read(written(tmp_path, data), RATE)
        assert sound.samples.shape == (0,)
        assert sound.warnings == ("empty: no samples",)
    for data in (wav(b""), b""):
        through, blocks = piped(data)
        assert (len(through), blocks.warnings) == (0, ("empty: no samples",))


def test_less_than_a_sample(tmp_path):
    sound = read(written(tmp_path, wav(packed(sine()[:1], "s16le"), rate=48_000)), RATE)
    assert len(sound.samples) == 0
    assert "empty: 1 of its samples" in sound.warnings[0]


# --- refusals ----------------------------------------------------------------------------


def refusal(act: Callable[[], object]) -> BuildError:
    with pytest.raises(BuildError) as caught:
        act()
    assert caught.value.exit_code == 2
    assert caught.value.next_step
    return caught.value


def test_no_file_and_a_folder(tmp_path):
    assert "No such file" in str(refusal(lambda: read(tmp_path / "a.wav", RATE)))
    assert "is a folder" in str(refusal(lambda: read(tmp_path, RATE)))


def test_an_empty_file(tmp_path):
    assert "is empty" in str(refusal(lambda: read(written(tmp_path, b""), RATE)))


@pytest.mark.parametrize("data", [b"some text, long enough" * 9, bytes(5000), b"RIFFnope", b"x"])
def test_no_sound(tmp_path, data):
    error = refusal(lambda: read(written(tmp_path, data), RATE))
    assert "libsndfile: " in error.got
    assert "FLAC" in error.allowed
    assert "ffmpeg" in error.next_step


def test_a_damaged_flac(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, speech(), RATE)
    path.write_bytes(path.read_bytes()[:50_000])
    assert "lost sync" in refusal(lambda: read(path, RATE)).got


HEADERS = {
    "0 Hz": wav(bytes(100), rate=0),
    "4294967295 Hz": wav(bytes(100), rate=0xFFFFFFFF),
    "0 channels": wav(bytes(100), channels=0),
    "before the first sample": wav(bytes(100))[:40],
    "within its format": wav(bytes(100))[:30],
    "come before their format": b"RIFF\0\0\0\0WAVEdata\x04\0\0\0abcd",
    "a format of 2 bytes": b"RIFF\0\0\0\0WAVEfmt \x02\0\0\0abdata\x04\0\0\0abcd",
}


@pytest.mark.parametrize("got", HEADERS)
def test_damaged_headers_are_named(tmp_path, got):
    path = written(tmp_path, HEADERS[got])
    for act in (lambda: read(path, RATE), lambda: piped(HEADERS[got])):
        assert got in refusal(act).got


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rate", [RATE, 48_000])
def test_samples_that_are_no_numbers(tmp_path, value, rate):
    frames = np.repeat(sine(rate, 5.0)[:, None], 2, axis=1)
    frames[70_001, 1] = value
    data = wav(packed(frames, "f32le"), "f32le", rate, 2)
    for act in (lambda: read(written(tmp_path, data), RATE), lambda: piped(data, 1000)):
        error = refusal(act)
        assert "not a finite number" in error.what
        assert f"{value} at sample 70001" in error.got
        assert error.got.endswith("of channel 2 of 2")


def test_a_float64_that_float32_cannot_hold(tmp_path):
    data = wav(packed(np.array([0.0, 1e300]), "f64le"), "f64le")
    for act in (lambda: read(written(tmp_path, data), RATE), lambda: piped(data)):
        assert "inf at sample 1 " in refusal(act).got


# --- what is doubtful --------------------------------------------------------------------


def warnings_of(folder: Path, frames: np.ndarray, rate: int = RATE) -> tuple[str, ...]:
    """A file's warnings, which are the pipe's."""
    frames = frames.reshape(len(frames), -1)
    data = wav(packed(frames, "f32le"), "f32le", rate, frames.shape[1])
    found = read(written(folder, data), RATE).warnings
    assert piped(data, 1000)[1].warnings == found
    return found


def kinds(warnings: tuple[str, ...]) -> list[str]:
    return [warning.partition(":")[0] for warning in warnings]


def test_good_speech_has_no_warning(tmp_path):
    assert warnings_of(tmp_path, speech()) == ()
    loud = speech() / np.abs(speech()).max()
    assert warnings_of(tmp_path, loud) == ()
    assert warnings_of(tmp_path, np.stack([speech(), speech()], axis=1)) == ()


@pytest.mark.parametrize("channels", [2, 6])
def test_anti_phase(tmp_path, channels):
    sign = np.array([1, -1] * (channels // 2))
    frames = speech()[:, None] * sign
    assert kinds(warnings_of(tmp_path, frames)) == ["anti-phase"]
    almost = frames * np.linspace(0.9, 1.0, channels) + 0.05  # two microphones, and an offset
    assert kinds(warnings_of(tmp_path, almost)) == ["anti-phase"]


def test_what_is_not_anti_phase(tmp_path):
    one = np.zeros((len(speech()), 2), np.float32)
    one[:, 0] = speech()
    assert warnings_of(tmp_path, one) == ()
    eight = np.zeros((len(speech()), 8), np.float32)
    eight[:, 3] = speech() * 4
    assert "anti-phase" not in kinds(warnings_of(tmp_path, eight))
    noise = np.random.default_rng(0).normal(0, 0.1, (2 * RATE, 2)).astype(np.float32)
    assert warnings_of(tmp_path, noise) == ()
    echo = np.stack([speech()[40:], speech()[:-40]], axis=1)
    assert warnings_of(tmp_path, echo) == ()
    assert kinds(warnings_of(tmp_path, np.zeros((RATE, 2), np.float32))) == ["silent"]


@pytest.mark.parametrize(
    ("level", "found"),
    [(-36, []), (-38.9, []), (-41.1, ["quiet"]), (-79, ["quiet"]), (-81, ["silent"])],
)
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_level(tmp_path, level, found, rate):
    tone = sine(rate, 3.0, level=np.sqrt(2) * 10 ** (level / 20))
    tone[: len(tone) // 2] *= 0.01  # the louder half counts
    warnings = warnings_of(tmp_path, tone + 0.2, rate)
    assert kinds(warnings) == found
    if found == ["quiet"]:
        assert f"at {level:.1f} dBFS RMS" in warnings[0]
        assert "under -40" in warnings[0]


def test_ten_seconds_of_zeros(tmp_path):
    assert kinds(warnings_of(tmp_path, np.zeros(10 * RATE, np.float32))) == ["silent"]


def test_a_click_is_no_loud_part(tmp_path):
    tone = sine(seconds=1.01, level=0.001)
    tone[-20:] = 0.5
    assert kinds(warnings_of(tmp_path, tone)) == ["quiet"]


def test_clipping(tmp_path):
    clipped = np.clip(sine(level=1.5), -1, 1)
    clipped[:RATE] = sine(level=0.5)[:RATE]
    (warning,) = warnings_of(tmp_path, clipped)
    assert warning.startswith("clipped: 4 or more samples in a row at full scale, 880 times")
    assert "first at 1.00 s" in warning
    both = np.stack([clipped, clipped], axis=1)
    assert "1760 times" in warnings_of(tmp_path, both)[0]
    for encoding in ("u8", "s16le", "s24le"):
        sound = read(written(tmp_path, wav(packed(clipped, encoding), encoding)), RATE)
        assert kinds(sound.warnings) == ["clipped"]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 400])
@pytest.mark.parametrize("start", [0, 1, 6396, 6397, 6398, 6399, 6400, 6401, 20_000])
def test_every_run_is_counted_once(tmp_path, length, start):
    tone = sine()
    tone[start : start + length] = -1.0
    found = warnings_of(tmp_path, tone)
    if length < 4:
        assert found == ()
    else:
        assert "in a row at full scale, 1 times" in found[0]


def test_full_scale_alone_is_no_clipping(tmp_path):
    assert warnings_of(tmp_path, sine(level=1.0)) == ()
    assert read(written(tmp_path, wav(packed(sine(level=1.0), "s16le"))), RATE).warnings == ()
    assert warnings_of(tmp_path, sine(level=1.2)) == ()  # as decoders overshoot


def test_integers_as_floats(tmp_path):
    (warning,) = warnings_of(tmp_path, np.round(speech() * 32768))
    assert warning.startswith("beyond full scale: a peak of ")


# --- pipes -------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("rate", "channels", "encoding"),
    [
        (RATE, 1, "s16le"),
        (48_000, 2, "s24le"),
        (44_100, 1, "f32le"),
        (8000, 1, "u8"),
    ],
)
def test_a_stream_equals_the_whole(tmp_path, step, rate, channels, encoding):
    frames = np.stack([sine(rate, 0.5, hertz=200.0 * (i + 1)) for i in range(channels)], axis=1)
    pcm = packed(frames, encoding)
    whole = read(written(tmp_path, wav(pcm, encoding, rate, channels)), RATE)
    for data, raw in (
        (wav(pcm, encoding, rate, channels), None),
        (pcm, RawFormat(encoding, channels, rate)),
    ):
        samples, blocks = piped(data, step, raw)
        assert samples.shape == whole.samples.shape
        np.testing.assert_allclose(samples, whole.samples, atol=1e-4)
        assert (blocks.notes, blocks.warnings) == (whole.notes, whole.warnings)


def test_blocks_come_as_they_are_given():
    end, start = os.pipe()
    with os.fdopen(end, "rb") as reader, os.fdopen(start, "wb", buffering=0) as writer:
        writer.write(wav(b"", size=0xFFFFFFFF))
        blocks = stream(reader, RATE)
        for _ in range(3):  # each is read before the next is written
            writer.write(packed(sine()[:1280], "s16le"))
            assert len(next(blocks)) == 1280
        writer.close()
        assert list(blocks) == []


SIZES = [0, 1, 100, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFDB, 0xFFFFFFFF, 123_456_789]


@pytest.mark.parametrize("size", SIZES)
def test_sizes_that_are_wrong(tmp_path, size):
    data = wav(packed(speech(), "s16le"), size=size)
    through, blocks = piped(data)
    assert np.array_equal(through, piped(wav(packed(speech(), "s16le")))[0])
    sound = read(written(tmp_path, data), RATE)
    assert np.array_equal(sound.samples, through)
    assert sound.warnings == blocks.warnings
    told = {1: "size in the header", 100: "size in the header", 123_456_789: "are missing"}
    assert [told[size] in warning for warning in blocks.warnings] == [True] * (size in told)


@pytest.mark.parametrize("missing", [1, 2, 60_001])
def test_a_wav_cut_short(tmp_path, missing):
    data = SPEECH.read_bytes()[:-missing]
    sound = read(written(tmp_path, data), RATE)
    assert np.array_equal(sound.samples, speech()[: len(speech()) - (missing + 1) // 2])
    assert f"cut: {missing} of the 160000 bytes in the header are missing" in sound.warnings


def test_chunks_around_the_samples(tmp_path):
    listed = b"LIST" + struct.pack("<I", 5) + b"INFOx\0"
    pcm = packed(sine()[:1001], "u8")  # an odd number, so that the data is padded
    data = wav(pcm, "u8", before=listed, after=listed * 3)
    for samples in (piped(data)[0], piped(data, 1)[0], read(written(tmp_path, data), RATE).samples):
        assert len(samples) == 1001
    assert piped(data)[1].warnings == piped(wav(pcm, "u8"))[1].warnings == ()


def test_a_second_wav_is_told():
    samples, blocks = piped(wav(packed(sine(), "s16le")) * 2)
    assert len(samples) == len(sine())
    assert blocks.warnings == ("a second WAV follows the first: it is left out",)


def test_rf64():
    data = b"RF64" + b"\xff" * 4 + b"WAVEds64" + struct.pack("<I", 28) + bytes(28)
    pcm = packed(sine(), "s16le")
    assert len(piped(data + wav(pcm, size=0xFFFFFFFF)[12:])[0]) == len(sine())


def test_raw_pcm():
    samples, blocks = piped(packed(speech(), "s16le"))
    assert np.abs(samples - speech()).max() < 1e-4
    assert (blocks.notes, blocks.warnings) == ((), ())
    stereo = RawFormat("f32le", 2, 8000)
    samples, blocks = piped(packed(np.repeat(sine(8000)[:, None], 2, axis=1), "f32le"), 7, stereo)
    assert len(samples) == 2 * RATE
    assert len(blocks.notes) == 2


def test_a_header_goes_before_what_is_said_of_raw():
    samples, _ = piped(wav(packed(sine(), "s16le")), raw=RawFormat("f32le", 2, 8000))
    assert len(samples) == len(sine())


def test_half_a_frame_at_the_end():
    samples, blocks = piped(packed(sine(), "s16le") + b"\1", 1000)
    assert len(samples) == len(sine())
    assert blocks.warnings == ("cut: the last 1 bytes are no whole frame",)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "AIFF", "AU", "CAF"])
def test_other_kinds_are_refused_from_a_pipe(kind):
    file = io.BytesIO()
    soundfile.write(file, sine(), RATE, format=kind)
    error = refusal(lambda: piped(file.getvalue()))
    assert "WAV, or raw PCM" in error.allowed
    samples, _ = piped(file.getvalue(), raw=RawFormat("u8"))  # if the user insists
    assert len(samples) == len(file.getvalue())


def test_raw_formats_that_are_none():
    with pytest.raises(BuildError, match="s24le"):
        RawFormat("s20le")
    assert "0 Hz" in refusal(lambda: piped(b"", raw=RawFormat(rate=0))).got
    assert refusal(lambda: piped(b"", raw=RawFormat(channels=0))).got == "0"


def test_a_named_pipe_is_a_stream(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    data = wav(packed(sine(), "s16le"), size=0xFFFFFFFF)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    assert len(read(path, RATE).samples) == len(sine())
    writer.join()


class Endless(io.RawIOBase):
    """So many bytes of 48 kHz stereo, without a copy of them anywhere."""

    def __init__(self, count: int) -> None:
        self._left, self._block = count, packed(sine(48_000, 0.1), "s16le")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._block[: min(size, len(self._block), self._left)]
        self._left -= len(data)
        return data


def test_a_long_pipe_takes_little_memory():
    seconds = 300
    blocks = PcmStream(
        Endless(seconds * 48_000 * 4), RATE, raw=RawFormat("s16le", 2, 48_000), name="pipe"
    )
    tracemalloc.start()
    try:
        length = sum(len(block) for block in blocks)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert abs(length - seconds * RATE) <= 1
    assert peak < 4e6


def test_a_long_file_takes_its_samples_and_little_more(tmp_path):
    path = tmp_path / "a.flac"
    with soundfile.SoundFile(path, "w", 48_000, 2) as file:
        for _ in range(30):
            file.write(np.repeat(sine(48_000, 10.0)[:, None], 2, axis=1))
    tracemalloc.start()
    try:
        sound = read(path, RATE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sound.samples.nbytes == 300 * RATE * 4
    assert peak < 1.2 * sound.samples.nbytes + 6e6


# --- folders -----------------------------------------------------------------------------


def test_sound_files(tmp_path):
    for name in ("b.WAV", "a.flac", "c.mp3", "d.txt", ".hidden.wav", "e.ogg", "wav"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.wav").mkdir()
    assert [path.name for path in sound_files(tmp_path)] == ["a.flac", "b.WAV", "c.mp3", "e.ogg"]
    assert "No such file" in str(refusal(lambda: sound_files(tmp_path / "none")))
    assert "Not a directory" in str(refusal(lambda: sound_files(tmp_path / "d.txt")))
