"""Write down what is known of all variants: for programs, for people, and for the Hub."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from voxtral_build.catalog.card import repository_card
from voxtral_build.catalog.collect import collect
from voxtral_build.catalog.page import render
from voxtral_build.files import write_text
from voxtral_build.matrix import Matrix

log = logging.getLogger(__name__)


def run(*, matrix: Matrix, artifacts: Path, output: Path) -> None:
    """Write `catalog.json`, `index.html` and `README.md` into the folder `output`.

    Args:
        artifacts: the folder of variants' folders.
    """
    catalog = collect(matrix, artifacts)
    catalog.write(output / "catalog.json")
    write_text(output / "index.html", render(catalog))
    write_text(output / "README.md", repository_card(catalog))
    counts = Counter(entry.status for entry in catalog.entries)
    log.info("%s", ", ".join(f"{count} {status}" for status, count in counts.items()))
