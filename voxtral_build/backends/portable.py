"""Portable: no delegate; every op runs on the kernels linked into the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voxtral_build.model.attention import CUSTOM_SDPA


class PortableBackend:
    """Takes nothing away from the kernels."""

    family = CUSTOM_SDPA
    delegates_linears = False

    def partitioners(self) -> Sequence[Any]:
        return ()
