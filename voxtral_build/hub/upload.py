"""Sending files to a repository: large ones first, then one commit that has them all."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.hf_api import CommitInfo
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined] # documented
from huggingface_hub.utils._runtime import is_xet_available

from voxtral_build.errors import HubError
from voxtral_build.hub.calls import api, brief, retried, told, understood
from voxtral_build.manifest import FileRecord
from voxtral_build.progress import Tenths

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upload:
    """A file to send: to which path, what, and its known size and hash."""

    path: str
    source: Path | bytes
    record: FileRecord


def create_repository(repository: str, *, private: bool) -> None:
    """Create a repository that is not there.

    Raises:
        HubError: the Hub refuses.
    """
    with told(repository, "create it", writing=True), understood(repository):
        retried(
            lambda: api().create_repo(repository, private=private or None, exist_ok=True),
            repository,
        )


class Uploads:
    """Files on their way to a repository.

    Args:
        files: what to send.
        create_pr: as a pull request.
    """

    def __init__(self, repository: str, files: Sequence[Upload], *, create_pr: bool) -> None:
        self._repository, self._create_pr = repository, create_pr
        contents = {file.record for file in files}
        total = sum(record.bytes for record in contents)
        self._sent = _Sent(Tenths(log, "sent", max(total, 1), "MB"))
        with told_without_cause(repository):
            self._additions = [_addition(file, self._sent) for file in files]

    @property
    def sent(self) -> int:
        """Bytes that were sent so far."""
        return self._sent.bytes

    def send(self) -> None:
        """Send large files; those that the Hub has already are not sent again.

        Raises:
            HubError: the Hub cannot be reached, or refuses. What has arrived stays there for
                the next try, and nobody sees it before the commit.
        """
        if not is_xet_available():
            disable_progress_bars()  # ours is for logs; that of Xet is the only one there is
        # One of each content first: the same bytes, asked for together, are sent each time.
        first = {item.upload_info.sha256: item for item in reversed(self._additions)}
        copies = [item for item in self._additions if first[item.upload_info.sha256] is not item]
        with (
            told(self._repository, "send files", writing=True),
            told_without_cause(self._repository),
            understood(self._repository),
        ):
            for additions in (list(first.values()), copies):
                # The library tries again by itself.
                api().preupload_lfs_files(
                    self._repository,
                    additions,
                    create_pr=self._create_pr,
                    free_memory=False,
                )

    def commit(
        self, removed: Sequence[str], *, title: str, description: str, parent: str
    ) -> CommitInfo:
        """Commit all files at once, on top of `parent` and of nothing else.

        Raises:
            Exception: of the library's, so that the caller can tell what may pass.
        """
        return api().create_commit(
            self._repository,
            [
                *self._additions,
                *(CommitOperationDelete(path, is_folder=False) for path in removed),
            ],
            commit_message=title,
            commit_description=description,
            parent_commit=parent,
            create_pr=self._create_pr,
        )


@contextmanager
def told_without_cause(repository: str) -> Iterator[None]:
    """Of errors that have no type of the library's: of the LFS protocol, of hf_xet, of files."""
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.filename is not None:
            raise HubError(
                f"{cause.filename} cannot be read",
                got=cause.strerror,
                next_step="let nothing build it while it is published, and run it again",
            ) from None
        if error.__cause__ is not None or not _is_bare(error):
            raise
        raise HubError(
            f"{repository}: cannot send files",
            got=brief(error),
            next_step="run it again: what has arrived is not sent twice; with "
            "HF_HUB_DISABLE_XET=1, files go by plain HTTP",
        ) from None


def _is_bare(error: Exception) -> bool:
    """Whether it is of the type itself; hf_xet's own are of OSError."""
    kind = type(error)
    return kind in (ValueError, RuntimeError, ConnectionError) or kind.__module__ == "hf_xet"


def _addition(file: Upload, sent: _Sent) -> _CountedAdd:
    source = file.source if isinstance(file.source, bytes) else str(file.source)
    addition = _CountedAdd(path_in_repo=file.path, path_or_fileobj=source)
    # Known from the manifest, which the file was held against: not to be read for once more.
    addition.upload_info.sha256 = bytes.fromhex(file.record.sha256)
    addition.sent = sent
    return addition


class _Sent:
    """Bytes that were read to be sent, of all files together."""

    def __init__(self, progress: Tenths) -> None:
        self._progress, self._lock = progress, threading.Lock()  # files are sent side by side
        self._by_file: dict[int, int] = {}

    def at(self, file: int, position: int) -> None:
        with self._lock:
            self._by_file[file] = position
            self._progress.at(self.bytes)

    @property
    def bytes(self) -> int:
        return sum(self._by_file.values())


class _CountedAdd(CommitOperationAdd):
    """Tells what is read of it, instead of drawing a bar on a terminal."""

    sent: _Sent

    @contextmanager
    def as_file(self, with_tqdm: bool = False) -> Iterator[BinaryIO]:
        with super().as_file() as file:
            yield cast("BinaryIO", _Counted(file, self.sent, id(self)))


class _Counted(io.BufferedIOBase):
    def __init__(self, file: BinaryIO, sent: _Sent, key: int) -> None:
        self._file, self._sent, self._key = file, sent, key

    def read(self, size: int | None = -1) -> bytes:
        block = self._file.read(-1 if size is None else size)
        self._sent.at(self._key, self._file.tell())
        return block

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def seekable(self) -> bool:
        return True
