"""Portable: no delegate; every op runs on the kernels linked into the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from voxtral_build.backends.base import Backend
from voxtral_build.backends.capability import Capability

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class PortableBackend(Backend):
    """Takes nothing away from the kernels."""

    name = "portable"
    description = "any CPU, by ExecuTorch's kernels alone: the least to port, and the slowest"
    capability: ClassVar = Capability(
        dtypes=("fp32", "bf16"),
        linear=dict.fromkeys(("none", "4w", "8w", "8da4w", "8da8w"), "any"),
        embedding={"none": "any", "4w": "any", "8w": "any"},
        attention="custom_sdpa",
    )
    delegated = "nothing"
    delegate = None

    def prepare(self, program: ExportedProgram) -> None:
        from voxtral_build.backends.bf16 import add_up_in_float32
        from voxtral_build.backends.packed_linears import rewrite_quantized_linears

        rewrite_quantized_linears(program)
        add_up_in_float32(program)

    def partitioners(self, method: str) -> Sequence[Any]:
        return ()
