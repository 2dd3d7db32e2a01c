"""The matrix as a table: every variant, what it is, and what is built of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from voxtral_build.catalog.entries import Catalog, Entry


@dataclass(frozen=True)
class Row:
    """One variant.

    Attributes:
        host: where its units can be lowered.
        status: not built; built (no report yet); validated; inspected (read back, not run);
            failed.
        size_bytes: of model.pte, and of model.ptd where there is one.
        bits_per_weight: of what is in it, scales and what backends keep beside them included.
        top1_agreement: share of positions where the likeliest token is that of the model in
            float32.
        divergence: mean Kullback-Leibler divergence from that model's tokens, in nats.
        word_error_rate: on the set of recordings that it was validated with.
        step_ms: median time of one token (80 ms of audio), in ms.
        real_time_factor: time to transcribe, over the length of the audio.
        peak_rss_bytes: of a process that transcribes.
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
    bits_per_weight: float | None = None
    top1_agreement: float | None = None
    divergence: float | None = None
    word_error_rate: float | None = None
    step_ms: float | None = None
    real_time_factor: float | None = None
    peak_rss_bytes: int | None = None


def rows(catalog: Catalog) -> list[Row]:
    """A row for each entry."""
    return [_row(entry) for entry in catalog.entries]


def _row(entry: Entry) -> Row:
    report = entry.report
    against = report and report.against_float32
    words, speed = report and report.words, report and report.speed
    return Row(
        variant=entry.variant,
        backend=entry.backend,
        dtype=entry.dtype,
        scheme=entry.scheme,
        mode=entry.mode,
        encoder=entry.encoder,
        decoder=entry.decoder,
        embedding=entry.embedding,
        host=entry.host,
        status=entry.status,
        size_bytes=entry.model_bytes,
        bits_per_weight=report.bits_per_weight if report else None,
        top1_agreement=against.top1_agreement if against else None,
        divergence=against.divergence if against else None,
        word_error_rate=words.rate if words else None,
        step_ms=speed.step_ms_median if speed else None,
        real_time_factor=speed.real_time_factor if speed else None,
        peak_rss_bytes=speed.peak_rss_bytes if speed else None,
    )


def as_json(table: Iterable[Row]) -> str:
    """The rows for programs."""
    return json.dumps([asdict(row) for row in table], indent=2)


_HEADINGS = (
    *("variant", "encoder", "decoder", "embedding", "host", "status"),
    *("size", "bits", "top-1", "KL", "WER", "ms/step", "RTF", "memory"),
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
        "" if row.bits_per_weight is None else f"{row.bits_per_weight:.2f}",
        "" if row.top1_agreement is None else f"{row.top1_agreement:.1%}",
        "" if row.divergence is None else f"{row.divergence:.1e}",
        "" if row.word_error_rate is None else f"{row.word_error_rate:.1%}",
        "" if row.step_ms is None else f"{row.step_ms:.1f}",
        "" if row.real_time_factor is None else f"{row.real_time_factor:.3f}",
        "" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 1e6:,.0f} MB",
    )
