"""Messages leave a relay in runs: in the order given, and each in flight under its delivery id."""

from __future__ import annotations

import pytest

from tests.unit.amqp.test_connection import Pair
from twinbus.amqp.events import Attached, DeliveryArrived
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.performatives import Source, Target
from twinbus.ledger import NullLedger
from twinbus.syphon.bookkeeping import Bookkeeper
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.outbound import DestinationLinks
from twinbus.transfer.unpacking import BacklogMessage

SMALL, WIDE = b"x" * 10, b"y" * 150_000
"""A message of one frame, and one of several."""


def message(number: int, path: str = "orders", wire: bytes = SMALL) -> BacklogMessage:
    token = number.to_bytes(16)
    made = BacklogMessage(token, len(wire), path=path, wire=wire)
    made.destination = path.lower()
    return made


class World:
    """A primary with two entities on one session, and the links of a relay to them."""

    def __init__(self, window: int = 1_000) -> None:
        self.pair = Pair()
        self.pair.exchange()
        session, _ = self.pair.session()
        books = Bookkeeper(NullLedger(), "one", "two", "queue")
        self.outbound = DestinationLinks(Pump(), books, lambda actions: None, lambda: 0.0)
        self.in_flight = self.outbound.in_flight[session] = {}
        for path in ("orders", "events"):
            link = session.attach_sender(path, source=Source(), target=Target(address=path))
            _, events = self.pair.exchange()
            (offered,) = [each.link for each in events if isinstance(each, Attached)]
            assert isinstance(offered, ReceiverLink)
            offered.accept()
            offered.grant(100)
            self.pair.exchange()
            self.outbound.links[path] = link, self.in_flight
        session.remote_incoming_window = window
        self.session = session

    def sent(self, messages: list[BacklogMessage]) -> list[DeliveryArrived]:
        """What the primary gets of these messages."""
        self.outbound.send(messages)
        _, events = self.pair.exchange()
        return [each for each in events if isinstance(each, DeliveryArrived)]


MIXED = [
    message(0),
    message(1),
    message(2, "events"),
    message(3, "Events"),
    message(4),
    message(5, wire=WIDE),
    message(6),
    message(7),
    message(8, wire=WIDE),
]


@pytest.mark.parametrize("messages", [MIXED, MIXED[::-1], MIXED[:1], MIXED[:2], []])
def test_messages_arrive_in_order_at_their_destinations(messages: list[BacklogMessage]) -> None:
    world = World()
    arrived = world.sent(messages)
    expected = [(each.destination, each.lock_token, each.wire) for each in messages]
    assert [(each.link.name, each.tag, each.payload) for each in arrived] == expected
    assert [world.in_flight[each.delivery_id] for each in arrived] == messages
    assert len(world.in_flight) == len(messages)


def test_tokens_of_different_sizes_are_no_run() -> None:
    world = World()
    messages = [message(0), message(1), message(2)]
    messages[1].lock_token = b"short"
    assert [each.tag for each in world.sent(messages)] == [each.lock_token for each in messages]


def test_what_does_not_fit_the_window_waits_and_is_in_flight() -> None:
    world = World(window=2)
    messages = [message(number) for number in range(5)]
    assert [each.tag for each in world.sent(messages)] == [m.lock_token for m in messages[:2]]
    assert list(world.in_flight.values()) == messages


def test_a_run_takes_as_much_credit_as_its_messages() -> None:
    world = World()
    link = world.outbound.links["orders"][0]
    assert isinstance(link, SenderLink)
    world.sent([message(number) for number in range(7)])
    assert link.credit == 93
    assert len(world.session.unsettled.by_id) == 7
