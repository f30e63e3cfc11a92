"""A link that ends before it was opened holds nothing."""

from __future__ import annotations

import asyncio

from tests.unit.broker.fakes import incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.events import Detached
from twinbus.amqp.performatives import Coordinator, Source, Target
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


async def test_nothing_is_delivered_to_a_connection_that_broke_the_protocol() -> None:
    """The client may take its time to hang up; receive-and-delete would lose what comes then."""
    server = new_server()
    queue = server.namespace.create_queue("q", QueueDescription(), server.now_ms())
    client = JoinedClient(server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    source, target = Source(address="q"), Target(address="me")
    link = session.attach_receiver("in", source=source, target=target, settled=True)
    await client.exchange()
    link.grant(10)
    await client.exchange()
    client.connection.output.put(b"\xff" * 8)
    await client.exchange()
    queue.enqueue(incoming(), server.now_ms())
    await client.exchange()
    assert len(queue.messages) == 1
    await server.close()


async def test_a_link_for_transactions_is_refused_as_not_supported_whatever_the_rights() -> None:
    for trusted in (True, False):
        server = new_server()
        client = JoinedClient(server, trusted=trusted)
        await client.exchange()
        session = client.connection.begin()
        await client.exchange()
        coordinator = Coordinator(capabilities=["amqp:local-transactions"])
        session.attach_sender("tx", source=Source(address="tx"), target=coordinator)  # type: ignore[arg-type]
        (ended,) = [one for one in await client.exchange() if isinstance(one, Detached)]
        assert ended.error is not None
        assert ended.error.condition == "amqp:not-implemented"
        assert ended.error.description == (
            "This broker does not support transactions; send without one."
        )
        await server.close()
