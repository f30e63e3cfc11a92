"""The links to destinations on a relay's line to the primary, and what is in flight on them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from twinbus.amqp.link import LinkSession, SenderLink
from twinbus.amqp.performatives import Source, Target
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.servicebus.conditions import NOT_FOUND, UNAUTHORIZED
from twinbus.servicebus.failures import MISSING_STATUS
from twinbus.servicebus.names import is_entity_name
from twinbus.syphon.core.actions import Action
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.relay.bookkeeping import Bookkeeper
from twinbus.transfer.backlog_message import BacklogMessage

_link_numbers = itertools.count(1)


InFlight = dict[int, BacklogMessage]
"""Messages by delivery id."""


class DestinationLinks:
    """The links of one relay; `line` is where they are, None while there is no connection."""

    def __init__(
        self, pump: Pump, books: Bookkeeper, perform: Callable[[list[Action]], None]
    ) -> None:
        self.line: NamespaceConnection | None = None
        self.links: dict[str, tuple[SenderLink, InFlight]] = {}
        """By path in lower case, each with what is in flight on its session."""
        self.in_flight: dict[LinkSession, InFlight] = {}
        """Sent and not answered, by session."""
        self._pump = pump
        self._books = books
        self._do = perform

    async def attach(self, path: str) -> None:
        """Have a link to a destination allowed, and ask for it; the pump hears if it is not."""
        # The last gate before the path becomes an address with the rights of the syphon.
        assert is_entity_name(path), path
        line = self.line
        if line is None:
            return
        try:
            is_answer = await line.authorize(path)
            session = await line.session_with_room()
        except RequestRefused as error:
            condition = NOT_FOUND if error.status == MISSING_STATUS else UNAUTHORIZED
            if line is self.line:
                self._do(self._pump.detached(path, condition, str(error), time.monotonic()))
            return
        except ConnectionLost as error:
            # The line may be well, and only this answer missing: the pump knows of the others.
            if line is self.line and not line.lost.done():
                self._do(self._pump.unanswered(path, str(error), time.monotonic()))
            return
        if line is not self.line or path.lower() in self.links or not self._pump.attaches_to(path):
            return
        if is_answer:
            self._do(self._pump.authorized(time.monotonic()))
        name = f"{path}-syphon-{next(_link_numbers)}"
        link = session.attach_sender(name, source=Source(address=name), target=Target(address=path))
        link.owner = path
        self.links[path.lower()] = link, self.in_flight.setdefault(session, {})
        line.flush()

    def detach(self, path: str) -> None:
        """Close a link that does not answer, or is not used."""
        if path.lower() not in self.links:
            return
        link, _ = self.links[path.lower()]
        self.forget(path, "no answer")
        link.detach()
        if self.line is not None:
            self.line.forget_token(path)

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
        """The line is gone, and with it all links."""
        self.line = None
        for in_flight in self.in_flight.values():
            for message in in_flight.values():
                self._books.not_forwarded(message, reason, is_known=False)
        self.in_flight.clear()
        self.links.clear()
