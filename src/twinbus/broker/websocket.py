"""AMQP over WebSocket: one binary stream, so the AMQP protocol runs on it as on a socket.

`serve` runs one connection: frames received go to the protocol, bytes it writes go out as frames.
Both directions push back: the protocol pauses when the client reads too slowly, and no
frame is taken from the client while the protocol has paused reading.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    TextMessage,
)
from wsproto.utilities import RemoteProtocolError

from twinbus.amqp.budgets import Budget, BudgetExceeded
from twinbus.broker.access import CUT_OFF_S
from twinbus.broker.links.peer import Peer
from twinbus.broker.links.turns import SLICE_S, Turns

if TYPE_CHECKING:
    from uvicorn._types import WebSocketEvent

_log = logging.getLogger(__name__)

SUBPROTOCOLS = ("AMQPWSB10", "amqp")
"""Names of AMQP in a WebSocket handshake: Service Bus's own, which Azure's SDKs ask for, and that
of the AMQP standard, which applications of the Go SDK ask for."""

HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024

FRAME_BYTES_MAX = 64 * 1024
"""Bytes put into one WebSocket frame, so that a slow client frees the buffer step by step."""

CONNECTION = "connection"
TURNS = "turns"
HELD_BYTES = "held_bytes"
"""In the state of a connection: the turns of its port, and the budget of the process."""

_NORMAL_CLOSURE = 1000
_PROTOCOL_ERROR = 1002
_UNACCEPTABLE_DATA = 1003
_INTERNAL_ERROR = 1011


class SlicedFrames(WSConnection):
    """Gives the frames of one slice; the others wait for the next, and then `is_cut`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(ConnectionType.SERVER)
        self._clock = clock
        self._frames: Iterator[Event] = iter(())
        self.is_cut = False

    def receive_data(self, data: bytes | None) -> None:
        """Take what came; headers of the handshake that are no text are its client's mistake."""
        try:
            super().receive_data(data)
        except UnicodeError as error:
            raise RemoteProtocolError(str(error), event_hint=RejectConnection()) from error

    def events(self) -> Generator[Event, None, None]:
        """The events of what came; those that are left wait for the next call."""
        ends_at = self._clock() + SLICE_S
        if not self.is_cut:
            self._frames = super().events()
        self.is_cut = False
        for event in self._frames:
            yield event
            if self._clock() >= ends_at:
                self.is_cut = True
                return


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
        self._turns: Turns = self.app_state[TURNS]
        self.conn: SlicedFrames = SlicedFrames(self._turns.clock)
        self._came = bytearray()
        self._held_bytes = Budget("this connection", "bytes", whole=self.app_state[HELD_BYTES])
        """What waits for its turn."""
        self._overhead_bytes = 0
        self._waits = False
        """Frames that came wait for the connection's next turn."""
        self._ends: Callable[[], None] | None = None
        """The connection is gone, and what it brought is not handled yet."""
        self._cutting: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self.is_ending and not self.writable.is_set():
            # It neither reads why it is closed nor stops sending: its frames cost nothing more.
            self._is_deaf = True
        if self._is_deaf:
            return
        self._overhead_bytes += len(data)
        super().data_received(data)
        if not self._waits:
            self._end_slice()
            self._waits = self.conn.is_cut
            if self._waits:
                self._turns.wait(self._take_turn)
        if self._waits and not self.transport.is_closing():
            self.transport.pause_reading()
            self._hold(len(data))

    def handle_events(self) -> None:
        """Handle the frames of one slice; a read that comes meanwhile waits with the others."""
        if not self._waits:
            super().handle_events()

    def _hold(self, size_bytes: int) -> None:
        try:
            self._held_bytes.take(size_bytes)
        except BudgetExceeded as error:
            _log.warning("cut off a WebSocket from %s: %s", self.client, error)
            self.abort()

    async def receive(self) -> WebSocketEvent:
        """What came next; nothing more is read while frames wait for their turn."""
        message = await self.queue.get()
        self._read_again()
        return message

    def _take_turn(self) -> bool:
        """Handle more frames; false when none is left."""
        if self._is_deaf or (self.is_ending and not self.writable.is_set()):
            self._is_deaf, self.conn.is_cut = True, False
        else:
            super().handle_events()
            self._end_slice()
        if self.conn.is_cut:
            return True
        self._waits = False
        self._held_bytes.give_back(self._held_bytes.used)
        if self._ends is not None:
            self._ends()
        else:
            self._read_again()
        return False

    def _end_slice(self) -> None:
        overhead_bytes, self._overhead_bytes = self._overhead_bytes - len(self._came), 0
        self._hand_on()
        self.on_overhead(overhead_bytes)

    def _read_again(self) -> None:
        if self.queue.empty() and not self._waits and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

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
        if self.writable.is_set() and not self.transport.is_closing():
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
        """Leave, once what came is handled."""
        if self._waits:
            self._ends = partial(self._leave, exc)
        else:
            self._leave(exc)

    def _leave(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._cutting is not None:
            self._cutting.cancel()

    def _hand_on(self) -> None:
        if self._came:
            data, self._came = bytes(self._came), bytearray()
            super().handle_message(BytesMessage(data=data, message_finished=True))


class WebSocketTransport(asyncio.Transport):
    """What the AMQP protocol sees of a WebSocket: an asyncio transport."""

    def __init__(self, protocol: Peer, extra: dict[str, Any], connection: AmqpWebSocket) -> None:
        super().__init__(extra)
        self._protocol = protocol
        self._connection = connection
        self._buffer = bytearray()
        self._something_to_do = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closing = False
        self._protocol_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._buffer += data
        self._something_to_do.set()
        if len(self._buffer) > HIGH_WATER_BYTES and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Close once everything written has gone out."""
        self._closing = True
        self._connection.is_ending = True
        self._something_to_do.set()

    def abort(self) -> None:
        """Close the socket now and drop what has not gone out."""
        self.end()
        self._connection.abort()

    def end(self) -> None:
        """Close and drop what has not gone out; the WebSocket may still say goodbye."""
        self._buffer.clear()
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_reading(self) -> bool:
        return self._may_read.is_set() and not self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    async def readable(self) -> None:
        await self._may_read.wait()

    async def next_frame(self) -> bytes | None:
        """The next bytes to send; None when closed and all is out."""
        while not self._buffer:
            if self._closing:
                return None
            self._something_to_do.clear()
            await self._something_to_do.wait()
        frame = bytes(self._buffer[:FRAME_BYTES_MAX])
        del self._buffer[: len(frame)]
        if self._protocol_paused and len(self._buffer) <= LOW_WATER_BYTES:
            self._protocol_paused = False
            self._protocol.resume_writing()
        return frame


async def serve(websocket: WebSocket, amqp_factory: Callable[[], Peer]) -> None:
    """Speak AMQP on a WebSocket until either side ends it."""
    offered = websocket.scope.get("subprotocols", ())
    chosen = next((name for name in SUBPROTOCOLS if name in offered), None)
    if chosen is None:
        await websocket.close(_PROTOCOL_ERROR, f"ask for the subprotocol {SUBPROTOCOLS[0]}")
        return
    await websocket.accept(subprotocol=chosen)
    connection: AmqpWebSocket = websocket.scope["state"][CONNECTION]
    protocol = amqp_factory()
    transport = WebSocketTransport(
        protocol,
        {
            "peername": websocket.scope.get("client"),
            "sockname": websocket.scope.get("server"),
            "ssl_object": connection.transport.get_extra_info("ssl_object"),
        },
        connection,
    )
    protocol.connection_made(transport)
    connection.on_overhead = protocol.overhead_received
    sending = asyncio.create_task(_send(websocket, transport))
    receiving = asyncio.create_task(_receive(websocket, transport, protocol))
    try:
        await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        transport.end()
        for task in (sending, receiving):
            task.cancel()
        results = await asyncio.gather(sending, receiving, return_exceptions=True)
        failure = next((result for result in results if isinstance(result, Exception)), None)
        if failure is not None and not isinstance(failure, WebSocketDisconnect):
            # Make our own mistake known, as asyncio does for a protocol on a socket.
            text = "AMQP over WebSocket failed and was closed"
            context = {"message": text, "exception": failure, "protocol": protocol}
            asyncio.get_running_loop().call_exception_handler(context)
            with suppress(WebSocketDisconnect):
                await websocket.close(_INTERNAL_ERROR, "the broker failed; its log says how")
        protocol.connection_lost(failure)


async def _send(websocket: WebSocket, transport: WebSocketTransport) -> None:
    while (frame := await transport.next_frame()) is not None:
        await websocket.send_bytes(frame)
    await websocket.close(_NORMAL_CLOSURE)


async def _receive(websocket: WebSocket, transport: WebSocketTransport, protocol: Peer) -> None:
    while True:
        await transport.readable()
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        data = message.get("bytes")
        if data is None:
            await websocket.close(_UNACCEPTABLE_DATA, "AMQP travels in binary frames")
            return
        protocol.data_received(data)
