"""The catalog for people: one HTML page, by itself.

It reads without JavaScript, as a table. With it, rows are filtered and sorted, figures are
plotted, and each variant has a part with its use, evidence and provenance. Nothing is loaded
from anywhere: style, script and the catalog itself are inside.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import get_args

from jinja2 import Environment, PackageLoader, StrictUndefined

from voxtral_build.catalog import figures
from voxtral_build.catalog.columns import COLUMNS, Cell
from voxtral_build.catalog.entries import Catalog, Entry, Status
from voxtral_build.checkpoint import WEIGHTS
from voxtral_build.report import Machine

# In this order they are one script.
_SCRIPTS = ("elements.js", "plots.js", "use.js", "words.js", "part.js", "page.js")
_AXES = ("backend", "dtype", "scheme", "mode", "status")
_STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Row:
    """One variant: its place in the table, and what is said there."""

    entry: Entry
    cells: list[Cell]

    @property
    def status_rank(self) -> int:
        """From what can be used to what is not there."""
        return _STATUSES.index(self.entry.status)

    @property
    def remark(self) -> str:
        """What to know beside the status."""
        if self.entry.status == "not built" and self.entry.host != "any":
            return f"needs {self.entry.host}"
        gates = [outcome.gate for outcome in self.entry.failures]
        return gates[0] + (f" and {len(gates) - 1} more" if len(gates) > 1 else "") if gates else ""


def render(catalog: Catalog, repository: str | None = None, published: Collection[str] = ()) -> str:
    """The whole page.

    Args:
        repository: on the Hub, that the page lies in; None: beside the artifacts here.
        published: the variants that can be pulled from there.
    """
    entries = catalog.entries
    style = _source("style.css")
    script = "\n".join(map(_source, _SCRIPTS))
    return (
        _environment()
        .get_template("index.html.jinja")
        .render(
            rows=[Row(entry, [column.cell(entry) for column in COLUMNS]) for entry in entries],
            columns=COLUMNS,
            groups=Counter(column.group for column in COLUMNS),
            filters={axis: _choices(entries, axis) for axis in _AXES},
            statuses=_choices(entries, "status"),
            machines=Counter(figures.machine(machine) for machine in _machines(entries)),
            checkpoints=Counter(_checkpoints(entries)),
            word_errors_float32=_word_errors_float32(entries),
            repository=repository,
            published=published,
            style=style,
            script=script,
            # A digest admits this script and no other, such as one that came in with a name.
            style_digest=_digest(style),
            script_digest=_digest(script),
            data=_embedded(catalog),
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _embedded(catalog: Catalog) -> str:
    """JSON that cannot end the element that it is in."""
    return catalog.model_dump_json().replace("<", "\\u003c")


def _choices(entries: Iterable[Entry], axis: str) -> list[tuple[str, int]]:
    """Values of an axis, in the catalog's order or that of statuses, and how many have them."""
    counts = Counter(getattr(entry, axis) for entry in entries)
    if axis == "status":
        return [(status, counts[status]) for status in _STATUSES if counts[status]]
    return list(counts.items())


def _machines(entries: Iterable[Entry]) -> Iterator[Machine]:
    for entry in entries:
        if entry.report is not None and entry.report.speed is not None:
            yield entry.report.speed.machine


def _checkpoints(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        if entry.provenance is not None:
            checkpoint = entry.provenance.checkpoint
            weights = checkpoint.files.get(WEIGHTS)
            if checkpoint.name is not None:
                revision = checkpoint.revision
                yield checkpoint.name + (f", revision {revision}" if revision else "")
            elif weights is not None:
                yield f"weights with SHA-256 {weights.sha256[:12]}…"


def _word_errors_float32(entries: Iterable[Entry]) -> float | None:
    """Of the float32 model, where all variants were held against the same one."""
    rates = {
        entry.report.words.rate_float32
        for entry in entries
        if entry.report is not None and entry.report.words is not None
    }
    return rates.pop() if len(rates) == 1 else None
