"""A client may have thousands of links; what it asks for costs no look at all of them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.events import DeliveryArrived, Event
from twinbus.amqp.link import Link, ReceiverLink, SenderLink
from twinbus.amqp.message import Properties, decode_map, encode_message, split
from twinbus.amqp.performatives import Source, Target
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.links.dispatch import Dispatcher
from twinbus.broker.server import BrokerServer

COUNT = 1_000
NODE = "talks/$management"


class CountedConsumer:
    """A consumer that counts how often it is compared with another."""

    compared = 0

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def __eq__(self, other: object) -> bool:
        CountedConsumer.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def take_next_session(self, now_ms: int) -> bool:
        return False

    def deliver(self, limit: int, now_ms: int) -> int:
        return 0


@pytest.mark.parametrize("waits", [False, True])
def test_consumers_that_leave_are_not_compared_with_all_others(waits: bool) -> None:
    dispatcher, queue = Dispatcher(lambda: None), cast(Queue, object())
    consumers = [CountedConsumer(queue) for _ in range(COUNT)]
    for consumer in consumers:
        (dispatcher.wait_for_session if waits else dispatcher.add)(consumer)
    CountedConsumer.compared = 0
    for consumer in reversed(consumers):
        dispatcher.remove(consumer)
    assert dispatcher.receiver_count(queue) == 0
    assert CountedConsumer.compared < COUNT


class Unsearched(dict[int, Link]):
    def values(self) -> Any:
        raise AssertionError("all links were searched")


async def opened(server: BrokerServer) -> tuple[JoinedClient, SenderLink, ReceiverLink]:
    """A client that holds the session "s", asks the queue's node and reads its answers."""
    description = QueueDescription(requires_session=True)
    server.namespace.create_queue("talks", description, server.now_ms())
    client = JoinedClient(server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    asks = session.attach_sender("ask", source=Source(), target=Target(address=NODE))
    answers = _answers(asks)
    source = Source(address="talks", filter={"com.microsoft:session-filter": "s"})
    session.attach_receiver("holds", source=source, target=Target(address="me"))
    await client.exchange()
    answers.grant(9)
    return client, asks, answers


def _answers(asks: SenderLink) -> ReceiverLink:
    session = cast(Any, asks.session)
    link = session.attach_receiver(
        "answers", source=Source(address=NODE), target=Target(address="me")
    )
    return cast(ReceiverLink, link)


def ask(asks: SenderLink, reply_to: str | None = "me") -> None:
    headers = {
        "operation": "com.microsoft:renew-session-lock",
        "associated-link-name": "holds",
    }
    wire = encode_message(
        properties=Properties(message_id="1", reply_to=reply_to),
        application_properties=headers,
        value={"session-id": "s"},
    )
    asks.send(wire, b"t")


def statuses(events: list[Event]) -> list[int]:
    arrived = [event.payload for event in events if isinstance(event, DeliveryArrived)]
    return [decode_map(split(wire).application_properties)["statusCode"] for wire in arrived]


@pytest.mark.parametrize("reply_to", ["me", "nobody", None])
async def test_a_request_finds_its_links_by_name(
    reply_to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = new_server()
    client, asks, _ = await opened(server)
    with monkeypatch.context() as patch:
        (ours,) = client.peer.connection.sessions.values()
        patch.setattr(ours, "links", Unsearched(ours.links))
        ask(asks, reply_to)
        assert statuses(await client.exchange()) == [200]
    await server.close()


async def test_a_reply_link_and_a_receiver_that_are_closed_are_not_found() -> None:
    server = new_server()
    client, asks, answers = await opened(server)
    answers.detach()
    await client.exchange()
    ask(asks)
    assert statuses(await client.exchange()) == []
    again = _answers(asks)
    await client.exchange()
    again.grant(9)
    holds = next(link for link in again.session.links.values() if link.name == "holds")
    holds.detach()
    await client.exchange()
    ask(asks)
    assert statuses(await client.exchange()) == [410]
    await server.close()
