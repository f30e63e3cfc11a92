"""A client and the broker's end of its connection, joined in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import Event, one_by_one
from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.links.peer import Peer
from twinbus.broker.sas import ALL_RIGHTS, Grant
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore

TICKS = 20
"""Loop iterations that any exchange of a few frames needs, commits included."""

SLICES_MAX = 10_000


def ticks_of(server: BrokerServer) -> list[int]:
    """A list that gets an entry for each tick of the server from now on."""
    seen: list[int] = []
    tick = server._tick

    def noted() -> None:
        seen.append(len(seen))
        tick()

    server._tick = noted  # type: ignore[method-assign]
    return seen


class JoinedTransport:
    """A transport that keeps what is written, and whether reading is paused."""

    def __init__(self, host: str = "192.0.2.1", tls: object = None) -> None:
        self._info = {"peername": (host, 50_000), "sockname": (host, 50_000), "ssl_object": tls}
        self.written = b""
        self.is_paused = False
        self.is_closed = False
        self.is_aborted = False
        self.ended = asyncio.Event()
        """Nothing more will be written."""
        self.seen: Callable[[bytes], None] = lambda _: None
        """Gets everything that is written."""

    def write(self, data: bytes) -> None:
        self.written += data
        self.seen(data)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_extra_info(self, name: str) -> object:
        return self._info.get(name)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended.set()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True


class Front(Protocol):
    """What a client connects to: a broker, or a gateway before one."""

    def peer(self) -> Peer: ...


class JoinedClient:
    """A client's connection to a broker; without `trusted` it has put no token."""

    def __init__(
        self, server: Front, *, trusted: bool = True, transport: JoinedTransport | None = None
    ) -> None:
        self.connection = Connection("c")
        self.peer = server.peer()
        self.transport = transport or JoinedTransport()
        self.peer.connection_made(cast(asyncio.Transport, self.transport))
        if trusted:
            everything = Grant(path="", rights=ALL_RIGHTS, expires_at_s=1e12, rule_name="r")
            self.peer.grants.put("all", everything)
            self.peer.trust()

    async def exchange(self, ticks: int = TICKS, *, waits: bool = True) -> list[Event]:
        """Carry bytes both ways for some ticks; return what the client saw.

        `waits`: until what the client sent is handled, which may take several slices.
        """
        seen: list[Event] = []
        for _ in range(ticks):
            if data := self.connection.take_output(1):
                self.peer.data_received(data)
            await asyncio.sleep(0)
            for _ in range(SLICES_MAX):
                if not waits or not self.peer.has_unread:
                    break
                await asyncio.sleep(0)
            reply, self.transport.written = self.transport.written, b""
            if reply:
                for events in self.connection.receive(reply, 1):
                    seen += one_by_one(events)
        return seen


def new_server(limits: ConnectionLimits | None = None) -> BrokerServer:
    return BrokerServer("b", MemoryStore(), [], admission=Admission(limits))
