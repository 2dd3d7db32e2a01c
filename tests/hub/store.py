"""Repositories on disk: content by its hash, commits as JSON, and a file of references each.

A path in a repository is only ever a key in a commit, never a path on disk: a repository may
hold names as hostile as a test wants.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

ATTRIBUTES = b"*.pte filter=lfs diff=lfs merge=lfs -text\n"
_PIECE = 1 << 20
_LFS_SUFFIXES = (".pte", ".ptd", ".safetensors", ".bin")


class AbsentError(Exception):
    """No such "Repo", "Revision" or "Entry"; as the Hub's error codes have it."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.code = f"{what}NotFound"


class MismatchError(Exception):
    """Content is not what its hash says."""


@dataclass(frozen=True)
class File:
    """Of a large file, `sha1` is that of its pointer, as on the Hub."""

    size: int
    sha1: str
    sha256: str | None


@dataclass(frozen=True)
class Commit:
    """The state of a repository, and how it came about."""

    id: str
    title: str
    description: str
    parent: str | None
    author: str
    date: str
    tree: dict[str, File]


@dataclass(frozen=True)
class PullRequest:
    """`base` is the commit that it started from."""

    num: int
    title: str
    revision: str
    status: str
    base: str
    author: str
    date: str


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def blob_id(content: bytes) -> str:
    """As git names it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """What git has in place of a large file."""
    return (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    )


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name that becomes `path`, unless something goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(content)


class Repository:
    """One repository's folder. Whatever changes references holds the store's lock."""

    def __init__(self, folder: Path, lock: threading.RLock) -> None:
        self.folder = folder
        self.name = unquote(folder.name)
        self._lock = lock
        self._commits: dict[str, Commit] = {}

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_bytes())
        return state

    def _save(self, state: dict[str, Any]) -> None:
        _write(self.folder / "state.json", json.dumps(state, indent=1).encode())

    def create(self, private: bool, gated: bool | str, author: str) -> None:
        self._save(
            {
                "private": private,
                "gated": "auto" if gated is True else gated,
                "created": now(),
                "refs": {},
                "pulls": [],
            }
        )
        tree = {".gitattributes": self.put(ATTRIBUTES)}
        self._move("refs/heads/main", self._record(None, tree, "initial commit", "", author))

    def put(self, content: bytes) -> File:
        """A regular file."""
        file = File(len(content), blob_id(content), None)
        _write(self.path(file), content)
        return file

    def large(self, sha256: str) -> File | None:
        """The large file of this hash, if its content is here."""
        path = self.folder / "lfs" / sha256
        if not path.is_file():
            return None
        size = path.stat().st_size
        return File(size, blob_id(pointer(sha256, size)), sha256)

    def put_large(self, sha256: str, pieces: Iterable[bytes]) -> None:
        """Keep content of this hash; raise `MismatchError`, and keep nothing, of any other."""
        digest = hashlib.sha256()
        with atomic(self.folder / "lfs" / sha256) as temporary:
            with temporary.open("wb") as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
            if digest.hexdigest() != sha256:
                raise MismatchError

    def path(self, file: File) -> Path:
        """Where its content is."""
        return self.folder / ("lfs" if file.sha256 else "git") / (file.sha256 or file.sha1)

    def part(self, upload: str, number: int) -> Path:
        """Of an upload in parts; the upload's name is the server's own."""
        return self.folder / "uploads" / upload / str(number)

    def parts(self, upload: str, count: int) -> Iterator[bytes]:
        for number in range(1, count + 1):
            yield from _pieces(self.part(upload, number))

    def forget(self, upload: str) -> None:
        shutil.rmtree(self.folder / "uploads" / upload)

    def resolve(self, revision: str) -> str:
        """The id of the commit that a revision names."""
        refs: dict[str, str] = self.state["refs"]
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in refs:
                return refs[name]
        if re.fullmatch("[0-9a-f]{40}", revision) and self._commit_path(revision).is_file():
            return revision
        raise AbsentError("Revision", f"Invalid rev id: {revision}")

    def _commit_path(self, commit: str) -> Path:
        return self.folder / "commits" / f"{commit}.json"

    def commit(self, revision: str) -> Commit:
        commit = self.resolve(revision)
        if commit not in self._commits:
            fields = json.loads(self._commit_path(commit).read_bytes())
            fields["tree"] = {path: File(**file) for path, file in fields["tree"].items()}
            self._commits[commit] = Commit(id=commit, **fields)
        return self._commits[commit]

    def history(self, revision: str) -> list[Commit]:
        """Newest first."""
        commits = [self.commit(revision)]
        while commits[-1].parent:
            commits.append(self.commit(commits[-1].parent))
        return commits

    def entry(self, path: str, revision: str) -> File:
        tree = self.commit(revision).tree
        if path not in tree:
            raise AbsentError("Entry", "Entry not found")
        return tree[path]

    def _record(
        self, parent: str | None, tree: dict[str, File], title: str, description: str, author: str
    ) -> str:
        fields = {
            "title": title,
            "description": description,
            "parent": parent,
            "author": author,
            "date": now(),
            "tree": {path: asdict(file) for path, file in sorted(tree.items())},
        }
        content = json.dumps(fields).encode()
        commit = hashlib.sha1(content).hexdigest()
        _write(self._commit_path(commit), content)
        return commit

    def _move(self, ref: str, commit: str) -> None:
        state = self.state
        state["refs"][ref] = commit
        self._save(state)

    def add(
        self,
        changes: Mapping[str, File | None],
        revision: str,
        *,
        title: str,
        description: str = "",
        author: str,
    ) -> str:
        """A commit on a branch or a pull request; None removes a file."""
        with self._lock:
            parent = self.resolve(revision)
            refs = self.state["refs"]
            ref = revision if revision in refs else f"refs/heads/{revision}"
            if ref not in refs:
                raise AbsentError("Revision", f"Not a branch: {revision}")
            tree = _changed(self.commit(parent).tree, changes)
            commit = self._record(parent, tree, title, description, author)
            self._move(ref, commit)
            return commit

    def tag(self, name: str, revision: str) -> None:
        with self._lock:
            self._move(f"refs/tags/{name}", self.resolve(revision))

    def propose(
        self,
        changes: Mapping[str, File | None],
        base: str,
        *,
        title: str,
        description: str = "",
        author: str,
    ) -> tuple[int, str]:
        """A new pull request: its number and its commit."""
        with self._lock:
            tree = _changed(self.commit(base).tree, changes)
            commit = self._record(base, tree, title, description, author)
            state = self.state
            num = len(state["pulls"]) + 1
            ref = f"refs/pr/{num}"
            pull = PullRequest(num, title, ref, "open", base, author, now())
            state["pulls"].append(asdict(pull))
            state["refs"][ref] = commit
            self._save(state)
            return num, commit

    @property
    def pulls(self) -> list[PullRequest]:
        return [PullRequest(**fields) for fields in self.state["pulls"]]

    def close(self, num: int, *, merge: bool, author: str) -> None:
        """A pull request; merged, what it changed goes on top of the branch."""
        with self._lock:
            pull = next(pull for pull in self.pulls if pull.num == num)
            if merge:
                before, after = self.commit(pull.base).tree, self.commit(pull.revision).tree
                changes: dict[str, File | None] = {
                    path: file for path, file in after.items() if before.get(path) != file
                }
                changes |= {path: None for path in before if path not in after}
                title = f"{pull.title} (#{num})"
                self.add(changes, "main", title=title, author=author)
            state = self.state
            state["pulls"][num - 1]["status"] = "merged" if merge else "closed"
            self._save(state)


def _changed(tree: Mapping[str, File], changes: Mapping[str, File | None]) -> dict[str, File]:
    result = dict(tree)
    for path, file in changes.items():
        if file is not None:
            result[path] = file
        elif path in result:
            del result[path]
        else:
            raise AbsentError("Entry", f"A file with this name doesn't exist: {path}")
    return result


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


class Store:
    """All repositories of a folder."""

    def __init__(self, folder: Path, lfs_bytes: int) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self._lfs_bytes = lfs_bytes
        self._repositories: dict[str, Repository] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def is_large(self, path: str, size: int, sample: bytes) -> bool:
        """Whether it goes to the storage of large files."""
        return size > self._lfs_bytes or path.endswith(_LFS_SUFFIXES) or b"\0" in sample

    def exists(self, name: str) -> bool:
        return (self.folder / quote(name, safe="") / "state.json").is_file()

    def __getitem__(self, name: str) -> Repository:
        with self.lock:
            if name not in self._repositories:
                if not self.exists(name):
                    raise AbsentError("Repo", "Repository not found")
                folder = self.folder / quote(name, safe="")
                self._repositories[name] = Repository(folder, self.lock)
            return self._repositories[name]

    def create(self, name: str, *, private: bool, gated: bool | str, author: str) -> bool:
        """Whether it is new."""
        with self.lock:
            if self.exists(name):
                return False
            repository = Repository(self.folder / quote(name, safe=""), self.lock)
            repository.create(private, gated, author)
            return True

    def keep(self, name: str, path: str, content: bytes | Path) -> File:
        """Content for a commit, in the way that the Hub would have it for such a file."""
        repository = self[name]
        if isinstance(content, Path):
            size = content.stat().st_size
            with content.open("rb") as file:
                sample = file.read(512)
        else:
            size, sample = len(content), content[:512]
        if not size or not self.is_large(path, size, sample):
            return repository.put(content.read_bytes() if isinstance(content, Path) else content)
        if isinstance(content, Path):
            with content.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            pieces: Iterable[bytes] = _pieces(content)
        else:
            digest, pieces = hashlib.sha256(content).hexdigest(), [content]
        if not repository.large(digest):
            repository.put_large(digest, pieces)
        kept = repository.large(digest)
        assert kept
        return kept
