"""A link that ends before it was opened holds nothing."""

from __future__ import annotations

import asyncio

from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.performatives import Source, Target
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.faults import Fault


async def test_a_link_that_a_fault_delays_does_not_open_after_its_session_has_ended() -> None:
    server = new_server()
    server.namespace.create_queue("q", QueueDescription(), server.now_ms())
    server.faults.add(Fault(kind="delay", delay_ms=50))
    client = JoinedClient(server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    session.attach_receiver("in", source=Source(address="q"), target=Target(address="me"))
    await client.exchange()
    (opening,) = client.peer.connection.sessions[0].links.values()
    client.connection.end_session(session)
    await client.exchange()
    await asyncio.sleep(0.1)
    assert opening.owner is None
    await server.close()
