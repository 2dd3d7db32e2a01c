"""Figures as people read them."""

from __future__ import annotations

import math

from voxtral_build.report import Machine

MISSING = "–"
_NOT_FINITE = "not finite"


def megabytes(count: float | None) -> str:
    """Bytes in MB of a million."""
    return _figure(None if count is None else count / 1e6, ",.1f", " MB")


def percent(share: float | None) -> str:
    """A share of 1 in percent."""
    return _figure(None if share is None else 100 * share, ".2f", " %")


def milliseconds(value: float | None) -> str:
    """Of milliseconds."""
    return _figure(value, ",.1f", " ms")


def seconds(value: float | None) -> str:
    """Of seconds."""
    return _figure(value, ",.2f", " s")


def bits(value: float | None) -> str:
    """Bits per weight."""
    return _figure(value, ".2f", "")


def cosine(value: float | None) -> str:
    """Of vectors that are nearly the same."""
    return _figure(value, ".6f", "")


def small(value: float | None) -> str:
    """A figure whose order of magnitude is what matters: 1.9e-4 for 0.000187."""
    if value is None or not math.isfinite(value):
        return _figure(value, "", "")
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def number(value: float | None) -> str:
    """Any other figure."""
    return _figure(value, ".4g", "")


def machine(measured_on: Machine) -> str:
    """Processor, cores, memory and system in a line."""
    cores = f"{measured_on.cores} core{'' if measured_on.cores == 1 else 's'}"
    memory = f"{measured_on.memory_bytes / 2**30:.0f} GiB of memory"
    system = f"{measured_on.system}, {measured_on.machine}"
    return f"{measured_on.processor or measured_on.machine}, {cores}, {memory} ({system})"


def _figure(value: float | None, form: str, unit: str) -> str:
    if value is None:
        return MISSING
    return f"{value:{form}}{unit}" if math.isfinite(value) else _NOT_FINITE
