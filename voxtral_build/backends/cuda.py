"""CUDA: NVIDIA GPUs, by kernels that AOTInductor generates with Triton."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxtral_build.backends.base import Backend
from voxtral_build.backends.capability import Capability

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_DRIVER = Path("/proc/driver/nvidia/version")
_TOOLKIT = Path("/usr/local/cuda")
_ACTIVATIONS = (
    "ExecuTorch's CUDA backend has no kernel that multiplies int8 activations: weights would be "
    "dequantized for each product, and activations quantized for nothing"
)


class CudaBackend(Backend):
    """The whole graph is one delegate; its weights are in a file of their own."""

    name = "cuda"
    description = "NVIDIA GPUs, by AOTInductor's Triton kernels"
    capability: ClassVar = Capability(
        dtypes=("bf16",),
        linear={"none": "any", "4w": "any", "8w": "any"},
        embedding={"none": "any", "4w": "any", "8w": "any"},
        attention="standard",
        host="Linux with an NVIDIA GPU and PyTorch's CUDA build",
        packing={"tile_packed_to_4d": (32, 64, 128, 256)},
        reasons={
            "fp32": "ExecuTorch's Triton attention kernel takes bf16 only",
            **dict.fromkeys(("8da4w", "8da8w"), _ACTIVATIONS),
            "tile_packed_to_4d groups": "the int4 kernel is made for these group sizes",
        },
    )
    delegated = "everything"
    delegate = "CudaBackend"
    data_file = True

    def missing(self) -> str | None:
        if platform.system() != "Linux":
            return f"Linux; this is {platform.system()}"
        if not _DRIVER.exists():
            return "an NVIDIA GPU: its driver is not loaded"
        torch = find_spec("torch")
        if torch is None or torch.origin is None:
            return "torch"
        if not _has_cuda(Path(torch.origin).with_name("version.py")):
            return (
                "PyTorch's CUDA build; this is another: "
                "pip install --force-reinstall torch, without the index of CPU builds"
            )
        if find_spec("triton") is None:
            return "Triton, which comes with PyTorch's CUDA build"
        if not (os.environ.get("CUDA_HOME") or shutil.which("nvcc") or _TOOLKIT.exists()):
            return "the CUDA toolkit: no nvcc, and CUDA_HOME is not set"
        if shutil.which("g++") is None:
            return "g++, with which AOTInductor compiles"
        return None

    def prepare(self, program: ExportedProgram) -> None:
        from voxtral_build.backends.cuda_graph import widen_convolutions

        widen_convolutions(program)

    def pack(self, program: ExportedProgram, packing_format: str) -> None:
        from voxtral_build.backends.cuda_graph import pack_linears

        pack_linears(program)

    def partitioners(self, method: str) -> Sequence[Any]:
        from executorch.backends.cuda.cuda_backend import CudaBackend as Cuda
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

        from voxtral_build.backends.cuda_graph import name_scalars_apart

        name_scalars_apart()
        return (CudaPartitioner([Cuda.generate_method_name_compile_spec(method)]),)


def _has_cuda(version: Path) -> bool:
    """Whether a PyTorch is a CUDA build, by its version.py: importing it takes seconds."""
    text = version.read_text(encoding="utf-8")
    return re.search(r"""^cuda\b.*=\s*['"]""", text, re.MULTILINE) is not None
