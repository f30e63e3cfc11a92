"""Links of a session: one that sends deliveries and one that receives them, for either end.

    ours:   attach -----------> open <-- peer's attach          detach / refuse --> closed
    peer's: peer's attach --> offered --accept--> open

A link writes its frames through its session; only the session knows channels and windows.
`Unsettled` has the deliveries that a session's links have sent and the peer has not settled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Protocol

from twinbus.amqp.decoding import Wire
from twinbus.amqp.frames import TransferPrefix
from twinbus.amqp.performatives import (
    Attach,
    Coordinator,
    Detach,
    Error,
    Flow,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from twinbus.amqp.types import Symbol, UInt, ULong

SERIAL_MASK = 0xFFFF_FFFF
"""Delivery ids and counts are 32-bit serial numbers that wrap."""

HALF_SERIAL = 1 << 31
"""Distance of serial numbers from which on one is not ahead of the other but behind."""

SETTLED = 1
"""snd-settle-mode of a link whose deliveries are all settled by the sender."""

MAX_MESSAGE_BYTES = 100 * 1024 * 1024
"""Largest delivery joined from frames unless the owner sets less; Azure Premium's own limit."""


def serial_ahead(number: int, other: int) -> int:
    """How far one serial number is ahead of another; 0 if it is not.

    Only ids and counts are serial numbers. A window or a credit is a plain number: both may be
    2^32-1 (every FLOW of the .NET SDK), so neither may be added to one of them modulo 2^32.
    """
    ahead = (number - other) & SERIAL_MASK
    return ahead if ahead < HALF_SERIAL else 0


class LinkSession(Protocol):
    """What a link and its owner use of their session; `twinbus.amqp.session` has the methods."""

    channel: int
    links: dict[int, Link]
    next_delivery_id: int

    def blocks(self, link: SenderLink) -> bool: ...
    def write(self, performative: Attach | Detach) -> None: ...
    def write_flow(
        self, *, handle: int, delivery_count: int, link_credit: int, drain: bool
    ) -> None: ...
    def send_transfer(
        self,
        link: SenderLink,
        payload: bytes,
        tag: bytes,
        settled: bool,
        message_format: int,
        state: TransactionalState | None = None,
    ) -> int: ...
    def send_run(
        self, link: SenderLink, tags: list[bytes], heads: Iterable[bytes], rests: Sequence[Wire]
    ) -> int: ...
    def count_incoming(self, count: int) -> None: ...
    def settle(self, first: int, last: int, state: bytes, *, as_receiver: bool) -> None: ...
    def dispose(self, first: int, last: int, state: bytes) -> None: ...
    def confirm(self, first: int, last: int, state: bytes) -> None: ...
    def drop_settled(self, link: SenderLink, tags: set[bytes]) -> bool: ...
    def take_unsettled(self, first: int, last: int) -> list[tuple[int, SenderLink, bytes]]: ...
    def find_unsettled(self, first: int, last: int) -> list[tuple[int, SenderLink, bytes]]: ...
    def take_one(self, delivery_id: int) -> bool: ...
    def flush(self) -> None: ...
    def forget(self, link: Link) -> None: ...


class LinkState(Enum):
    ATTACHING = "attaching"
    OFFERED = "offered"
    OPEN = "open"
    CLOSED = "closed"


class Link:
    """A link of either direction: name, handle, termini, attach and detach."""

    sends = False
    """True for a link on which this end is the sender."""

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        self.state = LinkState.OFFERED
        self.source: Source | None = None
        self.target: Target | Coordinator | None = None
        self.snd_settle_mode = 2
        self.rcv_settle_mode = 0
        self.delivery_count = 0
        self.credit = 0
        self.properties: dict[object, object] = {}
        self.max_message_size = 0
        """The peer's limit; 0: none."""
        self.held_bytes = 0
        """Bytes of the peer's budget that this link takes while its handle is in use."""
        self.owner: object = None
        """The application's object for this link; this package does not use it."""

    def __repr__(self) -> str:
        direction = "to" if self.sends else "from"
        return f"<{self.state.value} link {self.name!r} {direction} the peer, handle {self.handle}>"

    def remember(self, attach: Attach) -> None:
        self.source = attach.source
        self.target = attach.target
        if attach.snd_settle_mode is not None:
            self.snd_settle_mode = attach.snd_settle_mode
        if attach.rcv_settle_mode is not None:
            self.rcv_settle_mode = attach.rcv_settle_mode
        self.properties = attach.properties or {}
        self.max_message_size = attach.max_message_size or 0

    def accept(
        self,
        *,
        source: Source | None = None,
        max_message_size: int = 0,
        properties: dict[object, object] | None = None,
    ) -> None:
        """Answer the peer's attach; its termini are echoed unless `source` replaces one.

        Only filters in force may be answered (AMQP 1.0 part 3.5.8), so those of the peer are not
        echoed: an owner that applies one says so with `source`.

        `max_message_size` is for a link on which the peer sends. On the others a client would hold
        this end to it, and a delivery is larger than the message was when it was sent.
        """
        assert self.state is LinkState.OFFERED, self
        assert not (self.sends and max_message_size), self
        self.state = LinkState.OPEN
        answered = source or self.source
        if source is None and answered is not None and answered.filter is not None and self.sends:
            answered = replace(answered, filter=None, raw=None)
        self._attach(answered, self.target, max_message_size, properties)

    def refuse(self, condition: str, description: str) -> None:
        """Refuse the peer's attach: an ATTACH with a null terminus, then a closing DETACH.

        With a non-null terminus the Python SDK takes the link as attached.
        """
        assert self.state is LinkState.OFFERED, self
        self.detach(condition, description)

    def detach(self, condition: str | None = None, description: str | None = None) -> None:
        if self.state is LinkState.CLOSED:
            return
        if self.state is LinkState.OFFERED:
            # A DETACH names an attached handle: without this the peer would know none.
            source = None if self.sends else self.source
            self._attach(source, self.target if self.sends else None, 0, None)
        error = Error(condition=Symbol(condition), description=description) if condition else None
        self.state = LinkState.CLOSED
        self.session.write(Detach(handle=UInt(self.handle), closed=True, error=error))
        self.session.forget(self)

    def _attach(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        max_message_size: int,
        properties: dict[object, object] | None,
    ) -> None:
        self.session.write(
            Attach(
                name=self.name,
                handle=UInt(self.handle),
                role=not self.sends,
                snd_settle_mode=self.snd_settle_mode,
                rcv_settle_mode=self.rcv_settle_mode,
                source=source,
                target=target,
                # Null makes the Python SDK detach at once.
                initial_delivery_count=UInt(0) if self.sends else None,
                max_message_size=ULong(max_message_size) if max_message_size else None,
                properties=properties,
            )
        )


class SenderLink(Link):
    """A link on which this end sends, within the peer's credit."""

    sends = True

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.drain = False
        """The peer asked for what is ready; the rest of its credit is to be given back."""
        self.blocked_frames = 0
        """Frames of its transfers that wait for the window of the session."""
        self.prefixes: dict[tuple[int, bool, int], TransferPrefix] = {}
        """Prefixes of its transfers, by size of the tag, settled, and message format."""

    def take_flow(self, flow: Flow) -> None:
        """Take the peer's credit. `max`: pyamqp lowers its credit with a stale count."""
        # Without a count the peer has not read our ATTACH, which said 0.
        on_their_way = serial_ahead(self.delivery_count, flow.delivery_count or 0)
        self.credit = max(0, (flow.link_credit or 0) - on_their_way)
        self.drain = bool(flow.drain)

    def send(
        self,
        payload: bytes,
        tag: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
        state: TransactionalState | None = None,
    ) -> int:
        """Send one delivery, using one credit; returns its delivery id."""
        assert self.credit > 0, self
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        return self.session.send_transfer(self, payload, tag, settled, message_format, state)

    def send_run(self, tags: list[bytes], heads: Iterable[bytes], rests: Sequence[Wire]) -> int:
        """Send deliveries of format 0, unsettled, that can be written at once; return how many.

        Each is given by its tag (all of one size) and the two parts of its payload, which are
        copied. Their ids are consecutive; those that are left are to be sent one by one.
        """
        if self.credit < len(tags):
            tags = tags[: self.credit]
        count = self.session.send_run(self, tags, heads, rests) if tags else 0
        self.credit -= count
        self.delivery_count = (self.delivery_count + count) & SERIAL_MASK
        return count

    def drained(self) -> None:
        """Give back the rest of the credit; a draining peer waits for this."""
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL_MASK
        self.credit = 0
        self.drain = False
        self.session.write_flow(
            handle=self.handle, delivery_count=self.delivery_count, link_credit=0, drain=True
        )


class ReceiverLink(Link):
    """A link on which the peer sends; this end grants credit and joins frames to deliveries."""

    def __init__(self, session: LinkSession, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.is_draining = False
        """The peer was asked to drain and has not answered; deliveries may still come."""
        self.limit_bytes = MAX_MESSAGE_BYTES
        self.partial: list[bytes] = []
        self.partial_bytes = 0
        self.partial_held = 0
        """Bytes of the peer's budget that the unfinished delivery takes."""
        self.partial_start: tuple[int, bytes, int, bool, object] | None = None
        """Delivery id, tag, format, settled and state of a delivery whose frames still come."""
        self.rejects_oversize = False
        """True: the owner rejects a delivery beyond the limit and the link stays open. False: the
        session detaches the link."""
        self.is_skipping = False
        """The delivery under way was too large; its remaining frames are dropped."""

    def count_incoming(self, count: int) -> None:
        self.delivery_count = (self.delivery_count + count) & SERIAL_MASK
        self.credit -= count

    def skips(self, transfer: Transfer) -> bool:
        """Drop a frame of a delivery that was too large; false if it begins another delivery."""
        assert self.partial_start is not None, self
        is_next = transfer.delivery_id not in (None, self.partial_start[0])
        if is_next or transfer.aborted or not transfer.more:
            self.partial_start, self.is_skipping = None, False
        return not is_next

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Let the peer send up to `credit` deliveries from now on."""
        self.credit = credit
        self.is_draining = drain
        self.session.write_flow(
            handle=self.handle, delivery_count=self.delivery_count, link_credit=credit, drain=drain
        )

    def take_flow(self, flow: Flow) -> None:
        """Follow a sender that gave credit back after a drain."""
        is_used_up = self.is_draining and flow.link_credit == 0
        # Microsoft's AMQP library answers a drain with a credit of 0 and without the flag.
        if flow.drain or is_used_up:
            self.is_draining = False
        if flow.delivery_count is not None:
            skipped = (flow.delivery_count - self.delivery_count) & SERIAL_MASK
            self.delivery_count = flow.delivery_count
            self.credit = max(0, self.credit - skipped)
        if is_used_up:
            self.credit = 0


CLOSED = LinkState.CLOSED

NARROW = 64
"""Width of a range whose ids are tried one by one; a client that settles each delivery needs 1."""

SWEEP_FLOOR = 64
"""Entries below which sweeping costs more than it frees."""


COUNT_STEP = 1_024
"""Unsettled deliveries are taken from the peer's budget this many at a time, once in a write: to
count each of them would cost every message."""


class Unsettled:
    """Deliveries that this end sent and the peer has not settled, by delivery id.

    The peer settles ranges of ids. A range may be wide and hold few of them, and a frame of 30
    bytes names it, so the work of a range must not depend on its width or on what lies outside it.
    """

    __slots__ = ("_order", "_sweep_at", "by_id", "counted_from", "counted_to", "known_to")

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[SenderLink, bytes]] = {}
        """Link and tag of each delivery, in the order in which they were sent."""
        self._order: list[int] = []
        """The ids in order, for wide ranges; made when one comes, may hold ids that are settled."""
        self.known_to = 0
        """The id from which on the order knows nothing."""
        self._sweep_at = SWEEP_FLOOR
        self.counted_from, self.counted_to = 0, COUNT_STEP
        """The peer's budget has room for so many deliveries; those of one step are free."""

    def recount(self) -> int:
        """Count in steps; return how many deliveries more (or fewer) the budget must hold."""
        before = self.counted_to
        self.counted_to = max(1, -(-len(self.by_id) // COUNT_STEP)) * COUNT_STEP
        self.counted_from = self.counted_to // 4 if self.counted_to > COUNT_STEP else 0
        return self.counted_to - before

    def take(self, first: int, last: int, next_id: int) -> list[tuple[int, SenderLink, bytes]]:
        """Remove the deliveries in that range; return id, link and tag of those on open links.

        `next_id` is the id of the next delivery that will be sent.
        """
        taken = []
        for delivery_id in self._ids(first, last, next_id, keep=False):
            entry = self.by_id.pop(delivery_id, None)
            if entry is not None and entry[0].state is not CLOSED:
                taken.append((delivery_id, entry[0], entry[1]))
        return taken

    def find(self, first: int, last: int, next_id: int) -> list[tuple[int, SenderLink, bytes]]:
        """Like `take`, and the deliveries stay."""
        found = []
        for delivery_id in self._ids(first, last, next_id, keep=True):
            entry = self.by_id.get(delivery_id)
            if entry is not None and entry[0].state is not CLOSED:
                found.append((delivery_id, entry[0], entry[1]))
        return found

    def _ids(self, first: int, last: int, next_id: int, *, keep: bool) -> list[int]:
        span = (last - first) & SERIAL_MASK
        if span < NARROW:
            return [n & SERIAL_MASK for n in range(first, first + span + 1)]
        return self._between(first, span, next_id, keep=keep)

    def drop(self, link: SenderLink, tags: set[bytes]) -> None:
        """Forget these deliveries of a link: the peer has settled them by other means."""
        by_id = self.by_id
        for number in [n for n, entry in by_id.items() if entry[0] is link and entry[1] in tags]:
            del by_id[number]

    def forget(self) -> None:
        """Drop the deliveries of closed links, once they may be as many as the others."""
        if len(self.by_id) < self._sweep_at:
            return
        for delivery_id in [n for n, entry in self.by_id.items() if entry[0].state is CLOSED]:
            del self.by_id[delivery_id]
        self._sweep_at = max(SWEEP_FLOOR, 2 * len(self.by_id))

    def _between(self, first: int, span: int, next_id: int, *, keep: bool) -> list[int]:
        """Ids of the order from `first` on, over `span`; unless `keep`, they leave the order.

        The caller then settles all of them.
        """
        by_id, order = self.by_id, self._order
        count = (next_id - self.known_to) & SERIAL_MASK if by_id else 0
        if count + len(order) > 2 * len(by_id) + NARROW:
            # Most of them are settled, by narrow ranges: fewer are looked at here.
            order = self._order = list(by_id)
        else:
            new = (n & SERIAL_MASK for n in range(self.known_to, self.known_to + count))
            order.extend(n for n in new if n in by_id)
        self.known_to = next_id
        if not order:
            return []
        base = order[0]

        def place(delivery_id: int) -> int:
            return (delivery_id - base) & SERIAL_MASK

        start, end = place(first), place(first + span)
        # A place in the upper half lies before the base, or beyond all ids if the range began here.
        low = 0 if start >= HALF_SERIAL else bisect_left(order, start, key=place)
        if end < HALF_SERIAL:
            high = bisect_right(order, end, key=place)
        else:
            high = len(order) if start < HALF_SERIAL else 0
        ids = order[low:high]
        if len(ids) > NARROW and not keep:
            # Fewer stay in the order: to remove them would cost more than to meet them again.
            del order[low:high]
        return ids
