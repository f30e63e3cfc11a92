"""What one client may cost: before its first valid token, in output, and with idle links."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from tests.unit.broker.fakes import facts, incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from tests.unit.broker.links.one_client import (
    EARLY_RECEIVING,
    EARLY_SENDING,
    LAST,
    RECEIVING,
    SENDING,
    Action,
    OneClient,
    check_before_the_answer,
    early,
    outcome_of,
    pairs,
)
from twinbus.amqp.connection import MAX_FRAME_BYTES, Connection, ConnectionPhase
from twinbus.amqp.events import Attached, Closed, DeliveryArrived, Detached, Event, one_by_one
from twinbus.amqp.link import LinkSession, ReceiverLink, SenderLink
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.session import Session
from twinbus.broker.access import CUT_OFF_S, ConnectionLimits
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.faults import Fault
from twinbus.broker.links.client_limits import (
    FRAME_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    RECEIVED_BYTES_MAX,
    SESSIONS_MAX,
    TURN_BYTES_MAX,
    IdleLinks,
    LinkIdle,
)
from twinbus.broker.links.context import RefusalTracker
from twinbus.broker.links.dispatch import TURN
from twinbus.broker.links.peer import REASON_MAX
from twinbus.broker.links.requests import CBS_REQUEST_BYTES_MAX
from twinbus.broker.links.token_watch import TOKENS_CHECK_S
from twinbus.broker.refusals import EntityNotFound, NotAllowed, Unauthorized
from twinbus.broker.sas import ALL_RIGHTS, AcceptedToken, Grant
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore

PATIENCE_S = 10.0


@asynccontextmanager
async def serving(limits: ConnectionLimits | None = None) -> AsyncIterator[BrokerServer]:
    server = new_server(limits)
    yield server
    await server.close()


async def begun(client: JoinedClient) -> Session:
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    return session


def attach(session: Session, count: int, address: str = "$cbs") -> None:
    for number in range(count):
        target = Target(address="me")
        session.attach_receiver(f"in-{number}", source=Source(address=address), target=target)


def condition(events: list[Event], kind: type[Closed] | type[Detached] = Closed) -> str:
    """The condition of the one event of that kind."""
    (ended,) = [event for event in events if isinstance(event, kind)]
    assert ended.error is not None
    return str(ended.error.condition)


def begin_more(client: JoinedClient, session: Session) -> None:
    for _ in range(SESSIONS_MAX):
        client.connection.begin()


Greed = Callable[[JoinedClient, Session], None]

TOO_MUCH: dict[str, Greed] = {
    "sessions": begin_more,
    "bytes": lambda client, _: client.connection.output.put(
        # Keep-alives, the cheapest frames there are.
        b"\x00\x00\x00\x08\x02\x00\x00\x00" * (RECEIVED_BYTES_MAX // 8)
    ),
    "pings of a WebSocket": lambda client, _: client.peer.overhead_received(RECEIVED_BYTES_MAX),
}


@pytest.mark.parametrize("greed", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_a_stranger_that_takes_too_much_is_closed_with_one_line_in_the_log(
    greed: Greed, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        session = await begun(client)
        greed(client, session)
        assert condition(await client.exchange()) == "amqp:resource-limit-exceeded"
        lines = [line for line in caplog.messages if "192.0.2.1" in line]
        assert len(lines) == 1
        assert "broke off" in lines[0]
        assert "token" in lines[0]


async def test_a_connection_has_one_link_each_way_on_cbs() -> None:
    """The Go SDK makes its connection anew when another end of it is still open."""
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        session = await begun(client)
        attach(session, 2)
        assert condition(await client.exchange(), Detached) == "amqp:not-allowed"
        session.attach_sender("out", source=Source(), target=Target(address="$cbs"))
        (answer,) = [each for each in await client.exchange() if isinstance(each, Attached)]
        assert isinstance(answer.link.target, Target)
        for link in list(session.links.values()):
            link.detach()
        await client.exchange()
        attach(session, 1)
        assert not [each for each in await client.exchange() if isinstance(each, Detached)]


async def test_a_strangers_frame_is_smaller_than_what_was_announced() -> None:
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        await begun(client)
        client.connection.output.put((FRAME_BYTES_MAX + 1).to_bytes(4) + b"\x02\x00\x00\x00")
        assert condition(await client.exchange()) == "amqp:connection:framing-error"


@pytest.mark.parametrize("greed", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_a_client_with_a_token_has_the_announced_limits(greed: Greed) -> None:
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        session = await begun(client)
        client.peer.trust()
        greed(client, session)
        await client.exchange()
        # The start of a frame as large as any.
        client.connection.output.put(MAX_FRAME_BYTES.to_bytes(4) + b"\x02\x00\x00\x00")
        await client.exchange()
        assert client.connection.phase is ConnectionPhase.OPEN


async def test_a_request_on_cbs_is_small() -> None:
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        session = await begun(client)
        link = session.attach_sender(
            "o", source=Source(address="me"), target=Target(address="$cbs")
        )
        await client.exchange()
        assert link.max_message_size == CBS_REQUEST_BYTES_MAX
        client.connection.output.max_frame_size = FRAME_BYTES_MAX
        link.send(bytes(CBS_REQUEST_BYTES_MAX + 1), b"t")
        assert condition(await client.exchange(), Detached) == "amqp:link:message-size-exceeded"


async def test_management_is_closed_to_strangers() -> None:
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        session = await begun(client)
        attach(session, 1, "orders/$management")
        assert condition(await client.exchange(), Detached) == "amqp:unauthorized-access"
        client.peer.trust()
        attach(session, 1, "orders/$management")
        assert [type(event) for event in await client.exchange()] == [Attached]


async def closed_at(client: JoinedClient) -> str:
    """Wait for the end; return what the broker says of it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for event in await client.exchange():
                if isinstance(event, Closed):
                    assert event.error is not None
                    return str(event.error.description)
            await asyncio.sleep(0.01)


async def test_a_client_that_never_opens_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ConnectionLimits(open_s=0.05)) as server:
        caplog.set_level(logging.WARNING)
        client = JoinedClient(server, trusted=False)
        client.peer.data_received(b"A")
        async with asyncio.timeout(PATIENCE_S):
            await client.transport.ended.wait()
        assert "no OPEN came within 0.05 s (--open-limit)" in caplog.text


@pytest.mark.virtual_time
async def test_a_client_that_closes_and_reads_nothing_is_cut_off() -> None:
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        await begun(client)
        client.connection.close()
        await client.exchange()
        await asyncio.sleep(CUT_OFF_S - 1)
        assert not client.transport.is_aborted
        await asyncio.sleep(2)
        assert client.transport.is_aborted


async def test_a_client_that_puts_no_token_is_cut_off() -> None:
    async with serving(ConnectionLimits(token_s=0.05)) as server:
        client = JoinedClient(server, trusted=False)
        assert await closed_at(client) == "no valid token came within 0.05 s (--token-limit)"


async def test_a_client_with_a_token_may_stay() -> None:
    async with serving(ConnectionLimits(open_s=0.05, token_s=0.05)) as server:
        client = JoinedClient(server)
        await client.exchange()
        await asyncio.sleep(0.2)
        await client.exchange()
        assert client.connection.phase is ConnectionPhase.OPEN


async def test_a_broker_that_hangs_by_a_fault_keeps_strangers_waiting() -> None:
    async with serving(ConnectionLimits(open_s=0.05)) as server:
        server.faults.add(Fault(kind="hang"))
        client = JoinedClient(server, trusted=False)
        await asyncio.sleep(0.2)
        assert not client.peer._said_close


async def test_a_stranger_that_is_gone_counts_no_more() -> None:
    async with serving(ConnectionLimits(strangers_per_address=1)) as server:
        client = JoinedClient(server, trusted=False)
        assert server.admission.why_not("192.0.2.1") is not None
        client.peer.connection_lost(None)
        assert server.admission.why_not("192.0.2.1") is None


async def test_nothing_is_read_from_a_client_that_does_not_read() -> None:
    async with serving() as server:
        client = JoinedClient(server)
        await begun(client)
        client.peer.pause_writing()
        assert client.transport.is_paused
        # The disk catches up; the client still does not read.
        client.peer.pause_reading()
        client.peer.resume_reading()
        assert client.transport.is_paused
        client.peer.resume_writing()
        assert not client.transport.is_paused


async def test_a_client_that_sends_without_end_leaves_a_turn_to_the_others() -> None:
    async with serving() as server:
        client = JoinedClient(server)
        await begun(client)
        client.peer.data_received(b"\x00\x00\x00\x08\x02\x00\x00\x00" * (TURN_BYTES_MAX // 8))
        assert client.transport.is_paused
        await client.exchange()
        assert not client.transport.is_paused


MESSAGES = 5_000
PAYLOAD_BYTES = 1_024
TURN_BYTES = TURN * 2 * PAYLOAD_BYTES
TICKS_MAX = 5_000


class Wire:
    """A transport that takes everything at once and remembers how much came in one go."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.largest_bytes = 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.largest_bytes = max(self.largest_bytes, len(data))

    def get_extra_info(self, _: str) -> None: ...

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    abort = close


async def drain_with_huge_credit() -> tuple[int, int]:
    """How many messages arrived, and the most that was written in one go."""
    server = BrokerServer("b", MemoryStore(), [])
    queue = server.namespace.create_queue("q", QueueDescription(), server.now_ms())
    for _ in range(MESSAGES):
        queue.enqueue(incoming(body=bytes(PAYLOAD_BYTES)), server.now_ms())
    peer, wire, client = server.peer(), Wire(), Connection("c")
    peer.connection_made(wire)  # type: ignore[arg-type]
    everything = Grant(path="", rights=ALL_RIGHTS, expires_at_s=1e12, rule_name="r")
    peer.grants.put("all", everything)
    arrived = 0

    async def exchange(ticks: int) -> None:
        nonlocal arrived
        for _ in range(ticks):
            if data := client.take_output(1):
                peer.data_received(data)
            await asyncio.sleep(0)
            replies, wire.writes = wire.writes, []
            for events in client.receive(b"".join(replies), 1):
                arrived += sum(isinstance(each, DeliveryArrived) for each in one_by_one(events))

    await exchange(20)
    session = client.begin()
    await exchange(20)
    link = session.attach_receiver("in", source=Source(address="q"), target=Target(address="me"))
    await exchange(20)
    link.grant(1_000_000)
    for _ in range(TICKS_MAX):
        if arrived == MESSAGES:
            break
        await exchange(1)
    await server.close()
    return arrived, wire.largest_bytes


def test_a_huge_credit_is_served_in_pieces_and_served_whole() -> None:
    arrived, largest_bytes = asyncio.run(drain_with_huge_credit())
    assert arrived == MESSAGES
    assert largest_bytes <= OUTPUT_BYTES_MAX + TURN_BYTES


SESSION = cast(LinkSession, None)


def test_a_link_is_idle_when_it_carried_nothing_for_the_whole_time() -> None:
    busy, quiet = ReceiverLink(SESSION, "busy", 0), SenderLink(SESSION, "quiet", 1)
    idle, found = IdleLinks(10.0), []
    for now_ms in range(0, 15_000, 1_000):
        busy.delivery_count += 1
        found += [(now_ms, link.name) for link in idle.sweep([busy, quiet], now_ms)]
    # It is open still, in this test, so its time begins again.
    assert found == [(10_000, "quiet")]


def test_the_text_is_azures() -> None:
    refusal = LinkIdle(ReceiverLink(SESSION, "orders", 4), 600.0)
    assert refusal.description == (
        "The link 'orders' is force detached by the broker due to errors occurred in "
        "publisher(link4). Detach origin: AmqpMessagePublisher.IdleTimerExpired: "
        "Idle timeout: 00:10:00."
    )


PAIRS = pairs([*RECEIVING, *SENDING, *LAST])


async def run(actions: tuple[Action, ...], *, is_one_read: bool) -> object:
    server = new_server()
    outcome = await outcome_of(OneClient(server, server), actions, is_one_read=is_one_read)
    await server.close()
    return outcome


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS])
def test_two_frames_in_one_read_do_what_they_do_in_two(pair: tuple[Action, Action]) -> None:
    in_one = asyncio.run(run(pair, is_one_read=True))
    assert in_one == asyncio.run(run(pair, is_one_read=False))


@pytest.mark.parametrize("end", [OneClient.detach_receiver, *LAST])
async def test_settlements_right_before_the_end_of_their_link_count(end: Action) -> None:
    """rhea and the .NET SDK settle and close without waiting for an answer."""
    server = new_server()
    world = OneClient(server, server)
    actions = (OneClient.accept, OneClient.release, OneClient.abandon, end)
    await outcome_of(world, actions, is_one_read=True)
    left = facts(world.queue, server.now_ms())
    assert [(number, count) for number, _, _, count in left] == [(2, 0), (3, 1)]
    assert len(world.queue.states.locks) == 0
    await server.close()


EARLY = early([*EARLY_RECEIVING, *EARLY_SENDING])


@pytest.mark.virtual_time
@pytest.mark.parametrize("actions", EARLY, ids=["-".join(a.__name__ for a in e) for e in EARLY])
async def test_frames_before_the_answer_are_kept_or_refused(actions: tuple[Action, ...]) -> None:
    server = new_server()
    await check_before_the_answer(OneClient(server, server), actions)
    await server.close()


TRACK = RefusalTracker("contoso", lambda: 1_700_000_000_000)
TRACKED = re.compile(
    r" TrackingId:[0-9a-f-]{36}_B, SystemTracker:contoso, Timestamp:2023-11-14T22:13:20$"
)


def test_a_missing_entity_and_a_missing_right_have_azures_words_and_an_id() -> None:
    missing = EntityNotFound.of("sb://contoso/orders", "create it first")
    lacking = Unauthorized.lacking("Send", "orders")
    for refusal in (missing, lacking):
        TRACK(refusal)
        assert TRACKED.search(refusal.description)
    # The pattern by which the JavaScript SDK tells a missing entity.
    assert re.match(r"The messaging entity .* could not be found", missing.description)
    assert lacking.description.startswith("Unauthorized access. 'Send' claim(s) are required")


def test_a_refusal_gets_one_id_and_not_every_kind_gets_one() -> None:
    missing, other = EntityNotFound.of("orders", "it was deleted"), NotAllowed("no")
    TRACK(missing)
    once = missing.description
    TRACK(missing)
    TRACK(other)
    assert missing.description == once
    assert other.description == "no"


async def test_the_reason_of_a_client_that_closes_steers_no_terminal_and_forges_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server:
        client = JoinedClient(server, trusted=False)
        await client.exchange()
        client.connection.close("amqp:internal-error", "bad\nb: refused\x1b[2J" + "x" * 1_000)
        await client.exchange()
        (line,) = [line for line in caplog.messages if "broke off" in line]
        assert "bad b: refused" in line
        assert line.isprintable()
        assert len(line) < REASON_MAX + 100


@pytest.mark.virtual_time
async def test_a_connection_ends_when_its_bearer_token_leaves_the_file() -> None:
    now_s = int(time.time())
    tokens = [AcceptedToken(name=name, text=name, rights=ALL_RIGHTS) for name in ("a", "b")]
    tokens.append(AcceptedToken(name="l", text="l", rights=ALL_RIGHTS, expires_at_s=now_s - 60))
    server = BrokerServer("b", MemoryStore(), [], tokens=lambda: tuple(tokens))
    clients = {}
    for name, who in (("a", "removed"), ("a", "rotated"), ("b", "other"), ("l", "lapsed")):
        clients[who] = client = JoinedClient(server, trusted=False)
        await client.exchange()
        client.peer.grants.put("sb://h/", server.policy.verify(name, now_s - 120))
    # The next text of the same name; one client is quick to put it.
    tokens[:] = [tokens[1], replace(tokens[0], text="a2")]
    clients["rotated"].peer.grants.put("sb://h/", server.policy.verify("a2", now_s))
    await asyncio.sleep(TOKENS_CHECK_S)
    assert condition(await clients.pop("removed").exchange()) == "amqp:unauthorized-access"
    for client in clients.values():
        await client.exchange()
        assert client.connection.phase is ConnectionPhase.OPEN
    await server.close()
