"""Portable: no delegate; every op runs on the kernels linked into the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PortableBackend:
    """Takes nothing away from the kernels."""

    delegates_linears = False

    def partitioners(self) -> Sequence[Any]:
        return ()
