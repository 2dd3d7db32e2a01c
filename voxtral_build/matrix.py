"""What to build: checkpoint, settings, schemes and variants, and what goes together.

The one description of `config/matrix.yaml`. `workflow/schemas/matrix.schema.json` is
generated from it. Nothing here imports torch: a mistake in the configuration is told in
under a second.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from voxtral_build.errors import ConfigError
from voxtral_build.gates import AXES, Gate, unbounded
from voxtral_build.strict_config import StrictModel, mistake, suggest

Mode = Literal["offline", "streaming"]
UnitMode = Literal["offline", "streaming", "shared"]
Dtype = Literal["fp32", "bf16"]
Backend = Literal["xnnpack", "portable"]
Method = Literal["audio_encoder", "encode_audio_chunk", "text_decoder", "token_embedding"]
Component = Literal["encoder", "decoder", "embedding"]
Algorithm = Literal["affine", "hqq"]
Fidelity = Literal["reference", "executorch"]
SynthSize = Literal["toy", "mid", "full"]

COMPONENTS: tuple[Component, ...] = get_args(Component)
COMPONENT_OF: dict[Method, Component] = {
    "audio_encoder": "encoder",
    "encode_audio_chunk": "encoder",
    "text_decoder": "decoder",
    "token_embedding": "embedding",
}
METHODS_OF: dict[Mode, tuple[Method, ...]] = {
    "offline": ("audio_encoder", "text_decoder", "token_embedding"),
    "streaming": ("encode_audio_chunk", "text_decoder", "token_embedding"),
}
# One unit of these serves both modes.
SHARED_METHODS: frozenset[Method] = frozenset({"token_embedding"})

PROMPT_TOKENS = 33  # [BOS] and the 32 tokens of silence that open a stream; the delay comes on top


# --- quantization ------------------------------------------------------------------------


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


# --- settings and checkpoint -------------------------------------------------------------


class Settings(StrictModel):
    """What a build decides about the model, the same for all variants."""

    max_seq_len: int = Field(
        default=4096,
        gt=0,
        strict=True,
        description="Positions of the offline decoder's cache, and bound of one call, in tokens "
        "(80 ms each).",
    )
    sliding_window: int | None = Field(
        default=None,
        gt=0,
        strict=True,
        description="The decoder's attention window, in tokens (80 ms each). "
        "Default: params.json's (8192 in the real model).",
    )
    max_enc_len: int | None = Field(
        default=None,
        gt=0,
        strict=True,
        description="The encoder's attention window, in encoder frames (20 ms each). "
        "Default: params.json's sliding_window (750 in the real model).",
    )
    delay_tokens: int = Field(
        default=6,
        ge=1,
        le=30,
        strict=True,
        description="Delay of the transcription behind the audio, in tokens (80 ms each).",
    )
    fidelity: Fidelity = Field(
        default="reference",
        description="reference: as the model was trained. executorch: as ExecuTorch's example, "
        "which pads the second convolution by one frame more and has no windows offline.",
    )


class SynthSource(StrictModel):
    """A random checkpoint, right in every name, shape and dtype."""

    size: SynthSize = Field(description="toy: seconds to build; full: the real one's 711 tensors.")
    seed: int = Field(default=0, ge=0, strict=True, description="Of the random weights.")


class CheckpointSource(StrictModel):
    """Where the checkpoint comes from: exactly one of the two."""

    synth: SynthSource | None = Field(default=None, description="Make a random one.")
    path: Path | None = Field(
        default=None,
        description="A folder with params.json, consolidated.safetensors and tekken.json; "
        "relative to the working directory, or else to the Snakefile's folder.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("synth", "path") if getattr(self, name) is not None]
        if len(given) != 1:
            raise mistake(
                "exactly one source is needed",
                got=" and ".join(given) or "none",
                allowed="synth or path",
                next_step="set `path: null` beside `synth`, or `synth: null` beside `path`: a "
                "file given by --configfile is merged into config/matrix.yaml"
                if given
                else "point path at a checkpoint folder",
            )
        return self


# --- what a backend can do ---------------------------------------------------------------


Grouping = Literal["any", "axis"]


@dataclass(frozen=True)
class Capability:
    """What can be built for a backend.

    Attributes:
        dtypes: of activations and unquantized weights.
        linear, embedding: types of quantization that lower and run, each with any group
            size or per axis only.
        attention: the family its graphs are exported with.
        host: where its units can be lowered.
        reasons: why a dtype, a type of quantization, or its groups (`4w groups`) are not
            possible.
    """

    dtypes: tuple[Dtype, ...]
    linear: Mapping[str, Grouping]
    embedding: Mapping[str, Grouping]
    attention: str
    host: str
    reasons: Mapping[str, str] = field(default_factory=dict)

    def objections(self, dtype: Dtype, scheme: Scheme) -> Iterator[Objection]:
        """What of a cell is not possible."""
        if dtype not in self.dtypes:
            yield Objection("dtype", dtype, ", ".join(self.dtypes), self.reasons.get(dtype))
        for component in COMPONENTS:
            quant = scheme.of(component)
            possible = self.embedding if component == "embedding" else self.linear
            if quant.type not in possible:
                allowed = ", ".join(possible)
                reason = self.reasons.get(quant.type)
                yield Objection(f"{component} quantization", quant.type, allowed, reason)
            elif possible[quant.type] == "axis" and quant.group_size:
                got = f"{quant.type} with group size {quant.group_size}"
                reason = self.reasons.get(f"{quant.type} groups")
                yield Objection(f"{component} quantization", got, "group_size: 0", reason)


@dataclass(frozen=True)
class Objection:
    """Why a cell cannot be built."""

    what: str
    got: str
    allowed: str
    reason: str | None


_EIGHT_BIT_GROUPS = "XNNPACK has 8-bit kernels with one scale per row only"

CAPABILITIES: dict[Backend, Capability] = {
    "xnnpack": Capability(
        dtypes=("fp32",),
        linear={"none": "any", "4w": "axis", "8w": "axis", "8da4w": "any", "8da8w": "axis"},
        embedding={"none": "any", "4w": "any", "8w": "any"},
        attention="custom_sdpa",
        host="any",
        reasons={
            "bf16": "unasked, XNNPACK's partitioner delegates nothing in bf16, without an error; "
            "asked (enable_bf16), it writes a program that no runtime loads",
            "4w groups": "XNNPACK multiplies float activations with int4 weights of one scale "
            "per row only; with groups it takes int4 weights for int8 activations (8da4w)",
            "8w groups": _EIGHT_BIT_GROUPS,
            "8da8w groups": _EIGHT_BIT_GROUPS,
        },
    ),
    "portable": Capability(
        dtypes=("fp32", "bf16"),
        linear={"none": "any"},
        embedding={"none": "any", "4w": "any", "8w": "any"},
        attention="custom_sdpa",
        host="any",
        reasons={
            **dict.fromkeys(
                ("4w", "8w", "8da4w", "8da8w"),
                "there is no portable kernel for torchao's choose_qparams_affine, "
                "quantize_affine and dequantize_affine",
            ),
        },
    ),
}


# --- variants and what they are made of --------------------------------------------------


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

    backend: Backend
    dtype: Dtype
    method: Method
    mode: UnitMode
    quant: Quant

    @property
    def component(self) -> Component:
        return COMPONENT_OF[self.method]

    @property
    def graph(self) -> Graph:
        """The graph it is lowered from."""
        attention = CAPABILITIES[self.backend].attention
        return Graph(attention, self.dtype, self.method, self.mode, self.quant.layout)

    @property
    def weights(self) -> WeightsKey | None:
        """Its quantized weights; None where it takes the checkpoint's own."""
        if self.quant.type == "none":
            return None
        return WeightsKey(self.component, self.dtype, self.quant)


@dataclass(frozen=True)
class Variant(_Named):
    """One cell of the matrix."""

    backend: Backend
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
        allowed = (get_args(Backend), get_args(Dtype), (), get_args(Mode))
        parts = slug.split("-")
        if len(parts) != 4 or any(
            known and part not in known for part, known in zip(parts, allowed, strict=True)
        ):
            backends, dtypes, _, modes = ("|".join(known) for known in allowed)
            raise ConfigError(
                "not a variant", got=slug, allowed=f"({backends})-({dtypes})-<scheme>-({modes})"
            )
        return cls(*parts)  # type: ignore[arg-type]  # checked above

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


class Exclude(StrictModel):
    """Cells to leave out: all that agree in the axes given here."""

    backend: Backend | None = None
    dtype: Dtype | None = None
    scheme: str | None = None
    mode: Mode | None = None

    def matches(self, variant: Variant) -> bool:
        return all(getattr(self, axis) in (None, getattr(variant, axis)) for axis in AXES)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if all(getattr(self, axis) is None for axis in AXES):
            raise mistake("leaves everything out", got="no axis", allowed=AXES)
        return self


class Product(StrictModel):
    """All combinations of the lists, without those that `exclude` names."""

    backend: list[Backend] = Field(min_length=1, description="ExecuTorch backends.")
    dtype: list[Dtype] = Field(min_length=1, description="Of activations, caches and biases.")
    scheme: list[str] = Field(min_length=1, description="Names under `schemes`.")
    mode: list[Mode] = Field(
        min_length=1, description="offline: whole recordings; streaming: 80 ms a step."
    )
    exclude: list[Exclude] = Field(default=[], description="Combinations to leave out.")

    def cells(self) -> list[Variant]:
        """All combinations, in the order of the lists."""
        return [
            Variant(*cell)
            for cell in itertools.product(self.backend, self.dtype, self.scheme, self.mode)
        ]


SchemeName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]


class Matrix(StrictModel):
    """What to build, as `config/matrix.yaml` says it."""

    model_config = ConfigDict(title="Voxtral build matrix")

    checkpoint: CheckpointSource = Field(description="The model's weights.")
    settings: Settings = Field(default=Settings(), description="The same for all variants.")
    clips: Path | None = Field(
        default=None,
        description="A folder of recordings and words.tsv, which artifacts transcribe when they "
        "are validated; relative to the working directory, or else to the Snakefile's folder. "
        "Without it, no words are counted.",
    )
    schemes: dict[SchemeName, Scheme] = Field(
        min_length=1, description="Named choices of quantization, for `variants`."
    )
    products: list[Product] = Field(
        alias="variants", min_length=1, description="What to build: the sum of these products."
    )
    gates: list[Gate] = Field(
        min_length=1, description="What an artifact has to reach; all that apply to it."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_gates(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "gates" not in data:
            raise mistake(
                "no gates: artifacts would be taken on faith",
                allowed="bounds on what is measured",
                next_step="copy `gates` of this project's config/matrix.yaml, and adjust them",
            )
        return data

    @model_validator(mode="after")
    def _prompt_fits(self) -> Self:
        prompt = PROMPT_TOKENS + self.settings.delay_tokens
        if self.settings.max_seq_len <= prompt:
            raise mistake(
                f"no room for speech: the prompt alone takes {prompt} tokens",
                got=self.settings.max_seq_len,
                allowed=f"more than {prompt}; the real model's use is 4096",
                next_step="raise max_seq_len",
                at=("settings", "max_seq_len"),
            )
        return self

    @model_validator(mode="after")
    def _variants_exist(self) -> Self:
        for index, product in enumerate(self.products):
            at = ("variants", index)
            for position, name in enumerate(product.scheme):
                self._check_scheme(name, (*at, "scheme", position))
            cells = product.cells()
            for position, exclude in enumerate(product.exclude):
                if exclude.scheme is not None:
                    self._check_scheme(exclude.scheme, (*at, "exclude", position, "scheme"))
                if not any(exclude.matches(cell) for cell in cells):
                    raise mistake(
                        "matches no combination of its product",
                        got=exclude.model_dump(exclude_none=True),
                        allowed=f"{len(cells)} combinations: {_ellipsis(c.slug for c in cells)}",
                        next_step="correct or remove it",
                        at=(*at, "exclude", position),
                    )
            if not _kept(product):
                raise mistake(
                    "nothing is left",
                    got=f"{len(cells)} combinations, all excluded",
                    next_step="exclude less, or remove this product",
                    at=at,
                )
            for cell in _kept(product):
                self._check_possible(cell, at)
        return self

    @model_validator(mode="after")
    def _nothing_on_faith(self) -> Self:
        known = {
            "backend": get_args(Backend),
            "dtype": get_args(Dtype),
            "scheme": tuple(self.schemes),
            "mode": get_args(Mode),
        }
        for index, gate in enumerate(self.gates):
            for axis, values in known.items():
                for name in getattr(gate, axis) or ():
                    if name not in values:
                        raise mistake(
                            f"no such {axis}",
                            got=name,
                            allowed=values,
                            next_step=suggest(name, values) or "remove it",
                            at=("gates", index, axis),
                        )
        for variant in self.variants:
            for figure in unbounded(self.gates, variant.axes):
                raise mistake(
                    f"no bound on {figure} for {variant.slug}: it would be taken on faith",
                    got="gates on " + ", ".join(dict.fromkeys(gate.figure for gate in self.gates)),
                    allowed="for every variant, at least one",
                    next_step=f"add a gate: figure {figure}, min or max, and the reason",
                    at=("gates",),
                )
        return self

    def _check_scheme(self, name: str, at: tuple[str | int, ...]) -> None:
        if name not in self.schemes:
            raise mistake(
                "no such scheme",
                got=name,
                allowed=self.schemes,
                next_step=suggest(name, self.schemes) or f"add {name} under schemes",
                at=at,
            )

    def _check_possible(self, cell: Variant, at: tuple[str | int, ...]) -> None:
        capability = CAPABILITIES[cell.backend]
        for objection in capability.objections(cell.dtype, self.schemes[cell.scheme]):
            reason = objection.reason or f"{cell.backend} does not take it"
            is_dtype = objection.what == "dtype"
            raise mistake(
                f"{cell.slug} cannot be built: {reason}",
                got=f"{objection.what} {objection.got} with backend {cell.backend}",
                allowed=f"{objection.what} {objection.allowed}",
                next_step="give this backend a product of its own, or add to this one "
                f"`exclude: [{{backend: {cell.backend}, "
                f"{f'dtype: {cell.dtype}' if is_dtype else f'scheme: {cell.scheme}'}}}]`",
                at=at,
            )

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Every variant once, in the order of `products`."""
        return tuple(dict.fromkeys(cell for product in self.products for cell in _kept(product)))

    def scheme(self, variant: Variant) -> Scheme:
        """The scheme of a variant."""
        return self.schemes[variant.scheme]

    def gates_of(self, variant: Variant) -> list[Gate]:
        """The gates that a variant has to pass."""
        return [gate for gate in self.gates if gate.applies(variant.axes)]

    def units(self, variant: Variant) -> tuple[Unit, ...]:
        """The units that a variant is linked from, in the order of `METHODS_OF`."""
        return variant.units(self.scheme(variant))

    def variant(self, slug: str) -> Variant:
        """The variant of that name.

        Raises:
            ConfigError: the matrix has no such variant.
        """
        for variant in self.variants:
            if variant.slug == slug:
                return variant
        slugs = [variant.slug for variant in self.variants]
        raise ConfigError(
            "the matrix has no such variant",
            got=slug,
            allowed=slugs,
            next_step=suggest(slug, slugs) or "add it under variants in config/matrix.yaml",
        )

    @classmethod
    def parse(cls, data: Any, origin: str = "configuration") -> Matrix:
        """Check the content of a matrix file; `origin` names it in messages.

        Raises:
            ConfigError: names the field, what it got, what is allowed, and the next step.
        """
        return cls.checked(data, origin)

    @classmethod
    def load(cls, path: Path) -> Matrix:
        """Read a matrix file.

        Raises:
            ConfigError: missing, not YAML, or a field is wrong.
        """
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read",
                got=error.strerror,
                next_step="run in the folder of config/matrix.yaml, or give --config FILE",
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not YAML", got=error) from None
        return cls.parse(data, str(path))


def _kept(product: Product) -> list[Variant]:
    return [
        cell
        for cell in product.cells()
        if not any(exclude.matches(cell) for exclude in product.exclude)
    ]


def json_schema() -> dict[str, Any]:
    """The JSON schema of `config/matrix.yaml`, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Matrix.model_json_schema(),
    }


def _ellipsis(items: Iterable[str], limit: int = 8) -> str:
    listed = list(items)
    return ", ".join(listed[:limit]) + (", ..." if len(listed) > limit else "")
