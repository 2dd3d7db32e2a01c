"""The backends, by name."""

from __future__ import annotations

from voxtral_build.backends.base import Backend
from voxtral_build.backends.portable import PortableBackend
from voxtral_build.backends.xnnpack import XnnpackBackend
from voxtral_build.matrix import Backend as BackendName

BACKENDS: dict[BackendName, Backend] = {
    "xnnpack": XnnpackBackend(),
    "portable": PortableBackend(),
}
