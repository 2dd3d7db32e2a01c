"""What the Hub answers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from tests.hub.storage import Storage, span
from tests.hub.store import (
    AbsentError,
    Commit,
    File,
    PullRequest,
    Repository,
    Store,
    pointer,
)
from tests.hub.wire import Answer, Incoming, as_json, error

_USERS = {"write": "tester", "read": "reader"}
_RESTRICTED = "Access to model {} is restricted"
_REPO = "(?P<repo>[^/]+/[^/]+)"
_MODEL = f"/api/models/{_REPO}"
_ROUTES: list[tuple[str, re.Pattern[str], str]] = [
    (method, re.compile(pattern), name)
    for method, pattern, name in (
        ("GET", "/api/whoami-v2", "whoami"),
        ("POST", "/api/validate-yaml", "validate_yaml"),
        ("POST", "/api/repos/create", "create"),
        ("POST", "/api/complete_multipart", "complete"),
        ("POST", f"/{_REPO}[.]git/info/lfs/objects/batch", "batch"),
        ("POST", f"/{_REPO}[.]git/info/lfs/verify", "verify"),
        ("GET", f"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "download"),
        ("GET", f"{_MODEL}(?:/revision/(?P<revision>[^/]+))?", "info"),
        ("GET", f"{_MODEL}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", "tree"),
        ("POST", f"{_MODEL}/paths-info/(?P<revision>[^/]+)", "paths_info"),
        ("GET", f"{_MODEL}/commits/(?P<revision>[^/]+)", "commits"),
        ("GET", f"{_MODEL}/refs", "refs"),
        ("GET", f"{_MODEL}/discussions", "discussions"),
        ("GET", f"{_MODEL}/discussions/(?P<num>[0-9]+)", "discussion"),
        ("POST", f"{_MODEL}/preupload/(?P<revision>[^/]+)", "preupload"),
        ("POST", f"{_MODEL}/commit/(?P<revision>[^/]+)", "commit"),
    )
]


class RefusedError(Exception):
    """Ends a request with an answer."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(message)
        self.answer = error(status, code, message)


class Api:
    """Answers requests; one thread of each connection calls `handle`."""

    def __init__(
        self,
        store: Store,
        tokens: Mapping[str, str],
        granted: Collection[str],
        strangers: Collection[str],
        ignored: Collection[str],
        altered: Mapping[str, bytes],
        *,
        url: str,
        storage: str,
        page_size: int,
        part_bytes: int | None,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._granted = granted
        self._strangers = strangers
        self._ignored = ignored
        self._altered = altered
        self._url = url
        self._storage = Storage(store, storage)
        self._page_size = page_size
        self._part_bytes = part_bytes

    def handle(self, request: Incoming) -> Answer:
        if request.headers.get("host", "").startswith("localhost"):
            return self._storage.handle(request)
        method = "GET" if request.method == "HEAD" else request.method
        for route_method, pattern, name in _ROUTES:
            match = pattern.fullmatch(request.path)
            if match and method == route_method:
                values = {key: unquote(value) for key, value in match.groupdict().items() if value}
                try:
                    answer: Answer = getattr(self, f"_{name}")(request, **values)
                    return answer
                except RefusedError as refused:
                    return refused.answer
                except AbsentError as absent:
                    return error(404, absent.code, str(absent))
        return error(404, None, f"Cannot {request.method} {request.path}")

    # Who may do what

    def _token(self, request: Incoming) -> str | None:
        given = request.headers.get("authorization")
        return None if given is None else given.removeprefix("Bearer ")

    def _role(self, request: Incoming) -> str | None:
        """Of the request's token; None without one."""
        token = self._token(request)
        if token is None:
            return None
        role = self._tokens.get(token)
        if role is None:
            raise RefusedError(401, None, "Invalid credentials in Authorization header")
        return role

    def _user(self, request: Incoming) -> str:
        return _USERS[self._role(request) or "read"]

    def _readable(self, request: Incoming, repo: str) -> Repository:
        """Without a token, a repository that is private looks like one that is not there."""
        role = self._role(request)
        hidden = not self._store.exists(repo) or self._store[repo].state["private"]
        if role is None and hidden:
            raise RefusedError(401, "RepoNotFound", "Invalid username or password.")
        if self._token(request) in self._strangers and hidden:
            raise RefusedError(404, "RepoNotFound", "Repository not found")
        return self._store[repo]

    def _writable(self, request: Incoming, repo: str, *, proposal: bool) -> Repository:
        """A `proposal` goes to a pull request, which whoever may read may open."""
        repository = self._readable(request, repo)
        role = self._role(request)
        if role is None:
            raise RefusedError(401, None, "Invalid username or password.")
        stranger = self._token(request) in self._strangers
        if (role != "write" or stranger) and not proposal:
            message = "Forbidden: you must use a write token to upload to a repository."
            raise RefusedError(403, None, message)
        return repository

    # About users and repositories

    def _whoami(self, request: Incoming) -> Answer:
        role = self._role(request)
        if role is None:
            raise RefusedError(401, None, "Invalid username or password.")
        name = _USERS[role]
        auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}
        return as_json(
            {"type": "user", "id": name, "name": name, "fullname": name, "orgs": [], "auth": auth}
        )

    def _validate_yaml(self, request: Incoming) -> Answer:
        return as_json({"errors": [], "warnings": []})

    def _create(self, request: Incoming) -> Answer:
        role = self._role(request)
        if role is None:
            raise RefusedError(401, None, "Invalid username or password.")
        asked = json.loads(request.read())
        repo = f"{asked.get('organization') or _USERS[role]}/{asked['name']}"
        if role != "write":
            message = "You don't have the rights to create a model under this namespace"
            raise RefusedError(403, None, message)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        url = f"{self._url}/{repo}"
        if not self._store.create(repo, private=private, gated=False, author=_USERS[role]):
            return error(409, None, "You already created this model repo", url=url)
        return as_json({"url": url, "name": repo})

    def _info(self, request: Incoming, repo: str, revision: str = "main") -> Answer:
        repository = self._readable(request, repo)
        commit, state = repository.commit(revision), repository.state
        blobs = request.argument("blobs").lower() in ("1", "true")
        return as_json(
            {
                "_id": hashlib.sha1(repo.encode()).hexdigest()[:24],
                "id": repo,
                "modelId": repo,
                "author": repo.partition("/")[0],
                "sha": commit.id,
                "lastModified": commit.date,
                "createdAt": state["created"],
                "private": state["private"],
                "gated": state["gated"],
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "spaces": [],
                "siblings": [
                    {"rfilename": path} | (_blob(file) if blobs else {})
                    for path, file in commit.tree.items()
                ],
            }
        )

    def _paged(self, request: Incoming, items: list[Any]) -> Answer:
        """The page that the cursor says, and where the next is."""
        size = self._page_size
        if limit := request.argument("limit"):
            size = min(size, int(limit))
        start = int(request.argument("cursor", "0"))
        headers = {}
        if start + size < len(items):
            query = {name: value for name, value in request.query.items() if name != "cursor"}
            query["cursor"] = [str(start + size)]
            pairs = [
                f"{quote(key)}={quote(value)}" for key, all_ in query.items() for value in all_
            ]
            headers["Link"] = f'<{self._url}{request.path}?{"&".join(pairs)}>; rel="next"'
        return as_json(items[start : start + size], headers=headers)

    def _tree(self, request: Incoming, repo: str, revision: str, path: str | None = None) -> Answer:
        commit = self._readable(request, repo).commit(revision)
        entries = _entries(commit, request.argument("expand") == "true")
        below = f"{path}/" if path else ""
        if path and entries.get(path, {}).get("type") != "directory":
            raise AbsentError("Entry", f"{path} does not exist on {revision!r}")
        recursive = request.argument("recursive") == "true"
        found = [
            entry
            for name, entry in sorted(entries.items())
            if name.startswith(below) and (recursive or _parent(name) == (path or ""))
        ]
        return self._paged(request, found)

    def _paths_info(self, request: Incoming, repo: str, revision: str) -> Answer:
        commit = self._readable(request, repo).commit(revision)
        if "json" in request.headers.get("content-type", ""):
            asked = json.loads(request.read())
            paths, expand = asked["paths"], bool(asked.get("expand"))
        else:
            form = parse_qs(request.read().decode())
            paths, expand = form.get("paths", []), form.get("expand") == ["true"]
        entries = _entries(commit, expand)
        return as_json([entries[path] for path in paths if path in entries])

    def _commits(self, request: Incoming, repo: str, revision: str) -> Answer:
        history = self._readable(request, repo).history(revision)
        return self._paged(
            request,
            [
                {
                    "id": commit.id,
                    "title": commit.title,
                    "message": commit.description,
                    "authors": [{"user": commit.author}],
                    "date": commit.date,
                }
                for commit in history
            ],
        )

    def _refs(self, request: Incoming, repo: str) -> Answer:
        refs = self._readable(request, repo).state["refs"]

        def named(prefix: str) -> list[dict[str, str]]:
            return [
                {"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": commit}
                for ref, commit in refs.items()
                if ref.startswith(prefix)
            ]

        answer = {"branches": named("refs/heads/"), "converts": [], "tags": named("refs/tags/")}
        if request.argument("include_prs"):
            answer["pullRequests"] = named("refs/pr/")
        return as_json(answer)

    def _discussions(self, request: Incoming, repo: str) -> Answer:
        pulls = self._readable(request, repo).pulls[::-1]
        if request.argument("type") == "discussion":
            pulls = []
        if author := request.argument("author"):
            pulls = [pull for pull in pulls if pull.author == author]
        if (status := request.argument("status")) in ("open", "closed"):
            pulls = [pull for pull in pulls if (pull.status == "open") == (status == "open")]
        start = int(request.argument("p", "0")) * self._page_size
        page = pulls[start : start + self._page_size]
        found = [_discussion(repo, pull) for pull in page]
        return as_json({"discussions": found, "count": len(pulls), "start": start})

    def _discussion(self, request: Incoming, repo: str, num: str) -> Answer:
        repository = self._readable(request, repo)
        for pull in repository.pulls:
            if pull.num == int(num):
                break
        else:
            raise RefusedError(404, None, "Discussion not found")
        events = []
        commit = repository.commit(pull.revision)
        while commit.id != pull.base:
            data = {"subject": commit.title, "oid": commit.id}
            events.append(_event("commit", commit.id, commit.author, commit.date, data))
            assert commit.parent
            commit = repository.commit(commit.parent)
        content = repository.commit(pull.revision).description
        latest = {"raw": content, "html": content, "updatedAt": pull.date}
        comment = {"edited": False, "hidden": False, "history": [], "latest": latest}
        events.append(_event("comment", f"comment-{num}", pull.author, pull.date, comment))
        more = {
            "events": events[::-1],
            "changes": {"base": "refs/heads/main"},
            "filesWithConflicts": [],
            "diff": "",
        }
        return as_json(_discussion(repo, pull) | more)

    # Uploading

    def _preupload(self, request: Incoming, repo: str, revision: str) -> Answer:
        proposal = bool(request.argument("create_pr")) or revision.startswith("refs/pr/")
        repository = self._writable(request, repo, proposal=proposal)
        tree = repository.commit(revision).tree
        files = []
        for file in json.loads(request.read())["files"]:
            path, size = file["path"], file["size"]
            large = self._store.is_large(path, size, base64.b64decode(file["sample"]))
            there = tree.get(path)
            answer = {
                "path": path,
                "uploadMode": "lfs" if large else "regular",
                "shouldIgnore": path in self._ignored,
            }
            if there:
                answer["oid"] = there.sha256 or there.sha1
            files.append(answer)
        return as_json({"files": files})

    def _batch(self, request: Incoming, repo: str) -> Answer:
        asked = json.loads(request.read())
        ref = asked.get("ref", {}).get("name")
        proposal = ref is None or ref.startswith("refs/pr/")
        repository = self._writable(request, repo, proposal=proposal)
        transfer, objects = "basic", []
        for wanted in asked["objects"]:
            oid, size = wanted["oid"], wanted["size"]
            answer = {"oid": oid, "size": size}
            if not repository.large(oid):
                upload: dict[str, Any] = {"href": self._storage.url("PUT", repo, oid)}
                if self._part_bytes and size > self._part_bytes:
                    transfer = "multipart"
                    upload = self._in_parts(repo, oid, size, self._part_bytes)
                verify = {"href": f"{self._url}/{repo}.git/info/lfs/verify"}
                answer["actions"] = {"upload": upload, "verify": verify}
            objects.append(answer)
        return as_json({"transfer": transfer, "objects": objects})

    def _in_parts(self, repo: str, oid: str, size: int, part_bytes: int) -> dict[str, Any]:
        upload = secrets.token_hex(16)
        count = -(-size // part_bytes)
        header = {
            str(number): self._storage.url("PUT", repo, oid, upload, number)
            for number in range(1, count + 1)
        }
        query = f"repo={quote(repo, safe='')}&oid={oid}&uploadId={upload}&parts={count}"
        href = f"{self._url}{self._storage.signed('POST', f'/api/complete_multipart?{query}')}"
        return {"href": href, "header": {"chunk_size": str(part_bytes)} | header}

    def _complete(self, request: Incoming) -> Answer:
        """Its address is signed: the client sends no token here."""
        if not self._storage.is_signed(request):
            raise RefusedError(403, None, "Invalid signature")
        asked = json.loads(request.read())
        message = self._storage.join(
            self._store[request.argument("repo")],
            request.argument("oid"),
            request.argument("uploadId"),
            int(request.argument("parts")),
            [(part["partNumber"], part["etag"]) for part in asked["parts"]],
        )
        if message:
            raise RefusedError(400, None, message)
        return as_json({"success": True})

    def _verify(self, request: Incoming, repo: str) -> Answer:
        repository = self._writable(request, repo, proposal=True)
        asked = json.loads(request.read())
        there = repository.large(asked["oid"])
        if there is None or there.size != asked["size"]:
            raise RefusedError(404, None, "Object not found")
        return as_json({})

    def _commit(self, request: Incoming, repo: str, revision: str) -> Answer:
        create_pr = bool(request.argument("create_pr"))
        proposal = create_pr or revision.startswith("refs/pr/")
        repository = self._writable(request, repo, proposal=proposal)
        lines = [json.loads(line) for line in request.read().splitlines()]
        if not lines or lines[0]["key"] != "header":
            raise RefusedError(400, None, "The first line is not the header")
        header = lines[0]["value"]
        about = {
            "title": header["summary"],
            "description": header.get("description", ""),
            "author": self._user(request),
        }
        with self._store.lock:
            parent = repository.resolve(revision)
            asked = header.get("parentCommit") or parent
            if asked != parent and not create_pr:
                message = "A commit has happened since. Please refresh and try again."
                raise RefusedError(412, None, message)
            changes = _changes(repository, repository.commit(asked), lines[1:])
            for path in changes.keys() & self._altered.keys():
                changes[path] = repository.put(self._altered[path])
            answer: dict[str, Any] = {"success": True}
            if create_pr:
                num, commit = repository.propose(changes, asked, **about)
                answer["pullRequestUrl"] = f"{self._url}/{repo}/discussions/{num}"
            else:
                commit = repository.add(changes, revision, **about)
        answer["commitOid"] = commit
        answer["commitUrl"] = f"{self._url}/{repo}/commit/{commit}"
        return as_json(answer)

    # Downloading

    def _download(self, request: Incoming, repo: str, revision: str, path: str) -> Answer:
        repository = self._readable(request, repo)
        if repository.state["gated"]:
            restricted = _RESTRICTED.format(repo)
            token = self._token(request)
            if token is None:
                raise RefusedError(401, "GatedRepo", f"{restricted}. Please log in.")
            if token not in self._granted:
                message = f"{restricted} and you are not in the authorized list."
                raise RefusedError(403, "GatedRepo", message)
        headers = {"X-Repo-Commit": repository.resolve(revision)}
        try:
            file = repository.entry(path, revision)
        except AbsentError as absent:
            missing = error(404, absent.code, str(absent))
            return Answer(404, dict(missing.headers) | headers, missing.body)
        headers |= {"ETag": f'"{file.sha256 or file.sha1}"', "Accept-Ranges": "bytes"}
        if file.sha256:
            headers |= {
                "X-Linked-Etag": f'"{file.sha256}"',
                "X-Linked-Size": str(file.size),
                "Location": self._storage.url("GET", repo, file.sha256),
            }
            return Answer(302, headers)
        return span(request, repository.path(file), headers)


def _blob(file: File) -> dict[str, Any]:
    """As the information about a repository has it."""
    blob: dict[str, Any] = {"size": file.size, "blobId": file.sha1}
    if file.sha256:
        size = len(pointer(file.sha256, file.size))
        blob["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": size}
    return blob


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _entries(commit: Commit, expand: bool) -> dict[str, dict[str, Any]]:
    """Files and the folders that their names make, as a listing has them."""
    last: dict[str, Any] = {}
    if expand:
        about = {"id": commit.id, "title": commit.title, "date": commit.date}
        last = {"lastCommit": about}
    entries: dict[str, dict[str, Any]] = {}
    for path, file in commit.tree.items():
        entry = {"type": "file", "oid": file.sha1, "size": file.size, "path": path}
        if file.sha256:
            size = len(pointer(file.sha256, file.size))
            entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": size}
        entries[path] = entry | last
        while path := _parent(path):
            oid = hashlib.sha1(f"{commit.id} {path}".encode()).hexdigest()
            folder = {"type": "directory", "oid": oid, "size": 0, "path": path}
            entries.setdefault(path, folder | last)
    return entries


def _discussion(repo: str, pull: PullRequest) -> dict[str, Any]:
    return {
        "num": pull.num,
        "title": pull.title,
        "status": pull.status,
        "author": {"name": pull.author, "type": "user"},
        "createdAt": pull.date,
        "isPullRequest": True,
        "repo": {"name": repo, "type": "model"},
    }


def _event(kind: str, name: str, author: str, date: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": name,
        "type": kind,
        "author": {"name": author, "type": "user"},
        "createdAt": date,
        "data": data,
    }


def _changes(
    repository: Repository, parent: Commit, lines: list[dict[str, Any]]
) -> dict[str, File | None]:
    """What a commit's lines do to its parent; content that lies in no commit yet does no harm."""
    changes: dict[str, File | None] = {}
    for line in lines:
        kind, value = line["key"], line["value"]
        path = value["path"]
        if {"", ".", "..", ".git"} & set(path.rstrip("/").split("/")):
            raise RefusedError(400, None, f"Invalid path: {path}")
        if kind == "file":
            try:
                content = base64.b64decode(value["content"], validate=True)
            except binascii.Error as bad:
                raise RefusedError(400, None, f"Not base64: {path}") from bad
            changes[path] = repository.put(content)
        elif kind == "lfsFile":
            there = repository.large(value["oid"])
            if there is None or there.size != value.get("size", there.size):
                message = f"LFS pointer pointed to a file that does not exist: {path}"
                raise RefusedError(400, None, message)
            changes[path] = there
        elif kind == "deletedFile":
            changes[path] = None
        elif kind == "deletedFolder":
            below = path.rstrip("/") + "/"
            inside = [name for name in parent.tree if name.startswith(below)]
            if not inside:
                raise AbsentError("Entry", f"A file with this name doesn't exist: {path}")
            changes |= dict.fromkeys(inside)
        else:
            raise RefusedError(400, None, f"Unknown operation: {kind}")
    return changes
