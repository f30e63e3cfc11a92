"""One AMQP 1.0 connection without I/O: bytes in, events out, bytes to send.

    header --> [sasl --> header] --> open --> sessions and links --> close

The same class serves both ends. The owner feeds `receive` with what the socket brought, acts on the
events as they are yielded, and writes what `take_output` returns. A peer that breaks the protocol
gets a CLOSE that says what was wrong, and the owner gets `Closed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from struct import Struct

from twinbus.amqp.budgets import UNLIMITED, PeerBudgets
from twinbus.amqp.events import (
    ANSWER_HEAD_BYTES,
    ANSWERS_MAX,
    SHAPES_MAX,
    AnswerShape,
    Begun,
    Closed,
    DeliveryArrived,
    Disposed,
    Ended,
    Event,
    Opened,
    TransferShape,
)
from twinbus.amqp.frames import (
    SMALLEST_MAX_FRAME_BYTES,
    FrameOutput,
    ProtocolViolation,
    decode_performative,
    encode_frame,
)
from twinbus.amqp.link import LinkSession
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from twinbus.amqp.sasl import (
    ANONYMOUS,
    SASL_AUTH_FAILED,
    SASL_OK,
    Login,
    offered,
    why_refused,
)
from twinbus.amqp.session import HANDLE_MAX, Session
from twinbus.amqp.types import DecodeError, Symbol, UInt, UShort
from twinbus.servicebus import conditions
from twinbus.servicebus.conditions import INVALID_FIELD, NOT_ALLOWED, RESOURCE_LIMIT

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
# The head of a CLOSE: pyamqp says goodbye also where a protocol header has to come.
EARLY_CLOSE = b"\x02\x00\x00\x00\x00\x53\x18"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""A frame without a performative: the keep-alive."""

MAX_FRAME_BYTES = 65_536
CHANNEL_MAX = 4_999
TAKEN_TOGETHER_MAX = 256
"""Deliveries of one run, and events of one list, at a server: it has other clients to serve."""

QUIET_FRAMES_MAX = 16
"""Frames without an event, such as flows and parts of deliveries, until the owner may do other
things: a read has thousands of them."""

IDLE_TIMEOUT_MS = 240_000
IDLE_TIMEOUT_LEAST_MS = 250
"""The smallest idle-time-out that a peer may ask for. This end owes it a frame in half of that
time, so a peer that asks for 1 ms and sends nothing would take half a processor."""

FRAME_TYPE_AMQP, FRAME_TYPE_SASL = 0, 1

SESSION_FRAMES = frozenset({Transfer, Disposition, Flow, Attach, Detach})
"""Frames that a session takes, for itself or its links."""

TRANSFER_CODE = b"\x14"
DISPOSITION_START = b"\x00\x53\x15"
DELIVERY_FRAMES = frozenset({b"\x00\x53\x14", DISPOSITION_START})
"""First bytes of TRANSFER and DISPOSITION: they change deliveries only, so many of them are taken
before their events are handled."""

_FRAME_START = Struct(">IBBH")


class ConnectionPhase(Enum):
    """How far the connection has come."""

    HEADER = "header"
    SASL = "sasl"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


# Module globals: looking up an enum member costs more than the comparison.
HEADER, OPEN = ConnectionPhase.HEADER, ConnectionPhase.OPEN
CLOSING, CLOSED = ConnectionPhase.CLOSING, ConnectionPhase.CLOSED


class Connection:
    """One end of an AMQP connection."""

    def __init__(
        self,
        container_id: str,
        *,
        sasl: bool = False,
        server: bool = False,
        hostname: str | None = None,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
        handle_max: int = HANDLE_MAX,
        budgets: PeerBudgets | None = None,
    ) -> None:
        """`sasl`: the exchange that Service Bus clients expect comes before AMQP.

        `budgets` are of the peer, which this end does not know; None: no limit.
        """
        self.container_id = container_id
        self.phase = ConnectionPhase.HEADER
        self.remote_container_id = ""
        self.remote_hostname = ""
        """The name of this end that the peer dialled, as it says in OPEN."""
        self.peer_closed = False
        """Whether the peer sent CLOSE: it sends nothing after it."""
        self.sessions: dict[int, Session] = {}
        """Live sessions by our channel."""
        self.login: Login | None = None
        """Of a server: checks the name and the key of SASL PLAIN; None: PLAIN is not offered."""
        self._server = server
        self._together_max = TAKEN_TOGETHER_MAX if server else UNLIMITED
        self._sasl = sasl
        self._hostname = hostname
        self._frame_limit = MAX_FRAME_BYTES
        self._session_limit = CHANNEL_MAX + 1
        self._link_limit: int | None = None
        self._idle_timeout_ms = idle_timeout_ms
        self._handle_max = handle_max
        self._has_budgets = budgets is not None
        self._budgets = budgets or PeerBudgets()
        self._remote_idle_timeout_ms = 0
        self._channel_max = CHANNEL_MAX
        self._heard_ms = 0
        self._spoke_ms = 0
        self._by_remote_channel: dict[int, Session] = {}
        self.output = FrameOutput()
        self._buffer = b""
        self._shapes: dict[bytes, TransferShape] = {}
        """Shapes of the transfers of busy links, by the bytes before their delivery ids."""
        self._answers: dict[bytes, AnswerShape] = {}
        """Shapes of reads that are one answer, by their first bytes."""
        self._head_size = 0
        self.shapes_left = SHAPES_MAX
        if not server:
            self.output.put(SASL_HEADER if sasl else AMQP_HEADER)

    def __repr__(self) -> str:
        peer = self.remote_container_id or "a peer"
        return f"<{self.phase.value} connection with {peer}, {len(self.sessions)} sessions>"

    # Bytes

    def receive(self, data: bytes, now_ms: int) -> Iterator[list[Event]]:
        """Take bytes from the peer; yield what happened, in order, a list of events at a time.

        Handle each list before asking for the next: a frame that opens, closes or changes something
        takes effect when all events before it are handled. Some frames bring no event: then a list
        may be empty. So a settlement finds its link open,
        though the link's DETACH came in the same read. The owner may do other things between two
        lists, but must not hand over more bytes.
        """
        self._heard_ms = now_ms
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        events: list[Event] = []
        failure: DecodeError | ProtocolViolation | None = None
        position, end = 0, len(data)
        quiet = 0
        try:
            while end - position >= 8 and self.phase is not CLOSED:
                if len(events) >= self._together_max or quiet >= QUIET_FRAMES_MAX:
                    yield events
                    events, quiet = [], 0
                    continue  # The owner may have closed the connection.
                if self.phase is HEADER and data[position + 4 : position + 11] != EARLY_CLOSE:
                    self._take_header(data[position : position + 8])
                    position += 8
                    continue
                if self._shapes and self.phase is OPEN:
                    after = self._take_run(data, position, events)
                    if after > position:
                        position = after
                        continue
                size, offset, kind, channel = _FRAME_START.unpack_from(data, position)
                if size > self._frame_limit or size < 8 or offset < 2 or offset * 4 > size:
                    raise ProtocolViolation(
                        f"a frame of {size} bytes (data offset {offset * 4}); "
                        f"this end takes 8 to {self._frame_limit}"
                    )
                if end - position < size:
                    break
                body = data[position + offset * 4 : position + size]
                is_about_deliveries = body[:3] in DELIVERY_FRAMES
                if events and not is_about_deliveries:
                    yield events
                    events = []
                    continue  # The owner may have closed the connection.
                position += size
                count = len(events)
                if body:
                    self._take_frame(kind, channel, body, events)
                quiet += len(events) == count
                if events and not is_about_deliveries:
                    yield events
                    events = []
            self._buffer = data[position:]
        except (DecodeError, ProtocolViolation) as error:
            failure = error
        if events:
            yield events
        if failure is not None:
            yield self.give_up(failure.condition, str(failure))

    def receive_answer(self, data: bytes, now_ms: int) -> Disposed | None:
        """Take a read that is one DISPOSITION about one delivery, as `receive` would.

        None: it is something else, and nothing was taken.
        """
        head = data[:ANSWER_HEAD_BYTES]
        shape = self._answers.get(head)
        if shape is None:
            if len(self._answers) >= ANSWERS_MAX or (shape := AnswerShape.of(data)) is None:
                return None
            self._answers[head] = shape
        session = self._by_remote_channel.get(shape.channel)
        if session is None or self._buffer or self.phase is not OPEN:
            return None
        event = shape.read(data, session)
        if event is not None:
            self._heard_ms = now_ms
        return event

    @property
    def has_output(self) -> bool:
        """Whether `take_output` would return anything; after CLOSE it may return nothing."""
        if self.output.size_bytes:
            return True
        for session in self.sessions.values():  # noqa: SIM110  # `any` takes three times as long
            if session.pending is not None:
                return True
        return False

    def take_output(self, now_ms: int) -> bytes:
        """Everything to send since the last call.

        `BudgetExceeded` if the peer leaves too many deliveries unsettled: give it up then.
        """
        for session in self.sessions.values():
            if session.pending is not None:
                session.flush()
            if self._has_budgets:
                unsettled = session.unsettled
                count = len(unsettled.by_id)
                is_counted = unsettled.counted_from <= count <= unsettled.counted_to
                if not is_counted and self.phase is not CLOSED:
                    session.count_unsettled()
        data = self.output.take()
        if data:
            self._spoke_ms = now_ms
        return data

    # Limits

    def restrict(self, *, frame_bytes: int, sessions: int, links: int) -> None:
        """Take less than the announced limits from the peer, until `lift_limits`.

        For a peer that has not said who it is. `links` is for each session.
        """
        self._frame_limit, self._session_limit, self._link_limit = frame_bytes, sessions, links

    def lift_limits(self) -> None:
        """Take from the peer all that was announced to it."""
        self._frame_limit, self._session_limit = MAX_FRAME_BYTES, CHANNEL_MAX + 1
        self._link_limit = None
        for session in self.sessions.values():
            session.link_limit = None

    def give_up(self, condition: str, description: str) -> list[Event]:
        """End the connection for that reason, at whatever phase it is; return `Closed`."""
        if self.phase is CLOSED:
            return []
        if self.phase is ConnectionPhase.OPENING and self._server:
            # CLOSE may only follow OPEN.
            self.output.put(encode_frame(0, self._open()))
        if self.phase in (ConnectionPhase.OPENING, OPEN):
            self.close(condition, description)
        self._end()
        return [Closed(Error(condition=Symbol(condition), description=description))]

    # Time

    def postpone_idle(self, now_ms: int) -> None:
        """Count the peer as heard: the owner does not read, so its silence says nothing."""
        self._heard_ms = now_ms

    def next_deadline_ms(self) -> int:
        """When to call `run_timers` next; 0: never.

        Ask when `Opened` comes and after each call of `run_timers`. Before OPEN there is none: the
        owner limits how long the peer may take. Afterwards it only moves to later.
        """
        deadlines = []
        if self._idle_timeout_ms and self.phase in (OPEN, CLOSING):
            deadlines.append(self._heard_ms + self._idle_timeout_ms)
        if self._remote_idle_timeout_ms and self.phase is OPEN:
            deadlines.append(self._spoke_ms + self._remote_idle_timeout_ms // 2)
        return min(deadlines, default=0)

    def run_timers(self, now_ms: int) -> list[Event]:
        """Send a keep-alive that is due; close on a peer that was silent too long."""
        if self.phase is CLOSED:
            return []
        # Nothing heard at all is not silence: the owner limits how long the peer may take to open.
        heard_ms = self._heard_ms or now_ms
        if heard_ms > now_ms:
            self._heard_ms = now_ms  # The clock was set back.
        if self._idle_timeout_ms and now_ms >= heard_ms + self._idle_timeout_ms:
            text = f"the peer sent nothing for {self._idle_timeout_ms // 1000} s"
            return self.give_up(RESOURCE_LIMIT, text)
        if self.phase is OPEN and self._remote_idle_timeout_ms:
            silent_ms = now_ms - self._spoke_ms
            # Below 0 the clock was set back, and nothing says how long it was.
            if silent_ms < 0 or silent_ms >= self._remote_idle_timeout_ms // 2:
                self.output.put(EMPTY_FRAME)
                self._spoke_ms = now_ms
        return []

    # Calls of the owner

    def begin(self) -> Session:
        """Begin a session; it is usable once `Begun` says so."""
        session = self._new_session()
        self.output.put(encode_frame(session.channel, session.begin()))
        return session

    def close(self, condition: str | None = None, description: str | None = None) -> None:
        """Send CLOSE, with an error if one is named; nothing can be sent after it."""
        if self.phase in (CLOSING, CLOSED):
            return
        for session in self.sessions.values():
            session.flush()
        error = Error(condition=Symbol(condition), description=description) if condition else None
        self.output.put(encode_frame(0, Close(error=error)))
        self.output.is_closed = True  # An answer to a frame that is on its way must not follow.
        self.phase = CLOSING

    def end_session(self, session: LinkSession) -> None:
        """Send END for a session, unless it has ended."""
        session.flush()
        ended = self.sessions.pop(session.channel, None)
        if ended is not None:
            ended.release()
            self._budgets.sessions.give_back()
            self.output.put(encode_frame(session.channel, End()))

    # Frames

    def _take_header(self, header: bytes) -> None:
        if header == SASL_HEADER and self._sasl:
            self.phase = ConnectionPhase.SASL
            if self._server:
                self.output.put(SASL_HEADER)
                mechanisms: list[str] = [Symbol(name) for name in offered(self.login)]
                self._put_sasl(SaslMechanisms(sasl_server_mechanisms=mechanisms))
        elif header == AMQP_HEADER:
            self.phase = ConnectionPhase.OPENING
            if self._server:
                self.output.put(AMQP_HEADER)
            else:
                self.output.put(encode_frame(0, self._open()))
        else:
            # AMQP 1.0 part 2.2: answer an unknown header with one we speak, then hang up.
            self.output.put(AMQP_HEADER)
            raise ProtocolViolation(f"an unknown protocol header {header!r}")

    def _take_run(self, data: bytes, position: int, events: list[Event]) -> int:
        """Take the frames from `position` on whose shape is known; return where the run ends."""
        head = data[position + 4 : position + 4 + self._head_size]
        shape = self._shapes.get(head)
        if shape is None:
            return position
        limit_bytes, most = self._frame_limit, self._together_max
        return shape.take_run(data, position, head, limit_bytes, events, most)

    def _take_frame(self, kind: int, channel: int, body: bytes, events: list[Event]) -> None:
        # Nearly every frame is a transfer of one whole delivery, which has a faster decoder.
        if body[2:3] == TRANSFER_CODE and kind == FRAME_TYPE_AMQP and self.phase is OPEN:
            session = self._by_remote_channel.get(channel)
            if session is not None and session.take_delivery(body, events):
                if self.shapes_left:
                    self._learn(session, channel, body, events[-1])
                return
        if body[:3] == DISPOSITION_START and kind == FRAME_TYPE_AMQP and self.phase is OPEN:
            session = self._by_remote_channel.get(channel)
            if session is not None and session.take_disposition(body, events):
                return
        performative, start = decode_performative(body)
        if self.phase is ConnectionPhase.SASL and type(performative) is not Close:
            self._take_sasl(kind, performative)
            return
        if kind != FRAME_TYPE_AMQP:
            raise ProtocolViolation(f"a frame of type {kind} after the sasl exchange")
        session = self._by_remote_channel.get(channel)
        if session is not None and type(performative) in SESSION_FRAMES:
            session.take(performative, body[start:], events)
            return
        match performative:
            case Open():
                self._take_open(performative, events)
            case Begin():
                self._take_begin(performative, channel, events)
            case End() if session is not None:
                del self._by_remote_channel[channel]
                self._shapes.clear()
                if session.channel in self.sessions:
                    self.end_session(session)
                    events.append(Ended(session, performative.error))
            case Close():
                self.peer_closed = True
                self.close()
                self._end()
                events.append(Closed(performative.error))
            # Anything else is for a channel that is gone: pyamqp detaches after END.

    def _learn(self, session: Session, channel: int, body: bytes, event: Event) -> None:
        """Remember the shape of a transfer that the general decoder read."""
        if type(event) is not DeliveryArrived:
            return  # It was too large, and its link is closed.
        found = TransferShape.of(session, channel, body, event)
        if found is None:
            return
        head, shape = found
        self.shapes_left -= 1
        # One length for all heads: the lookup comes before anything else is known of a frame.
        self._head_size = self._head_size or len(head)
        if len(head) == self._head_size:
            self._shapes[head] = shape

    def _take_sasl(self, kind: int, frame: object) -> None:
        if kind != FRAME_TYPE_SASL:
            raise ProtocolViolation(f"a frame of type {kind} during the sasl exchange")
        match frame:
            case SaslInit() if self._server:
                refusal = why_refused(frame, self.login)
                self._put_sasl(SaslOutcome(code=SASL_OK if refusal is None else SASL_AUTH_FAILED))
                if refusal is None:
                    self.phase = ConnectionPhase.HEADER
                    return
                text = refusal
            case SaslMechanisms() if not self._server:
                names = [str(name) for name in frame.sasl_server_mechanisms or []]
                if ANONYMOUS in names:
                    self._put_sasl(SaslInit(mechanism=Symbol(ANONYMOUS), initial_response=b""))
                    return
                text = f"the peer offers {names}, not {ANONYMOUS}"
            case SaslOutcome() if not self._server:
                if frame.code == SASL_OK:
                    self.phase = ConnectionPhase.HEADER
                    self.output.put(AMQP_HEADER)
                    return
                text = f"the peer refused the login (sasl outcome {frame.code})"
            case _:
                text = f"unexpected {type(frame).__name__} during sasl"
        raise ProtocolViolation(text, conditions.UNAUTHORIZED)

    def _put_sasl(self, frame: SaslMechanisms | SaslInit | SaslOutcome) -> None:
        self.output.put(encode_frame(0, frame, frame_type=FRAME_TYPE_SASL))

    def _take_open(self, remote: Open, events: list[Event]) -> None:
        if self.phase is not ConnectionPhase.OPENING:
            raise ProtocolViolation("a second open frame")
        idle_ms = remote.idle_time_out or 0
        if 0 < idle_ms < IDLE_TIMEOUT_LEAST_MS:
            # AMQP 1.0 part 2.4.5: close on a value that this end cannot support, and say so.
            raise ProtocolViolation(
                f"the idle-time-out is {idle_ms} ms; ask for {IDLE_TIMEOUT_LEAST_MS} ms or more, "
                "or for none",
                INVALID_FIELD,
            )
        self.phase = ConnectionPhase.OPEN
        self.remote_container_id = remote.container_id or ""
        self.remote_hostname = remote.hostname or ""
        asked = MAX_FRAME_BYTES if remote.max_frame_size is None else remote.max_frame_size
        self.output.max_frame_size = max(asked, SMALLEST_MAX_FRAME_BYTES)
        self._remote_idle_timeout_ms = idle_ms
        if remote.channel_max is not None:
            self._channel_max = min(CHANNEL_MAX, remote.channel_max)
        if self._server:
            self.output.put(encode_frame(0, self._open()))
        events.append(Opened(remote))

    def _open(self) -> Open:
        return Open(
            container_id=self.container_id,
            hostname=self._hostname,
            max_frame_size=UInt(MAX_FRAME_BYTES),
            channel_max=UShort(CHANNEL_MAX),
            idle_time_out=UInt(self._idle_timeout_ms) if self._idle_timeout_ms else None,
        )

    def _take_begin(self, begin: Begin, channel: int, events: list[Event]) -> None:
        if channel in self._by_remote_channel:
            raise ProtocolViolation(f"a second begin on channel {channel}")
        if begin.remote_channel is None:
            if len(self.sessions) >= self._session_limit:
                text = f"more than {self._session_limit} sessions of a client without a token"
                raise ProtocolViolation(text, RESOURCE_LIMIT)
            session = self._new_session()
            session.take_begin(begin, channel)
            self.output.put(encode_frame(session.channel, session.begin()))
        else:
            found = self.sessions.get(begin.remote_channel)
            if self._server or (found is not None and found.begun):
                # Two channels of one session would outlive each other's END, with all their links.
                text = f"a begin that answers channel {begin.remote_channel}, which waits for none"
                raise ProtocolViolation(text, NOT_ALLOWED)
            if found is None:
                return  # This end has given it up.
            session = found
            session.take_begin(begin, channel)
        self._by_remote_channel[channel] = session
        events.append(Begun(session))

    def _new_session(self) -> Session:
        most = self._channel_max
        channel = next(n for n in range(most + 2) if n not in self.sessions)
        if channel > most:
            raise ProtocolViolation(f"more than {most + 1} sessions on one connection")
        self._budgets.sessions.take()
        session = Session(self.output, channel, self._handle_max, self._budgets)
        self.sessions[channel] = session
        session.link_limit = self._link_limit
        return session

    def _end(self) -> None:
        self.phase = ConnectionPhase.CLOSED
        self.output.is_closed = True
