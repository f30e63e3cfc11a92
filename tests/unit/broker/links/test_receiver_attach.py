"""What the broker answers to a receiver's attach is what it does."""

from __future__ import annotations

import pytest

from tests.unit.broker.fakes import incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.events import DeliveryArrived
from twinbus.amqp.performatives import Source, Target
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.links.receiving import SESSION_FILTER
from twinbus.broker.server import BrokerServer

FULL_SIZE_BYTES = 256 * 1024


def serving(*, with_sessions: bool = False) -> BrokerServer:
    server = new_server()
    description = QueueDescription(requires_session=with_sessions)
    server.namespace.create_queue("q", description, server.now_ms())
    return server


@pytest.mark.parametrize("with_sessions", [False, True])
async def test_a_message_of_the_full_size_is_within_what_the_receiver_is_told(
    with_sessions: bool,
) -> None:
    """The .NET SDK holds the broker to the max-message-size of its ATTACH."""
    server = serving(with_sessions=with_sessions)
    queue = server.namespace.receive_source("q")
    overhead = incoming(session_id="s").size_bytes
    queue.enqueue(incoming(bytes(FULL_SIZE_BYTES - overhead - 64), session_id="s"), server.now_ms())
    client = JoinedClient(server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    filters = {SESSION_FILTER: "s"} if with_sessions else None
    source, target = Source(address="q", filter=filters), Target(address="me")
    link = session.attach_receiver("in", source=source, target=target)
    link.grant(1)
    seen = await client.exchange(60)
    (arrived,) = [event for event in seen if isinstance(event, DeliveryArrived)]
    assert len(arrived.payload) <= (link.max_message_size or len(arrived.payload))
    assert len(arrived.payload) > FULL_SIZE_BYTES
    await server.close()
