"""The schemas' scalar types, which are torch's dtypes, and how large they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from voxtral_build.pte.schema import table

_ELEMENT_BYTES = {
    "BYTE": 1, "CHAR": 1, "BOOL": 1, "QINT8": 1, "QUINT8": 1, "QUINT4X2": 1, "QUINT2X4": 1,
    "FLOAT8E5M2": 1, "FLOAT8E4M3FN": 1, "FLOAT8E5M2FNUZ": 1, "FLOAT8E4M3FNUZ": 1,
    "SHORT": 2, "HALF": 2, "BFLOAT16": 2, "BITS16": 2, "UINT16": 2,
    "INT": 4, "FLOAT": 4, "QINT32": 4, "UINT32": 4,
    "LONG": 8, "DOUBLE": 8, "UINT64": 8,
}  # fmt: skip


def scalar_type_name(scalar_type: int) -> str:
    """The schema's name of a scalar type, such as "BFLOAT16"; "UNKNOWN_99" for others."""
    for name, number in vars(table("ScalarType")).items():
        if name in _ELEMENT_BYTES and number == scalar_type:
            return str(name)
    return f"UNKNOWN_{scalar_type}"


def scalar_bytes(scalar_type: int, sizes: Sequence[int]) -> int:
    """Bytes of a dense tensor of this dtype and these sizes.

    Raises:
        ValueError: the schema has no such scalar type, or a size is negative.
    """
    name = scalar_type_name(scalar_type)
    if name not in _ELEMENT_BYTES or any(size < 0 for size in sizes):
        raise ValueError(f"a tensor of {name} with sizes {list(sizes)}")
    return _ELEMENT_BYTES[name] * math.prod(sizes)
