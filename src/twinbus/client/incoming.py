"""The receiving links of one connection: who gets a delivery, and who an answer of the service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import groupby
from operator import attrgetter

from twinbus.amqp.events import DeliveryArrived, Disposed, Event
from twinbus.amqp.link import LinkSession


class IncomingOwner(ABC):
    """What the connection uses of a receiving link (`client/receiving.py`)."""

    path: str
    heard_at: float
    """When the link last brought a delivery or a flow."""

    @abstractmethod
    def handle(self, event: Event) -> None:
        """Act on an event of the link."""

    @abstractmethod
    def take(self, run: list[DeliveryArrived]) -> None:
        """Take deliveries that came one after the other."""

    @abstractmethod
    def confirm(self, numbers: list[int], state: object) -> None:
        """The service answered settlements of the link, all with one state."""

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
        for link, events in groupby(run, attrgetter("link")):
            owner = link.owner
            if isinstance(owner, IncomingOwner):
                owner.heard_at = now
                owner.take(list(events))

    def confirm(self, event: Disposed) -> None:
        """Hand the service's answer to the links that wait for it."""
        settling = self._settling.get(event.session)
        if not settling or (event.state is None and not event.settled):
            return
        if event.first == event.last:
            owner = settling.pop(event.first, None)
            if owner is not None:
                owner.confirm([event.first], event.state)
            return
        answered: dict[IncomingOwner, list[int]] = {}
        for number in event.among(settling):
            answered.setdefault(settling.pop(number), []).append(number)
        for owner, numbers in answered.items():
            owner.confirm(numbers, event.state)

    def lost(self, text: str) -> None:
        """The connection is lost, and each link with it."""
        self._settling = {}
        for link in list(self._links):
            link.lost(text)
