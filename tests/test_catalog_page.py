"""The catalog's page in a browser: what is shown, what is done, and who can use it."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser import chromium
from tests.catalogs import catalog, digest
from tests.sessions import letters, scripted_artifact, speech
from voxtral_build import sound
from voxtral_build.catalog.columns import COLUMNS
from voxtral_build.catalog.entries import Catalog
from voxtral_build.catalog.page import render
from voxtral_build.runtime.artifact import Artifact

DESK = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}
CATALOG = catalog(60)
BY_VARIANT = {entry.variant: entry for entry in CATALOG.entries}
FIRST = "xnnpack-fp32-none-offline"
KEYS = ("variant", "status", "host", *(column.key for column in COLUMNS))


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def show(browser, tmp_path):
    """Opens a catalog's page, and holds it to be quiet: no request but itself, no error."""
    heard: list[str] = []
    contexts = []

    def open_page(of: Catalog | Path = CATALOG, fragment="", on_the_hub=(), **options: Any):
        path = of
        if isinstance(of, Catalog):
            path = tmp_path / f"{len(contexts)}.html"
            path.write_text(render(of, *on_the_hub), encoding="utf-8")
        options = {"viewport": DESK, "color_scheme": "light", **options}
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url))
        page.goto(path.as_uri() + fragment)
        own = path.as_uri()
        page.own_requests = lambda: [line for line in heard if line.split("#")[0] == own]
        return page

    yield open_page
    for context in contexts:
        context.close()
    files = re.compile(rf"{re.escape(tmp_path.as_uri())}/\d+\.html(#.*)?|data:,")
    assert [line for line in heard if not files.fullmatch(line)] == []


def shown(page):
    """Names of the rows that are to be seen, in their order."""
    return page.eval_on_selector_all(
        "#table tbody tr:not([hidden])", "rows => rows.map((row) => row.dataset.variant)"
    )


def figures(of, key):
    """Of the column `key`, by variant."""
    (column,) = (column for column in COLUMNS if column.key == key)
    return {entry.variant: column.cell(entry).figure for entry in of.entries}


def choose(page, axis, value):
    boxes = page.get_by_role("group", name=axis).get_by_role("checkbox").all()
    (box,) = (box for box in boxes if box.get_attribute("value") == value)
    box.check()


def with_status(status, of=CATALOG):
    return next(entry for entry in of.entries if entry.status == status)


def changed(variant, of=CATALOG, **changes):
    """A catalog with another content of one entry; keys are paths, joined by two underscores."""
    data = of.model_dump(mode="python")
    (target,) = (entry for entry in data["entries"] if entry["variant"] == variant)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = target
        for parent in parents:
            place = place[parent]
        place[last] = value
    return Catalog.model_validate(data)


# --- the page itself ---------------------------------------------------------------------


def test_one_file_without_requests(show):
    page = show()
    assert len(page.own_requests()) == 1
    assert "Content-Security-Policy" in page.content()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", page.content())


def test_the_header_counts_and_names_machines(show):
    other = CATALOG.entries[0].report.speed.machine.model_dump() | {"processor": "Another"}
    page = show(changed(FIRST, report__speed__machine=other))
    header = page.locator("header").inner_text()
    for status in ("validated", "failed", "built", "not built"):
        count = sum(entry.status == status for entry in CATALOG.entries)
        assert f"{count} {status}" in header
    assert "Some Processor, 2 cores, 24 GiB of memory (Linux, x86_64): 23 variants" in header
    assert "Another, 2 cores, 24 GiB of memory (Linux, x86_64): 1 variant" in header
    assert "not comparable" in header


def test_it_reads_without_javascript(show):
    page = show(java_script_enabled=False)
    assert page.locator("#table tbody tr").count() == 60
    assert page.locator(f'tr[data-variant="{FIRST}"] td').nth(2).inner_text() == "16.0"
    expect(page.locator("#controls")).to_be_hidden()
    expect(page.locator("noscript p")).to_be_visible()


def test_an_empty_catalog(show):
    page = show(Catalog(entries=[]))
    assert page.locator("#count").inner_text() == "All 0 variants"


def test_nothing_is_of_one_matrix(show):
    data = CATALOG.model_dump(mode="python")
    for entry in data["entries"]:
        entry.update(backend="tpu", dtype="fp8", scheme="best", mode="batch")
    page = show(Catalog.model_validate(data))
    choose(page, "Backend", "tpu")
    choose(page, "Dtype", "fp8")
    choose(page, "Scheme", "best")
    choose(page, "Mode", "batch")
    assert len(shown(page)) == 60
    assert "tpu" in page.locator("#marks").inner_text()


# --- order -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_rows_are_sorted_by_every_column_and_missing_stay_last(show, key):
    page = show()
    button = page.locator(f'[data-sort="{key}"]')
    heading = page.locator("th", has=button)
    if key in ("variant", "host", "status"):
        rank = ("validated", "failed", "built", "not built").index
        of = {
            "variant": lambda entry: natural(entry.variant),
            "host": lambda entry: entry.host.lower(),
            "status": lambda entry: rank(entry.status),
        }[key]
        values = {entry.variant: of(entry) for entry in CATALOG.entries}
    else:
        values = figures(CATALOG, key)
    order = [*values]
    there = [variant for variant in order if values[variant] is not None]
    missing = [variant for variant in order if values[variant] is None]
    assert key in ("variant", "host", "status") or missing
    button.click()
    assert shown(page) == sorted(there, key=values.__getitem__) + missing
    assert heading.get_attribute("aria-sort") == "ascending"
    button.click()
    assert shown(page) == sorted(there, key=values.__getitem__, reverse=True) + missing
    assert heading.get_attribute("aria-sort") == "descending"
    assert page.locator("[aria-sort]").count() == 1


def natural(text):
    """Numbers in a text by their value, and signs before letters."""
    text = text.lower().replace("_", "\x01").replace("-", "\x02")
    return [
        (1, int(part), "") if part.isdigit() else (2 if part.isalpha() else 0, 0, part)
        for part in re.findall(r"\d+|\D", text)
    ]


def test_a_figure_that_is_not_a_number_is_last_too(show):
    broken = changed(FIRST, report__against_float32__divergence=math.nan)
    page = show(broken)
    cell = page.locator(f'tr[data-variant="{FIRST}"] td').nth(5)
    assert cell.inner_text() == "nan"
    page.locator('[data-sort="kl"]').click()
    assert FIRST in shown(page)[23:]


def test_200_rows_are_in_order_as_soon_as_the_click_returns(show):
    many = catalog(200)
    page = show(many)
    order = page.evaluate("""() => {
        document.querySelector('[data-sort="size"]').click();
        const rows = document.querySelectorAll("#table tbody tr");
        return [...rows].map((row) => row.dataset.variant);
    }""")
    sizes = figures(many, "size")
    there = [sizes[variant] for variant in order if sizes[variant] is not None]
    assert len(order) == 200
    assert there == sorted(there)


# --- filters -----------------------------------------------------------------------------


def test_filters_combine(show):
    page = show()
    count = page.get_by_role("status").filter(has_text="variants")
    assert count.inner_text() == "All 60 variants"
    choose(page, "Backend", "xnnpack")
    choose(page, "Backend", "vulkan")
    choose(page, "Mode", "streaming")
    expected = [
        entry.variant
        for entry in CATALOG.entries
        if entry.backend in ("xnnpack", "vulkan") and entry.mode == "streaming"
    ]
    assert shown(page) == expected
    assert count.inner_text() == f"{len(expected)} of 60 variants"
    page.get_by_label("Name contains").fill("8DA4W")
    expected = [variant for variant in expected if "8da4w" in variant]
    assert shown(page) == expected
    choose(page, "Status", "not built")
    assert shown(page) == [v for v in expected if BY_VARIANT[v].status == "not built"]
    page.get_by_role("button", name="Reset").click()
    assert shown(page) == [*BY_VARIANT]


def test_choices_tell_how_many_they_would_leave(show):
    page = show()
    choose(page, "Status", "failed")
    for backend in ("xnnpack", "cuda"):
        count = sum(e.backend == backend and e.status == "failed" for e in CATALOG.entries)
        label = page.locator("label", has=page.locator(f'[value="{backend}"]'))
        assert label.inner_text().split() == [backend, str(count)]


def test_no_variant_left_is_told(show):
    page = show()
    page.get_by_label("Name contains").fill("no such variant")
    assert page.locator("#count").inner_text() == "0 of 60 variants"
    page.get_by_role("button", name="Show all").click()
    assert len(shown(page)) == 60


def test_a_view_is_shared_by_its_address(show):
    page = show()
    choose(page, "Scheme", "none")
    page.get_by_label("Name contains").fill("o & #")
    page.get_by_label("Name contains").fill("o")
    page.locator('[data-sort="step"]').click(click_count=2)
    page.get_by_role("radio", name="Word error rate").check()
    view, address = shown(page), page.url
    assert 0 < len(view) < 60
    page.reload()
    assert shown(page) == view
    assert page.url == address
    assert page.get_by_role("radio", name="Word error rate").is_checked()
    assert page.locator('th:has([data-sort="step"])').get_attribute("aria-sort") == "descending"
    assert shown(show(fragment="#" + address.split("#")[1])) == view


@pytest.mark.parametrize(
    "fragment", ["#%", "#nothing?sort=nothing&backend=none", "#?status=", "#??"]
)
def test_an_address_of_nothing_shows_everything(show, fragment):
    page = show(fragment=fragment)
    assert shown(page) == [*BY_VARIANT]
    assert page.get_by_role("dialog").count() == 0


def test_picks_are_the_best_of_what_is_shown(show):
    page = show()
    choose(page, "Mode", "streaming")
    picks = page.locator("#picks li")
    for index, key in enumerate(("size", "kl", "rtf")):
        of = {
            variant: figure
            for variant, figure in figures(CATALOG, key).items()
            if BY_VARIANT[variant].status == "validated" and variant.endswith("streaming")
        }
        assert picks.nth(index).get_by_role("link").inner_text() == min(of, key=of.get)


# --- plots -------------------------------------------------------------------------------


def points(page, plot):
    """Where the points of a plot are: variant -> (left, top) in px."""
    return {
        name: (left, top)
        for name, left, top in page.eval_on_selector_all(
            f'[data-plot="{plot}"] .point',
            """links => links.map((link) => {
                const { e, f } = link.transform.baseVal.consolidate().matrix;
                return [link.dataset.variant, e, f];
            })""",
        )
    }


@pytest.mark.parametrize("accuracy", ["kl", "wer"])
@pytest.mark.parametrize("plot", ["size", "step"])
def test_points_lie_as_their_figures_do(show, plot, accuracy):
    page = show(fragment=f"#?accuracy={accuracy}")
    across, up = figures(CATALOG, plot), figures(CATALOG, accuracy)
    expected = {v for v in BY_VARIANT if across[v] is not None and up[v] is not None}
    at = points(page, plot)
    assert set(at) == expected
    assert len(expected) == 24
    for index, figure, sign in ((0, across, 1), (1, up, -1)):
        pairs = sorted((figure[variant], sign * at[variant][index]) for variant in at)
        places = [place for _, place in pairs]
        assert all(a <= b + 1e-3 for a, b in pairwise(places))
        assert len(set(places)) > 3


def test_points_follow_filters_and_stay_where_they_are(show):
    page = show()
    before = points(page, "size")
    choose(page, "Backend", "xnnpack")
    after = points(page, "size")
    assert after == {v: at for v, at in before.items() if BY_VARIANT[v].backend == "xnnpack"}
    assert 0 < len(after) < len(before)


def test_no_divergence_lies_on_an_edge_of_the_axis(show):
    page = show(changed(FIRST, report__against_float32__divergence=0.0))
    expect(page.get_by_text("≤ 1e-9").first).to_be_visible()
    at = points(page, "size")
    assert max(at, key=lambda variant: at[variant][1]) == FIRST


def test_points_are_told_apart_and_explained(show):
    page = show()

    def mark(variant):
        return page.eval_on_selector(
            f'[data-plot="size"] [data-variant="{variant}"] .mark',
            "mark => [mark.getAttribute('d'), getComputedStyle(mark).fill, "
            "getComputedStyle(mark).stroke]",
        )

    xnnpack, portable = mark("xnnpack-fp32-none-streaming"), mark("portable-fp32-8w-streaming")
    assert xnnpack[0] != portable[0]
    assert xnnpack[1] != portable[1]
    offline = mark(FIRST)
    assert offline[0] == xnnpack[0]
    assert offline[1] == "rgba(0, 0, 0, 0)"  # hollow
    legend = page.locator("#marks").inner_text().split("\n")
    assert legend == [
        *("xnnpack", "portable", "cuda", "metal", "vulkan", "offline", "streaming"),
        "failed a gate",
    ]


def test_a_point_tells_its_figures(show):
    page = show()
    point = page.locator(f'[data-plot="step"] [data-variant="{FIRST}"]')
    name = point.get_attribute("aria-label")
    assert re.fullmatch(rf"{FIRST}: step [\d.]+ ms, KL divergence [\d.]+e-\d nats", name)
    point.focus()
    tooltip = page.locator('[data-plot="step"] .tooltip')
    assert FIRST in tooltip.inner_text()
    assert name.split(": ")[1] in tooltip.inner_text()
    page.keyboard.press("Escape")
    expect(tooltip).to_be_hidden()
    point.locator(".mark").hover(force=True)
    expect(tooltip).to_be_visible()


def test_arrow_keys_go_from_point_to_point_and_enter_opens_one(show):
    page = show()
    stops = page.locator('[data-plot="size"] .point[tabindex="0"]')
    assert stops.count() == 1
    stops.focus()
    page.keyboard.press("ArrowRight")
    variant = page.evaluate("document.activeElement.dataset.variant")
    sizes = figures(CATALOG, "size")
    assert variant == sorted(points(page, "size"), key=sizes.get)[1]
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=variant)).to_be_visible()
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile(r"\.html(#)?$"))
    assert page.evaluate("document.activeElement.matches('[data-plot=size] .point')")
    assert page.evaluate("document.activeElement.dataset.variant") == variant


def test_the_best_are_joined(show):
    page = show()
    at = points(page, "size")
    validated = {
        v: place
        for v, place in at.items()
        if BY_VARIANT[v].status == "validated" and v.endswith("offline")
    }
    best = [
        place
        for place in validated.values()
        if not any(
            other != place and other[0] <= place[0] and other[1] >= place[1]
            for other in validated.values()
        )
    ]
    path = page.locator('[data-plot="size"] .best[data-mode="0"]').get_attribute("d")
    corners = re.findall(r"(?:M|H)([\d.]+)(?:V| )([\d.]+)", path)
    assert [(float(x), float(y)) for x, y in corners] == [
        pytest.approx(place, abs=0.01) for place in sorted(best)
    ]


# --- the part of a variant ---------------------------------------------------------------


def test_a_part_opens_by_click_and_closes_by_the_back_button(show):
    page = show(fragment="#?sort=size")
    page.get_by_role("link", name=FIRST, exact=True).last.click()
    part = page.get_by_role("dialog", name=FIRST)
    expect(part).to_be_visible()
    assert page.url.endswith(f"#{FIRST}?sort=size")
    page.go_back()
    expect(part).to_be_hidden()
    assert page.url.endswith("#?sort=size")
    page.go_forward()
    expect(part).to_be_visible()
    page.get_by_role("button", name="Close").click()
    page.wait_for_url(re.compile(r"#\?sort=size$"))
    expect(part).to_be_hidden()


def test_a_part_that_is_closed_and_opened_at_once_stays_open(show):
    """A dialog's close event comes later, when another part may be open."""
    page = show(fragment=f"#{FIRST}")
    page.evaluate(
        """() => {
            const here = location.hash;
            for (const address of ["#", here]) {
                history.replaceState(null, "", address);
                dispatchEvent(new HashChangeEvent("hashchange"));
            }
        }"""
    )
    page.wait_for_timeout(200)
    expect(page.get_by_role("dialog", name=FIRST)).to_be_visible()
    assert page.url.endswith(f"#{FIRST}")


def test_a_part_opens_by_its_address(show):
    page = show(fragment=f"#{FIRST}")
    part = page.get_by_role("dialog", name=FIRST)
    expect(part).to_be_visible()
    page.keyboard.press("Escape")
    expect(part).to_be_hidden()
    assert page.url.endswith("#")
    # To where one was, as far as there is a where.
    assert page.evaluate("document.activeElement.textContent") == FIRST


def test_a_part_by_keyboard(show):
    page = show()
    link = page.locator("#table").get_by_role("link", name=FIRST, exact=True)
    link.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "part-name"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    second = [*BY_VARIANT][1]
    assert page.evaluate("document.activeElement.id") == "close"
    page.get_by_role("button", name="Next variant").press("Enter")
    expect(page.get_by_role("dialog", name=second)).to_be_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    page.wait_for_url(re.compile(r"\.html(#)?$"))


def test_a_part_has_the_evidence_and_the_provenance(show):
    page = show(fragment=f"#{FIRST}")
    text = page.get_by_role("dialog").inner_text()
    entry = BY_VARIANT[FIRST]
    for gate in entry.report.gates:
        assert gate.gate in text
        assert gate.reason in text
    assert "at least 0.9" in text
    assert "0 linears outside of delegates" in text
    for method in entry.report.methods:
        assert method in text
    assert "43 × XnnpackBackend" in text
    for file in (*entry.files.values(), *entry.provenance.dependencies.values()):
        assert file.sha256 in text
    assert digest("c") in text  # the checkpoint's
    assert entry.provenance.source.commit in text
    assert "torch 2.13.0" in text
    assert "max_seq_len 1024" in text
    assert "Some Processor, 2 cores, 24 GiB of memory (Linux, x86_64)" in text


def test_a_failed_variant_tells_first_what_failed(show):
    entry = with_status("failed")
    page = show(fragment=f"#{entry.variant}")
    first = page.locator("#part-content section").first
    (gate,) = entry.failures
    text = first.inner_text()
    assert text.startswith("Failed 1 gate")
    assert gate.gate in text
    assert re.search(r"\d\.\de-\d.*at most \d\.\de-\d", text.replace("\n", " "))
    row = page.locator(f'tr[data-variant="{entry.variant}"] td').first
    assert row.inner_text().split() == ["failed", gate.gate]


def test_a_failure_without_a_number(show):
    entry = with_status("failed")
    gates = [gate.model_dump() for gate in entry.report.gates]
    gates[1]["figure"] = math.nan
    page = show(changed(entry.variant, report__gates=gates), fragment=f"#{entry.variant}")
    assert "not a number" in page.locator("#part-content section").first.inner_text()


def test_what_is_not_built_tells_the_host_and_the_command(show):
    variant = "cuda-fp32-none-offline"
    page = show(fragment=f"#{variant}")
    text = page.get_by_role("dialog").inner_text()
    assert "only be built on a host with CUDA" in text
    assert f"snakemake artifacts/{variant}/report.json" in text
    status = page.locator(f'tr[data-variant="{variant}"] td').first
    assert status.inner_text().split("\n") == ["not built needs CUDA"]
    anywhere = next(e for e in CATALOG.entries if e.status == "not built" and e.host == "any")
    row = page.locator(f'tr[data-variant="{anywhere.variant}"] td').first
    assert row.inner_text() == "not built"


def test_what_is_built_without_a_report_tells_how_to_get_one(show):
    variant = with_status("built").variant
    page = show(fragment=f"#{variant}")
    text = page.get_by_role("dialog").inner_text()
    assert "No report yet" in text
    assert f"snakemake artifacts/{variant}/report.json" in text


def test_words_that_differ_are_marked(show):
    clips = {
        "a.flac": {
            "spoken": "Open the yellow door, don’t wait!",
            "written": "open yellow doors don't you wait",
            "written_float32": "open the yellow door don't wait",
        }
    }
    page = show(changed(FIRST, report__words__clips=clips), fragment=f"#{FIRST}")
    clip = page.locator(".clips li").filter(has_text="a.flac")
    own = clip.locator("p").first
    assert own.locator("del").all_inner_texts() == ["spoken:\nthe", "spoken:\ndoor"]
    assert own.locator("ins").all_inner_texts() == ["written:\ndoors", "written:\nyou"]
    assert "3 of 6 words" in clip.inner_text()
    assert "Model in float32" in clip.inner_text()


def test_code_is_copied(show):
    page = show(fragment=f"#{FIRST}", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy: Command line").click()
    expect(page.locator("#copied")).to_have_text("Copied: Command line")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"voxtral-build transcribe artifacts/{FIRST} speech.wav\n"


def test_in_a_repository_what_it_holds_can_be_pulled_from_there(show):
    other = "xnnpack-fp32-none-streaming"
    page = show(on_the_hub=("org/some-name", [FIRST]), fragment=f"#{FIRST}")
    download = page.get_by_role("region", name="Download").inner_text()
    assert download.split() == ["voxtral-build", "pull", "org/some-name", FIRST]
    command = page.get_by_role("region", name="Command line").inner_text()
    assert command.split()[2] == FIRST  # as `pull` names the folder
    page.goto(page.url.split("#")[0] + f"#{other}")
    expect(page.get_by_role("region", name="Command line")).to_contain_text(f"artifacts/{other}")
    expect(page.get_by_role("region", name="Download")).to_have_count(0)


def test_the_runner_gets_every_file(show):
    page = show()
    for variant in (FIRST, "xnnpack-fp32-none-streaming"):
        page.goto(page.url.split("#")[0] + f"#{variant}")
        text = page.get_by_role("region", name="C++").inner_text()
        flags = re.findall(r"--(\w+)(?: ([^-\s\\]\S*))?", text)
        expected = [
            ("model_path", f"artifacts/{variant}/model.pte"),
            ("tokenizer_path", f"artifacts/{variant}/tekken.json"),
            ("preprocessor_path", f"artifacts/{variant}/preprocessor.pte"),
            ("audio_path", "speech.wav"),
        ]
        streaming = [("streaming", "")] if variant.endswith("streaming") else []
        assert flags == expected + streaming
    files = BY_VARIANT[FIRST].model_dump()["files"]
    files["aoti_cuda_blob.ptd"] = files["model.pte"]
    page = show(changed(FIRST, files=files), fragment=f"#{FIRST}")
    text = page.get_by_role("region", name="C++").inner_text()
    assert f"--data_path artifacts/{FIRST}/aoti_cuda_blob.ptd" in text


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_the_python_code_runs(show, mode, monkeypatch, capsys):
    variant = f"xnnpack-fp32-none-{mode}"
    page = show(fragment=f"#{variant}")
    code = page.get_by_role("region", name="Python").inner_text()
    loaded, samples = [], speech()

    def load(folder):
        loaded.append(folder)
        return scripted_artifact(mode, letters("hello", 45))

    monkeypatch.setattr(Artifact, "load", load)
    monkeypatch.setattr(sound, "read", lambda *_: sound.Sound(samples, (), ()))
    exec(compile(code, "page", "exec"), {})
    assert loaded == [Path("artifacts") / variant]
    assert capsys.readouterr().out.strip() == "hello"


# --- text of other people ------------------------------------------------------------------

HOSTILE = """</script><script>ran = 1</script><img src="x" onerror='ran=1'> & &amp; " `${1}`"""


def test_hostile_text_is_text(show):
    clips = {HOSTILE: {"spoken": HOSTILE, "written": "x", "written_float32": HOSTILE}}
    data = changed(
        FIRST, report__words__clips=clips, provenance__checkpoint__name=HOSTILE, host=HOSTILE
    ).model_dump(mode="python")
    entry = data["entries"][0]
    entry.update(backend=HOSTILE, scheme=HOSTILE, variant=HOSTILE)
    entry["report"]["gates"][0].update(gate=HOSTILE, reason=HOSTILE)
    entry["report"]["speed"]["machine"]["processor"] = HOSTILE
    page = show(Catalog.model_validate(data))
    assert HOSTILE in page.locator("header").inner_text()
    row = page.locator("#table tbody tr").first
    assert row.locator("a").inner_text() == HOSTILE
    choose(page, "Backend", HOSTILE)
    assert shown(page) == [HOSTILE]
    page.reload()
    assert shown(page) == [HOSTILE]
    assert HOSTILE in page.locator("#marks").inner_text()
    row.locator("a").click()
    part = page.get_by_role("dialog")
    assert part.locator("h2").inner_text() == HOSTILE
    assert part.inner_text().count(HOSTILE) >= 5
    assert part.get_by_role("heading", name=HOSTILE).count() >= 1
    assert "voxtral-build transcribe 'artifacts/</script>" in part.inner_text()
    assert page.evaluate("window.ran") is None
    page.reload()
    assert page.get_by_role("dialog").locator("h2").inner_text() == HOSTILE


# --- for everyone --------------------------------------------------------------------------

SIZES = {"desk": DESK, "phone": PHONE}


@pytest.mark.parametrize("part", ["", "validated", "failed", "built", "not built"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(show, scheme, size, part):
    fragment = f"#{with_status(part).variant}" if part else ""
    page = show(
        fragment=fragment, color_scheme=scheme, viewport=SIZES[size], reduced_motion="reduce"
    )
    if not part:
        for summary in page.locator("summary:visible").all():
            summary.click()
        choose(page, "Status", "validated")
        page.locator('[data-sort="size"]').click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert {check["id"] for check in found.response["passes"]} >= {"color-contrast", "label"} - (
        {"label"} if part else set()
    )


@pytest.mark.parametrize("status", ["", "validated", "failed", "not built"])
def test_a_phone_never_scrolls_sideways(show, status):
    fragment = f"#{with_status(status).variant}" if status else ""
    page = show(fragment=fragment, viewport=PHONE)
    for selector in ("html", "#part-content"):
        width, inner = page.eval_on_selector(
            selector, "element => [element.scrollWidth, element.clientWidth]"
        )
        assert width <= inner, selector
    # The table does, in its own container, with names in sight.
    if not status:
        left = page.evaluate("""() => {
            document.querySelector(".table-wrap").scrollLeft = 300;
            return document.querySelector("#table tbody th").getBoundingClientRect().left;
        }""")
        assert left == 0


def test_headings_stay_in_sight(show):
    page = show(catalog(200))
    top = page.evaluate("""() => {
        document.querySelector("#table tbody tr:nth-child(150)").scrollIntoView();
        return document.querySelector("#table thead").getBoundingClientRect().top;
    }""")
    assert top == pytest.approx(0, abs=1)


def test_every_control_is_reached_by_tab(show):
    page = show(catalog(6))
    wanted = page.evaluate("""() => [...document.querySelectorAll(
        "a[href]:not([tabindex='-1']), button, input, summary")].filter(
        (element) => element.checkVisibility() && !element.disabled
            && !(element.type === "radio" && !element.checked)).length""")
    seen = set()
    for _ in range(wanted + 10):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate("""() => {
                const element = document.activeElement;
                window.order ??= new Map();
                if (!window.order.has(element)) window.order.set(element, window.order.size);
                return element.matches("a, button, input, summary")
                    ? window.order.get(element) : -1;
            }""")
        )
    assert len(seen - {-1}) == wanted


def test_printed_it_is_all_there(show):
    page = show()
    page.emulate_media(media="print")
    expect(page.locator("#table tbody tr").last).to_be_visible()
    expect(page.locator(".filters")).to_be_hidden()
