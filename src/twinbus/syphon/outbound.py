"""Links to destinations on a relay's connection to the primary, and what is in flight on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from twinbus.amqp.link import LinkSession, SenderLink
from twinbus.amqp.performatives import Source, Target
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.servicebus.conditions import NOT_FOUND, UNAUTHORIZED
from twinbus.servicebus.failures import MISSING_STATUS
from twinbus.servicebus.names import is_entity_name
from twinbus.syphon.bookkeeping import Bookkeeper
from twinbus.syphon.core.actions import Action
from twinbus.syphon.core.pump import Pump
from twinbus.transfer.unpacking import BacklogMessage

_DESTINATION: Final = attrgetter("destination")

_link_numbers = itertools.count(1)


InFlight = dict[int, BacklogMessage]
"""Messages by delivery id."""


class DestinationLinks:
    """The links of one relay on its `connection`, which is None while there is none."""

    def __init__(
        self,
        pump: Pump,
        books: Bookkeeper,
        perform: Callable[[list[Action]], None],
        now: Callable[[], float],
    ) -> None:
        self.connection: NamespaceConnection | None = None
        self.links: dict[str, tuple[SenderLink, InFlight]] = {}
        """By path in lower case, each with what is in flight on its session."""
        self.in_flight: dict[LinkSession, InFlight] = {}
        """Sent and not answered, by session."""
        self._pump = pump
        self._books = books
        self._do = perform
        self._now = now

    def send(self, messages: list[BacklogMessage]) -> None:
        """Send messages in order, those in a row to one destination together."""
        for path, row in itertools.groupby(messages, key=_DESTINATION):
            link, in_flight = self.links[path]
            together = list(row)
            for message in together[_send_run(link, in_flight, together) :]:
                in_flight[link.send(message.wire, message.lock_token)] = message

    async def attach(self, path: str) -> None:
        """Have a link to a destination allowed, and ask for it; the pump hears if it is not."""
        # The last gate before the path becomes an address with the rights of the syphon.
        assert is_entity_name(path), path
        connection = self.connection
        if connection is None:
            return
        try:
            is_answer = await connection.authorize(path)
            session = await connection.session_with_room()
        except RequestRefused as error:
            condition = NOT_FOUND if error.status == MISSING_STATUS else UNAUTHORIZED
            if connection is self.connection:
                self._do(self._pump.detached(path, condition, str(error), self._now()))
            return
        except ConnectionLost as error:
            # Only this answer may be missing: the pump knows of the others.
            if connection is self.connection and not connection.lost.done():
                self._do(self._pump.unanswered(path, str(error), self._now()))
            return
        if (
            connection is not self.connection
            or path.lower() in self.links
            or not self._pump.attaches_to(path)
        ):
            return
        if is_answer:
            self._do(self._pump.authorized(self._now()))
        name = f"{path}-syphon-{next(_link_numbers)}"
        link = session.attach_sender(name, source=Source(address=name), target=Target(address=path))
        link.owner = path
        self.links[path.lower()] = link, self.in_flight.setdefault(session, {})
        connection.flush()

    def detach(self, path: str) -> None:
        """Close a link that does not answer, or is not used."""
        if path.lower() not in self.links:
            return
        link, _ = self.links[path.lower()]
        self.forget(path, "no answer")
        link.detach()
        if self.connection is not None:
            self.connection.forget_token(path)

    def forget(self, path: str, reason: str) -> bool:
        """Drop a link; whether there was one. What it carried is recorded as not answered."""
        found = self.links.pop(path.lower(), None)
        if found is None:
            return False
        _, in_flight = found
        lost = [n for n, p in in_flight.items() if p.destination == path.lower()]
        for number in lost:
            self._books.not_forwarded(in_flight.pop(number), reason, is_known=False)
        return True

    def lost(self, reason: str) -> None:
        """The connection is gone, and with it all links."""
        self.connection = None
        for in_flight in self.in_flight.values():
            for message in in_flight.values():
                self._books.not_forwarded(message, reason, is_known=False)
        self.in_flight.clear()
        self.links.clear()


def _send_run(link: SenderLink, in_flight: InFlight, messages: list[BacklogMessage]) -> int:
    """Send the first of these messages as one run of transfers; return how many.

    The next is one that needs several frames, or must wait for the window of the session.
    """
    tags = [message.lock_token for message in messages]
    if len(messages) < 2 or len(set(map(len, tags))) > 1:
        return 0
    first_id = link.session.next_delivery_id
    count = link.send_run(tags, itertools.repeat(b""), [message.wire for message in messages])
    in_flight.update(zip(range(first_id, first_id + count), messages, strict=False))
    return count
