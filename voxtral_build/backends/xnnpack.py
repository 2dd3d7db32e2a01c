"""XNNPACK: CPU kernels for Arm and x86; attention and caches by ExecuTorch's LLM ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class XnnpackBackend:
    """Every linear and most arithmetic go to the delegate."""

    delegates_linears = True

    def partitioners(self) -> Sequence[Any]:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackDynamicallyQuantizedPartitioner,
            XnnpackPartitioner,
        )

        # The dynamic one first: it takes quantize - linear patterns whole, which the
        # general one would cut apart.
        return (XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner())
