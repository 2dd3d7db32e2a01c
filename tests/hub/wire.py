"""One connection: reading requests, sending answers, and the faults in between."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs

from tests.hub.faults import (
    Before,
    Cut,
    Endless,
    Fault,
    Faults,
    Lost,
    Slow,
    Stall,
    Status,
    Whole,
    Wrong,
)

_PIECE = 1 << 16
_GONE = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)


@dataclass
class Request:
    """A request that ended; `status` is 0 where the connection was dropped without an answer."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    status: int = 0
    received: int = 0
    sent: int = 0
    body: bytes = b""  # that was received, of a server that keeps bodies


@dataclass(frozen=True)
class Span:
    """A part of a file, as the body of an answer."""

    path: Path
    start: int
    size: int


@dataclass(frozen=True)
class Answer:
    """What a request is answered with."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Span = b""

    @property
    def size(self) -> int:
        return self.body.size if isinstance(self.body, Span) else len(self.body)


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    kind = {"Content-Type": "application/json; charset=utf-8"}
    return Answer(status, kind | dict(headers or {}), json.dumps(content).encode())


def error(status: int, code: str | None, message: str, **more: str) -> Answer:
    """As the Hub tells of errors: in headers and in the body."""
    headers = {"X-Error-Code": code} if code else {}
    if message:
        headers["X-Error-Message"] = message
    return as_json({"error": message} | more, status, headers)


class DroppedError(Exception):
    """The connection ends here."""

    def __init__(self, *, reset: bool = False) -> None:
        self.reset = reset


class Incoming:
    """A request as the API sees it; the body is read only when asked for."""

    def __init__(self, record: Request, pieces: Iterator[bytes]) -> None:
        self.method = record.method
        self.path = record.path
        self.query = parse_qs(record.query, keep_blank_values=True)
        self.headers = record.headers
        self.target = f"{record.path}?{record.query}"
        self.pieces = pieces

    def argument(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[0]

    def read(self) -> bytes:
        return b"".join(self.pieces)


class Listener(ThreadingHTTPServer):
    """Takes connections and remembers them, so that closing ends those that idle or stall."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        port: int,
        faults: Faults,
        requests: list[Request],
        errors: list[str],
        *,
        keep_bodies: bool,
    ) -> None:
        self.faults = faults
        self.keep_bodies = keep_bodies
        self.requests = requests
        self.errors = errors
        self.handle: Callable[[Incoming], Answer]
        self.closing = threading.Event()
        self.connections: set[socket.socket] = set()
        self.lock = threading.Condition()
        super().__init__(("127.0.0.1", port), Connection)

    def server_bind(self) -> None:
        """Without asking for the machine's name, which takes seconds on some."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def end(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        with self.lock:
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self.lock.wait_for(lambda: not self.connections, timeout=5)

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that was killed
            self.errors.append(traceback.format_exc())


class Connection(BaseHTTPRequestHandler):
    """Serves the requests of one client's connection, one after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listener
    record: Request

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections.add(self.connection)

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            with self.server.lock:
                self.server.connections.discard(self.connection)
                self.server.lock.notify_all()

    def log_message(self, *arguments: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.record = Request(self.command, path, query, headers)
        self._recorded = False
        try:
            self._serve()
        except DroppedError as dropped:
            self._note()
            self._drop(dropped.reset)
        except OSError:  # the client went away
            self.close_connection = True
        finally:
            self._note()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def _note(self) -> None:
        """Done before an answer's bytes are sent, so that whoever has the answer finds it."""
        if not self._recorded:
            self._recorded = True
            self.server.requests.append(self.record)

    def _serve(self) -> None:
        fault = self.server.faults.take(f"{self.command} {self.record.path}")
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.close_connection = True
            return self._send(error(411, None, "You must provide the Content-Length header"), None)
        length = int(self.headers.get("Content-Length") or 0)
        pieces = self._receive(length, fault if length else None)
        request = Incoming(self.record, pieces)
        if isinstance(fault, Before):
            fault.callback()
        if isinstance(fault, Whole):
            request.headers = {k: v for k, v in self.record.headers.items() if k != "range"}
        if isinstance(fault, Status):
            answer = error(fault.code, fault.error_code, fault.message)
            headers = dict(answer.headers) | dict(fault.headers)
            answer = Answer(answer.status, headers, fault.body or answer.body)
        else:
            try:
                answer = self.server.handle(request)
            except (DroppedError, OSError):
                raise
            except Exception:
                self.server.errors.append(traceback.format_exc())
                answer = error(500, None, "Internal Error")
        for _ in pieces:
            pass  # a connection that is kept has no use for the rest of a body
        if isinstance(fault, Lost):
            raise DroppedError
        return self._send(
            answer, None if length and isinstance(fault, Cut | Stall | Slow) else fault
        )

    def _steps(self, total: int, fault: Fault | None) -> Iterator[int]:
        """How many bytes to pass on next, as slow and as far as the fault lets."""
        piece = max(fault.bytes_per_second // 10, 1) if isinstance(fault, Slow) else _PIECE
        stop = min(fault.after, total) if isinstance(fault, Cut | Stall) else total
        done = 0
        while done < stop:
            size = min(piece, _PIECE, stop - done)
            yield size
            done += size
            if isinstance(fault, Slow) and self.server.closing.wait(size / fault.bytes_per_second):
                raise DroppedError
        if isinstance(fault, Cut):
            raise DroppedError(reset=fault.reset)
        if isinstance(fault, Stall):
            self._stall()

    def _receive(self, length: int, fault: Fault | None) -> Iterator[bytes]:
        for size in self._steps(length, fault):
            piece = self.rfile.read(size)
            self.record.received += len(piece)
            if self.server.keep_bodies:
                self.record.body += piece
            if len(piece) < size:
                raise DroppedError
            yield piece

    def _send(self, answer: Answer, fault: Fault | None) -> None:
        empty = self.command == "HEAD" or not answer.size
        if empty:
            for _ in self._steps(0, fault):
                pass
        self.record.status = answer.status
        self._note()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        chunked = isinstance(fault, Endless) and not empty
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif answer.status != 204:
            self.send_header("Content-Length", str(answer.size))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if empty:
            return
        for _ in range(fault.times if isinstance(fault, Endless) else 1):
            for piece in self._pieces(answer, fault):
                self._write(piece, chunked)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _write(self, piece: bytes, chunked: bool) -> None:
        self.record.sent += len(piece)
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        except OSError:
            self.record.sent -= len(piece)
            raise

    def _pieces(self, answer: Answer, fault: Fault | None) -> Iterator[bytes]:
        flip = isinstance(fault, Wrong)
        for piece in self._plain(answer, fault):
            yield bytes([piece[0] ^ 0xFF]) + piece[1:] if flip else piece
            flip = False

    def _plain(self, answer: Answer, fault: Fault | None) -> Iterator[bytes]:
        steps = self._steps(answer.size, fault)
        if isinstance(answer.body, Span):
            with answer.body.path.open("rb") as file:
                file.seek(answer.body.start)
                for size in steps:
                    yield file.read(size)
        else:
            done = 0
            for size in steps:
                yield answer.body[done : done + size]
                done += size

    def _stall(self) -> None:
        """Until the client goes away; of one that left with data unread by us, none can tell."""
        self._note()
        poll = select.poll()
        poll.register(self.connection, _GONE)
        while not self.server.closing.wait(0.02):
            if poll.poll(0):
                break
        raise DroppedError

    def _drop(self, reset: bool) -> None:
        self.close_connection = True
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())
