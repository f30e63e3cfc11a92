"""What the broker answers to a receiver's attach is what it does."""

from __future__ import annotations

import pytest

from tests.unit.broker.fakes import incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.events import Attached, DeliveryArrived, Detached, Event
from twinbus.amqp.link import LinkState, ReceiverLink
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.types import Described, Symbol
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


async def attached(server: BrokerServer, source: Source) -> tuple[ReceiverLink, list[Event]]:
    client = JoinedClient(server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    link = session.attach_receiver("in", source=source, target=Target(address="me"))
    link.grant(1)
    return link, await client.exchange()


async def test_a_browsing_receiver_is_refused_and_consumes_nothing() -> None:
    """A JMS QueueBrowser does not expect its messages to be gone afterwards."""
    server = serving()
    server.namespace.receive_source("q").enqueue(incoming(), server.now_ms())
    source = Source(address="q", distribution_mode=Symbol("copy"))
    link, seen = await attached(server, source)
    assert not [event for event in seen if isinstance(event, DeliveryArrived)]
    (ended,) = [event for event in seen if isinstance(event, Detached)]
    assert ended.error is not None
    assert ended.error.condition == "amqp:not-implemented"
    assert "com.microsoft:peek-message on 'q/$management'" in (ended.error.description or "")
    assert (link.source, link.state) == (None, LinkState.CLOSED)
    assert len(server.namespace.receive_source("q").states.locks) == 0
    await server.close()


async def test_a_filter_that_is_not_applied_is_not_answered() -> None:
    """AMQP 1.0 part 3.5.8: the answer has the filters in force, and the receiver checks them."""
    server = serving()
    selector = Symbol("apache.org:selector-filter:string")
    filters = {selector: Described(selector, "colour = 'blue'")}
    source = Source(address="q", distribution_mode=Symbol("move"), filter=filters)
    link, seen = await attached(server, source)
    assert [event for event in seen if isinstance(event, Attached)]
    assert link.source == Source(address="q", distribution_mode=Symbol("move"))
    await server.close()


async def test_of_several_filters_only_the_session_is_answered() -> None:
    server = serving(with_sessions=True)
    selector = Symbol("apache.org:selector-filter:string")
    filters = {selector: Described(selector, "x = 1"), SESSION_FILTER: "s"}
    link, _ = await attached(server, Source(address="q", filter=filters))
    assert link.source is not None
    assert link.source.filter == {SESSION_FILTER: "s"}
    await server.close()


async def test_the_nodes_of_requests_answer_no_filter_either() -> None:
    server = serving()
    for address in ("$cbs", "q/$management"):
        link, seen = await attached(server, Source(address=address, filter={Symbol("x"): 1}))
        assert [event for event in seen if isinstance(event, Attached)]
        assert link.source == Source(address=address)
    await server.close()
