"""HTTP connections as the broker bounds them: counted, with a deadline for each request.

uvicorn bounds the pause between two requests, but not the time that one request takes to arrive.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from twinbus.broker.access import CUT_OFF_S, Admission

_log = logging.getLogger(__name__)

CONNECTION = "connection"

_UNFINISHED = (h11.IDLE, h11.SEND_BODY)
"""States of a client that has sent a part of a request."""


class HttpConnection(H11Protocol):
    """One HTTP connection; AMQP over WebSocket leaves it when it begins."""

    def __init__(self, admission: Admission, *given: Any) -> None:
        super().__init__(*given)
        self.access_log = False
        self._admission = admission
        self._host: str | None = None
        self._request_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._host = self.client[0] if self.client else ""
        self._admission.enter(self._host)
        self._limit_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._host is not None:
            self._limit_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self._leave()

    def _leave(self) -> None:
        """Count no more: the connection is gone, or its AMQP peer counts."""
        self._stop_clock()
        if self._host is not None:
            self._admission.leave(self._host)
            self._host = None

    def _limit_request(self) -> None:
        """Let a request that has begun take so long, whatever the pace of its bytes."""
        if self.conn.their_state not in _UNFINISHED:
            self._stop_clock()
        elif self._request_limit is None:
            limit_s = self._admission.limits.open_s
            self._request_limit = self.loop.call_later(limit_s, self._cut_off, limit_s)

    def _cut_off(self, limit_s: float) -> None:
        text = "closed an HTTP connection from %s: its request took longer than %g s (--open-limit)"
        _log.warning(text, self._host, limit_s)
        self.transport.abort()

    def _stop_clock(self) -> None:
        if self._request_limit is not None:
            self._request_limit.cancel()
            self._request_limit = None


class AmqpWebSocket(WSProtocol):
    """A WebSocket that hands on the bytes of messages as they come: AMQP is a stream.

    A stranger's message of many megabytes is then never kept whole, and a thousand empty ones are
    nothing. The application finds it as `state["connection"]` of its scope.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, CONNECTION: self}
        self.on_overhead: Callable[[int], None] = lambda _: None
        """Called with the number of bytes that came and are not AMQP: pings, frame headers."""
        self.is_ending = False
        """Whether the broker has closed the connection; what comes no longer matters."""
        self._is_deaf = False
        self._came = bytearray()
        self._cutting: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self.is_ending and not self.writable.is_set():
            # It neither reads why it is closed nor stops sending: its frames cost nothing more.
            self._is_deaf = True
        if self._is_deaf:
            return
        super().data_received(data)
        overhead_bytes = len(data) - len(self._came)
        self._hand_on()
        self.on_overhead(overhead_bytes)

    def handle_message(self, event: TextMessage | BytesMessage) -> None:
        if isinstance(event, BytesMessage):
            self._came += event.data
        else:
            # Refused at its first piece: it is never AMQP.
            super().handle_message(dataclasses.replace(event, message_finished=True))

    def handle_close(self, event: CloseConnection) -> None:
        self._hand_on()
        super().handle_close(event)

    def handle_ping(self, event: Ping) -> None:
        # A client that does not read its pongs would fill the memory with them. RFC 6455 (5.5.2)
        # allows to answer a later ping only.
        if self.writable.is_set():
            super().handle_ping(event)

    def abort(self) -> None:
        """Close the socket now, whatever the client reads."""
        self.transport.abort()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        # Closing waits for the client to read what was written.
        if not self.disconnected:
            self._cutting = self.loop.call_later(CUT_OFF_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._cutting is not None:
            self._cutting.cancel()

    def _hand_on(self) -> None:
        if self._came:
            data, self._came = bytes(self._came), bytearray()
            super().handle_message(BytesMessage(data=data, message_finished=True))
