"""Calls of huggingface_hub: tried again where that may help, and failures told in full."""

from __future__ import annotations

import email.utils
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi, constants, get_token, set_client_factory
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils._http import default_client_factory  # what set_client_factory replaces

from voxtral_build.errors import HubError
from voxtral_build.redaction import redacted

T = TypeVar("T")
log = logging.getLogger(__name__)

# Of an answer that is none of the Hub's: the library has no error of its own for that.
_NOT_JSON = (json.JSONDecodeError, UnicodeDecodeError)
_OTHER_JSON = (KeyError, TypeError, AttributeError)
_MAY_PASS = (408, 429, 500, 502, 503, 504)
_WAITS = (1, 2, 4, 8)  # seconds before each new try
_LONGEST_WAIT = 300  # the Hub's limits of requests are by 5 minutes


# Seconds; reading is also waiting for what a server makes of a large commit.
_PATIENCE = httpx2.Timeout(30, read=300)


def _client() -> httpx2.Client:
    """The library's, but never waiting for ever: most of its calls set no time limit at all."""
    client = default_client_factory()
    client.event_hooks = {"request": [*client.event_hooks["request"], _limit_waiting]}
    return client


def _limit_waiting(request: httpx2.Request) -> None:
    limits = request.extensions.get("timeout") or {}
    if all(limit is None for limit in limits.values()):
        request.extensions["timeout"] = _PATIENCE.as_dict()


set_client_factory(_client)
# The library prints its warnings by itself, signed URLs included; now they reach our own
# handler, which takes those out.
logging.getLogger("huggingface_hub").handlers.clear()


def api() -> HfApi:
    """The Hub at `HF_ENDPOINT`, with the token of `HF_TOKEN` or of `hf auth login`."""
    return HfApi(library_name="voxtral-build")


def page_of(repository: str) -> str:
    """The repository's address, for people."""
    return f"{constants.ENDPOINT}/{repository}"


def retried(call: Callable[[], T], what: str, progress: Callable[[], int] = lambda: 0) -> T:
    """Call; and again, after a wait, where a failure may pass.

    For calls that the library does not try again by itself.

    Args:
        what: is called, for the log.
        progress: a count of what has arrived. While it grows, tries are not counted.
    """
    waits = iter(_WAITS)
    arrived = progress()
    while True:
        try:
            return call()
        except (HfHubHTTPError, httpx2.TransportError) as error:
            if progress() > arrived:
                arrived, waits = progress(), iter(_WAITS)
            wait = next(waits, None)
            if wait is None or not may_pass(error):
                raise
            wait = max(wait, retry_after(error))
            log.warning("%s: %s; again in %d s", what, brief(error), wait)
            time.sleep(wait)


def may_pass(error: Exception) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, _NOT_JSON + _OTHER_JSON):
        return True  # of something on the way
    if isinstance(error, HfHubHTTPError):
        return status(error) in _MAY_PASS
    return isinstance(error, httpx2.TransportError)


def moved(error: Exception) -> bool:
    """Whether a commit was refused because of another one, made meanwhile."""
    return isinstance(error, HfHubHTTPError) and status(error) in (409, 412)


def status(error: HfHubHTTPError) -> int:
    """The HTTP status that was answered."""
    return int(error.response.status_code)


def retry_after(error: Exception) -> int:
    """Seconds that the server asked to wait; a number or a date (RFC 9110, 10.2.3)."""
    text = error.response.headers.get("Retry-After") if isinstance(error, HfHubHTTPError) else None
    if text is None:
        return 0
    try:
        seconds = int(text)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(text)
        except ValueError:
            return 0
        seconds = int((moment - datetime.now(UTC)).total_seconds()) + 1
    return min(max(seconds, 0), _LONGEST_WAIT)


def brief(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, HfHubHTTPError):
        said = error.server_message or error.response.headers.get("X-Error-Message") or ""
        phrase = error.response.reason_phrase
        return redacted(f"HTTP {status(error)} {phrase}" + (f": {said}" if said else ""))
    text = " ".join(str(error).split())
    return redacted(f"{type(error).__name__}: {text}" if text else type(error).__name__)


@contextmanager
def told(repository: str, doing: str, *, writing: bool = False) -> Iterator[None]:
    """Tell what the library raises as a `HubError`.

    Args:
        doing: what is tried, after "cannot": "fetch params.json".
        writing: to the repository; other tokens may do that than may read it.
    """
    try:
        yield
    except Exception as error:
        raised = _hub_error(repository, doing, error, writing=writing)
        if raised is None:
            raise
        raise raised from None


@contextmanager
def understood(repository: str) -> Iterator[None]:
    """Tell of JSON that is none of the Hub's; around calls of the library and nothing else."""
    try:
        yield
    except _OTHER_JSON as error:
        raise HubError(
            f"{repository}: an answer cannot be understood",
            got=brief(error),
            allowed="what the Hub answers",
            next_step="check HF_ENDPOINT, and proxies on the way",
        ) from None


def _hub_error(repository: str, doing: str, error: Exception, *, writing: bool) -> HubError | None:
    cause: BaseException = error
    # Of uploads, the library raises a bare RuntimeError with the cause behind it.
    while not isinstance(cause, _TOLD) and cause.__cause__ is not None:
        cause = cause.__cause__
    if not isinstance(cause, _TOLD) or isinstance(cause, HubError):
        return None
    what = f"{repository}: cannot {doing}"
    got, next_step = _got_and_next(repository, cause, writing=writing)
    return HubError(what, got=got, next_step=next_step)


_TOLD = (
    httpx2.RequestError,  # TransportError, and redirects without end
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    LocalEntryNotFoundError,
    EntryNotFoundError,
    FileMetadataError,
    UnicodeEncodeError,  # of a header, and only the token's is not ours
    *_NOT_JSON,
)


def _got_and_next(repository: str, error: BaseException, *, writing: bool) -> tuple[str, str]:
    page = page_of(repository)
    has_token = get_token() is not None
    token = "the token has no access to it" if has_token else "no HF_TOKEN is set"
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set", "unset it, or use what was fetched before"
    if isinstance(error, UnicodeEncodeError):
        return "HF_TOKEN has a character that is in no token", "copy it once more, whole"
    if isinstance(error, HFValidationError):
        return brief(error), "give a repository as organization/name"
    if isinstance(error, GatedRepoError):
        return (
            f"a gated repository, and {token}",
            f"accept its terms on {page}, then set HF_TOKEN to a token of that account",
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"no such repository, or a private one, and {token}",
            "check the name; for a private repository, set HF_TOKEN to a token that can read it",
        )
    if isinstance(error, RevisionNotFoundError):
        return "no such revision", f"take a commit of {page}/commits/main"
    if isinstance(error, EntryNotFoundError):
        return "no such file at that revision", f"see what is there: {page}/tree/main"
    if isinstance(error, HfHubHTTPError):
        return brief(error), _after(error, has_token, writing=writing)
    if isinstance(error, _NOT_JSON):
        return "an answer that is not the Hub's", "check HF_ENDPOINT, and proxies on the way"
    if isinstance(error, FileMetadataError):
        return brief(error), "check HF_ENDPOINT, and proxies on the way"
    return brief(error), "check the network, HF_ENDPOINT and proxies, and run it again"


def _after(error: HfHubHTTPError, has_token: bool, *, writing: bool) -> str:
    code, url = status(error), str(error.response.url)
    if code == 403 and not url.startswith(constants.ENDPOINT):
        # The storage's addresses are signed, for a while; it knows of no token.
        return "run it again: what has arrived is not sent twice"
    if code == 403 and url.endswith("/api/repos/create"):
        return "set HF_TOKEN to a token that may make repositories there, or have it made first"
    if code == 401:
        made = "https://huggingface.co/settings/tokens"
        return f"set HF_TOKEN to a valid token ({made})" if has_token else "set HF_TOKEN"
    if code == 403 and not writing:
        return "check what the token of HF_TOKEN may read, and proxies on the way"
    if code == 403:
        return "set HF_TOKEN to a token that may write there, or open a pull request: --create-pr"
    if code == 429:
        return "wait some minutes, then run it again: what has arrived is not sent twice"
    if code in _MAY_PASS:
        return "the Hub has trouble; run it again later: what has arrived is not sent twice"
    return "run it again; if that changes nothing, the answer above says why"
