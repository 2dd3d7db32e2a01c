"""A program's description as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from voxtral_build.pte.inspect import (
        MethodDescription,
        ProgramDescription,
        ValueDescription,
    )

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(size: int) -> str:
    """`size` in the largest unit that leaves at least one: "13.1 KiB"."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def render(description: ProgramDescription) -> str:
    """The description as lines of text, methods first; ends with a newline."""
    head = human_bytes(description.head_bytes)
    lines = [f"{description.file}  {human_bytes(description.file_bytes)}  (head {head})"]
    for method in description.methods.values():
        lines += ["", f"method {method.name}", *_rows(_method_rows(method), indent=2)]
    if description.constant_methods:
        values = {name: repr(value) for name, value in description.constant_methods.items()}
        lines += ["", "constant methods", *_rows(list(values.items()), indent=2)]
    lines += ["", "data", *_rows(_segment_rows(description), indent=2)]
    return "\n".join(lines) + "\n"


def _method_rows(method: MethodDescription) -> list[tuple[str, str]]:
    rows = [(f"input {i}", _value(value)) for i, value in enumerate(method.inputs)]
    rows += [(f"output {i}", _value(value)) for i, value in enumerate(method.outputs)]
    rows.append(("delegates", _counts(method.delegates)))
    rows.append(("operators", _counts(method.operators)))
    rows.append(
        ("instructions", f"{method.instructions}, {method.delegate_calls} of them delegate calls")
    )
    arenas = " + ".join(human_bytes(size) for size in method.arena_bytes)
    total = human_bytes(method.planned_bytes)
    rows.append(("planned memory", total if len(method.arena_bytes) < 2 else f"{total} = {arenas}"))
    rows.append(("constants", human_bytes(method.constant_bytes)))
    if method.mutable_bytes:
        rows.append(("initial values", human_bytes(method.mutable_bytes)))
    if method.external_tensors:
        rows.append(("external tensors", str(method.external_tensors)))
    return rows


def _value(value: ValueDescription) -> str:
    if value.sizes is None:
        return value.kind
    shape = ", ".join(str(size) for size in value.sizes)
    notes = {"dynamic_bound": " at most", "dynamic_unbound": " unbounded"}
    return f"{value.dtype} [{shape}]{notes.get(value.dynamism or '', '')}"


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} x {count}" for name, count in ordered) or "none"


def _segment_rows(description: ProgramDescription) -> list[tuple[str, str]]:
    rows = []
    for kind, total in description.segments.items():
        plural = "" if total.count == 1 else "s"
        keys = f", {description.named_data_keys} keys" if kind == "named" else ""
        size = human_bytes(total.bytes)
        rows.append((kind, f"{size} in {total.count} segment{plural}{keys}"))
    return rows or [("none", "")]


def _rows(rows: list[tuple[str, str]], indent: int) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{'':{indent}}{name:<{width}}  {value}".rstrip() for name, value in rows]
