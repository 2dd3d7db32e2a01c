"""Vulkan: the GPUs of Android phones, and others; lowered anywhere, run where a GPU is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxtral_build.backends.base import Backend
from voxtral_build.backends.capability import Capability
from voxtral_build.gates import Outcome

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_INT4_ONLY = (
    "Vulkan's kernels in ExecuTorch 1.5.1 for such linears read int4 weights alone; with int8 it "
    "lowers without an error, and makes float32 of the whole weight in every call"
)


class VulkanBackend(Backend):
    """Encoder and decoder are a delegate each, caches included.

    What positions alone decide stays on the CPU.
    """

    name = "vulkan"
    description = "GPUs by Vulkan, Android's above all"
    capability: ClassVar = Capability(
        dtypes=("fp32",),
        linear={"none": "any", "4w": "any", "8da4w": "any"},
        embedding={"none": "any", "4w": "any", "8w": "any"},
        attention="standard",
        reasons={
            "bf16": "Vulkan knows float32 and float16: no op with a bf16 tensor is delegated",
            "8w": _INT4_ONLY,
            "8da8w": _INT4_ONLY,
        },
    )
    delegated = "linears"
    delegate = "VulkanBackend"

    def prepare(self, program: ExportedProgram) -> None:
        from voxtral_build.backends.vulkan_rewrites import rewrite

        rewrite(program)

    def partitioners(self, method: str) -> Sequence[Any]:
        import torchao  # noqa: F401  # defines dequantize_affine

        level = logging.getLogger().level
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
        from executorch.backends.vulkan.serialization.vulkan_graph_schema import VkStorageType
        from executorch.exir.dialects._ops import ops

        # Importing it, all of a process's loggers were told to say more.
        logging.getLogger().setLevel(level)
        options: dict[str, Any] = {
            # In buffers a tensor has one form wherever it is read or written; images have
            # several, and limits on their sides.
            "storage_type_override": VkStorageType.BUFFER,
            # Leaves out what can't follow a size that varies: in those, garbage would come back.
            "require_dynamic_shapes": True,
            # State is written where the next call reads it. Otherwise it goes to a tensor of
            # its own, and the model has no memory.
            "alias_buffer_mutations": True,
        }
        # Quantized to int4, an embedding is taken all the same; in int8 there is no kernel, and
        # the real one's 1.6 GB in float32 are beyond what the backend puts in a buffer.
        embedding = [ops.edge.aten.embedding.default] if method == "token_embedding" else []
        return (
            VulkanPartitioner(
                options,
                # Taken apart from its linear it would make a float weight, in every call.
                operator_blocklist=[ops.edge.torchao.dequantize_affine.default, *embedding],
                # Vulkan promises sines of 11 bits, and between -pi and pi only.
                nn_module_blocklist=["RotaryEmbedding"],
            ),
        )

    def inspect(self, method: str, model: Path, program: ExportedProgram) -> list[Outcome]:
        from voxtral_build.backends.vulkan_readback import inspect

        return inspect(method, model, program)
