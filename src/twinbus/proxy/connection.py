"""Two sockets around one `ConnectionRelay`: the client's, which was accepted, and the service's."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

from twinbus.broker.faults import Direction, FaultPlan, FrameAt
from twinbus.proxy.core.links import OTHER, TO_CLIENT, TO_SERVICE
from twinbus.proxy.core.relay import ConnectionRelay
from twinbus.wording import visible

if TYPE_CHECKING:
    from twinbus.broker.access import Admission

_log = logging.getLogger(__name__)

CONNECT_S: Final = 30.0
"""Limit of the way to the service: the SDKs give up after less."""

CUT_OFF_S: Final = 10.0
"""How long an end may take to read what is left when the other end has closed."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a proxy leads to."""

    host: str
    port: int
    tls: ssl.SSLContext | None


class ProxyServer(Protocol):
    """What a connection needs of the proxy that accepted it."""

    upstream: Upstream
    faults: FaultPlan
    admission: Admission
    connections: dict[RelayedConnection, None]

    def now_ms(self) -> int: ...


class _End(asyncio.Protocol):
    """One of the two sockets."""

    def __init__(self, owner: RelayedConnection, direction: Direction) -> None:
        self._owner = owner
        self._direction = direction
        """Where its bytes go."""
        self.transport: asyncio.Transport | None = None
        self.is_writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._owner.made(self._direction)

    def data_received(self, data: bytes) -> None:
        self._owner.received(self._direction, data)

    def pause_writing(self) -> None:
        self.is_writable = False
        self._owner.balance()

    def resume_writing(self) -> None:
        self.is_writable = True
        self._owner.balance()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._owner.lost(self._direction)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def read(self, *, more: bool) -> None:
        """Read from the socket, or leave what comes in it."""
        if self.transport is None or self.transport.is_closing():
            return
        if more:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close once what was written has left."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            asyncio.get_running_loop().call_later(CUT_OFF_S, self.abort)


class RelayedConnection:
    """One client and its service; `client` is the protocol of the accepted socket."""

    def __init__(self, server: ProxyServer) -> None:
        self._server = server
        self._relay = ConnectionRelay(server.faults, self._note)
        self._loop = asyncio.get_running_loop()
        self._ends: dict[Direction, _End] = {
            TO_SERVICE: _End(self, TO_SERVICE),
            TO_CLIENT: _End(self, TO_CLIENT),
        }
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._host = ""
        self._address = "?"
        self._hangs = False

    @property
    def client(self) -> asyncio.Protocol:
        return self._ends[TO_SERVICE]

    def strike_open_links(self) -> None:
        """Let a fault that was added strike the links that are open."""
        self._relay.strike_open_links(self._server.now_ms())
        self._flush()

    def abort(self) -> None:
        """Cut both sockets."""
        for end in self._ends.values():
            end.abort()

    async def close(self) -> None:
        """Cut both sockets, and wait for the way to the service if it is not there yet."""
        self.abort()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})

    # What the ends report

    def made(self, direction: Direction) -> None:
        if direction == TO_CLIENT:
            self.balance()
            self._flush()
            return
        client = self._ends[TO_SERVICE]
        assert client.transport is not None
        peer = client.transport.get_extra_info("peername")
        self._host = str(peer[0]) if isinstance(peer, tuple) else ""
        self._address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local client"
        self._server.connections[self] = None
        self._server.admission.enter(self._host)
        self._server.admission.trust(self._host)
        # Nothing is read before there is a place for it.
        client.read(more=False)
        fault = self._server.faults.decide("connect", "", self._server.now_ms(), FrameAt())
        if fault is not None and fault.kind == "hang":
            self._hangs = True
            self._note("the connection hangs")
            client.read(more=True)
            return
        delay_s = 0.0 if fault is None else fault.delay_ms / 1_000
        self._connecting = self._loop.create_task(self._connect(delay_s))

    def received(self, direction: Direction, data: bytes) -> None:
        if not self._hangs:
            self._relay.receive(direction, data, self._server.now_ms())
            self._flush()

    def lost(self, direction: Direction) -> None:
        other = self._ends[OTHER[direction]]
        if direction == TO_SERVICE:
            self._server.connections.pop(self, None)
            self._server.admission.leave(self._host, trusted=True)
            if self._connecting is not None:
                self._connecting.cancel()
        elif self._relay.is_silent:
            # The service's end of a half-open connection is gone; the client must not notice.
            return
        if self._timer is not None:
            self._timer.cancel()
        other.close()

    def balance(self) -> None:
        """Read from each end only while the other one takes more."""
        for direction, end in self._ends.items():
            is_open = self._ends[OTHER[direction]].is_writable
            end.read(more=is_open and self._relay.takes_more(direction))

    async def _connect(self, delay_s: float) -> None:
        upstream = self._server.upstream
        try:
            await asyncio.sleep(delay_s)
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(
                    lambda: self._ends[TO_CLIENT],
                    upstream.host,
                    upstream.port,
                    ssl=upstream.tls,
                    server_hostname=upstream.host if upstream.tls else None,
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {CONNECT_S:g} s"
            _log.warning("%s:%s cannot be reached: %s", upstream.host, upstream.port, why)
            self._ends[TO_SERVICE].abort()

    def _flush(self) -> None:
        """Write what is due, perform what the relay decided, and wait for what is held back."""
        now_ms = self._server.now_ms()
        for direction in (TO_SERVICE, TO_CLIENT):
            end = self._ends[OTHER[direction]]
            if end.transport is None:
                continue  # The service is not reached yet; what waits for it is bounded.
            data = self._relay.take(direction, now_ms)
            if data:
                end.write(data)
        if self._relay.cut is not None:
            self._note(f"cut: {self._relay.cut}")
            self.abort()
            return
        if self._relay.is_silent:
            self._ends[TO_CLIENT].abort()
        self.balance()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._relay.next_ms()
        if next_ms is not None:
            self._timer = self._loop.call_later(max(0, next_ms - now_ms) / 1_000, self._flush)

    def _note(self, text: str) -> None:
        _log.info("%s: %s", self._address, visible(text))
