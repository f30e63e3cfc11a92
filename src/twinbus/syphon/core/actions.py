"""What a pump tells its relay to do: plain values, performed in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twinbus.syphon.core.backlog_message import BacklogMessage

__all__ = [
    "Action",
    "CloseDestination",
    "Complete",
    "DeadLetter",
    "Defer",
    "EmptyPoll",
    "FindDeferred",
    "Forward",
    "GrantCredit",
    "LookAhead",
    "OpenDestination",
    "PeekForOrder",
    "ReceiveDeferred",
    "Reconnect",
    "Release",
    "Renew",
    "WaitUntil",
]


@dataclass(frozen=True, slots=True)
class GrantCredit:
    """Let the backlog queue send up to `credit` messages from now on; 0: none."""

    credit: int


@dataclass(frozen=True, slots=True)
class OpenDestination:
    """Open a sender link to a destination on the primary."""

    path: str


@dataclass(frozen=True, slots=True)
class CloseDestination:
    """Close the link to a destination; whatever it still answers is not to be told."""

    path: str


@dataclass(slots=True)
class Forward:
    """Send a message to its destination."""

    message: BacklogMessage


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete these in the backlog queue: the primary has them."""

    messages: list[BacklogMessage]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Move a message to the backlog queue's dead-letter queue."""

    message: BacklogMessage
    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class Defer:
    """Set a message aside in the backlog queue, to be received by its number later."""

    message: BacklogMessage


@dataclass(frozen=True, slots=True)
class Release:
    """Give a message back to the backlog queue as if it had not been received."""

    message: BacklogMessage


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the locks of these."""

    messages: list[BacklogMessage]


@dataclass(frozen=True, slots=True)
class ReceiveDeferred:
    """Receive these deferred messages by their numbers."""

    numbers: list[int]


@dataclass(frozen=True, slots=True)
class FindDeferred:
    """Peek for deferred messages, of whichever process deferred them."""

    to_the_end: bool = True
    """False: as far as they lie together at the front, for the queue is busy and may be long."""


@dataclass(frozen=True, slots=True)
class PeekForOrder:
    """Peek one page from this number on, for strict session order."""

    start: int


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Peek one page from this number on: is anything there that could be delivered?"""

    start: int


@dataclass(frozen=True, slots=True)
class EmptyPoll:
    """One long poll ended without a message: a counted operation (SPEC 6)."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Give up a connection that does not answer, and make a new one."""

    side: Literal["primary", "secondary"]
    reason: str


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Call `tick` at that time: what waits because of the rate may be sent then."""

    until: float


Action = (
    GrantCredit
    | OpenDestination
    | CloseDestination
    | Forward
    | Complete
    | DeadLetter
    | Defer
    | Release
    | Renew
    | ReceiveDeferred
    | FindDeferred
    | PeekForOrder
    | LookAhead
    | EmptyPoll
    | Reconnect
    | WaitUntil
)
