"""Stretches of bytes that stay on disk: compared and copied in bounded pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from voxtral_build.errors import PteError

# One buffer of this many bytes is all the memory that reading an extent takes.
CHUNK_BYTES = 1 << 20
# Extents that differ usually differ here, which spares hashing whole weights.
_PREFIX_BYTES = 64


@dataclass(frozen=True)
class Extent:
    """`size` bytes of the file `path` from byte `offset` on."""

    path: Path
    offset: int
    size: int

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[memoryview]:
        """The bytes in order, at most `limit` at a time; a view holds until the next one.

        Raises:
            PteError: the file ends before the extent does.
        """
        buffer = memoryview(bytearray(min(limit, self.size)))
        left = self.size
        with self.path.open("rb", buffering=0) as source:
            source.seek(self.offset)
            while left:
                count = source.readinto(buffer[: min(left, len(buffer))])
                if not count:
                    raise PteError(
                        f"{self.path} became shorter while it was read",
                        got=f"{left} bytes missing of the {self.size} at byte {self.offset}",
                        next_step="build it again, and let no other process write it meanwhile",
                    )
                yield buffer[:count]
                left -= count

    def prefix(self) -> bytes:
        """The first 64 bytes, or fewer where the extent is shorter."""
        return b"".join(Extent(self.path, self.offset, min(self.size, _PREFIX_BYTES)).chunks())

    def sha256(self) -> bytes:
        """The SHA-256 digest of the bytes."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return digest.digest()

    def copy_to(self, output: BinaryIO) -> None:
        """Append the bytes to `output`."""
        output.writelines(self.chunks())


@dataclass
class UniqueExtents:
    """Extents in the order added, those with equal bytes kept once.

    Attributes:
        extents: the distinct extents; an index returned by `add` points here.
        alignments: of each, the strictest alignment asked for, in bytes.
    """

    extents: list[Extent] = field(default_factory=list)
    alignments: list[int] = field(default_factory=list)
    _alike: dict[tuple[int, bytes], list[int]] = field(default_factory=dict)
    _places: dict[Extent, int] = field(default_factory=dict)
    _digests: dict[int, bytes] = field(default_factory=dict)

    def add(self, extent: Extent, alignment: int) -> int:
        """The index of `extent`, or of the earlier one with the same bytes."""
        index = self._places.get(extent)
        if index is None:
            index = self._place(extent, alignment)
            self._places[extent] = index
        self.alignments[index] = max(self.alignments[index], alignment)
        return index

    def _place(self, extent: Extent, alignment: int) -> int:
        alike = self._alike.setdefault((extent.size, extent.prefix()), [])
        digest = extent.sha256() if alike else None
        for index in alike:
            if index not in self._digests:
                self._digests[index] = self.extents[index].sha256()
            if self._digests[index] == digest:
                return index
        index = len(self.extents)
        alike.append(index)
        if digest is not None:
            self._digests[index] = digest
        self.extents.append(extent)
        self.alignments.append(alignment)
        return index


@dataclass
class NamedExtents:
    """Extents by name: each name once, and equal bytes once for all their names.

    Attributes:
        keys: name to the index of its bytes in `unique` and the file it was first seen in.
    """

    unique: UniqueExtents = field(default_factory=UniqueExtents)
    keys: dict[str, tuple[int, Path]] = field(default_factory=dict)

    def add(self, key: str, extent: Extent, alignment: int) -> None:
        """Take in what one unit has under a name.

        Raises:
            PteError: another unit has other bytes there.
        """
        index = self.unique.add(extent, alignment)
        known, path = self.keys.setdefault(key, (index, extent.path))
        if known != index:
            raise PteError(
                f"the named data {key!r} differ between two units",
                got=f"{self.unique.extents[known].size} bytes in {path}, "
                f"{extent.size} other bytes in {extent.path}",
                allowed="one content per key",
                next_step="lower both units from the same weights",
            )


def aligned(offset: int, alignment: int) -> int:
    """The first multiple of `alignment` that is not before `offset`."""
    return -(-offset // alignment) * alignment
