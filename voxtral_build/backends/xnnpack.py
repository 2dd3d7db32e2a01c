"""XNNPACK: CPU kernels for Arm and x86; attention and caches by ExecuTorch's LLM ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from voxtral_build.backends.base import Backend
from voxtral_build.backends.capability import Capability

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_EIGHT_BIT_GROUPS = "XNNPACK has 8-bit kernels with one scale per row only"


class XnnpackBackend(Backend):
    """Every linear and most arithmetic go to the delegate."""

    name = "xnnpack"
    description = "CPUs, Arm and x86, by XNNPACK"
    capability: ClassVar = Capability(
        dtypes=("fp32",),
        linear={"none": "any", "4w": "axis", "8w": "axis", "8da4w": "any", "8da8w": "axis"},
        embedding={"none": "any", "4w": "any", "8w": "any"},
        attention="custom_sdpa",
        reasons={
            "bf16": "unasked, XNNPACK's partitioner delegates nothing in bf16, without an error; "
            "asked (enable_bf16), it writes a program that no runtime loads",
            "4w groups": "XNNPACK multiplies float activations with int4 weights of one scale "
            "per row only; with groups it takes int4 weights for int8 activations (8da4w)",
            "8w groups": _EIGHT_BIT_GROUPS,
            "8da8w groups": _EIGHT_BIT_GROUPS,
        },
    )
    delegated = "linears"
    delegate = "XnnpackBackend"

    def prepare(self, program: ExportedProgram) -> None:
        from voxtral_build.backends.weight_only import rewrite_weight_only_linears

        rewrite_weight_only_linears(program)

    def partitioners(self, method: str) -> Sequence[Any]:
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
