"""Safetensors files, read by their header and written one tensor at a time.

The safetensors package reads lazily, but writes only from a dict of everything; weights
of 9 GB are written here as they are made. Format: https://github.com/huggingface/safetensors
(8 bytes little-endian header length, JSON header, data; offsets count from the data).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeGuard

from voxtral_build import strict_json
from voxtral_build.errors import CheckpointError
from voxtral_build.files import whole_file

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}  # F4 and F6 take parts of a byte: no checkpoint of this model has them
_MAX_HEADER_BYTES = 100_000_000  # the safetensors package's own limit
_NEXT_STEP = "download the file again and compare its sha256 with the repository's"


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

    def in_file_order(self) -> list[tuple[str, TensorInfo]]:
        """Key and tensor, by where they lie in the file."""
        return sorted(self.tensors.items(), key=lambda item: (item[1].begin, item[1].end))


def read_header(path: Path) -> TensorFile:
    """Read and check the header of a safetensors file; no tensor is read.

    The header is refused for whatever the safetensors package refuses, and for a key that
    appears twice, of which that package takes the last.

    Raises:
        CheckpointError: names the file, and the tensor where it is one's fault.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            text = start.decode("latin-1")
            shown = f' (the text "{text}")' if text.isascii() and text.isprintable() else ""
            raise CheckpointError(
                f"{path} is not a safetensors file, or was cut in its header",
                got=f"header length {length:,}{shown} in a file of {size:,} bytes",
                allowed=f"at most {max(min(size - 8, _MAX_HEADER_BYTES), 0):,}",
                next_step=_NEXT_STEP,
            )
        data = file.read(length)
    try:
        header = strict_json.parse(data)
    except ValueError as error:
        raise _bad_header(path, str(error)) from None
    if not isinstance(header, dict):
        raise _bad_header(path, f"a {type(header).__name__}, not an object of tensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad_header(path, f"__metadata__ {_short(metadata)}, not an object of strings")
    tensors = {key: _tensor(path, key, entry, 8 + length) for key, entry in header.items()}
    result = TensorFile(path, tensors, metadata)
    _check_layout(result, 8 + length, size)
    return result


def _bad_header(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: its header is not one of safetensors",
        got=_short(got),
        allowed="a JSON object that names each tensor once",
        next_step=_NEXT_STEP,
    )


def _tensor(path: Path, key: str, entry: object, data_begin: int) -> TensorInfo:
    """One entry of the header, checked by itself."""

    def wrong(what: str, got: object, allowed: str) -> CheckpointError:
        return CheckpointError(
            f"{path}: tensor {_short(key)}: {what}",
            got=_short(got),
            allowed=allowed,
            next_step=_NEXT_STEP,
        )

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise wrong("not a tensor", entry, "dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise wrong("unknown dtype", dtype, ", ".join(ITEM_BYTES))
    if not _are_counts(shape):
        raise wrong("wrong shape", shape, "a list of whole numbers from 0")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong("wrong data_offsets", offsets, "[begin, end], whole numbers from 0")
    nbytes = _nbytes(dtype, shape)
    if offsets[1] - offsets[0] != nbytes:
        got = f"data_offsets {offsets}: {offsets[1] - offsets[0]:,} bytes"
        needed = f"{nbytes:,} bytes" if nbytes < 2**64 else "more bytes than a file can have"
        raise wrong("shape and data_offsets differ", got, f"{needed}: {dtype} {_short(shape)}")
    return TensorInfo(dtype, tuple(shape), *(data_begin + offset for offset in offsets))


def _are_counts(values: object) -> TypeGuard[list[int]]:
    # type() and not isinstance(): true is an int of Python's. The bound is the format's.
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**64 for value in values
    )


def _nbytes(dtype: str, shape: list[int]) -> int:
    nbytes = ITEM_BYTES[dtype]
    for dim in shape:
        nbytes *= dim
        if nbytes >= 2**64:
            break  # no file is that long, and a product of a million dims takes minutes
    return nbytes


def _check_layout(file: TensorFile, begin: int, size: int) -> None:
    """Tensors must fill the file from `begin` to its end, one after the other."""
    last, end = "the header", begin
    ordered = file.in_file_order()
    outside = [key for key, info in ordered if info.end > size]
    for key, info in ordered:
        if info.begin != end:
            if outside:
                key, what = outside[0], "lies outside the file"
                info = file.tensors[key]
            elif info.begin < end:
                what = f"overlaps {last}"
            else:
                what = f"leaves a gap after {last}"
            raise CheckpointError(
                f"{file.path}: tensor {key} {what}",
                got=f"bytes {info.begin:,} to {info.end:,} of {size:,}",
                allowed=f"tensors one after the other; {last} ends at {end:,}",
                next_step=_NEXT_STEP,
            )
        last, end = key, info.end
    if size != end:
        what = f"cut short in tensor {outside[0]}" if outside else "longer than its header says"
        raise CheckpointError(
            f"{file.path} is {what}",
            got=f"{size:,} bytes",
            allowed=f"{end:,} bytes, where {last} ends",
            next_step=_NEXT_STEP,
        )


def _short(value: object, limit: int = 100) -> str:
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


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
