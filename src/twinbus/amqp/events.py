"""Events that a connection returns to its owner; each names the link or session it is about.

`Connection.receive` yields them in the order in which their frames came.

Nearly all frames of a busy link differ only in size, delivery id, tag and payload. `TransferShape`
keeps what a link's transfers have in common and reads a run of them with one struct each: they
become one `DeliveryRun`, whose payloads are not copied. `AnswerShape` does the same for the answer
to a delivery that was sent alone. Frames of another shape go to the general decoder, which also
reports errors.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from twinbus.amqp.frames import DISPOSITION_LIST, disposition_fields
from twinbus.amqp.link import SERIAL_MASK, Link, LinkSession, LinkState, ReceiverLink, SenderLink
from twinbus.amqp.performatives import Error, Open


@dataclass(slots=True)
class Opened:
    """The peer's OPEN arrived; the connection can carry sessions."""

    open: Open


@dataclass(slots=True)
class Closed:
    """The connection is over: the peer closed it or broke the protocol."""

    error: Error | None


@dataclass(slots=True)
class Begun:
    """A session is usable: the peer began one, or answered ours."""

    session: LinkSession


@dataclass(slots=True)
class Ended:
    """The peer ended a session; its links are gone."""

    session: LinkSession
    error: Error | None


@dataclass(slots=True)
class Attached:
    """The peer attached a link (answer with `accept` or `refuse`), or answered ours."""

    link: Link


@dataclass(slots=True)
class Detached:
    """The peer detached a link; `error` says why, if it failed."""

    link: Link
    error: Error | None
    closed: bool


@dataclass(slots=True)
class DetachAnswered:
    """The peer answered the DETACH of a link that this end closed."""

    link: Link


@dataclass(slots=True)
class CreditChanged:
    """The peer's FLOW changed what a sender link may send, or asked it to drain.

    A FLOW may come before the owner accepts the link. It causes no event then: `accept` is when the
    owner reads the credit that the link has.
    """

    link: SenderLink


@dataclass(slots=True)
class Drained:
    """The peer gave back the credit that a receiver link asked it to drain."""

    link: ReceiverLink


@dataclass(slots=True)
class FlowArrived:
    """The peer's FLOW about a receiver link that did not drain: a sign of life."""

    link: ReceiverLink


@dataclass(slots=True, eq=False)
class DeliveryArrived:
    """One whole delivery (all its frames joined) came in on a receiver link."""

    link: ReceiverLink
    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool
    payload: bytes
    state: object = None
    """The transactional state that came with it; other states of a transfer mean nothing here."""


Span = tuple[bytes, int, int]
"""Tag of a delivery, and where its payload starts and ends in the bytes of its run."""


@dataclass(slots=True, eq=False)
class DeliveryRun:
    """Whole deliveries of one link that came in one read, with consecutive delivery ids.

    Their frames look alike; none of them belongs to a transaction.
    """

    link: ReceiverLink
    first_id: int
    """Delivery id of the first; those of the others follow, below 2^32."""
    message_format: int
    settled: bool
    data: bytes
    spans: list[Span]
    """At least one."""

    def deliveries(self, first: int = 0) -> list[DeliveryArrived]:
        """Each delivery as an event of its own, from the one at that place on."""
        data, link, form, settled = self.data, self.link, self.message_format, self.settled
        spans = self.spans[first:] if first else self.spans
        return [
            DeliveryArrived(link, number, tag, form, settled, data[start:stop])
            for number, (tag, start, stop) in enumerate(spans, self.first_id + first)
        ]


@dataclass(slots=True, eq=False)
class DeliveryTooLarge:
    """A delivery exceeds the link's limit; its payload was dropped. The owner rejects it."""

    link: ReceiverLink
    delivery_id: int
    settled: bool
    state: object = None


@dataclass(slots=True, eq=False)
class Disposed:
    """The peer's DISPOSITION: a state for the deliveries `first` to `last` of one session."""

    session: LinkSession
    by_receiver: bool
    """True for deliveries that this end sent."""
    first: int
    last: int
    settled: bool
    state: object

    def among(self, ids: Collection[int]) -> list[int]:
        """Which of these delivery ids the range holds; a wide range costs a look at each of them.

        To count through the range would take minutes: a peer can name two billion ids.
        """
        span = (self.last - self.first) & SERIAL_MASK
        if span < len(ids):
            numbers = (n & SERIAL_MASK for n in range(self.first, self.first + span + 1))
            return [number for number in numbers if number in ids]
        return [number for number in ids if (number - self.first) & SERIAL_MASK <= span]


Event = (
    Opened
    | Closed
    | Begun
    | Ended
    | Attached
    | Detached
    | DetachAnswered
    | CreditChanged
    | Drained
    | FlowArrived
    | DeliveryArrived
    | DeliveryRun
    | DeliveryTooLarge
    | Disposed
)


def one_by_one(events: Iterable[Event]) -> Iterator[Event]:
    """The same events, with each delivery of a run as an event of its own."""
    for event in events:
        if type(event) is DeliveryRun:
            yield from event.deliveries()
        else:
            yield event


SHAPES_MAX: Final = 256
"""Shapes that one connection may remember: a bound for peers whose transfers never look alike."""

OPEN: Final = LinkState.OPEN
_FRAME: Final = struct.Struct(">BBH").pack
_HANDLE_BYTES: Final = {0x43: 1, 0x52: 2, 0x70: 5}
_UINT: Final = 0x70
_SHORT_BINARY: Final = 0xA0
_SHORT_LIST: Final = 0xC0


class TransferShape:
    """The start of one link's incoming transfers, each of them a whole delivery."""

    __slots__ = ("_format", "_link", "_mark", "_session", "_settled", "_size", "_tail", "_unpack")

    def __init__(
        self, session: LinkSession, link: ReceiverLink, tag_size: int, tail: bytes, head_size: int
    ) -> None:
        self._session = session
        self._link = link
        layout = struct.Struct(f">I{head_size}sI2s{tag_size}s{len(tail)}s")
        self._unpack = layout.unpack_from
        self._size = layout.size
        self._mark = bytes((_SHORT_BINARY, tag_size))
        self._tail = tail
        self._format = 0
        self._settled = False

    @classmethod
    def of(
        cls, session: LinkSession, channel: int, body: bytes, delivery: DeliveryArrived
    ) -> tuple[bytes, TransferShape] | None:
        """The shape of a transfer that the general decoder read, and the head that identifies it.

        The head is the bytes between a frame's size and its delivery id. None if the frame has
        no sizes of one byte, or a delivery id that is not written in full.
        """
        if body[3] != _SHORT_LIST:
            return None
        id_at = 6 + _HANDLE_BYTES.get(body[6], 0)
        if id_at == 6 or body[id_at] != _UINT or body[id_at + 5] != _SHORT_BINARY:
            return None
        tag_size = body[id_at + 6]
        tail = body[id_at + 7 + tag_size : 5 + body[4]]
        head = _FRAME(2, 0, channel) + body[: id_at + 1]
        shape = cls(session, delivery.link, tag_size, tail, len(head))
        shape._format = delivery.message_format
        shape._settled = delivery.settled
        return head, shape

    def take_run(
        self,
        data: bytes,
        position: int,
        head: bytes,
        most_bytes: int,
        events: list[Event],
        most: int,
    ) -> int:
        """Read the frames from `position` on that have this shape; return where the run ends.

        `most_bytes` is the largest frame that is taken. The run ends before a delivery id that does
        not follow, and has at most `most` deliveries.
        """
        link = self._link
        if link.state is not OPEN or link.partial_start is not None:
            return position
        unpack, mark, tail, least = self._unpack, self._mark, self._tail, self._size
        most_bytes = min(most_bytes, least + link.limit_bytes)
        end, last = len(data), len(data) - least
        spans: list[Span] = []
        append = spans.append
        first_id = next_id = -1
        for _ in range(most):
            if position > last:
                break
            size, found, delivery_id, tag_mark, tag, flags = unpack(data, position)
            stop = position + size
            if found != head or flags != tail or tag_mark != mark:
                break
            if size < least or size > most_bytes or stop > end:
                break
            if delivery_id != next_id:
                if spans:
                    break
                first_id = next_id = delivery_id
            next_id += 1
            append((tag, position + least, stop))
            position = stop
        if spans:
            events.append(DeliveryRun(link, first_id, self._format, self._settled, data, spans))
            link.count_incoming(len(spans))
            self._session.count_incoming(len(spans))
        return position


ANSWERS_MAX: Final = 16
"""Shapes of answers that one connection may remember: one for each session and outcome."""

ANSWER_HEAD_BYTES: Final = 16
_ANSWER_BYTES: Final = range(26, 64)
"""Sizes of a read that can be such an answer: a state without an error needs few bytes."""
_ANSWER_START: Final = struct.Struct(">IBBH4sBBBB").unpack_from


class AnswerShape:
    """A read that is one DISPOSITION about one delivery: all of it but the delivery id.

    To one message at a time a peer answers with the same bytes each time, but for that number.
    """

    __slots__ = ("_role", "_settled", "_size", "_state", "_tail", "_unpack", "channel")

    def __init__(
        self, channel: int, size: int, tail: bytes, role: bool, settled: bool, state: object
    ) -> None:
        self.channel = channel
        self._size = size
        self._unpack = struct.Struct(f">{ANSWER_HEAD_BYTES}xIBI{len(tail)}s").unpack
        self._tail = tail
        self._role = role
        self._settled = settled
        self._state = state

    @classmethod
    def of(cls, data: bytes) -> AnswerShape | None:
        """The shape of a read; None: it is something else, or has no numbers written in full."""
        if len(data) not in _ANSWER_BYTES:
            return None
        size, offset, kind, channel, start, listed, _, _, first_form = _ANSWER_START(data)
        body = data[8:]
        is_plain = (size, offset, kind, listed) == (len(data), 2, 0, len(body) - 5)
        if not is_plain or start != DISPOSITION_LIST or first_form != _UINT or body[12] != _UINT:
            return None
        fields = disposition_fields(body)
        if fields is None:
            return None
        role, _, _, (settled, state, _), _ = fields
        return cls(channel, size, body[17:], role, settled, state)

    def read(self, data: bytes, session: LinkSession) -> Disposed | None:
        """The event of a read with the same head; None: the rest of it is different."""
        if len(data) != self._size:
            return None
        first, form, last, tail = self._unpack(data)
        if first != last or form != _UINT or tail != self._tail:
            return None
        return Disposed(session, self._role, first, first, self._settled, self._state)
