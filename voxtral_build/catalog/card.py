"""Model cards: README.md of an artifact's folder, and of a repository of many.

Texts are templates in `cards/`; every figure in them is a report's. Front matter is
huggingface_hub's, so that the Hub can read it.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from voxtral_build.artifact_files import MANIFEST, MODEL
from voxtral_build.catalog import figures
from voxtral_build.catalog.entries import Catalog, Checkpoint, Entry, Provenance
from voxtral_build.checkpoint import REPOSITORY, WEIGHTS
from voxtral_build.errors import BuildError, ConfigError
from voxtral_build.gates import FIGURES, bounds
from voxtral_build.quant import Quant
from voxtral_build.report import MethodReport, Report
from voxtral_build.settings import REPOSITORY_NAME

T = TypeVar("T")

# Mistral's, of the releases that are known; of any other checkpoint nothing is.
LICENSE, NO_LICENSE = "apache-2.0", "unknown"
_LONGEST = 300  # characters of a text from data
_RIGHT = ("validated", "inspected")


def artifact_card(entry: Entry) -> str:
    """README.md of the folder of an artifact that was validated or, not run, inspected.

    Raises:
        BuildError: it is neither.
    """
    known = _right(entry)
    return _render(
        "artifact",
        metadata=_metadata([known], name=entry.variant),
        entry=entry,
        report=known.report,
        provenance=known.provenance,
        base=base_model(known.provenance.checkpoint),
        quantized=_is_quantized(entry),
        data_file=next((name for name in entry.files if name.endswith(".ptd")), None),
        meanings=_meanings(known.report),
    )


def repository_card(
    catalog: Catalog, repository: str | None = None, published: Container[str] | None = None
) -> str:
    """README.md of a repository that holds artifacts of a catalog.

    Args:
        repository: its name, where it is known.
        published: the variants that it holds; None: all that are validated or inspected.
    """
    here = [
        entry
        for entry in catalog.entries
        if entry.status in _RIGHT and (published is None or entry.variant in published)
    ]
    right = [_right(entry) for entry in here]
    validated = [known for known in right if known.entry.status == "validated"]
    return _render(
        "repository",
        metadata=_metadata(right, name="voxtral-realtime-executorch"),
        repository=repository,
        variants=validated,
        inspected=[known for known in right if known.entry.status == "inspected"],
        licensed=bool(_bases(right)),
        checkpoints=_distinct(variant.provenance.checkpoint for variant in right),
        words=_distinct(_clip_set(variant.report) for variant in validated),
        machines=_distinct(_machine(variant.report) for variant in validated),
        choices=_choices(validated),
        absent=[entry for entry in catalog.entries if entry not in here],
    )


def base_model(checkpoint: Checkpoint) -> str | None:
    """The Hub's model that a checkpoint is, or None where it is none that is known.

    A manifest names a repository, and a revision of it, only when all of the checkpoint's
    files have the hashes of those there.
    """
    name = checkpoint.name
    is_known = name is not None and checkpoint.revision and REPOSITORY_NAME.fullmatch(name)
    return name if is_known else None


class _Right(NamedTuple):
    """An entry whose parts are there."""

    entry: Entry
    report: Report
    provenance: Provenance


def _right(entry: Entry) -> _Right:
    if entry.status not in _RIGHT:
        fault = f"status {entry.status}"
    elif entry.report is None or entry.provenance is None:
        fault = "no report, or no manifest"
    elif entry.report.status != entry.status or entry.failures:
        fault = "a report that says otherwise"
    elif entry.report.manifest_sha256 != entry.provenance.manifest_sha256:
        fault = "a report on another manifest"
    else:
        return _Right(entry, entry.report, entry.provenance)
    failures = "".join(f"; {outcome}" for outcome in entry.failures)
    raise BuildError(
        f"{entry.variant} gets no card",
        got=fault + failures,
        allowed="a validated or inspected artifact: a card tells what was found, all of it right",
        next_step=f"build and validate it: `snakemake artifacts/{entry.variant}/report.json`",
    )


# --- front matter ------------------------------------------------------------------------


def _metadata(variants: Sequence[_Right], name: str) -> _Markdown:
    """The YAML block of variants that are published together."""
    bases = _bases(variants)
    results = [result for variant in variants if (result := _word_errors(variant))]
    more: dict[str, Any] = {}
    # The Hub has no relation for the same weights in another format: left out, there.
    if bases and any(_is_quantized(variant.entry) for variant in variants):
        more["base_model_relation"] = "quantized"
    if results:
        more |= {"model_name": _flat(name), "eval_results": results, "metrics": ["wer"]}
    data = ModelCardData(
        base_model=bases[0] if len(bases) == 1 else bases or None,
        library_name="executorch",
        license=LICENSE if bases else NO_LICENSE,
        pipeline_tag="automatic-speech-recognition",
        tags=["executorch", "voxtral", "on-device", *_tags(variants)],
        **more,
    )
    return _Markdown(data.to_yaml())


def _bases(variants: Iterable[_Right]) -> list[str]:
    """Models on the Hub, if all variants are made from some."""
    bases = _distinct(base_model(variant.provenance.checkpoint) for variant in variants)
    return [base for base in bases if base is not None] if None not in bases else []


def _tags(variants: Iterable[_Right]) -> list[str]:
    entries = [variant.entry for variant in variants]
    types = [slug.split(".")[0] for entry in entries for slug in _quantizations(entry)]
    tags = [
        *(entry.backend for entry in entries),
        *(entry.mode for entry in entries),
        *(name for name in types if name != "none"),
    ]
    return _distinct(_flat(tag) for tag in tags)


def _quantizations(entry: Entry) -> tuple[str, str, str]:
    return entry.encoder, entry.decoder, entry.embedding


def _is_quantized(entry: Entry) -> bool:
    return any(slug != "none" for slug in _quantizations(entry))


def _word_errors(variant: _Right) -> EvalResult | None:
    words = variant.report.words
    if words is None or not math.isfinite(words.rate):
        return None
    return EvalResult(
        task_type="automatic-speech-recognition",
        task_name="Automatic Speech Recognition",
        dataset_type="voxtral-build-clips",  # of the build; the Hub has no such dataset
        dataset_name="recordings of the build",
        dataset_config=_clip_set(variant.report),
        metric_type="wer",
        metric_name=f"WER (%), {_flat(variant.entry.variant)}",
        metric_value=round(100 * words.rate, 2),
    )


# --- what the templates tell -------------------------------------------------------------


class _Choice(NamedTuple):
    """The best variants of a mode; None where it was measured of none."""

    mode: str
    smallest: _Right
    closest: _Right | None
    fastest: _Right | None


def _choices(variants: Sequence[_Right]) -> list[_Choice]:
    by_mode = {
        mode: [variant for variant in variants if variant.entry.mode == mode]
        for mode in _distinct(variant.entry.mode for variant in variants)
    }
    return [
        _Choice(
            mode,
            smallest=min(candidates, key=lambda variant: variant.entry.size_bytes),
            closest=_least(candidates, _divergence),
            fastest=_least(candidates, _real_time_factor),
        )
        for mode, candidates in by_mode.items()
    ]


def _divergence(report: Report) -> float | None:
    return None if report.against_float32 is None else report.against_float32.divergence


def _real_time_factor(report: Report) -> float | None:
    return None if report.speed is None else report.speed.real_time_factor


def _least(variants: Iterable[_Right], figure: Callable[[Report], float | None]) -> _Right | None:
    """The one with the least figure; of equal ones, the smallest."""
    measured = [
        (value, variant)
        for variant in variants
        if (value := figure(variant.report)) is not None and math.isfinite(value)
    ]
    best = min(measured, key=lambda pair: (pair[0], pair[1].entry.size_bytes), default=None)
    return best and best[1]


def _clip_set(report: Report) -> str | None:
    words = report.words
    return None if words is None else f"{len(words.clips)} recordings, {words.spoken} words"


def _machine(report: Report) -> str | None:
    return None if report.speed is None else figures.machine(report.speed.machine)


def _bits(part: Report | MethodReport) -> str:
    """Bits per weight: what is in the program, and what the scheme promises."""
    return f"{figures.bits(part.bits_per_weight)} / {figures.bits(part.promised_bits_per_weight)}"


def _absence(entry: Entry) -> str:
    if entry.status == "failed":
        outcomes = "; ".join(str(outcome) for outcome in entry.failures)
        return f"did not pass: {outcomes}" if outcomes else "did not pass; there is no report"
    if entry.status == "built":
        return "was built and not validated"
    if entry.status == "inspected":
        return "was read back, and not run"
    if entry.host == "any":
        return "was not built, though any machine can lower it"
    return f"was not built: lowering it takes {entry.host}"


def _meanings(report: Report) -> dict[str, str]:
    """What the figures of a report's gates are."""
    names = {outcome.gate.rpartition(".")[2] for outcome in report.gates}
    return {figure: meaning for figure, meaning in FIGURES.items() if figure in names}


def _quantization(slug: str) -> str:
    """A quantization in words, where its slug is one of the matrix's."""
    try:
        quant = Quant.parse(slug)
    except ConfigError:
        return slug
    if not quant.bits:
        return "not quantized"
    scale = f"each {quant.group_size} weights" if quant.group_size else "each row"
    inputs = ", inputs to 8 bits as they come" if quant.type.startswith("8da") else ""
    search = f", scales chosen by {quant.algorithm}" if quant.algorithm != "affine" else ""
    return f"weights to {quant.bits} bits with a scale for {scale}{inputs}{search}"


def _weights_sha256(checkpoint: Checkpoint) -> str | None:
    weights = checkpoint.files.get(WEIGHTS)
    return None if weights is None else weights.sha256


def _distinct(items: Iterable[T]) -> list[T]:
    found: list[T] = []
    for item in items:  # which may have no hash
        if item not in found:
            found.append(item)
    return found


# --- Markdown ----------------------------------------------------------------------------


class _Markdown(str):
    """What may stand in Markdown as it is."""

    __slots__ = ()


# An underscore within a word is only that.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)")


def _flat(text: object) -> str:
    """One line without controls."""
    printable = "".join(char if char.isprintable() else " " for char in str(text))
    return " ".join(printable.split())


def _clipped(text: object) -> str:
    flat = _flat(text)
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"


def _escaped(value: object) -> _Markdown:
    """What a template prints: data as plain text, in a paragraph or a table's cell."""
    if isinstance(value, _Markdown):
        return value
    if value is None:
        return _Markdown(figures.MISSING)
    return _Markdown(_SPECIAL.sub(r"\\\g<0>", _clipped(value)))


def _code(value: object) -> _Markdown:
    """A code span, unless it has what no span in a table can."""
    text = _clipped(value)
    return _escaped(text) if not text or {"`", "|"} & set(text) else _Markdown(f"`{text}`")


def _link(text: str, target: str) -> _Markdown:
    return _Markdown(f"[{_code(text)}]({quote(_flat(target), safe='/:')})")


def _shell(value: str) -> _Markdown:
    return _Markdown(shlex.quote(_flat(value)))


def _python(value: str) -> _Markdown:
    return _Markdown(json.dumps(_flat(value)))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "cards"),
        undefined=StrictUndefined,
        finalize=_escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # for HTML; `finalize` escapes for Markdown
    )
    for figure in (
        *(figures.megabytes, figures.percent, figures.milliseconds, figures.seconds),
        *(figures.small, figures.number, figures.cosine),
    ):
        environment.filters[figure.__name__] = figure
    environment.filters |= {"code": _code, "link": _link, "shell": _shell, "python": _python}
    environment.globals |= {
        "MANIFEST": MANIFEST,
        "MODEL": MODEL,
        "REPOSITORY": REPOSITORY,
        "base_model": base_model,
        "bits_of": _bits,
        "bounds": bounds,
        "machine_text": figures.machine,
        "quantization": _quantization,
        "weights_sha256": _weights_sha256,
        "why_absent": _absence,
    }
    return environment


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(f"{template}.md.jinja").render(values)
