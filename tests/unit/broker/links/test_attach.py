"""Attaching links to a broker, and the heartbeats of its connections."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.unit.broker.fakes import incoming
from tests.unit.broker.links.joined import JoinedClient, JoinedTransport, new_server
from twinbus.amqp.connection import (
    AMQP_HEADER,
    EMPTY_FRAME,
    IDLE_TIMEOUT_LEAST_MS,
    Connection,
    ConnectionPhase,
)
from twinbus.amqp.events import Attached, Closed, DeliveryArrived, Detached, Event
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import Link, LinkState, ReceiverLink, SenderLink
from twinbus.amqp.message import Properties, decode_map, encode_message, split
from twinbus.amqp.performatives import Open, Source, Target
from twinbus.amqp.transport import ClientTransport
from twinbus.amqp.types import Described, Symbol, UInt, ULong
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.faults import Fault
from twinbus.broker.links.dispatch import Dispatcher
from twinbus.broker.links.receiving import SESSION_FILTER
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore
from twinbus.testing import VirtualLoop

pytestmark = pytest.mark.virtual_time

FULL_SIZE_BYTES = 256 * 1024


def serving(*, with_sessions: bool = False) -> BrokerServer:
    server = new_server()
    description = QueueDescription(requires_session=with_sessions)
    server.namespace.create_queue("q", description, server.now_ms())
    return server


UNNAMED = {
    "dynamic source": (Source(dynamic=True), None, "amqp:not-implemented", "dynamic nodes"),
    "dynamic target": (None, Target(dynamic=True), "amqp:not-implemented", "dynamic nodes"),
    "null source": (Source(), None, "amqp:not-found", "TOPIC/Subscriptions/NAME"),
    "null target": (None, Target(), "amqp:not-implemented", "anonymous senders"),
}


@pytest.mark.parametrize(("source", "target", "condition", "text"), UNNAMED.values(), ids=UNNAMED)
async def test_a_link_that_names_no_node_is_refused_with_a_reason(
    source: Source | None, target: Target | None, condition: str, text: str
) -> None:
    """Temporary queues, durable subscribers and anonymous senders of JMS."""
    server = serving()
    client = JoinedClient(server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    if source is not None:
        session.attach_receiver("in", source=source, target=Target(address="me"))
    else:
        session.attach_sender("out", source=Source(), target=target or Target())
    (ended,) = [each for each in await client.exchange() if isinstance(each, Detached)]
    assert ended.error is not None
    assert (str(ended.error.condition), text in str(ended.error.description)) == (condition, True)
    await server.close()


@pytest.mark.parametrize("settled", [False, True])
async def test_a_receiver_whose_session_lock_expires_is_detached_if_it_locks(
    settled: bool,
) -> None:
    """Else its client would go on believing that it holds the session."""
    server = serving(with_sessions=True)
    client = JoinedClient(server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    source = Source(address="q", filter={SESSION_FILTER: "s"})
    session.attach_receiver("in", source=source, target=Target(), settled=settled)
    await client.exchange()
    server.namespace.run_timers(server.now_ms() + 60_000)
    ended = [each for each in await client.exchange() if isinstance(each, Detached)]
    conditions = [str(each.error.condition) for each in ended if each.error is not None]
    assert conditions == ([] if settled else ["com.microsoft:session-lock-lost"])
    await server.close()


async def test_a_missing_entity_is_named_by_the_host_that_the_client_dialled() -> None:
    """The JavaScript SDK's tests compare it."""
    server = serving()
    client = JoinedClient(server)
    client.connection = Connection("c", hostname="contoso.servicebus.windows.net")
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    session.attach_receiver("in", source=Source(address="x"), target=Target())
    (ended,) = [each for each in await client.exchange() if isinstance(each, Detached)]
    assert ended.error is not None
    assert (
        "The messaging entity 'sb://contoso.servicebus.windows.net/x' could not be found. "
        in str(ended.error.description)
    )
    await server.close()


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
    other = Symbol("apache.org:no-local-filter:list")
    filters = {other: Described(other, [])}
    source = Source(address="q", distribution_mode=Symbol("move"), filter=filters)
    link, seen = await attached(server, source)
    assert [event for event in seen if isinstance(event, Attached)]
    assert link.source == Source(address="q", distribution_mode=Symbol("move"))
    await server.close()


SELECTOR = Symbol("apache.org:selector-filter:string")


@pytest.mark.parametrize(
    ("name", "descriptor"),
    [
        (SELECTOR, SELECTOR),
        (Symbol("jms-selector"), ULong(0x0000_468C_0000_0004)),
        (Symbol("mine"), ULong(0x0000_468C_0000_0004)),
    ],
)
async def test_a_receiver_with_a_selector_is_refused(name: Symbol, descriptor: object) -> None:
    """Qpid JMS does not check the answer, and would take what it did not select."""
    server = serving()
    filters = {name: Described(descriptor, "colour = 'blue'")}
    _, seen = await attached(server, Source(address="q", filter=filters))
    (ended,) = [event for event in seen if isinstance(event, Detached)]
    assert ended.error is not None
    assert ended.error.condition == "amqp:not-implemented"
    assert "a rule with that condition" in str(ended.error.description)
    await server.close()


async def test_of_several_filters_only_the_session_is_answered() -> None:
    server = serving(with_sessions=True)
    other = Symbol("apache.org:no-local-filter:list")
    filters = {other: Described(other, []), SESSION_FILTER: "s"}
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


COUNT = 1_000
NODE = "talks/$management"


class CountedConsumer:
    """A consumer that counts how often it is compared with another."""

    compared = 0
    can_take = False

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.session_id: str | None = None

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


IDLE_TIMES_MS = (IDLE_TIMEOUT_LEAST_MS, 500, 2_000, 8_000, 60_000)


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


class VirtualServer(BrokerServer):
    def now_ms(self) -> int:
        return now_ms()


class TimedTransport(JoinedTransport):
    """Keeps when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.times_ms: list[int] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        self.times_ms.append(now_ms())

    def longest_silence_ms(self) -> int:
        times_ms = [*self.times_ms, now_ms()]
        return max(later - sooner for sooner, later in pairwise(times_ms))


def opening(idle_ms: int | None) -> bytes:
    idle = None if idle_ms is None else UInt(idle_ms)
    return encode_frame(0, Open(container_id="peer", idle_time_out=idle))


@pytest.mark.parametrize("idle_ms", IDLE_TIMES_MS)
async def test_a_client_of_the_broker_is_never_left_without_a_frame_for_its_idle_time(
    idle_ms: int,
) -> None:
    """The SDKs open through SASL, in several reads."""
    server, wire = VirtualServer("b", MemoryStore(), []), TimedTransport()
    peer = server.peer()
    peer.connection_made(cast("asyncio.Transport", wire))
    client = Connection("c", sasl=True)
    client._open = lambda: Open(container_id="c", idle_time_out=UInt(idle_ms))  # type: ignore[method-assign]
    while data := client.take_output(now_ms()):
        peer.data_received(data)
        await asyncio.sleep(0.01)
        reply, wire.written = wire.written, b""
        list(client.receive(reply, now_ms()))
    assert client.phase is ConnectionPhase.OPEN
    peer.trust()
    await asyncio.sleep(3 * idle_ms / 1000)
    assert wire.longest_silence_ms() <= idle_ms // 2 + 1
    assert wire.written == EMPTY_FRAME * (len(wire.written) // 8)
    await server.close()


@pytest.mark.parametrize("idle_ms", IDLE_TIMES_MS)
async def test_our_own_client_keeps_a_connection_alive_from_the_start(
    idle_ms: int,
) -> None:
    wire = TimedTransport()
    client = ClientTransport(Connection("c"), lambda _: None, now_ms=now_ms)
    client.connection_made(cast("asyncio.Transport", wire))
    await asyncio.sleep(0.01)
    client.data_received(AMQP_HEADER + opening(idle_ms))
    await asyncio.sleep(3 * idle_ms / 1000)
    assert wire.longest_silence_ms() <= idle_ms // 2 + 1
    client.connection_lost(None)


@pytest.mark.parametrize("idle_ms", [1, 2, IDLE_TIMEOUT_LEAST_MS - 1])
@pytest.mark.parametrize("side", ["broker", "client"])
async def test_an_idle_time_that_would_cost_a_processor_is_refused(side: str, idle_ms: int) -> None:
    loop, wire = asyncio.get_running_loop(), TimedTransport()
    assert isinstance(loop, VirtualLoop)
    events: list[Event] = []
    server = VirtualServer("b", MemoryStore(), [])
    client = ClientTransport(Connection("c"), events.append, now_ms=now_ms)
    end = server.peer() if side == "broker" else client
    end.connection_made(cast("asyncio.Transport", wire))
    end.data_received(AMQP_HEADER + opening(idle_ms))
    jumps = loop.jumps
    await asyncio.sleep(10)
    # A broker closes the socket after a while; nothing else happens.
    assert loop.jumps - jumps <= 4
    said = Connection("other", server=side == "client")
    told = [event for events in said.receive(wire.written, 1) for event in events]
    (closed,) = [event for event in told if isinstance(event, Closed)]
    assert closed.error is not None
    assert closed.error.condition == "amqp:invalid-field"
    assert f"the idle-time-out is {idle_ms} ms" in (closed.error.description or "")
    assert [type(event) for event in events] == ([] if side == "broker" else [Closed])
    end.connection_lost(None)
    await server.close()


@pytest.mark.parametrize("idle_ms", [None, 0, (1 << 32) - 1])
async def test_a_client_that_asks_for_no_frames_or_few_gets_none(idle_ms: int | None) -> None:
    server, wire = VirtualServer("b", MemoryStore(), []), TimedTransport()
    peer = server.peer()
    peer.connection_made(cast("asyncio.Transport", wire))
    peer.data_received(AMQP_HEADER + opening(idle_ms))
    peer.trust()
    await asyncio.sleep(0.1)
    wire.written = b""
    await asyncio.sleep(100)
    assert wire.written == b""
    await server.close()


async def test_a_connection_that_is_closed_has_no_timer() -> None:
    """It would be due at once, again and again, until the client hangs up."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    server, wire = VirtualServer("b", MemoryStore(), []), TimedTransport()
    peer = server.peer()
    peer.connection_made(cast("asyncio.Transport", wire))
    peer.data_received(AMQP_HEADER + opening(500))
    await asyncio.sleep(0.1)
    peer.data_received(b"\xff" * 8)
    jumps = loop.jumps
    await asyncio.sleep(1.9)
    assert loop.jumps - jumps <= 2
    await server.close()
