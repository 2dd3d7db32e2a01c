"""Metal: Apple GPUs, by kernels that AOTInductor generates."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxtral_build.backends.base import Backend
from voxtral_build.backends.capability import Capability

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_INT8 = "ExecuTorch's Metal backend has no kernel that reads int8 weights"
_KERNELS = "libtorchao_ops_mps_aten.dylib"


class MetalBackend(Backend):
    """The whole graph is one delegate, with its weights."""

    name = "metal"
    description = "Apple GPUs, by AOTInductor's Metal kernels"
    capability: ClassVar = Capability(
        dtypes=("fp32", "bf16"),
        linear={"none": "any", "fpa4w": (32, 64, 128, 256)},
        embedding={"none": "any"},
        attention="mps_math",
        host="macOS on Apple silicon",
        reasons={
            "4w": "ExecuTorch's Metal kernel reads int4 weights with zero points: fpa4w",
            **dict.fromkeys(("8w", "8da4w", "8da8w"), _INT8),
            "fpa4w groups": "the Metal kernel is made for these group sizes",
        },
    )
    delegated = "everything"
    delegate = "MetalBackend"

    def missing(self) -> str | None:
        system, machine = platform.system(), platform.machine()
        if (system, machine) != ("Darwin", "arm64"):
            return f"macOS on Apple silicon; this is {system} {machine}"
        if shutil.which("xcrun") is None:
            return "Apple's command line tools: xcode-select --install"
        torchao = find_spec("torchao")
        if torchao is None or torchao.origin is None:
            return "torchao"
        if not (Path(torchao.origin).parent / _KERNELS).exists():
            return (
                f"torchao's {_KERNELS}, which its published packages lack: build it from source "
                "with USE_CPP=1 TORCHAO_BUILD_EXPERIMENTAL_MPS=1 pip install --no-build-isolation"
            )
        return None

    def prepare(self, program: ExportedProgram) -> None:
        from voxtral_build.backends.metal_graph import check_heads, prepare_linears

        check_heads(program)
        prepare_linears(program)

    def partitioners(self, method: str) -> Sequence[Any]:
        from executorch.backends.apple.metal.metal_backend import MetalBackend as Metal
        from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner

        return (MetalPartitioner([Metal.generate_method_name_compile_spec(method)]),)
