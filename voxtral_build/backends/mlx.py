"""MLX: Apple's GPUs. A method is one delegate, lowered on any host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxtral_build.backends.base import Backend
from voxtral_build.backends.capability import Capability
from voxtral_build.gates import Outcome

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_DYNAMIC = (
    "MLX has no kernels that quantize activations as they run: the ops that do it stay outside "
    "of the delegate, where nothing computes them"
)


class MlxBackend(Backend):
    """Takes every op, with caches and all, into one delegate for each method."""

    name = "mlx"
    description = "Apple's GPUs, by MLX"
    capability: ClassVar = Capability(
        dtypes=("fp32", "bf16"),
        # MLX's own groups are of 32, 64 and 128. A larger one, a whole row too, becomes
        # several with the same scale: the values are the same.
        linear={"none": "any", "4w": "any", "8w": "any"},
        embedding={"none": "any", "4w": "any", "8w": "any"},
        attention="standard",
        reasons=dict.fromkeys(("8da4w", "8da8w"), _DYNAMIC),
    )
    delegated = "everything"
    delegate = "MLXBackend"

    def missing(self) -> str | None:
        from voxtral_build.backends import mlx_serialization

        return mlx_serialization.missing()

    def prepare(self, program: ExportedProgram) -> None:
        from voxtral_build.backends.mlx_embedding import scale_in_float32

        scale_in_float32(program)

    def partitioners(self, method: str) -> Sequence[Any]:
        from voxtral_build.backends import mlx_serialization

        mlx_serialization.install()
        from executorch.backends.mlx import MLXPartitioner

        return (MLXPartitioner(),)

    def inspect(self, method: str, model: Path, program: ExportedProgram) -> list[Outcome]:
        from voxtral_build.backends.mlx_readback import inspect

        return inspect(method, model, program)
