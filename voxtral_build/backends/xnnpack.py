"""XNNPACK: CPU kernels for Arm and x86; attention and caches by ExecuTorch's LLM ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.export import ExportedProgram


class XnnpackBackend:
    """Every linear and most arithmetic go to the delegate."""

    delegates_linears = True

    def prepare(self, program: ExportedProgram) -> None:
        from voxtral_build.backends.weight_only import rewrite_weight_only_linears

        rewrite_weight_only_linears(program)

    def partitioners(self) -> Sequence[Any]:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackDynamicallyQuantizedPartitioner,
            XnnpackPartitioner,
        )

        from voxtral_build.backends.weight_only import partitioner_configs

        # The dynamic one first: it takes quantize - linear patterns whole, which the
        # general one would cut apart.
        configs = partitioner_configs()
        return (
            XnnpackDynamicallyQuantizedPartitioner(configs=configs),
            XnnpackPartitioner(configs=configs),
        )
