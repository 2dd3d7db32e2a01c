"""What can be built for a backend, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from voxtral_build.axes import COMPONENTS, Component, Dtype
from voxtral_build.quant import Quant, Scheme

# Group sizes that a type of quantization can have: any; none, which is one scale per row; or
# those listed (0 is one scale per row).
Groups = Literal["any", "axis"] | tuple[int, ...]

ANYWHERE = "any"

# What is there for one backend's kernels, told where another is asked for it.
_ELSEWHERE = {
    "fpa4w": "fpa4w is for the Metal backend's int4 kernels; others have 4w or 8da4w",
    "tile_packed_to_4d": "tile_packed_to_4d is for the CUDA backend's int4 kernels for linears; "
    "nothing else reads it",
}


@dataclass(frozen=True)
class Capability:
    """What can be built for a backend.

    Attributes:
        dtypes: of activations and unquantized weights.
        linear, embedding: types of quantization that lower and run, each with the group
            sizes that do.
        attention: the family of cache and attention classes its graphs are exported with.
        packing: formats, besides the plain one, that it can keep the weights of linears in,
            each with the group sizes that do.
        host: where its units can be lowered, in words; `ANYWHERE`, or what that takes.
        reasons: why a dtype, a type of quantization, or its groups (`4w groups`) are not
            possible. Also of a packing format.
    """

    dtypes: tuple[Dtype, ...]
    linear: Mapping[str, Groups]
    embedding: Mapping[str, Groups]
    attention: str
    host: str = ANYWHERE
    packing: Mapping[str, Groups] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def takes(self, dtype: Dtype, quant: Quant, *, embedding: bool) -> bool:
        """Whether a layer can be had so."""
        groups = (self.embedding if embedding else self.linear).get(quant.type)
        return dtype in self.dtypes and groups is not None and _sizes(quant, groups) is None

    def objections(self, dtype: Dtype, scheme: Scheme) -> Iterator[Objection]:
        """What of a cell is not possible."""
        if dtype not in self.dtypes:
            yield Objection("dtype", dtype, ", ".join(self.dtypes), self.reasons.get(dtype))
        for component in COMPONENTS:
            quant = scheme.of(component)
            possible = self.embedding if component == "embedding" else self.linear
            what = f"{component} quantization"
            if quant.type not in possible:
                reason = self.reasons.get(quant.type, _ELSEWHERE.get(quant.type))
                yield Objection(what, quant.type, ", ".join(possible), reason)
            elif (sizes := _sizes(quant, possible[quant.type])) is not None:
                got = f"{quant.type} with group size {quant.group_size}"
                reason = self.reasons.get(f"{quant.type} groups")
                yield Objection(what, got, f"group_size: {sizes}", reason)
            elif (packing := quant.packing_format) != "plain":
                yield from self._packing_objections(component, quant, packing)

    def _packing_objections(
        self, component: Component, quant: Quant, packing: str
    ) -> Iterator[Objection]:
        what = f"{component} packing_format"
        formats = {} if component == "embedding" else self.packing
        if packing not in formats:
            allowed = ", ".join(("plain", *formats))
            yield Objection(what, packing, allowed, _ELSEWHERE[packing])
        elif (sizes := _sizes(quant, formats[packing])) is not None:
            got = f"{packing} with group size {quant.group_size}"
            reason = self.reasons.get(f"{packing} groups")
            yield Objection(what, got, f"group_size: {sizes}", reason)


def _sizes(quant: Quant, groups: Groups) -> str | None:
    """The group sizes that would do, where `quant` has another."""
    if quant.type == "none" or groups == "any":
        return None
    sizes = (0,) if groups == "axis" else groups
    return None if quant.group_size in sizes else ", ".join(map(str, sizes))


@dataclass(frozen=True)
class Objection:
    """Why a cell cannot be built."""

    what: str
    got: str
    allowed: str
    reason: str | None

    def sentence(self, backend: str) -> str:
        """The reason, or what there is to say where none is known."""
        return self.reason or f"{backend} does not take {self.what} {self.got}"
