"""How long the catalog's page takes to load, to sort and to filter, by its number of variants.

    python -m benchmarks.catalog_page [--variants N ...]

In headless Chromium, medians in ms. Load: from the navigation to the end of its load event,
parsing, script and plots included. Sort: a click on a column's heading until rows are in order
and laid out, over all columns, both ways. Filter: a choice until rows and plots show it. Part:
a click on a variant until its part is laid out; the first also parses the catalog's JSON.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.browser import chromium
from tests.catalogs import catalog
from voxtral_build.catalog.page import render

LOADS = 7
# Reading a size forces the layout that a frame would do.
CLICKS = """(selector) => [...document.querySelectorAll(selector)].flatMap((element) =>
    [0, 1].map(() => {
        const begin = performance.now();
        element.click();
        document.body.offsetHeight;
        return performance.now() - begin;
    }))"""
PARTS = """() => [...document.querySelectorAll("#table tbody a")].slice(0, 20).map((link) => {
    const begin = performance.now();
    link.click();
    document.body.offsetHeight;
    const took = performance.now() - begin;
    document.getElementById("part").close();
    return took;
})"""


def main() -> None:
    """Print a line for each number of variants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, nargs="+", default=[200, 1000], metavar="N")
    args = parser.parse_args()
    columns = ("render", "load", "sort", "worst", "filter", "part", "first")
    print("variants      kB" + "".join(f"{name:>9}" for name in columns))
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        for variants in args.variants:
            of = catalog(variants)
            started = time.perf_counter()
            text = render(of)
            rendered = 1000 * (time.perf_counter() - started)
            path = Path(folder) / "index.html"
            path.write_text(text, encoding="utf-8")
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            loads = []
            for _ in range(LOADS):
                page.goto("about:blank")
                page.goto(path.as_uri())
                loads.append(
                    page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
                )
            sorts = page.evaluate(CLICKS, "[data-sort]")
            filters = page.evaluate(CLICKS, ".filters input[type=checkbox]")
            parts = page.evaluate(PARTS)
            page.close()
            figures = (
                *(rendered, statistics.median(loads), statistics.median(sorts), max(sorts)),
                *(statistics.median(filters), statistics.median(parts[1:]), parts[0]),
            )
            kilobytes = len(text.encode()) / 1000
            print(f"{variants:8}{kilobytes:8.0f}" + "".join(f"{f:9.1f}" for f in figures))


if __name__ == "__main__":
    main()
