"""How weights are quantized: types, and a scheme's choice for each component.

Nothing here imports torch: a mistake in the configuration is told in under a second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from voxtral_build.axes import Component
from voxtral_build.errors import ConfigError
from voxtral_build.strict_config import StrictModel, mistake, suggest

Algorithm = Literal["affine", "hqq"]
PackingFormat = Literal["plain", "tile_packed_to_4d"]


@dataclass(frozen=True)
class QuantType:
    """One way to quantize.

    Attributes:
        bits: of a weight.
        group_size: the default number of weights that share a scale; 0 is per axis.
        embedding: whether an embedding can be quantized so; linears always can.
        zeros: whether a group has a number that is added after scaling. It then reaches from
            its least to its greatest weight, and is not symmetric about zero.
        packing_formats: layouts that it can be packed to, besides the plain one.
    """

    bits: int
    group_size: int
    embedding: bool
    zeros: bool = False
    packing_formats: tuple[PackingFormat, ...] = ()


QUANT_TYPES = {
    "none": QuantType(bits=0, group_size=0, embedding=True),
    "4w": QuantType(bits=4, group_size=32, embedding=True, packing_formats=("tile_packed_to_4d",)),
    "8w": QuantType(bits=8, group_size=0, embedding=True),
    "8da4w": QuantType(bits=4, group_size=32, embedding=False),
    "8da8w": QuantType(bits=8, group_size=0, embedding=False),
    "fpa4w": QuantType(bits=4, group_size=32, embedding=False, zeros=True),
}
LINEAR_TYPES = tuple(QUANT_TYPES)
EMBEDDING_TYPES = tuple(name for name, kind in QUANT_TYPES.items() if kind.embedding)


class Quant(StrictModel):
    """How the weights of a component are quantized."""

    type: str = Field(
        description="none; 4w or 8w (int4 or int8 weights); 8da4w or 8da8w (the same, and each "
        "token's activations to int8 as it runs); fpa4w (int4 weights with a zero point for each "
        "group, for the Metal backend)"
    )
    group_size: int = Field(
        default=0,
        ge=0,
        multiple_of=32,
        strict=True,
        description="Weights that share a scale; 0 is one scale per output row. "
        "Default: 32 for 4-bit types, 0 for 8-bit ones.",
    )
    algorithm: Algorithm = Field(
        default="affine",
        description="How scales are chosen. affine: from the largest weight of each group, the "
        "same bytes on every CPU. hqq: by a search for the least squared error, whose bytes may "
        "depend on the CPU.",
    )
    skip_incompatible_shapes: bool = Field(
        default=False,
        strict=True,
        description="Leave layers that the group size does not divide unquantized, and say so in "
        "the manifest; otherwise such a layer is an error.",
    )
    packing_format: PackingFormat = Field(
        default="plain",
        description="How a backend keeps the weights. tile_packed_to_4d: 4w as the CUDA "
        "backend's int4 kernel reads them; half the size, and no copy of them at each call.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_type(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        if isinstance(data, str):
            data = {"type": data}
        if not isinstance(data, Mapping):
            raise mistake(
                "not a quantization",
                got=repr(data),
                allowed=[*QUANT_TYPES, "{type: 8da4w, group_size: 64}"],
            )
        name = data.get("type")
        if name is None:
            return data
        if not isinstance(name, str) or name not in QUANT_TYPES:
            raise mistake(
                "unknown type of quantization",
                got=name,
                allowed=QUANT_TYPES,
                next_step=suggest(name, QUANT_TYPES),
                at=("type",),
            )
        return {"group_size": QUANT_TYPES[name].group_size, **data}

    @model_validator(mode="after")
    def _nothing_to_group(self) -> Self:
        if self.type == "none":
            for name, info in type(self).model_fields.items():
                if name != "type" and getattr(self, name) != info.default:
                    raise mistake(
                        f"{name} without quantization",
                        got=getattr(self, name),
                        allowed=f"no {name}",
                        next_step="remove it, or set a type",
                        at=(name,),
                    )
        return self

    @model_validator(mode="after")
    def _can_be_packed(self) -> Self:
        formats = ("plain", *QUANT_TYPES[self.type].packing_formats)
        if self.packing_format not in formats:
            raise mistake(
                f"{self.type} cannot be packed so",
                got=self.packing_format,
                allowed=formats,
                next_step="remove packing_format, or take type 4w",
                at=("packing_format",),
            )
        return self

    @property
    def bits(self) -> int:
        """Bits of a quantized weight, without its share of the scale; 0 where nothing is."""
        return QUANT_TYPES[self.type].bits

    @property
    def zeros(self) -> bool:
        """Whether each group has a number that is added after scaling."""
        return QUANT_TYPES[self.type].zeros

    @property
    def values(self) -> Quant:
        """The same without the layout that a backend packs it to: what weights depend on."""
        return self.model_copy(update={"packing_format": "plain"})

    @property
    def layout(self) -> Quant:
        """The same without the choice of values and the packing: what a graph depends on."""
        return self.values.model_copy(update={"algorithm": "affine"})

    @property
    def slug(self) -> str:
        """Its name in file names: `none`, `8da4w.g32`, `8w.axis`, `8da4w.g128.hqq.skip`."""
        if self.type == "none":
            return self.type
        parts = [self.type, f"g{self.group_size}" if self.group_size else "axis"]
        if self.algorithm != "affine":
            parts.append(self.algorithm)
        if self.skip_incompatible_shapes:
            parts.append("skip")
        if self.packing_format != "plain":
            parts.append(self.packing_format)
        return ".".join(parts)

    @classmethod
    def parse(cls, slug: str) -> Quant:
        """The quantization that `slug` names.

        Raises:
            ConfigError: not a slug.
        """
        if slug == "none":
            return cls(type=slug)
        match = _SLUG.fullmatch(slug)
        if match is None:
            raise ConfigError(
                "not a quantization",
                got=slug,
                allowed="none, or <type>.<grouping>[.hqq][.skip][.tile_packed_to_4d], such as "
                "8da4w.g32 or 8w.axis.hqq",
            )
        return cls.checked(
            {
                "type": match["type"],
                "group_size": int(match["group"] or 0),
                "algorithm": match["algorithm"] or "affine",
                "skip_incompatible_shapes": bool(match["skip"]),
                "packing_format": match["packing"] or "plain",
            },
            slug,
        )


_SLUG = re.compile(
    r"(?P<type>[a-z0-9]+)\.(?:g(?P<group>[1-9][0-9]*)|axis)"
    r"(?:\.(?P<algorithm>hqq))?(?:\.(?P<skip>skip))?(?:\.(?P<packing>tile_packed_to_4d))?"
)


def _only(types: tuple[str, ...], what: str) -> Any:
    """`Quant` restricted to `types`, in checks and in the JSON schema."""

    def check(quant: Quant) -> Quant:
        if quant.type not in types:
            raise mistake(
                f"{quant.type} cannot quantize {what}",
                got=quant.type,
                allowed=types,
                next_step=f"take one of {', '.join(types)}",
                at=("type",),
            )
        return quant

    names = {"enum": list(types), "type": "string"}
    fields = Quant.model_json_schema()["properties"]
    # The default group size is the type's, which a schema cannot say.
    del fields["group_size"]["default"]
    schema = {
        "anyOf": [
            names,
            {
                "additionalProperties": False,
                "properties": {**fields, "type": names},
                "required": ["type"],
                "type": "object",
            },
        ],
        "description": f"Quantization of {what}: the type, or type and how.",
    }
    return AfterValidator(check), WithJsonSchema(schema)


_LINEAR, _LINEAR_SCHEMA = _only(LINEAR_TYPES, "linears")
_EMBEDDING, _EMBEDDING_SCHEMA = _only(EMBEDDING_TYPES, "an embedding")


class Scheme(StrictModel):
    """A choice of quantization for each component."""

    encoder: Annotated[Quant, _LINEAR, _LINEAR_SCHEMA]
    decoder: Annotated[Quant, _LINEAR, _LINEAR_SCHEMA]
    embedding: Annotated[Quant, _EMBEDDING, _EMBEDDING_SCHEMA]

    def of(self, component: Component) -> Quant:
        """The quantization of one component."""
        quant: Quant = getattr(self, component)
        return quant
