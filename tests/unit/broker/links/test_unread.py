"""What all clients of a process leave unread is bounded: who has most gets no more, or ends."""

from __future__ import annotations

import pytest

from tests.unit.broker.fakes import incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.events import Closed
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.performatives import Flow, Source, Target
from twinbus.amqp.types import UInt
from twinbus.broker import budgets
from twinbus.broker.budgets import UNREAD_BYTES_EACH, UnreadBytes
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.links import peer
from twinbus.broker.server import BrokerServer

pytestmark = pytest.mark.virtual_time

KB = 1024


class Reader:
    """A client of the budget that keeps why it was closed."""

    def __init__(self) -> None:
        self.why = ""

    def close_unread(self, text: str) -> None:
        self.why = text


def test_a_client_may_leave_as_much_unread_as_is_free_and_a_little_always() -> None:
    unread = UnreadBytes(limit=1_000 * KB)
    readers = [Reader() for _ in range(3)]
    unread.count(readers[0], 400 * KB)
    assert unread.free_bytes == 600 * KB
    unread.count(readers[1], 590 * KB)
    assert unread.free_bytes == UNREAD_BYTES_EACH
    unread.count(readers[0], 0)
    assert unread.free_bytes == 410 * KB
    assert [reader.why for reader in readers] == ["", "", ""]


def test_the_client_that_has_most_is_closed_when_all_is_used_up() -> None:
    unread = UnreadBytes(limit=1_000)
    small, large, last = Reader(), Reader(), Reader()
    unread.count(small, 300)
    unread.count(large, 600)
    unread.count(last, 200)
    assert (small.why, last.why) == ("", "")
    assert "have not read 1100 bytes, the limit is 1000" in large.why
    assert unread.used == 500
    unread.count(small, 0)
    unread.count(last, 0)
    assert unread.used == 0
    assert not unread._of


class Unreading(JoinedClient):
    """A client that gives credit for everything, and its sessions a window for nothing."""

    links: list[ReceiverLink]

    async def ask(self, queue: str, sessions: int = 1) -> None:
        """Receive in some sessions; each gets what a receiver gets at once."""
        self.links = []
        await self.exchange()
        for _ in range(sessions):
            session = self.connection.begin()
            await self.exchange(3)
            source, target = Source(address=queue), Target(address="me")
            self.links.append(session.attach_receiver("in", source=source, target=target))
            await self.exchange(3)
            self._give_window(self.links[-1], 0)
            await self.exchange(3)

    async def read(self) -> None:
        """Take all that comes."""
        for link in self.links:
            self._give_window(link, 10_000)
        await self.exchange(200)

    def _give_window(self, link: ReceiverLink, window: int) -> None:
        flow = Flow(
            next_incoming_id=UInt(0),
            incoming_window=UInt(window),
            next_outgoing_id=UInt(0),
            outgoing_window=UInt(0),
            handle=UInt(link.handle),
            delivery_count=UInt(0),
            link_credit=UInt(10_000),
        )
        self.connection.output.put(encode_frame(link.session.channel, flow))

    @property
    def unread_bytes(self) -> int:
        return self.peer.connection.output.blocked_bytes


def filled(server: BrokerServer, queue: str, *sizes: int) -> None:
    source = server.namespace.create_queue(queue, QueueDescription(), server.now_ms())
    for size in sizes:
        source.enqueue(incoming(body=bytes(size)), server.now_ms())


async def test_clients_that_read_nothing_leave_room_for_one_that_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budgets, "UNREAD_BYTES", 1_000 * KB)
    server = new_server()
    filled(server, "q", *[KB] * 1_500)
    clients = [Unreading(server) for _ in range(4)]
    for client in clients:
        await client.ask("q", sessions=20)
    held = [client.unread_bytes // KB for client in clients]
    # A half, half of the rest, and so on; what a receiver gets at once may exceed it.
    assert 500 <= held[0] < 560
    assert 220 <= held[1] < 310
    assert 100 <= held[2] < 180
    assert UNREAD_BYTES_EACH // KB <= held[3] < 140
    locks = server.namespace.receive_source("q").states.locks
    before = len(locks)
    await clients[0].read()
    assert clients[0].unread_bytes == 0
    assert len(locks) == 1_500 > before
    for client in clients:
        client.peer.connection_lost(None)
    unread = server.admission.budgets.unread
    assert (unread.used, unread._of) == (0, {})
    await server.close()


@pytest.mark.parametrize("reads_its_socket", [True, False])
async def test_the_client_that_left_most_unread_is_closed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reads_its_socket: bool,
) -> None:
    monkeypatch.setattr(budgets, "UNREAD_BYTES", 400 * KB)
    server = new_server()
    filled(server, "large", 200 * KB)
    largest, others = Unreading(server), [Unreading(server) for _ in range(4)]
    await largest.ask("large")
    if not reads_its_socket:
        largest.peer.pause_writing()
    for number, client in enumerate(others):
        filled(server, f"small{number}", 60 * KB)
        await client.ask(f"small{number}")
    seen = await largest.exchange()
    if reads_its_socket:
        (closed,) = [event for event in seen if isinstance(event, Closed)]
        assert closed.error is not None
        assert closed.error.condition == "amqp:resource-limit-exceeded"
        assert "this connection has most of them" in (closed.error.description or "")
    else:
        assert largest.transport.is_aborted
        assert "this connection has most of them" in caplog.text
    assert not any(client.transport.is_closed for client in others)
    assert [client.unread_bytes > 60 * KB for client in others] == [True] * 4
    await server.close()


async def test_a_client_without_windows_gets_some_deliveries_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have thousands of sessions, and give each of them no window."""
    monkeypatch.setattr(peer, "BLOCKED_BYTES_MAX", 200 * KB)
    server = new_server()
    filled(server, "q", *[KB] * 1_500)
    client = Unreading(server)
    await client.ask("q", sessions=20)
    assert 200 * KB <= client.unread_bytes < 240 * KB
    await client.read()
    assert client.unread_bytes == 0
    assert len(server.namespace.receive_source("q").states.locks) == 1_500
    client.peer.connection_lost(None)
    await server.close()
