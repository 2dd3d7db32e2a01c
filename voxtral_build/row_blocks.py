"""A tensor's rows in blocks that fit the cache, on all cores, in order.

Choosing scales goes over a weight several times: over a whole matrix of 3072 x 9216
every round is a trip to memory, over a block of 2 MB it is not. Rows are independent, so
blocks are read, worked on and written without the tensor ever being in memory whole.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

import torch
from torch import Tensor

from voxtral_build.tensor_file import TensorInfo

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

BLOCK_VALUES = 2**19  # 2 MB as float32
_TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of rows (begin, end) that together are a tensor of `shape`."""
    rows, width = shape[0], math.prod(shape[1:])
    step = max(1, BLOCK_VALUES // width)
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)


def read_rows(file: int, info: TensorInfo, rows: tuple[int, int]) -> Tensor:
    """Rows of a tensor as they are stored.

    Read and not mapped: mapped pages would count as this process's memory until the
    kernel wants them back.

    Args:
        file: descriptor of the safetensors file.
        info: the tensor's dtype (BF16, F16 or F32), shape and place in it.
        rows: begin and end.
    """
    begin, end = rows
    row_bytes = info.nbytes // info.shape[0]
    buffer = bytearray((end - begin) * row_bytes)
    view, offset = memoryview(buffer), info.begin + begin * row_bytes
    while view:
        count = os.preadv(file, [view], offset)
        if count == 0:
            raise EOFError(f"the file ends before byte {offset + len(view)}")
        view, offset = view[count:], offset + count
    return torch.frombuffer(buffer, dtype=_TORCH_DTYPES[info.dtype]).view(
        end - begin, *info.shape[1:]
    )


class Pool:
    """Threads that work on blocks, with torch's own threads switched off; a context manager."""

    def __init__(self, threads: int):
        self._threads = threads
        self._executor = ThreadPoolExecutor(
            threads, initializer=torch.set_num_threads, initargs=(1,)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[_Result]:
        """Results in the order of `items`; only some more than threads are there at a time."""
        running: deque[Future[_Result]] = deque()
        for item in items:
            running.append(self._executor.submit(function, item))
            if len(running) > 2 * self._threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
