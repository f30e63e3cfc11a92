"""A gateway that relays receivers to a broker, all of it joined in memory."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.broker.links.joined import JoinedTransport, new_server
from tests.unit.broker.links.one_client import OneClient
from twinbus.amqp.transport import ClientTransport
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.links.peer import Peer
from twinbus.broker.sas import ALL_RIGHTS
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore
from twinbus.client.connection import MACHINE, NamespaceConnection
from twinbus.gateway.sending import PendingSends
from twinbus.gateway.server import GatewayLinks

PRIMARY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=root;SharedAccessKey=a2V5;"
    "UseDevelopmentEmulator=true;"
)


def new_primary() -> BrokerServer:
    rule = AuthorizationRule(key_name="root", primary_key="a2V5", rights=ALL_RIGHTS)
    return BrokerServer("primary", MemoryStore(), [rule])


class Pipe(JoinedTransport):
    """One direction: what is written in a turn of the loop is read at once in the next."""

    def __init__(self) -> None:
        super().__init__()
        self.reader: asyncio.Protocol
        self.is_held = False
        """Whether what is written waits until `release`."""

    def write(self, data: bytes) -> None:
        if not self.written and not self.is_held:
            asyncio.get_running_loop().call_soon(self.release)
        super().write(data)

    def release(self) -> None:
        self.is_held = False
        data, self.written = self.written, b""
        if data and not self.is_closed:
            self.reader.data_received(data)

    def close(self) -> None:
        if not self.is_closed:
            self.release()
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.reader.connection_lost, None)

    abort = close


def join(primary: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Peer, Pipe]]:
    """Connect each `NamespaceConnection` to this broker; return its ends and what they write to."""
    made: list[tuple[Peer, Pipe]] = []

    async def connect(self: NamespaceConnection, tls: ssl.SSLContext | None) -> ClientTransport:
        client = ClientTransport(
            self._connection, self._on_transport_event, self._on_deliveries_read
        )
        peer, up, down = primary.peer(), Pipe(), Pipe()
        up.reader, down.reader = peer, client
        peer.connection_made(cast("asyncio.Transport", down))
        client.connection_made(cast("asyncio.Transport", up))
        made.append((peer, down))
        return client

    monkeypatch.setattr(NamespaceConnection, "_connect", connect)
    return made


class JoinedGateway:
    """The gateway's part for receivers; it sends nothing."""

    def __init__(self, primary: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
        join(primary, monkeypatch)
        self.front = new_server()
        paired: Any = SimpleNamespace(state=SimpleNamespace(primary=PRIMARY, environment=MACHINE))
        self.pending = PendingSends("gateway", 5.0)
        context: Any = self.front
        self._links = GatewayLinks(context, paired, cast("Any", None), self.pending)

    def peer(self) -> Peer:
        return Peer(self.front, self._links)

    async def close(self, world: OneClient) -> None:
        """End the client's connection, and the one to the primary with it."""
        world.client.peer.connection_lost(None)
        await asyncio.gather(*self.pending._calls)
        await self.front.close()
