"""The server, and what a test asks of it directly."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.hub.api import Api
from tests.hub.faults import Fault, Faults
from tests.hub.store import Commit, File, PullRequest, Store
from tests.hub.wire import Listener, Request

WRITE_TOKEN = "hf_testwriteTOKEN0123456789abcdef"
READ_TOKEN = "hf_testreadTOKEN0123456789abcdef"
SOMEBODY = "somebody"


class HubServer:
    """A Hub in a folder, served until the context ends.

    Repositories stay in the folder: another server on it has them too, but none of the rest.
    `errors` holds the tracebacks of what went wrong in the server itself. `keep_bodies` keeps
    what is received with each request, to look at.
    """

    def __init__(
        self,
        folder: Path,
        *,
        page_size: int = 1000,
        lfs_bytes: int = 10_000_000,
        part_bytes: int | None = None,
        port: int = 0,
        keep_bodies: bool = False,
    ) -> None:
        self.tokens = {WRITE_TOKEN: "write", READ_TOKEN: "read"}
        self.granted: set[str] = set()  # tokens that may read gated repositories
        self.strangers: set[str] = set()  # tokens that see no private ones, and write to none
        self.ignored: set[str] = set()  # paths that a .gitignore keeps out
        self.altered: dict[str, bytes] = {}  # paths that a commit stores other content under
        self.requests: list[Request] = []
        self.errors: list[str] = []
        self._faults = Faults()
        self._store = Store(folder, lfs_bytes)
        self._listener = Listener(
            port, self._faults, self.requests, self.errors, keep_bodies=keep_bodies
        )
        self.port = self._listener.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._listener.handle = Api(
            self._store,
            self.tokens,
            self.granted,
            self.strangers,
            self.ignored,
            self.altered,
            url=self.url,
            storage=f"http://localhost:{self.port}",
            page_size=page_size,
            part_bytes=part_bytes,
        ).handle
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, whatever the connections wait for."""
        if self._thread.is_alive():
            self._listener.end()
            self._thread.join()

    def create(self, repo: str, *, private: bool = False, gated: bool | str = False) -> None:
        """A repository with the first commit that the Hub gives it."""
        if not self._store.create(repo, private=private, gated=gated, author=SOMEBODY):
            raise FileExistsError(repo)

    def commit(
        self,
        repo: str,
        files: Mapping[str, bytes | Path | File | None],
        *,
        title: str = "change",
        description: str = "",
        revision: str = "main",
    ) -> str:
        """As somebody else, under any name that a file might have; None removes a file.

        A `File` is told of, whether or not there is such content.
        """
        changes = {
            path: content
            if content is None or isinstance(content, File)
            else self._store.keep(repo, path, content)
            for path, content in files.items()
        }
        return self._store[repo].add(
            changes, revision, title=title, description=description, author=SOMEBODY
        )

    def head(self, repo: str, revision: str = "main") -> str:
        return self._store[repo].resolve(revision)

    def tree(self, repo: str, revision: str = "main") -> dict[str, File]:
        return self._store[repo].commit(revision).tree

    def read(self, repo: str, path: str, revision: str = "main") -> bytes:
        repository = self._store[repo]
        return repository.path(repository.entry(path, revision)).read_bytes()

    def commits(self, repo: str, revision: str = "main") -> list[Commit]:
        """Newest first."""
        return self._store[repo].history(revision)

    def pull_requests(self, repo: str) -> list[PullRequest]:
        """Oldest first."""
        return self._store[repo].pulls

    def close_pull_request(self, repo: str, num: int, *, merge: bool = False) -> None:
        self._store[repo].close(num, merge=merge, author=SOMEBODY)

    def tag(self, repo: str, name: str, revision: str = "main") -> None:
        self._store[repo].tag(name, revision)

    def has_object(self, repo: str, sha256: str) -> bool:
        """Whether a large file was uploaded, committed or not."""
        return self._store[repo].large(sha256) is not None

    def exists(self, repo: str) -> bool:
        return self._store.exists(repo)

    def is_private(self, repo: str) -> bool:
        return bool(self._store[repo].state["private"])

    def fail(self, pattern: str, fault: Fault, *, times: int = 1, skip: int = 0) -> None:
        """Let the fault meet requests whose "METHOD /path" has the pattern.

        `skip` lets so many of them pass first. Of faults for one request, the first applies.
        """
        self._faults.add(pattern, fault, times, skip)

    @property
    def faults_left(self) -> int:
        """How many faults did not meet a request yet; 0 once a test's faults all happened."""
        return self._faults.left
