"""A client's AMQP connection on asyncio: a socket (TCP or TLS) around the sans-IO `Connection`.

    transport = await connect(connection, host, port, on_event)
    ... on `Opened`: session = connection.begin()

Events are handed to `on_event` as they come. Whatever the owner does to the connection outside of
`on_event` goes out with `flush`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from twinbus.amqp.connection import Connection, ConnectionPhase
from twinbus.amqp.events import Closed, DeliveryArrived, DeliveryRun, Event, one_by_one
from twinbus.amqp.performatives import Error
from twinbus.amqp.types import Symbol
from twinbus.lookups import LOOKUPS
from twinbus.servicebus import conditions

UNANSWERED_S: Final = 10
"""A peer whose machine acknowledges nothing for this time is lost. TCP doubles the pause between
its repetitions: without a limit, a connection that lives through a black hole of 24 s is silent for
up to 27 s more. Shorter silences, as of a path that changes, cost no connection."""

SILENT_S: Final = 5
"""After so long without a byte the kernel asks the peer's machine for a sign of life; it is below
AMQP and not billed."""


CLOSED: Final = ConnectionPhase.CLOSED


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class ClientTransport(asyncio.Protocol):
    """One socket; made by `connect`."""

    def __init__(
        self,
        connection: Connection,
        on_event: Callable[[Event], None],
        on_deliveries: Callable[[list[DeliveryArrived]], None] | None = None,
        now_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._on_event = on_event
        self._on_deliveries = on_deliveries
        self.socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        """Set while the peer reads as fast as we write; a bulk sender waits for it."""
        self.writable.set()

    def flush(self) -> None:
        """Write the connection's output; close the socket once CLOSE was sent."""
        if self.socket is None:
            return
        data = self._connection.take_output(self._now_ms())
        if data:
            self.socket.write(data)
        if self._connection.phase is CLOSED:
            self.socket.close()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Close the connection, wait for the peer's own CLOSE, and let the socket go."""
        self._connection.close()
        self.flush()
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), timeout_s)
        except TimeoutError:
            if self.socket is not None:
                self.socket.abort()

    def abort(self) -> None:
        """Let the socket go without a word; the owner gets `Closed` as for any lost connection."""
        if self.socket is not None:
            self.socket.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket = cast(asyncio.Transport, transport)
        limit_silence(transport.get_extra_info("socket"))
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Hand on what happened, then answer."""
        now_ms = self._now_ms()
        answer = self._connection.receive_answer(data, now_ms)
        if answer is not None:
            # Nearly always the answer to a message that was sent alone, and the end of it.
            self._on_event(answer)
            if self._connection.has_output:
                self.flush()
        else:
            for events in self._connection.receive(data, now_ms):
                if self._on_deliveries is None:
                    for event in one_by_one(events):
                        self._on_event(event)
                else:
                    self._hand_on(events, self._on_deliveries)
            self.flush()
        if self._timer is None:
            self._arm()

    def _hand_on(
        self, events: list[Event], on_deliveries: Callable[[list[DeliveryArrived]], None]
    ) -> None:
        """Each event as it is, but deliveries that came one after the other together."""
        run: list[DeliveryArrived] = []
        for event in events:
            if type(event) is DeliveryArrived:
                run.append(event)
                continue
            if type(event) is DeliveryRun:
                run += event.deliveries()
                continue
            if run:
                on_deliveries(run)
                run = []
            self._on_event(event)
        if run:
            on_deliveries(run)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner, unless the peer said CLOSE and it knows already."""
        self.socket = None
        self.writable.set()
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)
        if self._connection.phase is not ConnectionPhase.CLOSED:
            self._connection.phase = ConnectionPhase.CLOSED
            text = f"the connection was lost: {exc or 'the peer hung up'}"
            condition = Symbol(conditions.CONNECTION_FORCED)
            self._on_event(Closed(Error(condition=condition, description=text)))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def _arm(self) -> None:
        deadline_ms = self._connection.next_deadline_ms()
        if deadline_ms and self.socket is not None:
            wait_s = max(0.0, (deadline_ms - self._now_ms()) / 1000)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for event in self._connection.run_timers(self._now_ms()):
            self._on_event(event)
        self.flush()
        self._arm()


async def connect(
    connection: Connection,
    host: str,
    port: int,
    on_event: Callable[[Event], None],
    *,
    tls: ssl.SSLContext | None = None,
    on_deliveries: Callable[[list[DeliveryArrived]], None] | None = None,
) -> ClientTransport:
    """Open the socket and send the first bytes; `Opened` follows through `on_event`.

    `on_deliveries`, if given, gets deliveries in place of `on_event`, those of one read at once.
    """
    loop = asyncio.get_running_loop()
    await LOOKUPS.resolved(host)
    _, protocol = await loop.create_connection(
        lambda: ClientTransport(connection, on_event, on_deliveries),
        host,
        port,
        ssl=tls,
        server_hostname=host if tls else None,
    )
    return protocol


def limit_silence(opened: Any) -> None:
    """Let the kernel end a connection whose peer is silent; None: the socket is not known here."""
    if opened is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    # A socket that is no TCP socket, or is gone already, has no such options.
    with suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_S * 1_000)
