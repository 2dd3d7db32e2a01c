"""The matrix as a table: every variant, what it is, and what is built of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxtral_build.artifact_files import FAILED_REPORT, MODEL, REPORT
from voxtral_build.matrix import CAPABILITIES, Matrix

REPORTS = (REPORT, FAILED_REPORT)  # of a validated artifact, and of a failed one


@dataclass(frozen=True)
class Row:
    """One variant.

    Attributes:
        host: where its units can be lowered.
        status: not built; built (no report yet); validated; failed.
        size_bytes: of model.pte.
        max_abs_difference: worst of its methods against eager with the same quantization.
        top1_agreement: share of positions where the likeliest token is that of the model in
            float32.
        divergence: mean Kullback-Leibler divergence from that model's tokens, in nats.
        word_error_rate: on the set of recordings that it was validated with.
        ms_per_step: time of one token (80 ms of audio), in ms.
    """

    variant: str
    backend: str
    dtype: str
    scheme: str
    mode: str
    encoder: str
    decoder: str
    embedding: str
    host: str
    status: str
    size_bytes: int | None = None
    max_abs_difference: float | None = None
    top1_agreement: float | None = None
    divergence: float | None = None
    word_error_rate: float | None = None
    ms_per_step: float | None = None


def rows(matrix: Matrix, artifacts: Path) -> list[Row]:
    """Every variant of the matrix, with what `artifacts` has of it."""
    result = []
    for variant in matrix.variants:
        scheme = matrix.scheme(variant)
        result.append(
            Row(
                variant=variant.slug,
                backend=variant.backend,
                dtype=variant.dtype,
                scheme=variant.scheme,
                mode=variant.mode,
                encoder=scheme.encoder.slug,
                decoder=scheme.decoder.slug,
                embedding=scheme.embedding.slug,
                host=CAPABILITIES[variant.backend].host,
                **_built(artifacts / variant.slug),
            )
        )
    return result


def _built(artifact: Path) -> dict[str, Any]:
    """Status and measurements from an artifact's folder."""
    model = artifact / MODEL
    if not model.is_file():
        return {"status": "not built"}
    report = _report(artifact, model.stat().st_mtime_ns)
    methods: Mapping[str, Mapping[str, float]] = report.get("methods", {})
    differences = [method["max_abs_difference"] for method in methods.values()]
    float32: Mapping[str, float] = report.get("against_float32", {})
    return {
        "status": report.get("status", "built"),
        "size_bytes": report.get("size_bytes", model.stat().st_size),
        "max_abs_difference": max(differences, default=None),
        "top1_agreement": float32.get("top1_agreement"),
        "divergence": float32.get("divergence"),
        "word_error_rate": (report.get("words") or {}).get("rate"),
        "ms_per_step": report.get("ms_per_step"),
    }


def _report(artifact: Path, built: int) -> dict[str, Any]:
    """The report on what was built at that time (ns), or nothing.

    A model that was built again is not what an older report speaks of.
    """
    for name in REPORTS:
        file = artifact / name
        try:
            if file.stat().st_mtime_ns >= built:
                report = json.loads(file.read_text(encoding="utf-8"))
                return report if isinstance(report, dict) else {}
        except (OSError, ValueError):
            continue
    return {}


def as_json(table: Iterable[Row]) -> str:
    """The rows for programs."""
    return json.dumps([asdict(row) for row in table], indent=2)


_HEADINGS = (
    *("variant", "encoder", "decoder", "embedding", "host"),
    *("status", "size", "max diff", "top-1", "KL", "WER", "ms/step"),
)
_NUM_TEXT_COLUMNS = 6  # the rest are numbers, set to the right


def as_text(table: Sequence[Row]) -> str:
    """The rows for people; backend, dtype, scheme and mode are read off the variant."""
    lines = [_HEADINGS, *(_cells(row) for row in table)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < _NUM_TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *(row.variant, row.encoder, row.decoder, row.embedding, row.host, row.status),
        "" if row.size_bytes is None else f"{row.size_bytes / 1e6:,.1f} MB",
        "" if row.max_abs_difference is None else f"{row.max_abs_difference:.1e}",
        "" if row.top1_agreement is None else f"{row.top1_agreement:.1%}",
        "" if row.divergence is None else f"{row.divergence:.1e}",
        "" if row.word_error_rate is None else f"{row.word_error_rate:.1%}",
        "" if row.ms_per_step is None else f"{row.ms_per_step:.1f}",
    )
