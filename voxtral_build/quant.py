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


@dataclass(frozen=True)
class QuantType:
    """One way to quantize.

    Attributes:
        bits: of a weight.
        group_size: the default number of weights that share a scale; 0 is per axis.
        embedding: whether an embedding can be quantized so; linears always can.
    """

    bits: int
    group_size: int
    embedding: bool


QUANT_TYPES = {
    "none": QuantType(bits=0, group_size=0, embedding=True),
    "4w": QuantType(bits=4, group_size=32, embedding=True),
    "8w": QuantType(bits=8, group_size=0, embedding=True),
    "8da4w": QuantType(bits=4, group_size=32, embedding=False),
    "8da8w": QuantType(bits=8, group_size=0, embedding=False),
}
LINEAR_TYPES = tuple(QUANT_TYPES)
EMBEDDING_TYPES = tuple(name for name, kind in QUANT_TYPES.items() if kind.embedding)

# Layouts that ExecuTorch has for a backend that is not in this matrix.
_ELSEWHERE = {
    "fpa4w": "fpa4w is the layout of the Metal backend's int4 kernels; no other backend reads it",
    "tile_packed_to_4d": "tile_packed_to_4d is the layout of the CUDA backend's int4 kernels; "
    "no other backend reads it",
}


class Quant(StrictModel):
    """How the weights of a component are quantized."""

    type: str = Field(
        description="none; 4w or 8w (int4 or int8 weights); 8da4w or 8da8w (the same, and each "
        "token's activations to int8 as it runs)"
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
        _refuse_elsewhere(data.get("packing_format"), at="packing_format")
        name = data.get("type")
        _refuse_elsewhere(name, at="type")
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

    @property
    def bits(self) -> int:
        """Bits of a quantized weight, without its share of the scale; 0 where nothing is."""
        return QUANT_TYPES[self.type].bits

    @property
    def layout(self) -> Quant:
        """The same without the choice of values: what a graph depends on."""
        return self.model_copy(update={"algorithm": "affine"})

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
                allowed="none, or <type>.<grouping>[.hqq][.skip], such as 8da4w.g32 or 8w.axis.hqq",
            )
        return cls.checked(
            {
                "type": match["type"],
                "group_size": int(match["group"] or 0),
                "algorithm": match["algorithm"] or "affine",
                "skip_incompatible_shapes": bool(match["skip"]),
            },
            slug,
        )


_SLUG = re.compile(
    r"(?P<type>[a-z0-9]+)\.(?:g(?P<group>[1-9][0-9]*)|axis)"
    r"(?:\.(?P<algorithm>hqq))?(?:\.(?P<skip>skip))?"
)


def _refuse_elsewhere(name: object, *, at: str) -> None:
    if isinstance(name, str) and name in _ELSEWHERE:
        raise mistake(
            _ELSEWHERE[name],
            got=name,
            allowed=QUANT_TYPES if at == "type" else "no packing_format",
            next_step="take another type" if at == "type" else "remove packing_format",
            at=(at,),
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
