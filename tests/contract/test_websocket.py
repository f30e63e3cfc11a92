"""AMQP over WebSocket with a real WebSocket client: bytes, push-back both ways, endings."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest

from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.http import HttpHost, MetricsAccess, application
from twinbus.broker.links.turns import Turns
from twinbus.broker.listener import Listener
from twinbus.broker.websocket import FRAME_BYTES_MAX, HIGH_WATER_BYTES, SUBPROTOCOLS, AmqpWebSocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.broker.server import BrokerServer

pytestmark = pytest.mark.contract

PATH = "/$servicebus/websocket"
SUBPROTOCOL = SUBPROTOCOLS[0]
PING = b"\x89\xfd" + bytes(4) + bytes(125)
"""The largest ping, with a mask of zeros."""

PATIENCE_S = 60.0
"""How long what must happen may take; on a quiet machine it takes milliseconds."""


class Recorder(asyncio.Protocol):
    """Stands where the AMQP protocol would, and remembers what happens to it."""

    connection: AmqpWebSocket

    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces = 0
        self.overhead_bytes = 0
        self.events: list[str] = []
        self.made = asyncio.Event()
        self.came = asyncio.Event()
        self.lost = asyncio.Event()
        self.error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.made.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1
        self.came.set()
        if data == b"stumble":
            raise RuntimeError("a mistake of ours")
        if data.endswith(b"echo"):
            self.transport.write(b"ech")
            self.transport.writelines([b"o"])

    def overhead_received(self, size_bytes: int) -> None:
        self.overhead_bytes += size_bytes

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.lost.set()


class Services:
    """As much of a broker as a WebSocket needs."""

    def __init__(self, limits: ConnectionLimits | None) -> None:
        self.peers: list[Recorder] = []
        self.admission = Admission(limits)

    def peer(self) -> Recorder:
        self.peers.append(Recorder())
        return self.peers[-1]


@asynccontextmanager
async def broker(
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[tuple[Services, str, HttpHost]]:
    services = Services(limits)
    app = application(cast("BrokerServer", services), MetricsAccess(None, is_open=True))
    # No slice ends, however slow this machine is.
    turns = Turns(asyncio.get_running_loop(), lambda: 0.0)
    http = HttpHost(app, services.admission, turns)
    listener = Listener("127.0.0.1", 0, services.peer, http)
    await listener.start()
    try:
        yield services, f"ws://127.0.0.1:{listener.port}{PATH}", http
    finally:
        await listener.close()
        await http.close()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, Recorder]]:
    """A client and the broker's end of its connection, which the broker closes in the end."""
    async with broker() as (services, url, http), aiohttp.ClientSession() as session:
        async with session.ws_connect(url, protocols=[SUBPROTOCOL]) as client:
            assert client.protocol == SUBPROTOCOL
            peer = services.peers[0]
            await peer.made.wait()
            (peer.connection,) = http.connections
            async with asyncio.timeout(PATIENCE_S):
                yield client, peer
        await asyncio.wait_for(peer.lost.wait(), PATIENCE_S)


def wire(client: aiohttp.ClientWebSocketResponse) -> asyncio.Transport:
    """The client's socket."""
    connection = client._response.connection
    assert connection is not None
    return cast(asyncio.Transport, connection.transport)


async def test_bytes_go_through_in_both_directions() -> None:
    async with connected() as (client, peer):
        await client.send_bytes(b"AMQP")
        await client.send_bytes(b"echo")
        assert await client.receive_bytes() == b"echo"
        assert peer.received == b"AMQPecho"
        assert peer.transport.get_extra_info("peername")[0] == "127.0.0.1"


async def test_a_slow_reader_pauses_the_protocol_until_it_has_read() -> None:
    async with connected() as (client, peer):
        total = 8 * 1024 * 1024
        peer.transport.write(bytes(total))
        assert peer.events == ["pause"]
        assert peer.transport.get_write_buffer_size() > HIGH_WATER_BYTES
        got = 0
        while got < total:
            frame = await client.receive_bytes()
            assert len(frame) <= FRAME_BYTES_MAX
            got += len(frame)
        assert got == total
        assert peer.events == ["pause", "resume"]


async def test_a_protocol_that_paused_reading_gets_nothing_until_it_resumes() -> None:
    async with connected() as (client, peer):
        peer.transport.pause_reading()
        assert not peer.transport.is_reading()
        # One read was asked for before the pause; it may still arrive.
        await client.send_bytes(b"1")
        await asyncio.sleep(0.05)
        await client.send_bytes(b"2")
        await client.ping()
        await asyncio.sleep(0.05)
        assert bytes(peer.received) in {b"", b"1"}
        peer.transport.resume_reading()
        await client.send_bytes(b"echo")
        assert await client.receive_bytes() == b"echo"
        assert peer.received == b"12echo"


async def test_closing_the_transport_sends_what_was_written_first() -> None:
    async with connected() as (client, peer):
        peer.transport.write(b"goodbye")
        peer.transport.close()
        assert peer.transport.is_closing()
        peer.transport.write(b"too late")
        assert await client.receive_bytes() == b"goodbye"
        assert (await client.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_aborting_the_transport_ends_the_connection_of_a_client_that_does_not_read() -> None:
    async with connected() as (client, peer):
        peer.transport.write(bytes(32 * 1024 * 1024))
        await client.receive_bytes()
        await asyncio.sleep(0.05)
        assert peer.transport.get_write_buffer_size() > 0
        peer.transport.abort()
        await asyncio.wait_for(peer.lost.wait(), PATIENCE_S)


async def test_a_client_that_does_not_read_its_pongs_gets_no_more_of_them() -> None:
    async with connected() as (client, peer):
        connection = peer.connection
        connection.pause_writing()
        wire(client).write(PING * 100)
        await client.send_bytes(b"then this")
        await peer.came.wait()
        assert connection.transport.get_write_buffer_size() == 0
        # Pings and the 6 bytes before a message are not AMQP; a stranger may send few of them.
        assert peer.overhead_bytes == 100 * len(PING) + 6
        connection.resume_writing()
        await client.send_bytes(b"echo")
        assert await client.receive_bytes() == b"echo"


async def test_nothing_is_parsed_of_a_closed_client_that_does_not_read() -> None:
    async with connected() as (client, peer):
        peer.connection.pause_writing()
        peer.transport.close()
        wire(client).write(PING * 100 + b"\xff no frame at all")
        await asyncio.sleep(0.05)
        assert peer.overhead_bytes == 0
        assert peer.connection in peer.connection.connections
        peer.transport.abort()


async def test_messages_of_one_read_are_handed_on_as_one_and_empty_ones_not_at_all() -> None:
    async with connected() as (client, peer):
        empty, letter = b"\x82\x80" + bytes(4), b"\x82\x81" + bytes(4) + b"."
        wire(client).write(empty * 1_000 + letter * 1_000)
        await client.send_bytes(b"echo")
        assert await client.receive_bytes() == b"echo"
        assert (len(peer.received), peer.pieces < 10) == (1_004, True)


async def test_a_text_is_refused_before_it_is_complete() -> None:
    async with connected() as (client, _):
        wire(client).write(b"\x01\x81" + bytes(4) + b".")
        message = await client.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1003)


async def test_a_client_that_vanishes_is_a_lost_connection() -> None:
    async with connected() as (client, peer):
        wire(client).abort()
        await asyncio.wait_for(peer.lost.wait(), PATIENCE_S)
        peer.transport.write(b"into the void")


async def test_a_mistake_in_the_protocol_closes_the_connection_and_is_reported() -> None:
    async with connected() as (client, peer):
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        await client.send_bytes(b"stumble")
        message = await client.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1011)
        await asyncio.wait_for(peer.lost.wait(), PATIENCE_S)
        assert isinstance(peer.error, RuntimeError)
        assert [str(what["exception"]) for what in reported] == ["a mistake of ours"]


async def test_text_is_not_amqp() -> None:
    async with connected() as (client, peer):
        await client.send_str("hello")
        message = await client.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1003)
        await asyncio.wait_for(peer.lost.wait(), PATIENCE_S)


@pytest.mark.parametrize("suffix", ["", "/", PATH, f"{PATH}/"])
async def test_a_path_that_the_sdk_appended_to_itself_is_the_same_path(suffix: str) -> None:
    async with (
        broker() as (_, url, _),
        aiohttp.ClientSession() as session,
        session.ws_connect(url + suffix, protocols=[SUBPROTOCOL]) as client,
    ):
        await client.send_bytes(b"echo")
        assert await client.receive_bytes() == b"echo"


@pytest.mark.parametrize("path", ["/", "/orders", "/$servicebus/websockets"])
async def test_other_paths_have_no_websocket(path: str) -> None:
    async with broker() as (services, url, _), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await session.ws_connect(url.removesuffix(PATH) + path, protocols=[SUBPROTOCOL])
        assert services.peers == []


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["AMQPWSB10"], "AMQPWSB10"),
        (["amqp"], "amqp"),
        (["chat", "amqp", "AMQPWSB10"], "AMQPWSB10"),
    ],
)
async def test_both_names_of_amqp_are_known(offered: list[str], chosen: str) -> None:
    async with (
        broker() as (_, url, _),
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=offered) as client,
    ):
        assert client.protocol == chosen
        await client.send_bytes(b"echo")
        assert await client.receive_bytes() == b"echo"


async def test_a_websocket_that_does_not_ask_for_amqp_is_refused() -> None:
    async with broker() as (services, url, _), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await session.ws_connect(url, protocols=["chat"])
        assert services.peers == []


async def test_closing_the_host_ends_websockets_that_are_still_open() -> None:
    async with broker() as (services, url, http), aiohttp.ClientSession() as session:
        async with session.ws_connect(url, protocols=[SUBPROTOCOL]) as client:
            await services.peers[0].made.wait()
            services.peers[0].transport.close()
            await asyncio.wait_for(http.close(), PATIENCE_S)
            assert (await client.receive()).type is aiohttp.WSMsgType.CLOSE
        await asyncio.wait_for(services.peers[0].lost.wait(), PATIENCE_S)


async def test_the_bytes_of_a_message_go_on_before_it_is_complete() -> None:
    async with connected() as (client, peer):
        # A binary message of 100 MB with a mask of zeros, of which only the start comes.
        head = b"\x82\xff" + (100_000_000).to_bytes(8) + bytes(4)
        wire(client).write(head + b"echo")
        assert await client.receive_bytes() == b"echo"
        assert peer.received == b"echo"
        wire(client).abort()


async def test_an_http_request_that_dawdles_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with broker(ConnectionLimits(open_s=0.2)) as (services, url, _):
        port = int(url.split(":")[2].partition("/")[0])
        for start in (b"G", b"GET /health HTTP/1.1\r\nX: ", b"PUT /q HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
        assert caplog.text.count("its request took longer than 0.2 s") == 3
        assert services.admission.why_not("127.0.0.1") is None
