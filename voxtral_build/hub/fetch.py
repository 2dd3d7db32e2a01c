"""Fetching one file of a repository: resumed, never past its size, held against its hash.

huggingface_hub's own downloads begin anew in every process, and end with the size. Here, what
has arrived stays under a name that has the content's hash in it, so that no two contents are
ever joined, and becomes the file when it is all of the right bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Self

from huggingface_hub import constants, get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined] # documented, not marked
    build_hf_headers,
    hf_raise_for_status,
)

from voxtral_build.errors import HubError
from voxtral_build.hub.calls import retried, status, told
from voxtral_build.manifest import FileRecord
from voxtral_build.progress import Tenths

log = logging.getLogger(__name__)

_LONG = 10_000_000  # bytes of a file whose progress is worth telling
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
    with told(repository, f"fetch {name}"):
        try:
            with _opened(partial, name) as file:
                if expected.is_of(target):  # by another process, which was waited for
                    partial.unlink()
                    return
                _bring(repository, revision, name, file, expected)
                _check(repository, revision, name, partial, expected)
                partial.replace(target)
        except OSError as error:
            if error.errno is None:  # one of the Hub's
                raise
            raise HubError(
                f"{target} cannot be written",
                got=error.strerror,
                next_step="make room there, or name another folder",
            ) from None
        except _TooLongError:
            partial.unlink(missing_ok=True)
            raise _wrong(repository, revision, name, "more bytes", expected) from None
    log.info("%s: fetched, %s as it has to be", name, expected.kind)


class _TooLongError(Exception):
    """A server sends more than the file has."""


@contextmanager
def _opened(partial: Path, name: str) -> Iterator[BinaryIO]:
    """What has arrived, open at its end, for one process at a time.

    Refused before the first byte, it leaves nothing.
    """
    # No link is followed: the name could be one that somebody else made.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    while True:
        with os.fdopen(os.open(partial, flags, 0o666), "r+b") as file:
            _lock(file, name)
            if not _is_at(file, partial):
                continue  # whoever was waited for has made it the file, or removed it
            file.seek(0, os.SEEK_END)
            try:
                yield file
            except BaseException:
                if not file.tell():
                    partial.unlink(missing_ok=True)
                raise
            return


def _lock(file: BinaryIO, name: str) -> None:
    """Until it is closed, also by a kill."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("%s: another process is fetching it, waiting for that", name)
        fcntl.flock(file, fcntl.LOCK_EX)


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _bring(repository: str, revision: str, name: str, file: BinaryIO, expected: Identity) -> None:
    """Append what is missing, in as many requests as it takes."""
    if file.tell() > expected.bytes:
        file.truncate(file.seek(0))
    if file.tell():
        log.info(
            "%s: going on after %.1f of %.1f MB", name, file.tell() / 1e6, expected.bytes / 1e6
        )
    progress = Tenths(log, f"{name}: fetched", max(expected.bytes, 1), "MB", done=file.tell())
    # Not the storage's signed URL: that one ends after an hour, and is as good as a token.
    url = hf_hub_url(repository, name, revision=revision)

    def on() -> None:
        begun = file.tell()
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if begun:
            headers["Range"] = f"bytes={begun}-"
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            if begun and response.status_code == 200:  # from its start, though not asked for
                file.truncate(file.seek(0))
            # As it arrives: blocks of one size would be held back, and be lost with a connection.
            for block in response.iter_bytes():
                if file.tell() + len(block) > expected.bytes:
                    raise _TooLongError
                file.write(block)
                file.flush()  # a killed process loses what it still holds
                if expected.bytes >= _LONG:
                    progress.at(file.tell())

    while file.tell() < expected.bytes:
        before = file.tell()
        try:
            retried(on, name, progress=file.tell)
        except HfHubHTTPError as error:
            if status(error) != 416 or not before:  # nothing begins there: it is not this file
                raise
            return
        if file.tell() == before:
            return  # the answer was whole, and had nothing
    os.fsync(file.fileno())


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
