"""Variants, and the units, graphs and weights that they are made of; and their names."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import get_args

from voxtral_build.axes import (
    COMPONENT_OF,
    METHODS_OF,
    SHARED_METHODS,
    Component,
    Dtype,
    Method,
    Mode,
    UnitMode,
)
from voxtral_build.errors import ConfigError
from voxtral_build.gates import AXES
from voxtral_build.quant import Quant, Scheme

# Of a backend or a scheme: part of the name of a folder, whoever gave it.
NAME = r"[a-z0-9][a-z0-9_]*"


@dataclass(frozen=True)
class _Named:
    """Something whose fields, in their order, make its name."""

    @property
    def slug(self) -> str:
        """Its name in paths and on the command line: the fields joined by hyphens."""
        values = (getattr(self, info.name) for info in fields(self))
        return "-".join(value.slug if isinstance(value, Quant) else value for value in values)


@dataclass(frozen=True)
class WeightsKey(_Named):
    """One component's quantized weights; shared by both modes and all backends."""

    component: Component
    dtype: Dtype
    quant: Quant


@dataclass(frozen=True)
class Graph(_Named):
    """One method, exported without weights; shared by all backends of an attention family."""

    attention: str
    dtype: Dtype
    method: Method
    mode: UnitMode
    quant: Quant


@dataclass(frozen=True)
class Unit(_Named):
    """One method compiled for a backend; `mode` is `shared` where both modes use it."""

    backend: str
    dtype: Dtype
    method: Method
    mode: UnitMode
    quant: Quant

    @property
    def component(self) -> Component:
        return COMPONENT_OF[self.method]

    @property
    def weights(self) -> WeightsKey | None:
        """Its quantized weights; None where it takes the checkpoint's own."""
        if self.quant.type == "none":
            return None
        return WeightsKey(self.component, self.dtype, self.quant.values)


@dataclass(frozen=True)
class Variant(_Named):
    """One cell of the matrix."""

    backend: str
    dtype: Dtype
    scheme: str
    mode: Mode

    @property
    def axes(self) -> dict[str, str]:
        """Its place in the matrix, by the names of the axes."""
        return {axis: getattr(self, axis) for axis in AXES}

    @classmethod
    def parse(cls, slug: str) -> Variant:
        """The variant that `slug` names.

        Raises:
            ConfigError: not of the form <backend>-<dtype>-<scheme>-<mode>.
        """
        dtypes, modes = get_args(Dtype), get_args(Mode)
        match slug.split("-"):
            case [backend, dtype, scheme, mode] if (
                dtype in dtypes
                and mode in modes
                and re.fullmatch(NAME, backend)
                and re.fullmatch(NAME, scheme)
            ):
                return cls(backend, dtype, scheme, mode)  # type: ignore[arg-type]  # checked
        raise ConfigError(
            "not a variant",
            got=slug,
            allowed=f"<backend>-({'|'.join(dtypes)})-<scheme>-({'|'.join(modes)})",
        )

    def units(self, scheme: Scheme) -> tuple[Unit, ...]:
        """Its units, in the order of `METHODS_OF`."""
        return tuple(
            Unit(
                self.backend,
                self.dtype,
                method,
                "shared" if method in SHARED_METHODS else self.mode,
                scheme.of(COMPONENT_OF[method]),
            )
            for method in METHODS_OF[self.mode]
        )
