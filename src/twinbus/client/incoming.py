"""The receiving links of one connection: who gets a delivery, and who an answer of the service."""

from __future__ import annotations

from abc import ABC, abstractmethod

from twinbus.amqp.events import DeliveryArrived, Disposed, Event
from twinbus.amqp.link import LinkSession, ReceiverLink


class IncomingOwner(ABC):
    """What the connection uses of a receiving link (`client/receiving.py`)."""

    path: str
    heard_at: float
    """When the link last brought a delivery or a flow."""

    @abstractmethod
    def handle(self, event: Event) -> None:
        """Act on an event of the link."""

    @abstractmethod
    def take(self, event: DeliveryArrived) -> None:
        """Take one delivery."""

    @abstractmethod
    def confirm(self, number: int, state: object) -> None:
        """The service answered a settlement of the link."""

    @abstractmethod
    def lost(self, text: str) -> None:
        """The connection is lost."""


class IncomingLinks:
    """The receiving links that are attached to one connection."""

    def __init__(self) -> None:
        self._links: set[IncomingOwner] = set()
        self._settling: dict[LinkSession, dict[int, IncomingOwner]] = {}
        """Who settles each delivery that the service has not confirmed, by delivery id."""

    def add(self, link: IncomingOwner) -> None:
        """Remember a link that is being opened."""
        self._links.add(link)

    def settling(self, session: LinkSession) -> dict[int, IncomingOwner]:
        """The links that wait for answers on one session, by delivery id."""
        return self._settling.setdefault(session, {})

    def remove(self, link: IncomingOwner) -> None:
        """Forget a link that has ended."""
        self._links.discard(link)

    def uses(self, path: str) -> bool:
        """Whether a link receives from this entity."""
        key = path.lower()
        return any(link.path.lower() == key for link in self._links)

    def take(self, run: list[DeliveryArrived], now: float) -> None:
        """Hand the deliveries of one read to their links."""
        link: ReceiverLink | None = None
        taker: IncomingOwner | None = None
        for event in run:
            if event.link is not link:
                link, owner = event.link, event.link.owner
                taker = owner if isinstance(owner, IncomingOwner) else None
                if taker is not None:
                    taker.heard_at = now
            if taker is not None:
                taker.take(event)

    def confirm(self, event: Disposed) -> None:
        """Hand the service's answer to the links that wait for it."""
        settling = self._settling.get(event.session)
        if not settling or (event.state is None and not event.settled):
            return
        for number in event.among(settling):
            # Its link may have ended by what the one before it caused.
            if (owner := settling.pop(number, None)) is not None:
                owner.confirm(number, event.state)

    def lost(self, text: str) -> None:
        """The connection is lost, and each link with it."""
        self._settling = {}
        for link in list(self._links):
            link.lost(text)
