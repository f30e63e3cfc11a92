"""Events that a connection returns to its owner; each names the link or session it is about.

`Connection.receive` yields them in the order in which their frames came.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from twinbus.amqp.link import SERIAL_MASK, Link, LinkSession, ReceiverLink, SenderLink
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
    """The peer's FLOW changed what a sender link may send, or asked it to drain.

    A FLOW may come before the owner accepts the link. It causes no event then: `accept` is when the
    owner reads the credit that the link has.
    """

    link: SenderLink


@dataclass(slots=True)
class Drained:
    """The peer gave back the credit that a receiver link asked it to drain."""

    link: ReceiverLink


@dataclass(slots=True, eq=False)
class DeliveryArrived:
    """One whole delivery (all its frames joined) came in on a receiver link."""

    link: ReceiverLink
    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool
    payload: bytes


@dataclass(slots=True, eq=False)
class DeliveryTooLarge:
    """A delivery exceeds the link's limit; its payload was dropped. The owner rejects it."""

    link: ReceiverLink
    delivery_id: int
    settled: bool


@dataclass(slots=True, eq=False)
class Disposed:
    """The peer's DISPOSITION: a state for the deliveries `first` to `last` of one session."""

    session: LinkSession
    by_receiver: bool
    """True for deliveries that this end sent."""
    first: int
    last: int
    settled: bool
    state: object

    def among(self, ids: Collection[int]) -> list[int]:
        """Which of these delivery ids the range holds; a wide range costs a look at each of them.

        To count through the range would take minutes: a peer can name two billion ids.
        """
        span = (self.last - self.first) & SERIAL_MASK
        if span < len(ids):
            numbers = (n & SERIAL_MASK for n in range(self.first, self.first + span + 1))
            return [number for number in numbers if number in ids]
        return [number for number in ids if (number - self.first) & SERIAL_MASK <= span]


Event = (
    Opened
    | Closed
    | Begun
    | Ended
    | Attached
    | Detached
    | CreditChanged
    | Drained
    | DeliveryArrived
    | DeliveryTooLarge
    | Disposed
)
