"""A small server that speaks enough of the Hub's protocol for its own client to run against.

The storage of large files answers under another host name than the API, as the Hub's does, and
refuses a request that carries a token: so a client that sends the token on is found out.
"""

from tests.hub.faults import Before, Cut, Endless, Fault, Lost, Slow, Stall, Status, Whole, Wrong
from tests.hub.server import READ_TOKEN, WRITE_TOKEN, HubServer
from tests.hub.store import Commit, File, PullRequest
from tests.hub.wire import Request

__all__ = [
    "READ_TOKEN",
    "WRITE_TOKEN",
    "Before",
    "Commit",
    "Cut",
    "Endless",
    "Fault",
    "File",
    "HubServer",
    "Lost",
    "PullRequest",
    "Request",
    "Slow",
    "Stall",
    "Status",
    "Whole",
    "Wrong",
]
