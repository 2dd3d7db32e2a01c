"""JSON as its standard has it: UTF-8, and every key of an object once.

`json.loads` alone keeps the last of two equal keys and takes NaN for a number.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse(data: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: says what is wrong, and where.
    """
    try:
        return json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = set[str]()
        for key, _ in pairs:
            if key in keys:
                raise ValueError(f"key {key!r} appears twice")
            keys.add(key)
    return result


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON's")
