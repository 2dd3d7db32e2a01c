"""What to build: checkpoint, settings, schemes and variants, and what goes together.

The one description of `config/matrix.yaml`. `workflow/schemas/matrix.schema.json` is
generated from it. Nothing here imports torch: a mistake in the configuration is told in
under a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import yaml
from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from voxtral_build.axes import (
    Dtype,
    Mode,
)
from voxtral_build.backends import BACKENDS
from voxtral_build.errors import ConfigError
from voxtral_build.gates import AXES, Gate, unbounded
from voxtral_build.quant import Scheme
from voxtral_build.settings import PROMPT_TOKENS, CheckpointSource, Repository, Settings
from voxtral_build.strict_config import StrictModel, mistake, suggest
from voxtral_build.variants import NAME, Graph, Unit, Variant


def _known_backend(name: str) -> str:
    if name not in BACKENDS:
        raise mistake(
            "no such backend",
            got=name,
            allowed=BACKENDS,
            next_step=suggest(name, BACKENDS) or "`voxtral-build backends` shows what each takes",
        )
    return name


Backend = Annotated[
    str, AfterValidator(_known_backend), WithJsonSchema({"enum": list(BACKENDS), "type": "string"})
]


def graph_for(unit: Unit) -> Graph:
    """The graph that a unit is lowered from."""
    attention = BACKENDS[unit.backend].capability.attention
    return Graph(attention, unit.dtype, unit.method, unit.mode, unit.quant.layout)


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


SchemeName = Annotated[str, Field(pattern=f"^{NAME}$")]


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

    hub_repo: Repository | None = Field(
        default=None, description="Where `snakemake publish` publishes, on the Hugging Face Hub."
    )
    hub_private: bool = Field(
        default=False, description="Make the repository private; refuse one that is public."
    )
    hub_create_pr: bool = Field(default=False, description="Publish as a pull request.")
    hub_prune: bool = Field(
        default=False, description="Remove artifacts there that are no longer in the matrix."
    )
    hub_inspected: bool = Field(
        default=False, description="Publish artifacts that were read back and not run, too."
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
            "backend": tuple(BACKENDS),
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
        capability = BACKENDS[cell.backend].capability
        for objection in capability.objections(cell.dtype, self.schemes[cell.scheme]):
            is_dtype = objection.what == "dtype"
            raise mistake(
                f"{cell.slug} cannot be built: {objection.sentence(cell.backend)}",
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
