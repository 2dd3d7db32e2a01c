"""One pass over a weights file: its hash, and that every value of it is finite.

The file is read once, front to back, in blocks: one thread reads and scans, another
hashes. Values are scanned as integers, without making floats of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxtral_build.errors import CheckpointError
from voxtral_build.progress import Tenths
from voxtral_build.tensor_file import TensorFile, TensorInfo

log = logging.getLogger(__name__)

_BLOCK = 16 * 2**20  # bytes; a multiple of every item's size
_BUFFERS = 4  # blocks in memory, so that neither thread waits for the other's every block
_SLICE = 2**18  # values compared at a time: what they become stays in the processor's cache


@dataclass(frozen=True)
class _Bits:
    """How a dtype lies in an integer: all bits but the sign, and the bits of infinity.

    Without its sign, what is infinity or more is no finite value: NaN has infinity's
    exponent, and a fraction besides.
    """

    integer: str
    magnitude: int
    infinity: int


_BITS = {
    "BF16": _Bits("<u2", 0x7FFF, 0x7F80),
    "F16": _Bits("<u2", 0x7FFF, 0x7C00),
    "F32": _Bits("<u4", 0x7FFF_FFFF, 0x7F80_0000),
}


def read_through(file: TensorFile) -> str:
    """Read the whole file and refuse what is not finite.

    Args:
        file: as `read_header` gives it, of BF16, F16 and F32 tensors.

    Returns:
        The file's sha256.

    Raises:
        CheckpointError: names the first tensor with NaN or infinity, where, and how many.
    """
    tensors = file.in_file_order()
    header_bytes = min((info.begin for _, info in tensors), default=file.path.stat().st_size)
    with (
        file.path.open("rb", buffering=0) as stream,
        ThreadPoolExecutor(max_workers=1) as executor,
    ):
        reader = _HashingReader(file.path, stream, executor)
        total = max((info.end for _, info in tensors), default=header_bytes)
        progress = Tenths(log, f"{file.path.name}: read", total, "MB")
        for block in reader.blocks(header_bytes):
            progress.add(len(block))
        for key, info in tensors:
            scan = _Scan(_BITS[info.dtype])
            for block in reader.blocks(info.nbytes):
                scan.add(block)
                progress.add(len(block))
            if scan.count:
                raise _not_finite(file.path, key, info, scan)
        return reader.sha256()


class _HashingReader:
    """Reads a file in blocks, which another thread hashes."""

    def __init__(self, path: Path, stream: FileIO, executor: ThreadPoolExecutor) -> None:
        self._path = path
        self._stream = stream
        self._executor = executor
        self._digest = hashlib.sha256()
        self._buffers: deque[tuple[memoryview, Future[None] | None]] = deque(
            (memoryview(bytearray(_BLOCK)), None) for _ in range(_BUFFERS)
        )

    def blocks(self, length: int) -> Iterator[memoryview]:
        """The next `length` bytes; a block is good until the next one is taken."""
        while length:
            buffer, hashed = self._buffers.popleft()
            if hashed is not None:
                hashed.result()
            block = buffer[: min(length, _BLOCK)]
            self._fill(block)
            self._buffers.append((buffer, self._executor.submit(self._digest.update, block)))
            yield block
            length -= len(block)

    def _fill(self, block: memoryview) -> None:
        filled = 0
        while filled < len(block):
            count = self._stream.readinto(block[filled:])
            if not count:
                raise CheckpointError(
                    f"{self._path} became shorter while it was read",
                    next_step="see that nothing writes to it, and run again",
                )
            filled += count

    def sha256(self) -> str:
        # The executor has one thread: what was submitted before is done before.
        return self._executor.submit(self._digest.hexdigest).result()


class _Scan:
    """Counts what is not finite in one tensor, and keeps the first."""

    def __init__(self, bits: _Bits) -> None:
        self._bits = bits
        self._magnitudes = np.empty(_SLICE, dtype=bits.integer)
        self._seen = 0
        self.count = 0
        self.first = -1  # index among the tensor's values, as they lie in the file
        self.first_is_nan = False

    def add(self, block: memoryview) -> None:
        values = np.frombuffer(block, dtype=self._bits.integer)
        for begin in range(0, len(values), _SLICE):
            self._add(values[begin : begin + _SLICE])

    def _add(self, values: npt.NDArray[np.unsignedinteger]) -> None:
        magnitudes = self._magnitudes[: len(values)]
        np.bitwise_and(values, self._bits.magnitude, out=magnitudes)
        if magnitudes.max() >= self._bits.infinity:
            found = np.flatnonzero(magnitudes >= self._bits.infinity)
            if not self.count:
                self.first = self._seen + int(found[0])
                self.first_is_nan = bool(magnitudes[found[0]] > self._bits.infinity)
            self.count += len(found)
        self._seen += len(values)


def _not_finite(path: Path, key: str, info: TensorInfo, scan: _Scan) -> CheckpointError:
    index = [int(i) for i in np.unravel_index(scan.first, info.shape)]
    return CheckpointError(
        f"{path}: tensor {key} has values that are not finite",
        got=f"{'NaN' if scan.first_is_nan else 'infinity'} at {index}, the first of "
        f"{scan.count:,} in {list(info.shape)} {info.dtype}",
        allowed="finite values",
        next_step="compare the file's sha256 with the repository's: if it is the same, the "
        "checkpoint was published so",
    )
