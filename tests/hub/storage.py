"""The storage of large files: what S3 is to the Hub. Addresses are signed, tokens unwelcome."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from tests.hub.store import MismatchError, Repository, Store, atomic
from tests.hub.wire import Answer, Incoming, Span

_SIGNATURE = "X-Amz-Signature"
_OBJECT = re.compile(
    "/storage/(?P<repo>[^/]+/[^/]+)/(?P<oid>[0-9a-f]{64})"
    "(?:/(?P<upload>[0-9a-f]{32})/(?P<part>[0-9]+))?"
)
_RANGE = re.compile("bytes=([0-9]*)-([0-9]*)")


class Storage:
    """Objects of all repositories under one host name."""

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self._key = secrets.token_bytes(32)

    def signed(self, method: str, target: str) -> str:
        """A path and query, with what shows that the server gave them out."""
        separator = "&" if "?" in target else "?"
        return f"{target}{separator}{_SIGNATURE}={self._sign(method, target)}"

    def _sign(self, method: str, target: str) -> str:
        return hmac.new(self._key, f"{method} {target}".encode(), "sha256").hexdigest()

    def is_signed(self, request: Incoming) -> bool:
        target, _, given = request.target.rpartition(f"{_SIGNATURE}=")
        return hmac.compare_digest(given, self._sign(request.method, target[:-1]))

    def url(self, method: str, repo: str, oid: str, upload: str = "", part: int = 0) -> str:
        target = f"/storage/{repo}/{oid}" + (f"/{upload}/{part}" if upload else "")
        return self._url + self.signed(method, target)

    def handle(self, request: Incoming) -> Answer:
        if "authorization" in request.headers:
            return _error(400, "InvalidArgument", "Only one auth mechanism allowed")
        match = _OBJECT.fullmatch(request.path)
        if not match:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        if not self.is_signed(request):
            return _error(403, "SignatureDoesNotMatch", "The signature does not match.")
        repository = self._store[match["repo"]]
        if request.method == "PUT":
            if match["part"]:
                path = repository.part(match["upload"], int(match["part"]))
                return _put_part(request, path)
            return _put(request, repository, match["oid"])
        there = repository.large(match["oid"])
        if there is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        return span(request, repository.path(there), {"ETag": f'"{match["oid"]}"'})

    def join(
        self,
        repository: Repository,
        oid: str,
        upload: str,
        count: int,
        parts: list[tuple[int, str]],
    ) -> str:
        """Make the object of its parts; returns what is wrong with them, if anything."""
        if [number for number, _ in parts] != list(range(1, count + 1)):
            return "The list of parts is not whole"
        for number, etag in parts:
            path = repository.part(upload, number)
            if not path.is_file() or _etag(path.read_bytes()) != etag:
                return f"Part {number} could not be found or its ETag is another"
        try:
            repository.put_large(oid, repository.parts(upload, count))
        except MismatchError:
            return "The content is not what its oid says"
        repository.forget(upload)
        return ""


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _put(request: Incoming, repository: Repository, oid: str) -> Answer:
    try:
        repository.put_large(oid, request.pieces)
    except MismatchError:
        return _error(400, "BadDigest", "The SHA-256 you specified did not match.")
    return Answer(200, {"ETag": f'"{oid[:32]}"'})


def _put_part(request: Incoming, path: Path) -> Answer:
    content = request.read()
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    return Answer(200, {"ETag": _etag(content)})


def span(request: Incoming, path: Path, headers: Mapping[str, str]) -> Answer:
    """A file, or the range of it that the request asks for."""
    size = path.stat().st_size
    headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", **headers}
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if not match or match.groups() == ("", ""):
        return Answer(200, headers, Span(path, 0, size))
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        return Answer(416, headers | {"Content-Range": f"bytes */{size}"})
    headers |= {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return Answer(206, headers, Span(path, start, end - start))


def _error(status: int, code: str, message: str) -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, {"Content-Type": "application/xml"}, body.encode())
