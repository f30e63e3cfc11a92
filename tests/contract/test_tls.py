"""TLS on the broker's one port: the listener over real sockets, and the official SDK over it."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

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
    write_server_files,
)
from tests.contract.pairs import embedded
from tests.contract.test_listener import PATIENCE_S, Echo, end
from tests.processes import ServedBroker
from twinbus import EmbeddedBroker
from twinbus.broker import listener as listener_module
from twinbus.broker.listener import AMQP_HEADER, Listener
from twinbus.broker.sas import AcceptedToken
from twinbus.servicebus.failures import FailureMeaning, of_error

pytestmark = pytest.mark.contract


WEB_TOKEN = "eyJ0eXAiOiJKV1QifQ.eyJhdWQiOiJ0ZXN0In0.c2ln"
TOKENS = (
    AcceptedToken(name="app", text=WEB_TOKEN, rights=frozenset({"Manage"})),
    AcceptedToken(name="weak", text=WEB_TOKEN + "weak", rights=frozenset({"Listen"})),
)


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Runs a test on each of the event loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    made: list[Echo] = []
    listener = Listener(
        "127.0.0.1", 0, lambda: Echo(b"amqp", made), lambda: Echo(b"http", made), server_context()
    )
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()
        for echo in made:
            echo.transport.close()
            await asyncio.wait_for(echo.lost.wait(), PATIENCE_S)


async def say(port: int, *pieces: bytes, tls: ssl.SSLContext | None) -> bytes:
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(100), PATIENCE_S)
    except (ConnectionError, ssl.SSLError):
        return b""
    finally:
        await end(writer)


@pytest.mark.usefixtures("runner")
async def test_each_protocol_is_met_inside_tls_and_outside_on_the_same_port() -> None:
    async with listening() as listener:
        for tls in (client_context(), None):
            assert await say(listener.port, AMQP_HEADER, tls=tls) == b"amqp:" + AMQP_HEADER
            request = b"GET /health HTTP/1.1\r\n\r\n"
            assert await say(listener.port, request, tls=tls) == b"http:" + request


@pytest.mark.usefixtures("runner")
async def test_a_stranger_inside_tls_is_closed_and_so_is_one_that_breaks_off_the_handshake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async with listening() as listener:
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
async def test_silence_before_and_after_the_handshake_is_bounded_in_time_and_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not less: a busy machine has to finish a handshake in it.
    monkeypatch.setattr(listener_module, "SNIFF_LIMIT_S", 1.0)
    monkeypatch.setattr(listener_module, "SNIFFING_MAX", 2)

    async with listening() as listener:
        assert await say(listener.port, tls=client_context()) == b""
        assert await say(listener.port, b"\x16", tls=None) == b""
        monkeypatch.setattr(listener_module, "SNIFF_LIMIT_S", 3.0)
        handshakes = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            handshakes.append((reader, writer))
            writer.write(b"\x16")
            await asyncio.sleep(0.1)
        # The third is one too many; the first two have their time.
        with suppress(ConnectionError):
            assert await asyncio.wait_for(handshakes[2][0].read(1), PATIENCE_S) == b""
        assert not any(reader.at_eof() for reader, _ in handshakes[:2])
        for reader, _ in handshakes[:2]:
            assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
        for _, writer in handshakes:
            await end(writer)
        assert await say(listener.port, AMQP_HEADER, tls=client_context()) != b""


@pytest.mark.usefixtures("runner")
async def test_close_ends_handshakes_and_silent_connections() -> None:
    async with listening() as listener:
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
            received = receiver.receive_messages(2, max_wait_time=PATIENCE_S)
            while len(received) < 2:
                received += receiver.receive_messages(2, max_wait_time=PATIENCE_S)
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


def test_serve_speaks_tls_with_a_certificate_from_files(tmp_path: Path) -> None:
    chain, key = write_server_files(tmp_path)
    options = (
        "--tls-cert", str(chain), "--tls-key", str(key), "--token", f"app:{WEB_TOKEN}:Manage",
    )  # fmt: skip
    with ServedBroker(tmp_path, "contoso", options=options, ephemeral=True) as served:
        port = served.connection_string().partition("localhost:")[2].partition(";")[0]
        url = f"https://localhost:{port}/health"
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=client_context()) as response:
            assert json.loads(response.read())["namespace"] == "contoso"
        request = urllib.request.Request(
            f"https://localhost:{port}/$Resources/queues",
            headers={"Authorization": f"Bearer {WEB_TOKEN}"},
        )
        with urllib.request.urlopen(
            request, timeout=PATIENCE_S, context=client_context()
        ) as response:
            assert response.status == 200
