"""With the key that everybody knows, only this machine's own pages and programs are served."""

from __future__ import annotations

import aiohttp
import pytest

from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.websocket import SUBPROTOCOLS

pytestmark = pytest.mark.contract

PATH = "/$servicebus/websocket"

FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://[not an address"},
    {"Origin": "http://localhost.evil.example"},
    {"Host": "evil.example"},
    {"Host": "evil.example:5672", "Origin": "http://evil.example:5672"},
    {"Host": "[::1", "Origin": "http://localhost"},
]
OWN = [
    {},
    {"Origin": "http://localhost:3000"},
    {"Origin": "https://127.0.0.1"},
    {"Host": "[::1]:5672", "Origin": "http://[::1]:5672"},
    {"Host": "contoso.localhost:5672"},
]


async def dial(broker: EmbeddedBroker, headers: dict[str, str]) -> bytes:
    """What the broker answers to the first bytes of AMQP; the handshake's error if it refuses."""
    url = f"ws://127.0.0.1:{broker.port()}{PATH}"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=[SUBPROTOCOLS[0]], headers=headers) as client,
    ):
        await client.send_bytes(b"AMQP\x00\x01\x00\x00")
        return await client.receive_bytes()


async def status(broker: EmbeddedBroker, path: str, headers: dict[str, str]) -> int:
    url = f"http://127.0.0.1:{broker.port()}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


async def test_pages_of_other_sites_are_refused_with_the_default_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedBroker() as broker:
        for headers in FOREIGN:
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await dial(broker, headers)
            assert await status(broker, "/$Resources/queues", headers) == 403
            assert await status(broker, "/metrics", headers) == 403
            assert await status(broker, "/health", headers) == 200
        for headers in OWN:
            assert await dial(broker, headers) == b"AMQP\x00\x01\x00\x00"
            assert await status(broker, "/$Resources/queues", headers) == 401
    assert len(caplog.messages) >= len(FOREIGN)
    assert all("give it a key of your own (--key)" in line for line in caplog.messages[:3])


async def test_a_broker_with_a_key_of_its_own_serves_pages_of_all_sites() -> None:
    with EmbeddedBroker(key="a key of its own") as broker:
        for headers in (*FOREIGN[:6], *OWN):
            assert await dial(broker, headers) == b"AMQP\x00\x01\x00\x00"
