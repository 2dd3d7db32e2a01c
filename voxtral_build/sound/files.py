"""Sound files of any kind that libsndfile reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import soundfile

from voxtral_build.errors import BuildError
from voxtral_build.sound.mono import MonoMixer
from voxtral_build.sound.stream import PcmStream
from voxtral_build.sound.wav import MAGIC_BYTES, is_chunk, is_wav, read_header

BLOCK_FRAMES = 1 << 14

# What sound files are called, of the kinds that libsndfile reads.
EXTENSIONS = frozenset(
    [
        *(".aif", ".aifc", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus"),
        *(".rf64", ".snd", ".sph", ".voc", ".w64", ".wav", ".wave"),
    ]
)


@dataclass(frozen=True)
class Sound:
    """A sound as the model takes it.

    Attributes:
        samples: (N,) float32, mono, at the model's rate; full scale is 1.
        notes: what was done: "48000 Hz resampled to 16000 Hz", "2 channels mixed down".
        warnings: what is doubtful: empty, anti-phase, silent, quiet, clipped, beyond full
            scale, cut.
    """

    samples: np.ndarray
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def read(source: Path, rate: int) -> Sound:
    """Read a sound file, by what is in it, whatever it is called.

    Frames pass in blocks: an hour takes little more than its samples at `rate`.

    Args:
        source: a file, or a named pipe with WAV or raw PCM (see `stream`).
        rate: the model's, Hz.

    Returns:
        The sound; one of 0 samples has a warning.

    Raises:
        BuildError: no such file, a folder, no sound, a damaged one, or one with samples
            that are NaN or infinite.
    """
    try:
        if source.is_dir():
            raise BuildError(
                f"{source} is a folder", allowed="a sound file", next_step="name a file in it"
            )
        # Unbuffered: libsndfile takes over the descriptor, where it stands.
        with source.open("rb", buffering=0) as file:
            if source.is_file():
                return _read_file(file, source, rate)
            return _streamed(file, source, rate)
    except OSError as error:
        raise BuildError(
            f"{source} can't be read",
            got=error.strerror,
            allowed="a sound file",
            next_step="check the path",
        ) from None


def sound_files(folder: Path) -> list[Path]:
    """The sound files in a folder by their extensions, sorted; hidden ones are left out.

    Raises:
        BuildError: no such folder.
    """
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise BuildError(
            f"{folder} can't be read as a folder", got=error.strerror, next_step="check the path"
        ) from None
    return [
        path
        for path in found
        if path.suffix.lower() in EXTENSIONS and not path.name.startswith(".") and path.is_file()
    ]


def _read_file(file: FileIO, source: Path, rate: int) -> Sound:
    if os.fstat(file.fileno()).st_size == 0:
        raise BuildError(
            f"{source} is empty", got="0 bytes", allowed=_kinds(), next_step="record it again"
        )
    # libsndfile believes the size in a WAV's header, 0 included.
    if _has_wrong_size(file):
        return _streamed(file, source, rate)
    file.seek(0)
    try:
        # By descriptor: of a name that ends in .raw, soundfile wants to be told the rate,
        # whatever is in the file.
        with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
            mixer = MonoMixer(str(source), sound.samplerate, sound.channels, rate)
            samples = _joined(_mixed(sound, mixer))
            return Sound(samples, mixer.notes, mixer.warnings)
    except soundfile.LibsndfileError as error:
        if _is_wav(file):  # of a header at fault, the stream's reader tells the field
            return _streamed(file, source, rate)
        raise BuildError(
            f"{source} can't be read as sound",
            got=f"libsndfile: {error.error_string}",
            allowed=_kinds(),
            next_step="convert it: ffmpeg -i IN OUT.wav (raw PCM has no header: pipe it in)",
        ) from None


def _is_wav(file: FileIO) -> bool:
    file.seek(0)
    return is_wav(file.read(MAGIC_BYTES))


def _has_wrong_size(file: FileIO) -> bool:
    """Whether this is a WAV whose samples are more or fewer than its header says."""
    file.seek(0)
    try:
        header = read_header(file.read, "")
    except BuildError:  # no WAV, or of an encoding that libsndfile may know
        return False
    if header.data_bytes is None:
        return True
    end = file.tell() + header.data_bytes
    if end > os.fstat(file.fileno()).st_size:
        return True
    file.seek(end + (header.data_bytes & 1))
    after = file.read(4)
    return len(after) > 0 and not is_chunk(after)


def _streamed(file: FileIO, source: Path, rate: int) -> Sound:
    if file.seekable():
        file.seek(0)
    blocks = PcmStream(cast("BinaryIO", file), rate, name=str(source))
    samples = _joined(blocks)
    return Sound(samples, blocks.notes, blocks.warnings)


def _mixed(sound: soundfile.SoundFile, mixer: MonoMixer) -> Iterator[np.ndarray]:
    # Into an array of ours: otherwise soundfile stops at the number of frames in the
    # header, which for an MP3 is an estimate.
    frames = np.empty((BLOCK_FRAMES, sound.channels), np.float32)
    while len(block := sound.read(out=frames)):
        yield mixer.add(block)
    yield mixer.finish()


def _joined(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """One after the other, (N,), never held twice."""
    joined = bytearray()
    for block in blocks:
        joined += block.tobytes()
    return np.frombuffer(joined, np.float32)


def _kinds() -> str:
    return ", ".join(sorted(set(soundfile.available_formats()) - {"RAW"}))
