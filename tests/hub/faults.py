"""What can go wrong between a client and the Hub, on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """Answers with this status, once the request's body is read, and does nothing else.

    `body` stands instead of the Hub's own words: a proxy's page, for one.
    """

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    error_code: str | None = None
    message: str = ""
    body: bytes = b""


@dataclass(frozen=True)
class Cut:
    """Drops the connection after so many bytes: of the request's body if it has one.

    Otherwise of the answer's, whose headers promise the whole. Without a body to cut (HEAD, a
    redirect), nothing is answered. `reset` drops it by an RST instead of a plain close: clients
    see another error, see `test_a_cut_download` of this server's tests.
    """

    after: int = 0
    reset: bool = False


@dataclass(frozen=True)
class Wrong:
    """The answer's body has the right size and another first byte."""


@dataclass(frozen=True)
class Whole:
    """The answer has all of the file, whatever range was asked for, as some proxies do it."""


@dataclass(frozen=True)
class Slow:
    """The request's body if it has one, else the answer's, goes no faster than this."""

    bytes_per_second: int


@dataclass(frozen=True)
class Stall:
    """As `Cut`, but the connection stays open and silent until the client or the server goes."""

    after: int = 0


@dataclass(frozen=True)
class Lost:
    """Does what the request says and drops the connection instead of answering."""


@dataclass(frozen=True)
class Before:
    """Calls this before the request is handled as usual: somebody else was faster."""

    callback: Callable[[], object]


@dataclass(frozen=True)
class Endless:
    """An answer that says nothing of its size and repeats its body."""

    times: int = 3


Fault = Status | Cut | Wrong | Whole | Slow | Stall | Lost | Before | Endless


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    fault: Fault
    times: int
    skip: int


class Faults:
    """The faults still to come, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()

    def add(self, pattern: str, fault: Fault, times: int, skip: int) -> None:
        with self._lock:
            self._rules.append(_Rule(re.compile(pattern), fault, times, skip))

    def take(self, request: str) -> Fault | None:
        """The one that meets this request, "METHOD /path", if any; it counts as used."""
        with self._lock:
            for rule in self._rules:
                if not rule.times or not rule.pattern.search(request):
                    continue
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule.fault
        return None

    @property
    def left(self) -> int:
        """How many were not met yet."""
        return sum(rule.times for rule in self._rules)
