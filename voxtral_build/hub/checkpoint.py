"""A checkpoint from the Hub: its three files, fetched once and kept."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache

from voxtral_build.checkpoint import FILES
from voxtral_build.errors import HubError
from voxtral_build.hub.fetch import Identity, fetch, identity, require_space
from voxtral_build.hub.lock import read_lock, write_lock
from voxtral_build.manifest import FileRecord
from voxtral_build.settings import CheckpointFile, CheckpointSource

log = logging.getLogger(__name__)

_FIND_OUT = "find out which of the two is wrong before you go on"


def fetch_checkpoint(source: CheckpointSource, store: Path, lock: Path) -> Path:
    """Bring the three files of a repository's revision into the store.

    A file that is there, or in huggingface_hub's cache, and is what it has to be, is not
    fetched: with all of them nothing is asked of the Hub.

    Args:
        source: with `repo` and `revision`.
        store: a folder; files lie in it by repository and revision.
        lock: read and written for files that the source pins no hash of.

    Returns:
        The folder in the store.

    Raises:
        HubError: a file could not be fetched, is not what it has to be, or does not fit on
            the disk; offline, what it has to be is not known.
    """
    assert source.repo is not None
    assert source.revision is not None
    repository, revision = source.repo, source.revision
    folder = source.kept_in(store)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HubError(
            f"{folder} cannot be made",
            got=error.strerror,
            next_step="make way for it, or keep files elsewhere: --store",
        ) from None
    locked = read_lock(lock, repository, revision)

    records: dict[CheckpointFile, FileRecord] = {}
    wanted: dict[CheckpointFile, Identity] = {}
    pins = {name: locked[name].sha256 for name in FILES if name in locked} | source.sha256

    def require_pinned(name: CheckpointFile, digest: str, what: str) -> None:
        if digest != pins.get(name, digest):
            where = "checkpoint.sha256" if name in source.sha256 else lock
            raise HubError(
                f"{repository}: {name} is not what it has to be{what}",
                got=f"sha256 {digest} at revision {revision}",
                allowed=f"sha256 {pins[name]}, as {where} has it",
                next_step=_FIND_OUT,
            )

    for name in FILES:
        pin = pins.get(name)
        kept = pin and _kept(repository, revision, folder / name, pin)
        if kept:
            records[name] = kept
            continue
        _require_online(repository, name, pin)
        expected = identity(repository, revision, name)
        if expected.kind == "sha256":
            require_pinned(name, expected.digest, "; nothing was fetched")
        if expected.is_of(folder / name) or _is_of_another_revision(folder / name, expected):
            records[name] = _record(folder / name, expected)
            require_pinned(name, records[name].sha256, "; nothing was fetched")
        else:
            wanted[name] = expected

    require_space(folder, {folder / name: expected for name, expected in wanted.items()})
    # Small ones first: of these the Hub tells no SHA-256, so it is known only when they are here.
    for name, expected in sorted(wanted.items(), key=lambda item: item[1].bytes):
        fetch(repository, revision, name, folder / name, expected)
        records[name] = _record(folder / name, expected)
        try:
            require_pinned(name, records[name].sha256, ", and was removed")
        except HubError:
            (folder / name).unlink()
            raise
    for name in FILES:
        _protect(folder / name)
    unpinned = {name: records[name] for name in FILES if name not in source.sha256}
    if unpinned:
        write_lock(lock, repository, revision, unpinned)
    return folder


def _record(path: Path, known: Identity) -> FileRecord:
    """Of a file that has this content."""
    if known.kind == "sha256":
        return FileRecord(known.bytes, known.digest)
    return FileRecord.of(path)


def _kept(repository: str, revision: str, path: Path, pin: str) -> FileRecord | None:
    """A file that is at hand, in the store or in the library's cache, and is the right one."""
    if path.is_file():
        record = FileRecord.of(path)
        if record.sha256 == pin:
            return record
        log.warning("%s is not what it has to be: asking the Hub", path)
        return None
    cached = try_to_load_from_cache(repository, path.name, revision=revision)
    if not isinstance(cached, str):
        return None
    record = FileRecord.of(Path(cached))
    if record.sha256 != pin:
        return None
    log.info("%s: taken from %s", path.name, cached)
    path.unlink(missing_ok=True)  # a link to where the cache was
    path.symlink_to(Path(cached).resolve())
    return record


def _is_of_another_revision(path: Path, expected: Identity) -> bool:
    """Whether the store has the content already, of a commit that changed something else."""
    for other in sorted(path.parent.parent.glob(f"*/{path.name}")):
        if other.parent != path.parent and expected.is_of(other):
            log.info("%s: as in revision %s, which is here", path.name, other.parent.name)
            path.unlink(missing_ok=True)
            path.hardlink_to(other.resolve())
            return True
    return False


def _require_online(repository: str, name: str, pin: str | None) -> None:
    if constants.is_offline_mode():
        raise HubError(
            f"{repository}: {name} is not here, and cannot be fetched",
            got="HF_HUB_OFFLINE is set" + ("" if pin else ", and no hash of the file is known"),
            next_step="unset it and run this once; or put the files in a folder, and name that "
            "as checkpoint.path",
        )


def _protect(path: Path) -> None:
    """Against whatever writes through a link to it; Snakemake's `protected` does the same."""
    if not path.is_symlink():  # into the library's cache, which is not ours
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
