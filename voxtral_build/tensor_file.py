"""Safetensors files, read by their header and written one tensor at a time.

The safetensors package reads lazily, but writes only from a dict of everything; weights
of 9 GB are written here as they are made. Format: https://github.com/huggingface/safetensors
(8 bytes little-endian header length, JSON header, data; offsets count from the data).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from voxtral_build.errors import CheckpointError
from voxtral_build.files import whole_file

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
_MAX_HEADER_BYTES = 100_000_000  # the safetensors package's own limit
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file.

    Attributes:
        dtype: safetensors' name (BF16, F32, I8, ...).
        shape: as stored.
        begin, end: byte range in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class TensorFile:
    """What a safetensors header says."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def read_header(path: Path) -> TensorFile:
    """Read and check the header of a safetensors file; no tensor is read.

    Raises:
        CheckpointError: missing, a Git-LFS pointer, no safetensors, or cut short.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist",
            allowed="a safetensors file",
            next_step="point at a folder with params.json, consolidated.safetensors "
            "and tekken.json",
        )
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
        if start == _LFS_POINTER:
            raise CheckpointError(
                f"{path} is a Git-LFS pointer, not the weights",
                got=f"{size} bytes of text",
                next_step="run `git lfs pull`, or download the file itself",
            )
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise _not_safetensors(path, f"{size} bytes, header length {length}")
        try:
            header = json.loads(file.read(length))
            metadata = header.pop("__metadata__", {})
            tensors = {
                key: TensorInfo(
                    entry["dtype"],
                    tuple(entry["shape"]),
                    *(8 + length + offset for offset in entry["data_offsets"]),
                )
                for key, entry in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _not_safetensors(path, f"{type(error).__name__}: {error}") from None
    end = max((info.end for info in tensors.values()), default=8 + length)
    if size != end:
        raise CheckpointError(
            f"{path} is {'cut short' if size < end else 'longer than its header says'}",
            got=f"{size:,} bytes",
            allowed=f"{end:,} bytes, as its header says",
            next_step="download the file again and check its sha256",
        )
    return TensorFile(path, tensors, metadata)


def _not_safetensors(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a safetensors file",
        got=got,
        allowed="a file in safetensors format",
        next_step="download the file again and check its sha256",
    )


class TensorWriter:
    """Writes the tensors that were announced, in that order, hashing as it goes."""

    def __init__(self, file: BinaryIO, announced: Mapping[str, tuple[str, tuple[int, ...]]]):
        self._file = file
        self._sizes = iter(
            [
                (name, ITEM_BYTES[dtype] * math.prod(shape))
                for name, (dtype, shape) in announced.items()
            ]
        )
        self._hash = hashlib.sha256()

    def add(self, name: str, blocks: Iterable[bytes]) -> None:
        """Append the bytes of the next tensor.

        Raises:
            ValueError: not the tensor that was announced next, or not its size.
        """
        expected, size = next(self._sizes, ("nothing more", 0))
        if name != expected:
            raise ValueError(f"got tensor {name}, announced was {expected}")
        written = 0
        for block in blocks:
            self._write(block)
            written += len(block)
        if written != size:
            raise ValueError(f"tensor {name}: {written} bytes written, {size} announced")

    def _write(self, block: bytes) -> None:
        self._file.write(block)
        self._hash.update(block)

    def sha256(self) -> str:
        """Hash of all that was written so far."""
        return self._hash.hexdigest()

    def finish(self) -> None:
        left = next(self._sizes, None)
        if left is not None:
            raise ValueError(f"tensor {left[0]} was announced and never written")


@contextmanager
def write_tensors(
    path: Path,
    announced: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, str],
) -> Iterator[TensorWriter]:
    """Write a safetensors file whole or not at all.

    Args:
        path: the file.
        announced: name -> (safetensors dtype, shape), in the order they will be added.
        metadata: strings for the header's `__metadata__`.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, shape) in announced.items():
        size = ITEM_BYTES[dtype] * math.prod(shape)
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts aligned
    with whole_file(path) as temporary, temporary.open("wb") as file:
        writer = TensorWriter(file, announced)
        writer._write(len(text).to_bytes(8, "little") + text)
        yield writer
        writer.finish()
