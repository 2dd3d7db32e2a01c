"""Sound from a pipe, in blocks as they come: WAV or raw PCM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from voxtral_build.errors import BuildError
from voxtral_build.sound.mono import MonoMixer
from voxtral_build.sound.wav import (
    MAGIC_BYTES,
    RawFormat,
    WavHeader,
    decode,
    is_chunk,
    is_wav,
    read_header,
)

# Bytes asked for at once; a pipe gives what it has, by Linux's default no more than this.
BLOCK_BYTES = 1 << 16

# What would be noise if it were taken for raw PCM. (An MP3 without tags starts with two
# bytes that may be a sample.)
_OTHER_KINDS = {
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
    b"ID3": "MP3",
    b"RIFF": "RIFF, but not WAVE",
    b"RIFX": "big-endian WAV",
    b"FORM": "AIFF",
    b"caff": "CAF",
    b".snd": "AU",
    b"\x1a\x45\xdf\xa3": "Matroska or WebM",
}


def stream(
    file: BinaryIO, rate: int, *, raw: RawFormat | None = None, name: str = "standard input"
) -> PcmStream:
    """Read sound from a pipe. The header, if any, is read at once, the rest on demand.

    Args:
        file: opened in binary; read until its end, or that of the WAV's data.
        rate: the model's, Hz.
        raw: what the bytes are if no WAV header precedes them; by default mono s16le at
            `rate`. Where it is given, anything but WAV is taken for it.
        name: of the source, for messages.

    Raises:
        BuildError: a damaged WAV header, or a kind of sound that a pipe cannot carry.
    """
    return PcmStream(file, rate, raw=raw, name=name)


class PcmStream(Iterator[np.ndarray]):
    """Blocks (n,) float32, n > 0, mono, at the model's rate; of constant memory.

    See `stream` for the arguments. The next block raises `BuildError` where a sample is
    NaN or infinite, or the source fails.

    Attributes:
        notes: what is done to the sound, from the start.
        warnings: what is doubtful about it, after the last block.
    """

    def __init__(
        self, file: BinaryIO, rate: int, *, raw: RawFormat | None = None, name: str
    ) -> None:
        self._source = _Source(file, name)
        magic = self._source.peek(MAGIC_BYTES)
        if is_wav(magic):
            self._header = read_header(self._source.take, name)
        else:
            if raw is None:
                _refuse_other_kinds(magic, name)
            self._header = WavHeader(raw or RawFormat(), None)
        found = self._header.format
        source_rate = rate if found.rate is None else found.rate
        self._mixer = MonoMixer(name, source_rate, found.channels, rate)
        self.notes: tuple[str, ...] = self._mixer.notes
        self.warnings: tuple[str, ...] = ()
        self._blocks = self._read_blocks()

    def __next__(self) -> np.ndarray:
        return next(self._blocks)

    def _read_blocks(self) -> Iterator[np.ndarray]:
        found, begun = self._header.format, b""
        for data in self._data():
            data = begun + data
            whole = len(data) - len(data) % found.frame_bytes
            begun = data[whole:]
            samples = decode(data[:whole], found.encoding)
            block = self._mixer.add(samples.reshape(-1, found.channels))
            if len(block):
                yield block
        rest = self._mixer.finish()
        if begun:
            self.warnings += (f"cut: the last {len(begun)} bytes are no whole frame",)
        self.warnings += self._mixer.warnings
        if len(rest):
            yield rest

    def _data(self) -> Iterator[bytes]:
        """The bytes of the samples, to the end that the header or the source has."""
        left = self._header.data_bytes
        if left is not None:
            padding = left & 1
            while left and (data := self._source.some(min(left, BLOCK_BYTES))):
                left -= len(data)
                yield data
            if left:
                promised = self._header.data_bytes
                self.warnings += (f"cut: {left} of the {promised} bytes in the header are missing",)
                return
            after = self._source.peek(padding + 4)
            if is_chunk(after[padding:]):
                if after[padding:] == b"RIFF":
                    self.warnings += ("a second WAV follows the first: it is left out",)
                return
            if len(after) > padding:
                self.warnings += ("the size in the header is wrong: all that follows is taken",)
        while data := self._source.some(BLOCK_BYTES):
            yield data


class _Source:
    """A pipe that can be looked into before it is read."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        # What is there, not as much as was asked for: a live source must not wait.
        self._read_some = getattr(file, "read1", file.read)
        self._name = name
        self._ahead = b""

    def peek(self, count: int) -> bytes:
        """The next bytes, which stay; fewer than `count` at the end."""
        while len(self._ahead) < count:
            data = self._read(count - len(self._ahead))
            if not data:
                break
            self._ahead += data
        return self._ahead[:count]

    def take(self, count: int) -> bytes:
        """The next `count` bytes; fewer at the end."""
        data = self.peek(count)
        self._ahead = self._ahead[count:]
        return data

    def some(self, limit: int) -> bytes:
        """At least one byte and at most `limit`, as soon as there are any; none at the end."""
        if self._ahead:
            return self.take(min(limit, len(self._ahead)))
        return self._read(limit)

    def _read(self, limit: int) -> bytes:
        try:
            return bytes(self._read_some(limit))
        except OSError as error:
            raise BuildError(f"{self._name} can't be read", got=error.strerror) from None


def _refuse_other_kinds(magic: bytes, name: str) -> None:
    kinds = [kind for start, kind in _OTHER_KINDS.items() if magic.startswith(start)]
    if magic[4:8] == b"ftyp":
        kinds.append("MP4 or M4A")
    if kinds:
        raise BuildError(
            f"{name} is a kind of sound that can't be read from a pipe",
            got=kinds[0],
            allowed="WAV, or raw PCM",
            next_step="give the file's name, or pipe it through: ffmpeg -i IN -f wav -",
        )
