"""Brokers behind our own client's connections, joined in memory."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

import pytest

from tests.unit.broker.links.joined import JoinedTransport
from twinbus.amqp.transport import ClientTransport
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.links.peer import Peer
from twinbus.broker.sas import ALL_RIGHTS
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore
from twinbus.client.connection import NamespaceConnection
from twinbus.client.links import UpstreamConnection

_STRING: Final = (
    "Endpoint=sb://localhost:{};SharedAccessKeyName=root;SharedAccessKey=a2V5;"
    "UseDevelopmentEmulator=true;"
)
PRIMARY: Final = _STRING.format(1)
SECONDARY: Final = _STRING.format(2)


def new_namespace(name: str = "primary") -> BrokerServer:
    rule = AuthorizationRule(key_name="root", primary_key="a2V5", rights=ALL_RIGHTS)
    return BrokerServer(name, MemoryStore(), [rule])


def no_connection() -> UpstreamConnection:
    """The connection for what clients send, where they send nothing."""
    raise AssertionError("a client sent")


class Pipe(JoinedTransport):
    """One direction: what is written in a turn of the loop is read at once in the next."""

    def __init__(self) -> None:
        super().__init__()
        self.reader: asyncio.Protocol
        self.writer: asyncio.Protocol | None = None
        """Also told that the connection is lost, when it has closed it."""
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
            loop = asyncio.get_running_loop()
            loop.call_soon(self.reader.connection_lost, None)
            if self.writer is not None:
                loop.call_soon(self.writer.connection_lost, None)

    abort = close


class Joined(list[tuple[Peer, Pipe]]):
    """The ends of connections in a broker, each with what the broker writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        """Whether connections are refused."""
        self.is_silent = False
        """Whether connections are accepted, and not answered."""
        self.killed_at = 0.0
        self.ups: list[Pipe] = []
        """What the clients write to."""

    def kill(self) -> None:
        """End all connections, and refuse others."""
        self.is_down = True
        self.killed_at = asyncio.get_running_loop().time()
        for pipe in [*self.ups, *(down for _, down in self)]:
            pipe.written = b""
            pipe.close()

    def hang(self, *, accepts: bool = False) -> None:
        """Carry nothing any more on the connections that are there, and refuse others.

        `accepts`: others are accepted and not answered, as by a process that is stopped.
        """
        self.is_down, self.is_silent = not accepts, accepts
        for _, down in self:
            down.is_held = True


def join(primary: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> Joined:
    """Connect each `NamespaceConnection` to this broker; return its ends."""
    return join_both(primary, primary, monkeypatch)[0]


def join_both(
    primary: BrokerServer, secondary: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[Joined, Joined]:
    """Connect each `NamespaceConnection` to one of two brokers by its port; return their ends."""
    brokers, ends = {1: primary, 2: secondary}, {1: Joined(), 2: Joined()}

    async def connect(self: NamespaceConnection, tls: ssl.SSLContext | None) -> ClientTransport:
        _, port = self.endpoint.amqp
        if ends[port].is_down:
            raise ConnectionRefusedError("the namespace is down")
        client = ClientTransport(
            self._connection, self._on_transport_event, self._on_deliveries_read
        )
        peer, up, down = brokers[port].peer(), Pipe(), Pipe()
        up.reader, down.reader = peer, client
        up.writer = client
        down.is_held = ends[port].is_silent
        peer.connection_made(cast("asyncio.Transport", down))
        client.connection_made(cast("asyncio.Transport", up))
        ends[port].append((peer, down))
        ends[port].ups.append(up)
        return client

    monkeypatch.setattr(NamespaceConnection, "_connect", connect)
    return ends[1], ends[2]
