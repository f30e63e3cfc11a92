"""Events that a connection returns to its owner; each names the link or session it is about.

`Connection.receive` returns them in the order in which their frames came.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinbus.amqp.link import Link, LinkSession, ReceiverLink, SenderLink
from twinbus.amqp.performatives import Error, Open


@dataclass(slots=True)
class Opened:
    """The peer's OPEN arrived; the connection can carry sessions."""

    open: Open


@dataclass(slots=True)
class Closed:
    """The connection is over: the peer closed it or broke the protocol."""

    error: Error | None


@dataclass(slots=True)
class Begun:
    """A session is usable: the peer began one, or answered ours."""

    session: LinkSession


@dataclass(slots=True)
class Ended:
    """The peer ended a session; its links are gone."""

    session: LinkSession
    error: Error | None


@dataclass(slots=True)
class Attached:
    """The peer attached a link (answer with `accept` or `refuse`), or answered ours."""

    link: Link


@dataclass(slots=True)
class Detached:
    """The peer detached a link; `error` says why, if it failed."""

    link: Link
    error: Error | None
    closed: bool


@dataclass(slots=True)
class CreditChanged:
    """The peer's FLOW changed what a sender link may send, or asked it to drain."""

    link: SenderLink


class DeliveryArrived:
    """One whole delivery (all its frames joined) came in on a receiver link."""

    __slots__ = ("delivery_id", "link", "message_format", "payload", "settled", "tag")

    def __init__(
        self,
        link: ReceiverLink,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.payload = payload


class Disposed:
    """The peer's DISPOSITION: a state for the deliveries `first` to `last` of one session.

    `by_receiver`: true for deliveries that this end sent.
    """

    __slots__ = ("by_receiver", "first", "last", "session", "settled", "state")

    def __init__(
        self,
        session: LinkSession,
        by_receiver: bool,
        first: int,
        last: int,
        settled: bool,
        state: object,
    ) -> None:
        self.session = session
        self.by_receiver = by_receiver
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state


Event = (
    Opened
    | Closed
    | Begun
    | Ended
    | Attached
    | Detached
    | CreditChanged
    | DeliveryArrived
    | Disposed
)
