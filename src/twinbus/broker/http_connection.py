"""One HTTP connection of a port: counted, bounded in time, and handled in turns.

uvicorn handles all that one read brought in one step of the loop: thousands of chunks of one byte,
or of header lines. Here each connection has slices, as the AMQP connections have, so what
strangers send comes between the work of others and not before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from twinbus.amqp.budgets import Budget, BudgetExceeded
from twinbus.broker.access import Admission
from twinbus.broker.links.turns import SLICE_S, Turns

_log = logging.getLogger(__name__)

PIECE_BYTES: Final = 1024
"""Given to the parser at a time: a head is handled in one step, whatever is in it."""

HEAD_LINES_MAX: Final = 100
"""Header lines of a request. Clients send a dozen, and each takes 10 us of the step."""

_UNFINISHED = (h11.IDLE, h11.SEND_BODY)
"""States of a client that has sent a part of a request."""


class SlicedRequests(h11.Connection):
    """Says that nothing more came once a slice is over; then `is_cut`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(h11.SERVER)
        self._clock = clock
        self._ends_at = 0.0
        self.is_cut = False

    def begin_slice(self) -> None:
        self._ends_at = self._clock() + SLICE_S
        self.is_cut = False

    def next_event(self) -> Any:
        """The next event, unless the slice is over."""
        if self._clock() >= self._ends_at:
            self.is_cut = True
            return h11.NEED_DATA
        return super().next_event()


class HttpConnection(H11Protocol):
    """One HTTP connection; AMQP over WebSocket leaves it when it begins."""

    def __init__(self, admission: Admission, turns: Turns, *given: Any) -> None:
        super().__init__(*given)
        self.access_log = False
        self.conn: SlicedRequests = SlicedRequests(turns.clock)
        self._admission = admission
        self._turns = turns
        self._unread = bytearray()
        self._held_bytes = Budget("this connection", "bytes", whole=admission.budgets.held_bytes)
        """What is unread."""
        self._head_lines = 0
        """Of a head that has come in part."""
        self._waits = False
        """For its turn."""
        self._host: str | None = None
        self._request_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn reads again when an application has taken a body, whatever else is unread.
        self.flow = FlowControl(cast(asyncio.Transport, self))
        self._host = self.client[0] if self.client else ""
        self._admission.enter(self._host)
        self._limit_request()

    def data_received(self, data: bytes) -> None:
        """Keep what came for the connection's turns; nothing more is read until then."""
        self._unset_keepalive_if_required()
        try:
            self._held_bytes.take(len(data))
        except BudgetExceeded as error:
            _log.warning("cut off an HTTP connection from %s: %s", self._host, error)
            self.transport.abort()
            return
        self._unread += data
        self.pause_reading()
        self.handle_events()

    def handle_events(self) -> None:
        """Handle what came in the next turn; also called when a response is complete."""
        if not self._waits:
            self._waits = True
            self._turns.wait(self._take_turn)

    def pause_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on with what came; read more if nothing of it is left."""
        if self._unread:
            self.handle_events()
        elif not (self._waits or self.flow.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse what came and close; a request has one answer, whichever comes first."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._drop_unread()
        self.resume_reading()
        super().handle_websocket_upgrade(event)
        self._leave()

    def _take_turn(self) -> bool:
        """Handle more of what came; false when nothing is left that can be handled now."""
        if self._is_over():
            self._drop_unread()
            self._waits = False
            return False
        self.conn.begin_slice()
        try:
            self._handle_pieces()
        except Exception:
            # As asyncio does for an error in `data_received`.
            self.transport.abort()
            self._waits = False
            raise
        if self._host is None:
            self._waits = False
            return False
        self._limit_request()
        if self.conn.is_cut:
            self.pause_reading()
            return True
        self._waits = False
        if not self._unread:
            self.resume_reading()
        return False

    def _is_over(self) -> bool:
        """Whether nothing more is handled: it is closed, a WebSocket, or past its last request."""
        is_last = self.conn.their_state in (h11.MUST_CLOSE, h11.CLOSED)
        return self._host is None or is_last or self.transport.is_closing()

    def _handle_pieces(self) -> None:
        """Handle events until the slice is over, nothing is left, or a response must come first."""
        self._handle_come()
        while self._unread and not (self.conn.is_cut or self.flow.read_paused or self._is_over()):
            piece = bytes(self._unread[:PIECE_BYTES])
            del self._unread[:PIECE_BYTES]
            self._held_bytes.give_back(len(piece))
            lines = piece.partition(b"\r\n\r\n")[0].count(b"\n")
            if self.conn.their_state is h11.IDLE and self._head_lines + lines > HEAD_LINES_MAX:
                self._refuse_head()
                return
            self.conn.receive_data(piece)
            self._handle_come()
            if self.conn.their_state is h11.IDLE:
                self._head_lines += lines

    def _handle_come(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._head_lines = 0

    def _refuse_head(self) -> None:
        text = "closed an HTTP connection from %s: a request has more than %d header lines"
        _log.warning(text, self._host, HEAD_LINES_MAX)
        self.send_400_response("Too many header lines.")

    def _drop_unread(self) -> None:
        self._unread.clear()
        self._held_bytes.give_back(self._held_bytes.used)

    def _leave(self) -> None:
        """End the count: the connection is closed, or its AMQP peer is counted instead."""
        self._drop_unread()
        self._stop_clock()
        if self._host is not None:
            self._admission.leave(self._host)
            self._host = None

    def _limit_request(self) -> None:
        """Limit the time that a request takes to arrive, however slowly its bytes come."""
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
