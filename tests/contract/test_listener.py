"""The listener over real sockets, on asyncio's loop and on uvloop, and TLS on its one port."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.contract.certificates import (
    client_context,
    server_context,
    write_authority,
)
from tests.contract.pairs import embedded, until
from tests.official_sdk import receive_count
from twinbus import EmbeddedBroker
from twinbus.broker import listener as listener_module
from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.listener import (
    AMQP_HEADER,
    HANDSHAKE_STEPS,
    Listener,
    Sniffer,
    WireProtocol,
    recognise,
)
from twinbus.broker.sas import AcceptedToken
from twinbus.errors import ListenError
from twinbus.servicebus.failures import FailureMeaning, of_error

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
    host: str = "127.0.0.1",
    port: int = 0,
    limits: ConnectionLimits | None = None,
    tls: ssl.SSLContext | None = None,
    **silence: Any,
) -> AsyncIterator[Listener]:
    made: list[Echo] = []
    listener = Listener(
        host,
        port,
        lambda: Echo(b"amqp", made),
        lambda: Echo(b"http", made),
        tls,
        admission=Admission(limits),
        **silence,
    )
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()
        for echo in made:
            echo.transport.close()
            await asyncio.wait_for(echo.lost.wait(), PATIENCE_S)


async def say(
    port: int, *pieces: bytes, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> bytes:
    """What the broker answers to the pieces, up to 100 bytes; empty when it just closes."""
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(100), PATIENCE_S)
    except (ConnectionError, ssl.SSLError):
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
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async with listening(silent_s=0.05) as listener:
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
async def test_silent_connections_are_bounded_and_the_longest_silent_goes_first() -> None:
    async with listening(silent_max=2) as listener:
        silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
        assert await asyncio.wait_for(silent[0][0].read(1), PATIENCE_S) == b""
        silent[1][1].write(AMQP_HEADER)
        assert await asyncio.wait_for(silent[1][0].read(100), PATIENCE_S) == b"amqp:" + AMQP_HEADER
        for _, writer in silent:
            await end(writer)


@pytest.mark.parametrize(
    "limits", [ConnectionLimits(connections=3), ConnectionLimits(strangers_per_address=2)]
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


WEB_TOKEN = "eyJ0eXAiOiJKV1QifQ.eyJhdWQiOiJ0ZXN0In0.c2ln"
TOKENS = (
    AcceptedToken(name="app", text=WEB_TOKEN, rights=frozenset({"Manage"})),
    AcceptedToken(name="weak", text=WEB_TOKEN + "weak", rights=frozenset({"Listen"})),
)


@pytest.mark.usefixtures("runner")
async def test_each_protocol_is_met_inside_tls_and_outside_on_the_same_port() -> None:
    async with listening(tls=server_context()) as listener:
        for tls in (client_context(), None):
            assert await say(listener.port, AMQP_HEADER, tls=tls) == b"amqp:" + AMQP_HEADER
            request = b"GET /health HTTP/1.1\r\n\r\n"
            assert await say(listener.port, request, tls=tls) == b"http:" + request


@pytest.mark.usefixtures("runner")
async def test_a_stranger_inside_tls_is_closed_and_so_is_one_that_breaks_off_the_handshake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async with listening(tls=server_context()) as listener:
        assert await say(listener.port, b"SSH-2.0-x\r\n", tls=client_context()) == b""
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
        await say(listener.port, hello + b"\x00" * 600, tls=None)
        with pytest.raises(ssl.SSLError, match="certificate verify failed"):
            await say(listener.port, AMQP_HEADER, tls=ssl.create_default_context())
        assert await say(listener.port, AMQP_HEADER, tls=client_context()) != b""
    assert "neither AMQP nor HTTP inside" in caplog.text
    assert "must trust the broker's certificate" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.usefixtures("runner")
async def test_silence_before_and_after_the_handshake_is_bounded_in_time_and_number() -> None:
    # Not less: a busy machine has to finish a handshake in it.
    async with listening(tls=server_context(), silent_s=1.0) as listener:
        assert await say(listener.port, tls=client_context()) == b""
        assert await say(listener.port, b"\x16", tls=None) == b""
    async with listening(tls=server_context(), silent_s=3.0, silent_max=2) as listener:
        handshakes = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            handshakes.append((reader, writer))
            writer.write(b"\x16")
            await asyncio.sleep(0.1)
        # The third is one too many, and the oldest goes for it; the others have their time.
        with suppress(ConnectionError):
            assert await asyncio.wait_for(handshakes[0][0].read(1), PATIENCE_S) == b""
        assert not any(reader.at_eof() for reader, _ in handshakes[1:])
        for reader, _ in handshakes[1:]:
            assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
        for _, writer in handshakes:
            await end(writer)
        assert await say(listener.port, AMQP_HEADER, tls=client_context()) != b""


@pytest.mark.usefixtures("runner")
async def test_an_address_with_half_handshakes_locks_no_other_out() -> None:
    async with listening(tls=server_context(), silent_max=4) as listener:
        half = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(6)]
        for _, writer in half:
            writer.write(b"\x16")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(
                *("127.0.0.1", listener.port),
                ssl=client_context(),
                server_hostname="localhost",
                local_addr=("127.0.0.2", 0),
            )
            writer.write(AMQP_HEADER)
            assert await asyncio.wait_for(reader.read(100), PATIENCE_S) != b""
            await end(writer)
        closed = [asyncio.create_task(_ends(reader)) for reader, _ in half]
        async with asyncio.timeout(PATIENCE_S):
            for _, ending in zip(range(3), asyncio.as_completed(closed), strict=False):
                await ending
        # 6 half handshakes and one of the honest client at a time: all but 3 had to go.
        assert sum(task.done() for task in closed) == 3
        for _, writer in half:
            await end(writer)


async def _ends(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await reader.read(1)


@pytest.mark.usefixtures("runner")
async def test_handshakes_begin_one_after_the_other_with_steps_for_others_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_PAUSE_S", 0.0)
    loop, step, begun = asyncio.get_running_loop(), 0, list[int]()
    shake_hands = Listener._shake_hands

    def next_step() -> None:
        nonlocal step
        step += 1
        if len(begun) < 4:
            loop.call_soon(next_step)

    async def noted(self: Listener, *sides: Any) -> None:
        begun.append(step)
        await shake_hands(self, *sides)

    monkeypatch.setattr(Listener, "_shake_hands", noted)
    async with listening(tls=server_context()) as listener:
        next_step()
        answers = [say(listener.port, AMQP_HEADER, tls=client_context()) for _ in range(4)]
        assert await asyncio.gather(*answers) == [b"amqp:" + AMQP_HEADER] * 4
    pauses = [after - before for before, after in pairwise(begun)]
    assert min(pauses) >= HANDSHAKE_STEPS


def seen_since(listener: Listener, before: list[Sniffer]) -> bool:
    return list(listener._securing) != before


@pytest.mark.usefixtures("runner")
async def test_handshakes_that_wait_for_their_turn_are_bounded_and_end_with_the_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_PAUSE_S", 3600.0)
    async with listening(tls=server_context(), silent_max=2) as listener:
        clients = []
        for _ in range(4):
            clients.append(await asyncio.open_connection("127.0.0.1", listener.port))
            before = list(listener._securing)
            clients[-1][1].write(b"\x16")
            await until(partial(seen_since, listener, before))
        # The first was under way and the second waited: both had to go for those that came later.
        for reader, _ in clients[:2]:
            await asyncio.wait_for(_ends(reader), PATIENCE_S)
        assert not any(reader.at_eof() for reader, _ in clients[2:])
        await asyncio.wait_for(listener.close(), PATIENCE_S)
        for reader, _ in clients[2:]:
            await asyncio.wait_for(_ends(reader), PATIENCE_S)
        for _, writer in clients:
            await end(writer)


@pytest.mark.usefixtures("runner")
async def test_close_ends_handshakes_and_silent_connections() -> None:
    async with listening(tls=server_context()) as listener:
        shaking, shaking_writer = await asyncio.open_connection("127.0.0.1", listener.port)
        shaking_writer.write(b"\x16")
        silent, silent_writer = await asyncio.open_connection(
            "127.0.0.1", listener.port, ssl=client_context(), server_hostname="localhost"
        )
        await asyncio.wait_for(listener.close(), PATIENCE_S)
        assert await asyncio.wait_for(shaking.read(1), PATIENCE_S) == b""
        assert await asyncio.wait_for(silent.read(1), PATIENCE_S) == b""
        for writer in (shaking_writer, silent_writer):
            await end(writer)


broker = embedded("contoso", tls=True, tokens=TOKENS, scope="module")


class Fetching:
    """A token credential as azure.identity's are, with the token that the broker accepts."""

    def __init__(self, text: str = WEB_TOKEN) -> None:
        self.text = text
        self.scopes: list[str] = []

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.scopes += scopes
        return AccessToken(self.text, 2_000_000_000)


def over_tls(broker: EmbeddedBroker, credential: Any, **options: Any) -> ServiceBusClient:
    """The SDK as its users would have it: it drops the port of an address with TLS."""
    return ServiceBusClient(
        "localhost",
        credential,
        custom_endpoint_address=f"sb://localhost:{broker.port()}",
        **{
            "ssl_context": client_context(),
            "transport_type": TransportType.Amqp,
            "retry_total": 0,
            **options,
        },
    )


@pytest.mark.parametrize(
    "credential",
    [AzureNamedKeyCredential("RootManageSharedAccessKey", "SAS_KEY_VALUE"), Fetching()],
    ids=["named key", "token"],
)
@pytest.mark.parametrize("transport", list(TransportType), ids=lambda each: str(each.name))
def test_the_sdk_sends_and_receives_over_tls(
    broker: EmbeddedBroker, credential: Any, transport: TransportType
) -> None:
    # The SDK gives a WebSocket one second to open, which a busy machine can exceed: it may retry.
    with over_tls(broker, credential, transport_type=transport, retry_total=3) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(b"x" * 100_000) for _ in range(2)])
        with client.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver:
            received = receive_count(receiver, 2)
    assert [len(b"".join(message.body)) for message in received] == [100_000, 100_000]
    if isinstance(credential, Fetching):
        assert set(credential.scopes) == {"https://servicebus.azure.net//.default"}


def test_the_sdk_trusts_nobody_else_and_a_token_has_its_rights_only(
    broker: EmbeddedBroker,
) -> None:
    key = AzureNamedKeyCredential("RootManageSharedAccessKey", "SAS_KEY_VALUE")
    with (
        over_tls(broker, key, ssl_context=ssl.create_default_context()) as client,
        pytest.raises(ServiceBusError, match="certificate verify failed"),
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    for text in (WEB_TOKEN + "weak", "unknown"):
        with (
            over_tls(broker, Fetching(text)) as client,
            pytest.raises(ServiceBusError) as caught,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
        # Whatever the SDK calls it: with a custom endpoint a refused token is a connection error.
        assert of_error(caught.value) is FailureMeaning.UNAUTHORIZED


def test_the_administration_client_works_over_https(broker: EmbeddedBroker, tmp_path: Path) -> None:
    trust = str(write_authority(tmp_path))
    address = f"localhost:{broker.port()}"
    text = broker.connection_string(tls=True)
    clients = [
        ServiceBusAdministrationClient.from_connection_string(
            text, transport=RequestsTransport(connection_verify=trust)
        ),
        ServiceBusAdministrationClient(
            address, Fetching(), transport=RequestsTransport(connection_verify=trust)
        ),
    ]
    for number, client in enumerate(clients):
        with client:
            client.create_queue(f"made-{number}")
            assert f"made-{number}" in [queue.name for queue in client.list_queues()]
