"""What can be built: every backend, dtype, scheme and mode, here or elsewhere or not at all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from voxtral_build.axes import Dtype, Mode
from voxtral_build.backends import BACKENDS
from voxtral_build.backends.capability import ANYWHERE
from voxtral_build.quant import Scheme
from voxtral_build.variants import Variant

Verdict = Literal["here", "host", "refused"]
_WORDS: dict[Verdict, str] = {"here": "here", "host": "host", "refused": "-"}


@dataclass(frozen=True)
class Cell:
    """One combination.

    Attributes:
        verdict: here: this host lowers it. host: another one can. refused: it cannot be built.
        reason: of the last two.
    """

    backend: str
    dtype: Dtype
    scheme: str
    mode: Mode
    verdict: Verdict
    reason: str | None


def cells(schemes: Mapping[str, Scheme]) -> list[Cell]:
    """All backends x dtypes x schemes x modes."""
    axes = (BACKENDS, get_args(Dtype), schemes, get_args(Mode))
    return [_cell(Variant(*axis), schemes) for axis in itertools.product(*axes)]


def _cell(variant: Variant, schemes: Mapping[str, Scheme]) -> Cell:
    backend = BACKENDS[variant.backend]
    objections = backend.capability.objections(variant.dtype, schemes[variant.scheme])
    refusals = [objection.sentence(variant.backend) for objection in objections]
    missing = backend.missing()
    verdict: Verdict = "refused" if refusals else "here" if missing is None else "host"
    reason = "; ".join(dict.fromkeys(refusals)) or (missing and f"this host lacks {missing}")
    return Cell(variant.backend, variant.dtype, variant.scheme, variant.mode, verdict, reason)


def as_json(schemes: Mapping[str, Scheme]) -> str:
    """Backends and cells, for programs."""
    backends = [
        {
            "backend": name,
            "description": backend.description,
            "delegate": backend.delegate,
            "delegated": backend.delegated,
            "missing": backend.missing(),
            **asdict(backend.capability),
        }
        for name, backend in BACKENDS.items()
    ]
    return json.dumps(
        {"backends": backends, "cells": [asdict(cell) for cell in cells(schemes)]}, indent=2
    )


def as_text(schemes: Mapping[str, Scheme]) -> str:
    """Backends and cells, for people."""
    return "\n".join(
        [
            *_aligned(_backend_rows()),
            "",
            "here: this host lowers it. host: another one can, see above. -: see below.",
            "",
            *_aligned(_grid(cells(schemes))),
            "",
            *_refusals(cells(schemes)),
        ]
    )


def _backend_rows() -> Iterator[tuple[str, ...]]:
    yield ("backend", "for", "lowered on", "here", "attention", "delegate", "dtypes")
    for name, backend in BACKENDS.items():
        capability = backend.capability
        missing = backend.missing()
        yield (
            name,
            backend.description,
            "any host" if capability.host == ANYWHERE else capability.host,
            "yes" if missing is None else f"no, it lacks {missing}",
            capability.attention,
            backend.delegate or "none",
            ", ".join(capability.dtypes),
        )


def _grid(table: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    """A row for each dtype and scheme, a column for each backend."""
    yield ("dtype", "scheme", *BACKENDS)
    for dtype, scheme in dict.fromkeys((cell.dtype, cell.scheme) for cell in table):
        row = [cell for cell in table if (cell.dtype, cell.scheme) == (dtype, scheme)]
        yield (
            dtype,
            scheme,
            *(_word([cell for cell in row if cell.backend == name]) for name in BACKENDS),
        )


def _word(modes: Sequence[Cell]) -> str:
    words = {cell.mode: _WORDS[cell.verdict] for cell in modes}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{mode} {word}" for mode, word in words.items())


def _refusals(table: Sequence[Cell]) -> list[str]:
    """Each reason once, and of whom."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in table:
        if cell.verdict == "refused" and cell.reason:
            reasons.setdefault((cell.backend, cell.reason), []).append(
                f"{cell.dtype} {cell.scheme}"
            )
    return [
        f"{backend}, {', '.join(dict.fromkeys(of))}: {reason}"
        for (backend, reason), of in reasons.items()
    ]


def _aligned(rows: Iterator[tuple[str, ...]]) -> list[str]:
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
