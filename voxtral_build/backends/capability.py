"""What can be built for a backend, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from voxtral_build.axes import COMPONENTS, Dtype
from voxtral_build.quant import Quant, Scheme

# Group sizes that a type of quantization can have: any; none, which is one scale per row; or
# those listed (0 is one scale per row).
Groups = Literal["any", "axis"] | tuple[int, ...]

ANYWHERE = "any"


@dataclass(frozen=True)
class Capability:
    """What can be built for a backend.

    Attributes:
        dtypes: of activations and unquantized weights.
        linear, embedding: types of quantization that lower and run, each with the group
            sizes that do.
        attention: the family of cache and attention classes its graphs are exported with.
        host: where its units can be lowered, in words; `ANYWHERE`, or what that takes.
        reasons: why a dtype, a type of quantization, or its groups (`4w groups`) are not
            possible.
    """

    dtypes: tuple[Dtype, ...]
    linear: Mapping[str, Groups]
    embedding: Mapping[str, Groups]
    attention: str
    host: str = ANYWHERE
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
                reason = self.reasons.get(quant.type)
                yield Objection(what, quant.type, ", ".join(possible), reason)
            elif (sizes := _sizes(quant, possible[quant.type])) is not None:
                got = f"{quant.type} with group size {quant.group_size}"
                reason = self.reasons.get(f"{quant.type} groups")
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
