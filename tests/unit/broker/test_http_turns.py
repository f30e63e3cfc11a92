"""What one HTTP connection or WebSocket sends is handled in slices; others come between them.

The clock of these tests moves with each look at it, so a slice is a few events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from twinbus.amqp.budgets import BudgetExceeded
from twinbus.broker import websocket as amqp_over_websocket
from twinbus.broker.access import Admission
from twinbus.broker.http import (
    SCRAPE_KEPT_MAX_S,
    SCRAPE_SHARE,
    SHORT_SCRAPE_S,
    HttpHost,
    Scrapes,
    read_body,
    room_for_body,
)
from twinbus.broker.http_connection import HEAD_LINES_MAX, PIECE_BYTES
from twinbus.broker.links.turns import SLICE_S, Turns
from twinbus.broker.sas import Grant

STEPS = 4
"""Looks at the clock in a slice."""

TICKS_MAX = 20_000
CHUNKED = b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
PING = b"\x89\x80" + bytes(4)
LETTER = b"\x82\x81" + bytes(4) + b"."


GRANT = Grant(path="", rights=frozenset({"Listen"}), expires_at_s=1e12, rule_name="listener")


class Transport(asyncio.Transport):
    """Keeps what is written; says whether it is read from."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.protocol: asyncio.Protocol
        self.written = b""
        self.is_read = True
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.Protocol, protocol)


class Recorder(asyncio.Protocol):
    """In the place of an AMQP connection."""

    def __init__(self) -> None:
        self.received = b""
        self.overhead_bytes = 0
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def overhead_received(self, size_bytes: int) -> None:
        self.overhead_bytes += size_bytes

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class World:
    def __init__(self) -> None:
        self._now = 0.0
        self.admission = Admission()
        self.turns = Turns(asyncio.get_running_loop(), self._clock)
        self.peer = Recorder()
        self.bodies: list[int] = []
        self.neighbours_turns = 0
        self.turns.wait(self._neighbour)
        routes = [
            Route("/", self._answer, methods=["GET", "PUT"]),
            WebSocketRoute("/ws", self._amqp),
        ]
        self._host = HttpHost(Starlette(routes=routes), self.admission, self.turns)

    def _clock(self) -> float:
        self._now += SLICE_S / STEPS
        return self._now

    def _neighbour(self) -> bool:
        self.neighbours_turns += 1
        return True

    async def _answer(self, request: Request) -> Response:
        try:
            with room_for_body(self.admission, "b", GRANT) as room:
                body = await read_body(request, room)
        except BudgetExceeded as error:
            return PlainTextResponse(str(error), 503)
        self.bodies.append(-1 if body is None else len(body))
        return PlainTextResponse("ok")

    async def _amqp(self, websocket: WebSocket) -> None:
        await amqp_over_websocket.serve(websocket, lambda: cast(Any, self.peer))

    def connect(self) -> Transport:
        transport = Transport()
        transport.protocol = self._host()
        transport.protocol.connection_made(transport)
        return transport

    async def websocket(self) -> Transport:
        transport = self.connect()
        transport.protocol.data_received(UPGRADE)
        await until(lambda: b"101" in transport.written)
        transport.written = b""
        return transport

    @property
    def connections(self) -> set[Any]:
        return self._host.connections

    @property
    def held_bytes(self) -> int:
        return self.admission.budgets.held_bytes.used


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(TICKS_MAX):
        if is_so():
            return
        await asyncio.sleep(0)
    pytest.fail("it did not come to that")


async def test_chunks_of_one_byte_are_handled_a_few_in_each_turn() -> None:
    world = World()
    transport = world.connect()
    transport.protocol.data_received(CHUNKED + b"1\r\na\r\n" * 1_000)
    assert not transport.is_read
    assert world.held_bytes > 6_000
    transport.protocol.data_received(b"0\r\n\r\n")
    await until(lambda: world.bodies == [1_000])
    assert world.neighbours_turns > 1_000 / STEPS / 2
    await until(lambda: transport.is_read)
    assert world.held_bytes == 0


async def test_a_long_body_is_read_while_its_request_takes_it() -> None:
    world = World()
    transport = world.connect()
    size = 300_000
    head = b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
    transport.protocol.data_received(head + bytes(size) + GET)
    await until(lambda: world.bodies == [size, 0])
    await until(lambda: transport.written.count(b"200 OK") == 2)
    assert (transport.is_read, world.held_bytes) == (True, 0)


async def test_requests_that_come_at_once_are_answered_one_in_each_turn() -> None:
    world = World()
    transport = world.connect()
    transport.protocol.data_received(GET * 100)
    await until(lambda: transport.written.count(b"200 OK") == 100)
    assert world.neighbours_turns >= 100


async def test_a_head_of_too_many_lines_is_refused_before_it_is_parsed() -> None:
    world = World()
    transport = world.connect()
    transport.protocol.data_received(GET[:-2] + b"a: b\r\n" * 10_000 + b"\r\n")
    await until(transport.is_closing)
    assert b"400 Bad Request" in transport.written
    assert world.bodies == []
    transport.protocol.connection_lost(None)
    assert world.held_bytes == 0


async def test_a_head_of_some_lines_may_come_in_pieces() -> None:
    world = World()
    transport = world.connect()
    line = b"a: " + b"b" * 200 + b"\r\n"
    head = GET[:-2] + line * (HEAD_LINES_MAX // 2) + b"\r\n"
    assert len(head) > 5 * PIECE_BYTES
    for at in range(0, len(head), 700):
        transport.protocol.data_received(head[at : at + 700])
    await until(lambda: b"200 OK" in transport.written)


@pytest.mark.parametrize("is_answered", [False, True], ids=["at once", "after the answer"])
async def test_a_chunk_that_is_none_is_refused_in_one_line(
    caplog: pytest.LogCaptureFixture, is_answered: bool
) -> None:
    world = World()
    transport = world.connect()
    transport.protocol.data_received(CHUNKED.replace(b" / ", b" /nowhere ") + b"1\r\na\r\n")
    if is_answered:
        await until(lambda: b"404 Not Found" in transport.written)
    transport.protocol.data_received(b"zz\r\n")
    await until(transport.is_closing)
    await asyncio.sleep(0)
    assert transport.written.count(b"HTTP/1.1") == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_unfinished_bodies_of_one_rule_share_its_bytes() -> None:
    world = World()
    head = b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    first, second = world.connect(), world.connect()
    first.protocol.data_received(head + bytes(900))
    await until(lambda: world.held_bytes == 900)
    rule = next(iter(world.admission.budgets._rules.values())).held_bytes
    rule.limit = 1_000
    second.protocol.data_received(head + bytes(200))
    await until(lambda: b"503" in second.written)
    assert b"the rule 'listener' has more than 1000 bytes" in second.written
    first.protocol.data_received(bytes(100))
    await until(lambda: world.bodies == [1_000])
    assert (world.held_bytes, world.admission.budgets._rules) == (0, {})


async def test_a_process_that_holds_too_much_cuts_off_who_sends_more() -> None:
    world = World()
    budget = world.admission.budgets.held_bytes
    budget.take(budget.limit - 100)
    transport = world.connect()
    transport.protocol.data_received(CHUNKED + b"1\r\na\r\n" * 100)
    assert transport.is_closing()
    transport.protocol.connection_lost(None)
    assert budget.used == budget.limit - 100


@pytest.mark.parametrize(
    "header", [b"Host: xn--a-", b"Sec-WebSocket-Protocol: \xff"], ids=["Host", "subprotocol"]
)
async def test_a_handshake_whose_headers_are_no_text_is_refused(
    caplog: pytest.LogCaptureFixture, header: bytes
) -> None:
    world = World()
    transport = world.connect()
    name = header.partition(b":")[0]
    lines = [line for line in UPGRADE.split(b"\r\n") if not line.startswith(name)]
    transport.protocol.data_received(b"\r\n".join([lines[0], header, *lines[1:]]))
    await until(transport.is_closing)
    assert transport.written.startswith(b"HTTP/1.1 400")
    transport.protocol.connection_lost(None)
    assert caplog.records == []
    assert not world.connections


async def test_frames_of_a_websocket_are_handled_a_few_in_each_turn() -> None:
    world = World()
    transport = await world.websocket()
    transport.protocol.data_received(PING * 500 + LETTER * 500)
    assert not transport.is_read
    assert world.held_bytes == len(PING * 500 + LETTER * 500)
    began = world.neighbours_turns
    await until(lambda: len(world.peer.received) == 500)
    assert world.neighbours_turns - began > 1_000 / STEPS / 2
    await until(lambda: transport.is_read)
    assert world.held_bytes == 0
    assert world.peer.overhead_bytes == len(PING * 500 + LETTER * 500) - 500


async def test_what_a_websocket_brought_is_handled_before_it_is_lost() -> None:
    world = World()
    transport = await world.websocket()
    transport.protocol.data_received(LETTER * 500)
    transport.protocol.connection_lost(None)
    await until(lambda: world.peer.is_lost)
    assert len(world.peer.received) == 500
    assert world.held_bytes == 0


def test_figures_that_take_long_are_made_in_a_share_of_the_time() -> None:
    now = took_s = 0.0
    made = 0

    def make() -> bytes:
        nonlocal now, made
        now, made = now + took_s, made + 1
        return b"%d" % made

    scrapes = Scrapes(make, lambda: now, lambda: now)
    took_s = SHORT_SCRAPE_S
    assert [scrapes(), scrapes()] == [b"1", b"2"]
    took_s = 0.1
    assert [scrapes(), scrapes()] == [b"3", b"3"]
    now += SCRAPE_SHARE * took_s
    assert scrapes() == b"4"
    now += SCRAPE_KEPT_MAX_S
    took_s = 2 * SCRAPE_KEPT_MAX_S / SCRAPE_SHARE
    assert scrapes() == b"5"
    now += SCRAPE_KEPT_MAX_S - took_s
    assert scrapes() == b"6"
