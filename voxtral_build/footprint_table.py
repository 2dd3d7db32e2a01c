"""Footprints for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from voxtral_build.axes import COMPONENT_OF, COMPONENTS, Component
from voxtral_build.footprint import Footprint, Sizes

_HEADINGS = (
    *("variant", "", *COMPONENTS, "weights"),
    *("decoder KV", "encoder KV", "conv state", "activations", "planned", "in all"),
)
_NUM_TEXT_COLUMNS = 2
_LEGEND = """
encoder, decoder, embedding: their weights, with scales; weights: the sum
activations: the largest tensor of each method, summed: {names}
planned: KV caches, conv state and activations; by the formula a lower bound
kB, MB, GB: 10^3, 10^6, 10^9 bytes"""


def as_json(table: Iterable[Footprint]) -> str:
    """For programs: everything by method, in bytes."""
    return json.dumps([asdict(footprint) for footprint in table], indent=2)


def as_text(table: Sequence[Footprint]) -> str:
    """For people: a line by formula, a line as measured, and what the columns mean."""
    lines = [_HEADINGS, *(line for footprint in table for line in _lines(footprint))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if column < _NUM_TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    names = {
        f"{method}'s {of.activation}": None
        for footprint in table
        for method, of in footprint.methods.items()
    }
    return "\n".join([*text, _LEGEND.format(names=", ".join(names))])


def _lines(footprint: Footprint) -> list[tuple[str, ...]]:
    methods = footprint.methods.items()
    formula = _cells({COMPONENT_OF[method]: of.formula for method, of in methods})
    measured = {COMPONENT_OF[method]: of.measured for method, of in methods if of.measured}
    if not measured:
        return [(footprint.variant, f"formula ({footprint.status})", *formula)]
    return [
        (footprint.variant, "formula", *formula),
        ("", "measured", *_cells(measured)),
    ]


def _cells(of: Mapping[Component, Sizes]) -> tuple[str, ...]:
    weights = [of[component].weights for component in COMPONENTS]
    planned = sum(sizes.planned for sizes in of.values())
    figures = (
        *(*weights, sum(weights)),
        *(of["decoder"].kv_caches, of["encoder"].kv_caches, of["encoder"].conv_state),
        *(sum(sizes.activation for sizes in of.values()), planned, sum(weights) + planned),
    )
    return tuple(map(decimal, figures))


def decimal(size: int) -> str:
    """Bytes in the largest decimal unit that leaves at least one: "872.4 MB", "3.49 GB"."""
    if size == 0:
        return "-"
    for unit, power, digits in (("GB", 9, 2), ("MB", 6, 1), ("kB", 3, 1)):
        if size >= 10**power:
            return f"{size / 10**power:.{digits}f} {unit}"
    return f"{size} B"
