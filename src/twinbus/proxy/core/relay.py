"""One relayed connection: what becomes of each frame, by the faults in force.

    client ──bytes──> receive(TO_SERVICE) ──> take(TO_SERVICE) ──> service
           <── take(TO_CLIENT) <── receive(TO_CLIENT) <──bytes──

A frame that no fault strikes passes byte for byte. A client's tokens are in such frames; they are
neither read nor kept. When the proxy withholds a transfer, later frames of its session get other
numbers (`numbers`), so that both peers keep a valid session. Pure: the shell moves bytes and time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twinbus.amqp.frames import decode_performative
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Transfer,
)
from twinbus.amqp.types import DecodeError
from twinbus.broker.faults import Direction, FaultPlan, FrameAt
from twinbus.proxy.core.frames import SASL, FrameReader, WholeFrame
from twinbus.proxy.core.links import TO_CLIENT, TO_SERVICE, LinkFate
from twinbus.proxy.core.sessions import RelayedSession
from twinbus.proxy.core.state import RelayState
from twinbus.proxy.core.turn import FrameTurn

SESSIONS_MAX: Final = 5_000
"""Of one connection: a bound of the memory that a peer can make the proxy use."""

HELD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one direction that a delay may hold back before the proxy stops reading from its end."""


class ConnectionRelay:
    """The frames of one client and its service."""

    def __init__(self, plan: FaultPlan, note: Callable[[str], None] = lambda _text: None) -> None:
        """`note` gets a line for each fault that strikes; no line has a token or a message."""
        self._state = RelayState(plan, note)
        self._readers = {TO_SERVICE: FrameReader(), TO_CLIENT: FrameReader()}

    @property
    def cut(self) -> str | None:
        """Why both sockets must be cut now; None: they stay."""
        return self._state.cut

    @property
    def is_silent(self) -> bool:
        """Whether nothing passes any more, in either direction."""
        return len(self._state.silent) == 2

    def receive(self, direction: Direction, data: bytes, now_ms: int) -> None:
        """Take bytes that one end sent; `take` returns what leaves."""
        state = self._state
        try:
            for frame in self._readers[direction].read(data):
                if self.cut is not None or direction in state.silent:
                    return
                self._take_frame(direction, frame, now_ms)
        except DecodeError as error:
            state.cut = f"what came {direction.replace('_', ' the ')} is not AMQP: {error}"

    def take(self, direction: Direction, now_ms: int) -> bytes:
        """What is to be written to one end now."""
        return self._state.output.take(direction, now_ms)

    def takes_more(self, direction: Direction) -> bool:
        """Whether to read from the end that sends in this direction."""
        return self._state.output.held_bytes(direction) < HELD_BYTES_MAX

    def next_ms(self) -> int | None:
        """When `take` returns something that is held back now; None: nothing is."""
        return self._state.output.next_ms()

    def strike_open_links(self, now_ms: int) -> None:
        """Let the faults in force strike links that are open already; after a fault was added."""
        state = self._state
        for session in list(state.sessions[TO_SERVICE].values()):
            for link in list(session.links[TO_SERVICE].values()):
                if link.fate is not LinkFate.RELAYED or TO_CLIENT not in link.handles:
                    continue
                fault = state.decide("open", link, FrameAt(link.name), now_ms)
                if fault is None:
                    continue
                if fault.kind == "half_open":
                    state.fall_silent(fault)
                    return
                state.detach(session, link, fault, now_ms)

    def _take_frame(self, direction: Direction, frame: WholeFrame, now_ms: int) -> None:
        state = self._state
        if not frame.body or frame.kind == SASL:
            # A header, a heartbeat, or a part of the handshake, which may hold a key.
            state.output.put(direction, 0, frame.raw, now_ms)
            return
        performative, offset = decode_performative(frame.body)
        match performative:
            case Begin():
                self._begin(direction, frame, performative)
                state.output.put(direction, frame.channel, frame.raw, now_ms)
            case Close():
                state.output.put_last(direction, frame.raw, now_ms)
            case Attach() | Flow() | Transfer() | Disposition() | Detach() | End():
                session = state.sessions[direction].get(frame.channel)
                if session is None:
                    # Of a session that has ended: the other end knows what to make of it.
                    state.output.put(direction, frame.channel, frame.raw, now_ms)
                else:
                    FrameTurn(state, session, direction, frame, now_ms).take(performative, offset)
            case _:
                state.output.put(direction, frame.channel, frame.raw, now_ms)

    def _begin(self, direction: Direction, frame: WholeFrame, begin: Begin) -> None:
        sessions = self._state.sessions[direction]
        if len(sessions) >= SESSIONS_MAX:
            self._state.cut = f"a connection has more than {SESSIONS_MAX} sessions"
            return
        session = None
        if direction == TO_SERVICE:
            session = RelayedSession()
        elif begin.remote_channel is not None:
            session = self._state.sessions[TO_SERVICE].get(begin.remote_channel)
        if session is None:
            return
        session.channels[direction] = frame.channel
        sessions[frame.channel] = session
        if direction == TO_CLIENT:
            session.service_began_at = begin.next_outgoing_id
