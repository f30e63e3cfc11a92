"""The actions of a pump: plain values that its relay performs in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twinbus.transfer.unpacking import BacklogMessage


class Action:
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GrantCredit(Action):
    """Let the backlog queue send up to `credit` more messages; 0: none."""

    credit: int


@dataclass(frozen=True, slots=True)
class OpenDestination(Action):
    """Open a sender link to a destination on the primary."""

    path: str


@dataclass(frozen=True, slots=True)
class CloseDestination(Action):
    """Close the link to a destination, and ignore what it still answers."""

    path: str


@dataclass(slots=True)
class Forward(Action):
    message: BacklogMessage


@dataclass(frozen=True, slots=True)
class Complete(Action):
    """Complete messages in the backlog queue: the primary has them."""

    messages: list[BacklogMessage]


@dataclass(frozen=True, slots=True)
class DeadLetter(Action):
    message: BacklogMessage
    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class Defer(Action):
    """Defer a message in the backlog queue, to be received by its sequence number later."""

    message: BacklogMessage


@dataclass(frozen=True, slots=True)
class Release(Action):
    """Release a message, so that the backlog queue delivers it again."""

    message: BacklogMessage


@dataclass(frozen=True, slots=True)
class Renew(Action):
    messages: list[BacklogMessage]


@dataclass(frozen=True, slots=True)
class ReceiveDeferred(Action):
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class FindDeferred(Action):
    """Search for deferred messages by peeking; any process may have deferred them."""

    to_the_end: bool = True
    """False: only those at the front, because the queue is busy and may be long."""


@dataclass(frozen=True, slots=True)
class PeekForOrder(Action):
    """Peek one page from this sequence number on, for strict session order."""

    start: int


@dataclass(frozen=True, slots=True)
class LookAhead(Action):
    """Peek one page from this sequence number on, for a message that can be delivered."""

    start: int


@dataclass(frozen=True, slots=True)
class EmptyPoll(Action):
    """Record that a long poll ended without a message: a counted operation (docs/guarantees.md)."""


@dataclass(frozen=True, slots=True)
class Reconnect(Action):
    """Drop a connection that does not answer, and connect again."""

    side: Literal["primary", "secondary"]
    reason: str


@dataclass(frozen=True, slots=True)
class WaitUntil(Action):
    """Call `rate_due` at that time: the rate allows the next messages then."""

    until: float
