"""PCM and the header of WAV, for pipes, where libsndfile cannot go back to look again.

Source: Microsoft's Multimedia Programming Interface 1.0 (1991) for RIFF and WAVE,
Multiple Channel Audio Data and WAVE Files (2007) for WAVE_FORMAT_EXTENSIBLE,
EBU Tech 3306 for RF64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from voxtral_build.errors import BuildError

Encoding = Literal["u8", "s16le", "s24le", "s32le", "f32le", "f64le"]

WIDTHS: dict[Encoding, int] = {"u8": 1, "s16le": 2, "s24le": 3, "s32le": 4, "f32le": 4, "f64le": 8}
_PCM: dict[int, Encoding] = {1: "u8", 2: "s16le", 3: "s24le", 4: "s32le"}
_FLOAT: dict[int, Encoding] = {4: "f32le", 8: "f64le"}
_TAGS = {1: _PCM, 3: _FLOAT}
_EXTENSIBLE = 0xFFFE

MAGIC_BYTES = 12
_MAX_FORMAT = 4096  # bytes of a format chunk; they have 16 to 40

# A writer that cannot go back to fill in the size leaves 0 or more than will ever come:
# sox 0x7FFFF000, arecord about 0x7FFFFFFF, ffmpeg 0xFFFFFFFF.
_UNKNOWN_SIZE = 0x7FFFF000


@dataclass(frozen=True)
class RawFormat:
    """PCM without a header, interleaved.

    Args:
        encoding: of a sample, by ffmpeg's name.
        channels: samples in a frame.
        rate: Hz; None is the model's.
    """

    encoding: Encoding = "s16le"
    channels: int = 1
    rate: int | None = None

    def __post_init__(self) -> None:
        if self.encoding not in WIDTHS:
            raise BuildError(
                "raw PCM of an unknown encoding", got=self.encoding, allowed=get_args(Encoding)
            )

    @property
    def frame_bytes(self) -> int:
        return WIDTHS[self.encoding] * self.channels


@dataclass(frozen=True)
class WavHeader:
    """What a header says; `data_bytes` is None where the size is unknown."""

    format: RawFormat
    data_bytes: int | None


def is_wav(magic: bytes) -> bool:
    """Whether the first `MAGIC_BYTES` are those of a WAV file."""
    return magic[:4] in (b"RIFF", b"RF64") and magic[8:12] == b"WAVE"


def is_chunk(start: bytes) -> bool:
    """Whether a chunk starts here, and no samples: its name is four printable characters."""
    return len(start) >= 4 and all(0x20 <= byte < 0x7F for byte in start[:4])


def read_header(take: Callable[[int], bytes], name: str) -> WavHeader:
    """Read up to the first sample.

    Args:
        take: gives the next n bytes, fewer at the end.
        name: of the source, for messages.

    Raises:
        BuildError: no WAV file, one cut short, or one of another encoding than PCM and float.
    """
    found: RawFormat | None = None
    if not is_wav(take(MAGIC_BYTES)):
        raise _damaged(name, "no RIFF or RF64 at its start")
    while True:
        header = take(8)
        if len(header) < 8:
            raise _damaged(name, "it ends before the first sample")
        chunk, size = header[:4], int.from_bytes(header[4:], "little")
        if chunk == b"data":
            if found is None:
                raise _damaged(name, "the samples come before their format")
            return WavHeader(found, size if 0 < size < _UNKNOWN_SIZE else None)
        if chunk == b"fmt ":
            if not 16 <= size <= _MAX_FORMAT:
                raise _damaged(name, f"a format of {size} bytes")
            found = _format(take(size), name)
            size &= 1  # of the padding
        size += size & 1
        while size > 0:
            skipped = len(take(min(size, 1 << 16)))
            size = size - skipped if skipped else 0


def _format(chunk: bytes, name: str) -> RawFormat:
    if len(chunk) < 16:
        raise _damaged(name, "it ends within its format")
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)  # the first field of a GUID
    if channels == 0:
        raise _damaged(name, "0 channels")
    # Fewer bits than the frame has room for are its upper ones, so that the room decides.
    encoding = _TAGS.get(tag, {}).get(frame_bytes // channels)
    if encoding is None:
        raise BuildError(
            f"{name} is a WAV of an encoding that can't be read here",
            got=f"format tag {tag:#06x}, {bits} bits, {frame_bytes} bytes for {channels} channels",
            allowed="PCM of 8 to 32 bits, float of 32 or 64",
            next_step="convert it: ffmpeg -i IN -c:a pcm_s16le OUT.wav",
        )
    return RawFormat(encoding, channels, rate)


def _damaged(name: str, got: str) -> BuildError:
    return BuildError(
        f"{name} has a damaged WAV header",
        got=got,
        allowed="RIFF WAVE with a fmt chunk, then a data chunk",
        next_step="make it again: ffmpeg -i IN OUT.wav",
    )


def decode(data: bytes, encoding: Encoding) -> np.ndarray:
    """Samples as float32, (n,): integers over their full scale, floats as they are.

    Args:
        data: a whole number of samples.
    """
    if encoding == "u8":
        return (np.frombuffer(data, "u1").astype(np.float32) - 128.0) / 128.0
    if encoding == "s16le":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768.0
    if encoding == "s24le":
        upper = np.zeros((len(data) // 3, 4), np.uint8)  # of 32 bits
        upper[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return upper.view("<i4")[:, 0].astype(np.float32) / 2.0**31
    if encoding == "s32le":
        return np.frombuffer(data, "<i4").astype(np.float32) / 2.0**31
    if encoding == "f32le":
        return np.frombuffer(data, "<f4").astype(np.float32)
    with np.errstate(over="ignore"):  # to infinity, which is refused later
        return np.frombuffer(data, "<f8").astype(np.float32)
