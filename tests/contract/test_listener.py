"""The listener over real sockets, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, cast

import pytest
import uvloop

from twinbus.broker import listener as listener_module
from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.listener import AMQP_HEADER, Listener, WireProtocol, recognise
from twinbus.errors import ListenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.contract

PATIENCE_S = 60.0
"""How long what must come may take; on a quiet machine it takes milliseconds."""


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Runs a test on each of the event loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


class Echo(asyncio.Protocol):
    """Answers with its own name and what it was sent."""

    def __init__(self, name: bytes, made: list[Echo]) -> None:
        self.name = name
        self.lost = asyncio.Event()
        made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # uvloop's stand-in for the socket cannot be asked; a duplicate can.
        descriptor = os.dup(transport.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as duplicate:
            self.is_prompt = bool(duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def data_received(self, data: bytes) -> None:
        name = self.name if self.is_prompt else b"no TCP_NODELAY"
        self.transport.write(name + b":" + data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@asynccontextmanager
async def listening(
    host: str = "127.0.0.1", port: int = 0, limits: ConnectionLimits | None = None
) -> AsyncIterator[Listener]:
    made: list[Echo] = []
    listener = Listener(
        host,
        port,
        lambda: Echo(b"amqp", made),
        lambda: Echo(b"http", made),
        admission=Admission(limits),
    )
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()
        for echo in made:
            echo.transport.close()
            await echo.lost.wait()


async def say(port: int, *pieces: bytes, host: str = "127.0.0.1") -> bytes:
    """What the broker answers to the pieces, up to 100 bytes; empty when it just closes."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(100), PATIENCE_S)
    except ConnectionResetError:
        return b""
    finally:
        await end(writer)


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("first", "speech"),
    [
        (b"AMQP\x03\x01\x00\x00", WireProtocol.AMQP),
        (b"AMQP\x00\x01\x00\x00", WireProtocol.AMQP),
        (b"A", WireProtocol.AMQP),
        (b"GET /heal", WireProtocol.HTTP),
        (b"DELETE /", WireProtocol.HTTP),
        (b"P", WireProtocol.HTTP),
        (b"OPTIONS ", WireProtocol.HTTP),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", WireProtocol.TLS),
        (b"GETAWAY ", WireProtocol.UNKNOWN),
        (b"AMQX", WireProtocol.UNKNOWN),
        (b"SSH-2.0-", WireProtocol.UNKNOWN),
        (b"\x00\x00", WireProtocol.UNKNOWN),
    ],
)
def test_first_bytes_tell_what_a_client_speaks(first: bytes, speech: WireProtocol) -> None:
    assert recognise(first) is speech


@pytest.mark.usefixtures("runner")
async def test_each_connection_meets_the_protocol_it_speaks_with_every_byte() -> None:
    async with listening() as listener:
        assert await say(listener.port, AMQP_HEADER) == b"amqp:" + AMQP_HEADER
        request = b"GET /health HTTP/1.1\r\n\r\n"
        assert await say(listener.port, request) == b"http:" + request


@pytest.mark.usefixtures("runner")
async def test_a_stranger_gets_the_amqp_header_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening() as listener:
        assert await say(listener.port, b"SSH-2.0-OpenSSH_9.2\r\n") == AMQP_HEADER
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "neither AMQP nor HTTP" in caplog.text
    assert "SSH-2.0-" in caplog.text


@pytest.mark.usefixtures("runner")
async def test_tls_is_closed_and_the_log_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as listener:
        assert await say(listener.port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc") == b""
    assert "UseDevelopmentEmulator=true" in caplog.text


@pytest.mark.usefixtures("runner")
async def test_a_client_that_says_nothing_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "SNIFF_LIMIT_S", 0.05)
    caplog.set_level(logging.INFO)

    async with listening() as listener:
        assert await say(listener.port) == b""
    assert "sent nothing for 0.05 s" in caplog.text


@pytest.mark.usefixtures("runner")
async def test_a_port_check_that_opens_and_closes_leaves_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening() as listener:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        await end(writer)
        assert await say(listener.port, AMQP_HEADER) != b""
    assert caplog.text == ""


@pytest.mark.usefixtures("runner")
async def test_silent_connections_are_bounded_and_the_longest_silent_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "SNIFFING_MAX", 2)

    async with listening() as listener:
        silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
        assert await asyncio.wait_for(silent[0][0].read(1), PATIENCE_S) == b""
        silent[1][1].write(AMQP_HEADER)
        assert await asyncio.wait_for(silent[1][0].read(100), PATIENCE_S) == b"amqp:" + AMQP_HEADER
        for _, writer in silent:
            await end(writer)


@pytest.mark.parametrize(
    "limits", [ConnectionLimits(connections=2), ConnectionLimits(strangers_per_address=2)]
)
@pytest.mark.usefixtures("runner")
async def test_connections_past_a_limit_are_refused_until_others_are_gone(
    limits: ConnectionLimits, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(limits=limits) as listener:
        first = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        assert await say(listener.port, AMQP_HEADER) == b""
        assert "refused a connection from 127.0.0.1: 2 connections" in caplog.text
        for _, writer in first:
            await end(writer)
        answers = [await say(listener.port, AMQP_HEADER) for _ in range(10)]
        assert answers[-1] == b"amqp:" + AMQP_HEADER


@pytest.mark.usefixtures("runner")
async def test_close_ends_silent_connections_and_leaves_the_others_to_their_protocols() -> None:
    async with listening() as listener:
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", listener.port)
        busy, busy_writer = await asyncio.open_connection("127.0.0.1", listener.port)
        busy_writer.write(AMQP_HEADER)
        await busy.read(100)
        await listener.close()
        assert await asyncio.wait_for(silent.read(1), PATIENCE_S) == b""
        busy_writer.write(b"more")
        assert await asyncio.wait_for(busy.read(100), PATIENCE_S) == b"amqp:more"
        with pytest.raises(OSError, match=r"Connect|refused"):
            await asyncio.open_connection("127.0.0.1", listener.port)
        for writer in (silent_writer, busy_writer):
            await end(writer)


@pytest.mark.usefixtures("runner")
async def test_localhost_is_every_address_that_localhost_has() -> None:
    async with listening("localhost") as listener:
        loop = asyncio.get_running_loop()
        for family, _, _, _, address in await loop.getaddrinfo(
            "localhost", listener.port, type=socket.SOCK_STREAM
        ):
            if family == socket.AF_INET6 and not socket.has_ipv6:
                continue
            answer = await say(listener.port, AMQP_HEADER, host=str(address[0]))
            assert answer == b"amqp:" + AMQP_HEADER


@pytest.mark.usefixtures("runner")
async def test_a_taken_port_is_one_clear_line() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError) as refused:
            async with listening(port=port):
                pass
    assert f"127.0.0.1:{port}" in str(refused.value)
    assert "another program has the port" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7"])
@pytest.mark.usefixtures("runner")
async def test_a_host_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {host}"):
        async with listening(host):
            pass
