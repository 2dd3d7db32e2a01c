"""Fetching one file of a repository: resumed, never past its size, held against its hash.

huggingface_hub's own downloads begin anew in every process; its `http_get` can go on within a
file, and that is used here. What has arrived lies under a name that has the content's hash in
it, so that no two contents are ever joined.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Self, cast

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined] # documented, not marked
    build_hf_headers,
    disable_progress_bars,
)

from voxtral_build.errors import HubError
from voxtral_build.hub.calls import retried, told
from voxtral_build.manifest import FileRecord
from voxtral_build.progress import Tenths

log = logging.getLogger(__name__)
disable_progress_bars("huggingface_hub.http_get")  # ours is for logs

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Identity:
    """What a file's content is, as the Hub tells it.

    Attributes:
        bytes: its size.
        digest: in hexadecimal.
        kind: `sha256` of the content, which is what large files are stored by, or `git`: the
            SHA-1 of git's blob, of small ones.
    """

    bytes: int
    digest: str
    kind: Literal["sha256", "git"]

    @classmethod
    def sha256(cls, record: FileRecord) -> Self:
        """Of a file whose hash is known."""
        return cls(record.bytes, record.sha256, "sha256")

    def is_of(self, path: Path) -> bool:
        """Whether a file has this content; reads it through."""
        if not path.is_file() or path.stat().st_size != self.bytes:
            return False
        got = FileRecord.of(path).sha256 if self.kind == "sha256" else git_blob_id(path)
        return got == self.digest


def git_blob_id(content: Path | bytes) -> str:
    """The name that git gives to a file's content: SHA-1 of a head and the content."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def identity(repository: str, revision: str, name: str) -> Identity:
    """Ask the Hub what a file's content is.

    Raises:
        HubError: the file, the revision or the repository is not there, or not for us; the
            Hub cannot be reached.
    """
    url = hf_hub_url(repository, name, revision=revision)
    with told(repository, f"fetch {name}"):
        metadata = get_hf_file_metadata(url, retry_on_errors=True)
    etag, size = metadata.etag or "", metadata.size
    if not _HASH.fullmatch(etag) or size is None:
        raise HubError(
            f"{repository}: {name} cannot be checked",
            got=f"ETag {etag or 'missing'}, size {size}",
            allowed="a SHA-256 or a git blob's SHA-1, and a size, as the Hub sends them",
            next_step="check HF_ENDPOINT, and proxies on the way",
        )
    return Identity(size, etag, "sha256" if len(etag) == 64 else "git")


def require_space(folder: Path, wanted: Mapping[Path, Identity]) -> None:
    """See before the first byte that all files fit on the disk.

    Args:
        folder: exists.
        wanted: what is to be fetched, by where it will lie.

    Raises:
        HubError: they do not.
    """
    needed = sum(item.bytes - _arrived(_partial(path, item)) for path, item in wanted.items())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise HubError(
            f"{folder}: not enough space on the disk",
            got=f"{free:,} bytes free",
            allowed=f"{needed:,} bytes for {', '.join(path.name for path in wanted)}",
            next_step="make room, or work in a folder on another disk",
        )


def fetch(repository: str, revision: str, name: str, target: Path, expected: Identity) -> None:
    """Fetch a file to `target`: whole and right, or not at all.

    Interrupted, it goes on where it was, in this process or another.

    Args:
        revision: a commit; what a branch has may change under a download.
        name: of the file in the repository.
        expected: its content.

    Raises:
        HubError: it could not be fetched, or has other bytes than expected.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target, expected)
    if _arrived(partial) > expected.bytes:
        partial.unlink()
    begun = _arrived(partial)
    if begun:
        log.info("%s: going on after %.1f of %.1f MB", name, begun / 1e6, expected.bytes / 1e6)
    progress = Tenths(log, f"{name}: fetched", max(expected.bytes, 1), "MB", done=begun)
    # Not the storage's signed URL: that one ends after an hour, and is as good as a token.
    url = hf_hub_url(repository, name, revision=revision)

    def on() -> None:
        with _Partial(partial, expected.bytes, progress) as file:
            http_get(
                url,
                cast("BinaryIO", file),
                resume_size=file.tell(),
                headers=build_hf_headers() | {"Accept-Encoding": "identity"},
                expected_size=expected.bytes,
                displayed_filename=name,
            )

    with told(repository, f"fetch {name}"):
        try:
            retried(on, name, progress=lambda: _arrived(partial))
        except OSError as error:
            if error.errno is not None:
                raise HubError(f"{target} cannot be written", got=error.strerror) from None
            if type(error) is not OSError:  # one of the Hub's
                raise
            # The size did not fit: `http_get` and `_Partial` raise no more than this.
            partial.unlink(missing_ok=True)
            raise _wrong(repository, revision, name, str(error), expected) from None
    _check(repository, revision, name, partial, expected)
    partial.replace(target)


def _check(repository: str, revision: str, name: str, path: Path, expected: Identity) -> None:
    if expected.is_of(path):
        return
    got = FileRecord.of(path).sha256 if expected.kind == "sha256" else git_blob_id(path)
    size = path.stat().st_size
    path.unlink()
    raise _wrong(repository, revision, name, f"{size:,} bytes, {expected.kind} {got}", expected)


def _wrong(repository: str, revision: str, name: str, got: str, expected: Identity) -> HubError:
    return HubError(
        f"{repository}: {name} arrived with wrong bytes, and was removed",
        got=got,
        allowed=f"{expected.bytes:,} bytes, {expected.kind} {expected.digest}, "
        f"as revision {revision} has it",
        next_step="run it again; if that changes nothing, something on the way changes files",
    )


def _partial(target: Path, expected: Identity) -> Path:
    return target.with_name(f".{target.name}.{expected.digest[:16]}.part")


def _arrived(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class _Partial(io.BufferedIOBase):
    """The part of a file that has arrived, open at its end; refuses to grow past `size`."""

    def __init__(self, path: Path, size: int, progress: Tenths) -> None:
        # No link is followed: the name could be one that somebody else made.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(path, flags, 0o666), "r+b")
        self._file.seek(0, os.SEEK_END)
        self._size, self._progress = size, progress

    def write(self, data: object) -> int:
        block = bytes(data)  # type: ignore[call-overload]
        if self._file.tell() + len(block) > self._size:
            raise OSError(f"more than {self._size:,} bytes")
        self._file.write(block)
        # A killed process loses what Python still holds.
        self._file.flush()
        self._progress.at(self._file.tell())
        return len(block)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        super().close()
