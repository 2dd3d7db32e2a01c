"""The backends, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from voxtral_build.backends.base import Backend
from voxtral_build.backends.cuda import CudaBackend
from voxtral_build.backends.metal import MetalBackend
from voxtral_build.backends.mlx import MlxBackend
from voxtral_build.backends.portable import PortableBackend
from voxtral_build.backends.vulkan import VulkanBackend
from voxtral_build.backends.xnnpack import XnnpackBackend
from voxtral_build.errors import BuildError

if TYPE_CHECKING:
    from voxtral_build.model.attention import AttentionFamily

# Runs wherever ExecuTorch does: preprocessors, which are no part of the matrix, are for it.
KERNELS_ONLY = PortableBackend()

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        XnnpackBackend(),
        KERNELS_ONLY,
        MlxBackend(),
        VulkanBackend(),
        MetalBackend(),
        CudaBackend(),
    )
}


def require_host(name: str) -> None:
    """Refuse to lower for a backend where that cannot work.

    Raises:
        BuildError: says what this machine lacks, and which would do.
    """
    backend = BACKENDS[name]
    missing = backend.missing()
    if missing is not None:
        raise BuildError(
            f"{name} cannot be lowered on this host",
            got=f"a host that lacks {missing}",
            allowed=backend.capability.host,
            next_step=f"run `snakemake {name}` there; what comes before is made on any host by "
            "`snakemake graphs`",
        )


def attention_families() -> tuple[str, ...]:
    """Names of the families that graphs are exported with."""
    return tuple(dict.fromkeys(backend.capability.attention for backend in BACKENDS.values()))


def attention_family(name: str) -> AttentionFamily:
    """The family of that name."""
    return next(b.family() for b in BACKENDS.values() if b.capability.attention == name)
