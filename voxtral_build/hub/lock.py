"""checkpoint.lock.json: what the files of a revision were when they were first fetched.

Where the configuration pins no hashes, the Hub's own are taken, once. From then on they are
held against this file, which is to be committed with the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxtral_build.checkpoint import read_json
from voxtral_build.errors import CheckpointError
from voxtral_build.files import write_text
from voxtral_build.manifest import FileRecord
from voxtral_build.settings import CheckpointFile


def read_lock(path: Path, repository: str, revision: str) -> dict[str, FileRecord]:
    """What is locked of a revision, by the names of files; empty without a lock.

    Raises:
        CheckpointError: the file is no lock.
    """
    entry = _entries(path).get(_key(repository, revision), {})
    try:
        return {
            name: FileRecord(int(item["bytes"]), str(item["sha256"]))
            for name, item in entry.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no lock of a checkpoint",
            got=f"{type(error).__name__}: {error}",
            next_step="restore it, or remove it and pin hashes under checkpoint.sha256",
        ) from None


def write_lock(
    path: Path, repository: str, revision: str, records: Mapping[CheckpointFile, FileRecord]
) -> None:
    """Add a revision to the lock; other revisions in it stay."""
    entries = _entries(path)
    entries[_key(repository, revision)] = {
        name: {"bytes": record.bytes, "sha256": record.sha256} for name, record in records.items()
    }
    text = json.dumps(entries, indent=1, sort_keys=True) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _entries(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _key(repository: str, revision: str) -> str:
    return f"{repository}@{revision}"
