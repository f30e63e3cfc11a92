"""A session: the windows of one channel, its links, and the settlement of what they carry.

Transfers that the peer's window does not yet allow wait here in order. Dispositions of consecutive
deliveries are joined into ranges: a client reads one range faster than a thousand frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

from twinbus.amqp.budgets import (
    PIECE_BYTES,
    UNSETTLED_BYTES,
    BudgetExceeded,
    PeerBudgets,
    link_bytes,
)
from twinbus.amqp.decoding import MALFORMED, Wire
from twinbus.amqp.events import (
    Attached,
    CreditChanged,
    DeliveryArrived,
    DeliveryTooLarge,
    DetachAnswered,
    Detached,
    Disposed,
    Drained,
    Event,
    FlowArrived,
)
from twinbus.amqp.frames import (
    FrameOutput,
    ProtocolViolation,
    TransferPrefix,
    disposition_fields,
    encode_disposition_frame,
    encode_frame,
    encode_transfer_frame,
    transfer_fields,
)
from twinbus.amqp.link import (
    COUNT_STEP,
    HALF_SERIAL,
    SERIAL_MASK,
    SWEEP_FLOOR,
    Link,
    LinkState,
    ReceiverLink,
    SenderLink,
    Unsettled,
    serial_ahead,
)
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Coordinator,
    Detach,
    Disposition,
    Flow,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from twinbus.amqp.types import UInt
from twinbus.servicebus import conditions
from twinbus.servicebus.conditions import ERRANT_LINK, HANDLE_IN_USE, RESOURCE_LIMIT, TRANSFER_LIMIT

INCOMING_WINDOW = 65_535
"""Transfers the peer may send before we renew the window; renewed when half is used."""

RENEW_BELOW = INCOMING_WINDOW // 2

OUTGOING_WINDOW = 65_535
HANDLE_MAX = 65_535
TRANSFER_OVERHEAD = 64
"""Bytes of a frame that a transfer's own performative may take; the rest carries payload."""

STATE_OVERHEAD = 128
"""The same of a transactional state, whose transaction has an id of at most 32 bytes."""

TAG_BYTES_MAX = 16
"""Longest tag for which the prefix of a transfer is remembered: a lock token."""

ID_BYTES_MAX = 255
"""Longest tag of a delivery and id of a transaction; AMQP 1.0 says 32 for both. The
gateway keeps them for as long as a delivery has no answer."""

ULONG_DESCRIPTOR = b"\x00\x53"
OPEN, CLOSED = LinkState.OPEN, LinkState.CLOSED


class Session:
    def __init__(
        self,
        output: FrameOutput,
        channel: int,
        handle_max: int = HANDLE_MAX,
        budgets: PeerBudgets | None = None,
    ) -> None:
        self._output = output
        self._budgets = budgets or PeerBudgets()
        self.channel = channel
        self.remote_channel: int | None = None
        self.begun = False
        """Both BEGINs were exchanged."""
        self.links: dict[int, Link] = {}
        self.owner: object = None
        self._by_remote_handle: dict[int, Link] = {}
        self._attaching: dict[tuple[str, bool], Link] = {}
        self.next_outgoing_id = 0
        self.next_delivery_id = 0
        self.next_incoming_id = 0
        self.incoming_window = INCOMING_WINDOW
        self.remote_incoming_window = 0
        self._blocked: deque[tuple[SenderLink, bytes]] = deque()
        self._window_waiters: dict[SenderLink, None] = {}
        """Links that had more to send while transfers waited for the peer's window."""
        self.flows = 0
        """FLOW frames that came."""
        self._next_handle = 0
        self._own_handle_max = self.handle_max = handle_max
        self.link_limit: int | None = None
        """Most links of the peer, those included that it has not detached; None: as announced."""
        self._free_handles: list[int] = []
        self.unsettled = Unsettled()
        self._unsettled_by_id = self.unsettled.by_id
        self.pending: tuple[bool, int, int, bytes] | None = None
        """The disposition that is still being joined: as a receiver, first, last and state."""
        self._handlers: dict[type, Callable[..., None]] = {
            Transfer: self._on_transfer,
            Disposition: self._on_disposition,
            Flow: self._on_flow,
            Attach: self._on_attach,
            Detach: self._on_detach,
        }

    def __repr__(self) -> str:
        return f"<session on channel {self.channel}, {len(self.links)} links>"

    # Calls of the owner

    def attach_sender(
        self,
        name: str,
        *,
        source: Source,
        target: Target | Coordinator,
        settled: bool = False,
        properties: dict[object, object] | None = None,
    ) -> SenderLink:
        """Attach a link on which we send to `target`; it is open once `Attached` says so."""
        link = SenderLink(self, name, self._new_handle())
        link.snd_settle_mode = 1 if settled else 0
        self._attach(link, source, target, properties)
        return link

    def attach_receiver(
        self,
        name: str,
        *,
        source: Source,
        target: Target,
        settled: bool = False,
        confirmed: bool = False,
        properties: dict[object, object] | None = None,
    ) -> ReceiverLink:
        """Attach a link on which we receive from `source`; `settled`: received is deleted.

        `confirmed`: an outcome that we `dispose` counts when the peer settles it (peek-lock).
        """
        link = ReceiverLink(self, name, self._new_handle())
        link.snd_settle_mode = 1 if settled else 0
        link.rcv_settle_mode = 1 if confirmed else 0
        self._attach(link, source, target, properties)
        return link

    def settle(self, first: int, last: int, state: bytes, *, as_receiver: bool) -> None:
        """Settle deliveries `first` to `last` with an encoded state; neighbours are joined."""
        pending = self.pending
        if pending is not None:
            role, low, high, pending_state = pending
            if role == as_receiver and state == pending_state and first == high + 1:
                self.pending = (role, low, last, state)
                return
            self.flush()
        self.pending = (as_receiver, first, last, state)

    def dispose(self, first: int, last: int, state: bytes) -> None:
        """As a receiver, send an outcome without settling: the peer's settlement confirms it."""
        self._output.put(encode_disposition_frame(self.channel, True, first, last, False, state))

    def confirm(self, first: int, last: int, state: bytes) -> None:
        """As a sender, repeat the peer's outcome without settling: it is part of a transaction."""
        self.flush()
        self._output.put(encode_disposition_frame(self.channel, False, first, last, False, state))

    def take_unsettled(self, first: int, last: int) -> list[tuple[int, SenderLink, bytes]]:
        """Remove our unsettled deliveries in that range; return id, link and tag of each."""
        return self.unsettled.take(first, last, self.next_delivery_id)

    def take_one(self, delivery_id: int) -> bool:
        """Remove one of our unsettled deliveries; whether it was one, and its link is open."""
        entry = self._unsettled_by_id.pop(delivery_id, None)
        return entry is not None and entry[0].state is not CLOSED

    def drop_settled(self, link: SenderLink, tags: set[bytes]) -> bool:
        """Forget deliveries with these tags, once they are many; true: done, or there are none.

        For those that the peer settled by a request: it sends no disposition for them.
        """
        unsettled = self.unsettled
        if len(tags) < max(SWEEP_FLOOR, len(unsettled.by_id) // 4):
            return False
        unsettled.drop(link, tags)
        return True

    def find_unsettled(self, first: int, last: int) -> list[tuple[int, SenderLink, bytes]]:
        """The same, and they stay unsettled."""
        return self.unsettled.find(first, last, self.next_delivery_id)

    def flush(self) -> None:
        """Write the disposition that is still being joined."""
        if self.pending is not None:
            role, first, last, state = self.pending
            self.pending = None
            self._output.put(encode_disposition_frame(self.channel, role, first, last, True, state))

    def blocks(self, link: SenderLink) -> bool:
        """Whether transfers wait for the peer's window, so that one of `link` would wait too.

        If so, `CreditChanged` tells `link` when none waits any more.
        """
        if self._blocked:
            self._window_waiters[link] = None
            return True
        return False

    @property
    def free_handles(self) -> int:
        """How many more links this session takes, by the limits of both ends."""
        return len(self._free_handles) + self.handle_max + 1 - self._next_handle

    # Calls of links

    def write(self, performative: Attach | Detach) -> None:
        self.flush()
        self._output.put(encode_frame(self.channel, performative))

    def write_flow(
        self,
        *,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        drain: bool = False,
        echo: bool = False,
    ) -> None:
        """Write a FLOW; without a handle it is about the session alone. `echo`: ask for one."""
        self.incoming_window = INCOMING_WINDOW
        flow = Flow(
            next_incoming_id=UInt(self.next_incoming_id) if self.begun else None,
            incoming_window=UInt(INCOMING_WINDOW),
            next_outgoing_id=UInt(self.next_outgoing_id),
            outgoing_window=UInt(OUTGOING_WINDOW),
            handle=None if handle is None else UInt(handle),
            delivery_count=None if delivery_count is None else UInt(delivery_count),
            link_credit=None if link_credit is None else UInt(link_credit),
            drain=drain,
            echo=echo,
        )
        self._output.put(encode_frame(self.channel, flow))

    def send_transfer(
        self,
        link: SenderLink,
        payload: bytes,
        tag: bytes,
        settled: bool,
        message_format: int,
        state: TransactionalState | None = None,
    ) -> int:
        """Write one delivery in frames of at most the peer's frame size; return its delivery id."""
        delivery_id = self.next_delivery_id
        self.next_delivery_id = (delivery_id + 1) & SERIAL_MASK
        if not settled:
            self._unsettled_by_id[delivery_id] = (link, tag)
        output = self._output
        room = output.max_frame_size - TRANSFER_OVERHEAD
        size, tag_size = len(payload), len(tag)
        # The common case: one frame, and nothing waits before it.
        if (
            state is None
            and size <= room
            and self.remote_incoming_window > 0
            and not self._blocked
            and tag_size <= TAG_BYTES_MAX
        ):
            shape = (tag_size, settled, message_format)
            prefix = link.prefixes.get(shape)
            if prefix is None:
                prefix = link.prefixes[shape] = TransferPrefix(self.channel, link.handle, *shape)
            self.remote_incoming_window -= 1
            self.next_outgoing_id = (self.next_outgoing_id + 1) & SERIAL_MASK
            output.put_two(prefix.before(size, delivery_id, tag), payload)
            return delivery_id
        if state is not None:
            room -= STATE_OVERHEAD
        start = 0
        self._window_waiters[link] = None
        while True:
            more = size - start > room
            part = payload[start : start + room] if more or start else payload
            if state is None:
                frame = encode_transfer_frame(
                    self.channel, link.handle, delivery_id, tag, message_format, settled, part, more
                )
            else:
                head = (link.handle, delivery_id, tag, message_format, settled, more)
                frame = encode_frame(self.channel, Transfer(*head, state=state), part)
            self._blocked.append((link, frame))
            output.blocked_bytes += len(frame)
            link.blocked_frames += 1
            self._release_blocked()
            start += room
            if not more:
                break
        if not self._blocked:
            self._window_waiters.clear()
        return delivery_id

    def send_run(
        self, link: SenderLink, tags: list[bytes], heads: Iterable[bytes], rests: Sequence[Wire]
    ) -> int:
        """Write unsettled deliveries of one frame each, up to one that is larger or must wait.

        Returns how many. `SenderLink.send_run` describes the arguments.
        """
        output, first_id = self._output, self.next_delivery_id
        most = min(self.remote_incoming_window, SERIAL_MASK + 1 - first_id)
        if self._blocked or most <= 0 or len(tags[0]) > TAG_BYTES_MAX:
            return 0
        shape = (len(tags[0]), False, 0)
        prefix = link.prefixes.get(shape)
        if prefix is None:
            prefix = link.prefixes[shape] = TransferPrefix(self.channel, link.handle, *shape)
        room = output.max_frame_size - TRANSFER_OVERHEAD
        pieces = prefix.frames(first_id, tags[:most], heads, rests, room)
        count = len(pieces) // 3
        entries = zip(repeat(link), tags, strict=False)
        self._unsettled_by_id.update(zip(range(first_id, first_id + count), entries, strict=False))
        self.next_delivery_id = (first_id + count) & SERIAL_MASK
        self.remote_incoming_window -= count
        self.next_outgoing_id = (self.next_outgoing_id + count) & SERIAL_MASK
        output.put(b"".join(pieces))
        return count

    def forget(self, link: Link) -> None:
        """Drop a link that this end closed; the peer's own DETACH may still come."""
        if self.links.pop(link.handle, None) is not None:
            self._free_handles.append(link.handle)
        if isinstance(link, SenderLink):
            self._window_waiters.pop(link, None)
            if link.blocked_frames:
                self._output.blocked_bytes -= sum(
                    len(frame) for blocked, frame in self._blocked if blocked is link
                )
                # Another link gets its handle: these would reach another entity.
                self._blocked = deque(each for each in self._blocked if each[0] is not link)
            self.unsettled.forget()
        elif isinstance(link, ReceiverLink):
            self._drop_partial(link)

    # Calls of the connection

    def release(self) -> None:
        """Give back what the peer made this session keep: the session has ended."""
        for link in self._by_remote_handle.values():
            self._uncount(link)
        for link in self.links.values():
            if isinstance(link, ReceiverLink):
                self._drop_partial(link)
        self._output.blocked_bytes -= sum(len(frame) for _, frame in self._blocked)
        self._blocked.clear()
        counted = self.unsettled.counted_to - COUNT_STEP
        self._budgets.held_bytes.give_back(counted * UNSETTLED_BYTES)

    def count_unsettled(self) -> None:
        """Take what the unsettled deliveries need from the peer's budget, or give some back."""
        change = self.unsettled.recount()
        held = self._budgets.held_bytes
        if change <= 0:
            held.give_back(-change * UNSETTLED_BYTES)
            return
        try:
            held.take(change * UNSETTLED_BYTES)
        except BudgetExceeded:
            self.unsettled.counted_to -= change
            raise

    def _count(self, handle: int, link: Link) -> None:
        """Take a link of the peer from its budget, until its handle is free again."""
        before = self._by_remote_handle.get(handle)
        if before is not None:
            self._uncount(before)
        self._budgets.links.take()
        size = link_bytes(link.name, link.properties, link.source, link.target)
        self._budgets.held_bytes.take(size)
        link.held_bytes = size
        self._by_remote_handle[handle] = link

    def _uncount(self, link: Link) -> None:
        if link.held_bytes:
            self._budgets.links.give_back()
            self._budgets.held_bytes.give_back(link.held_bytes)
            link.held_bytes = 0

    def _drop_partial(self, link: ReceiverLink) -> None:
        self._budgets.held_bytes.give_back(link.partial_held)
        link.partial, link.partial_bytes, link.partial_held = [], 0, 0

    def take_begin(self, begin: Begin, remote_channel: int) -> None:
        self.remote_channel = remote_channel
        self.begun = True
        self.next_incoming_id = begin.next_outgoing_id or 0
        self.remote_incoming_window = begin.incoming_window or 0
        if begin.handle_max is not None:
            self.handle_max = min(self._own_handle_max, begin.handle_max)

    def begin(self) -> Begin:
        return Begin(
            remote_channel=self.remote_channel,
            next_outgoing_id=UInt(self.next_outgoing_id),
            incoming_window=UInt(INCOMING_WINDOW),
            outgoing_window=UInt(OUTGOING_WINDOW),
            handle_max=UInt(self._own_handle_max),
        )

    def take(self, performative: object, payload: bytes, events: list[Event]) -> None:
        self._handlers[type(performative)](performative, payload, events)

    def take_delivery(self, body: bytes, events: list[Event]) -> bool:
        """Take a transfer that is one whole delivery; false: it is not, and nothing was done."""
        if body[:2] != ULONG_DESCRIPTOR:
            return False
        try:
            fields = transfer_fields(body)
        except MALFORMED:
            return False  # The general decoder reports the error.
        if fields is None:
            return False
        handle, delivery_id, tag, flags, end = fields
        message_format, settled, more, _, _, _, aborted, _ = flags
        link = self._by_remote_handle.get(handle)
        if more or aborted or delivery_id is None or type(link) is not ReceiverLink:
            return False
        if link.partial_start is not None or link.state is not OPEN:
            return False
        self.count_incoming(1)
        self._deliver(
            link, delivery_id, tag or b"", message_format or 0, settled, body[end:], events
        )
        return True

    def take_disposition(self, body: bytes, events: list[Event]) -> bool:
        """Take a disposition in its usual form; false: it has another, and nothing was done."""
        try:
            fields = disposition_fields(body)
        except MALFORMED:
            return False  # The general decoder reports the error.
        if fields is None:
            return False
        role, first, last, (settled, state, _), _ = fields
        self._disposed(role, first, last, settled, state, events)
        return True

    def count_incoming(self, count: int) -> None:
        """Count `count` transfers that came; renew the window when half is used."""
        self.next_incoming_id = (self.next_incoming_id + count) & SERIAL_MASK
        self.incoming_window -= count
        if self.incoming_window < RENEW_BELOW:
            self.write_flow()

    def _on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event]) -> None:
        self.count_incoming(1)
        link = self._by_remote_handle.get(transfer.handle)
        # A link we have closed may still get what the peer sent before it read our DETACH.
        if not isinstance(link, ReceiverLink) or link.state is LinkState.CLOSED:
            return
        if link.state is LinkState.OFFERED:
            link.refuse(
                TRANSFER_LIMIT, "a transfer came before the link was open: it has no credit"
            )
            events.append(Detached(link, None, True))
            return
        if link.is_skipping and link.skips(transfer):
            return
        if link.partial_start is None:
            if transfer.delivery_id is None:
                raise ProtocolViolation(
                    "a delivery's first transfer has no delivery-id", ERRANT_LINK
                )
            tag, part_of = transfer.delivery_tag or b"", _transaction_of(transfer)
            longest = max(len(tag), 0 if part_of is None else len(part_of.txn_id))
            if longest > ID_BYTES_MAX:
                raise ProtocolViolation(
                    "the tag of a delivery, or the id of its transaction, has more than "
                    f"{ID_BYTES_MAX} bytes"
                )
            link.partial_start = (
                transfer.delivery_id,
                tag,
                transfer.message_format or 0,
                transfer.settled,
                part_of,
            )
        size = len(payload) + PIECE_BYTES
        self._budgets.held_bytes.take(size)
        link.partial_held += size
        link.partial.append(payload)
        link.partial_bytes += len(payload)
        if transfer.more and not transfer.aborted and link.partial_bytes <= link.limit_bytes:
            return
        start = link.partial_start
        delivery_id, tag, message_format, settled, state = start
        whole = b"".join(link.partial)
        self._drop_partial(link)
        link.partial_start = None
        if transfer.aborted:
            return
        settled = settled or transfer.settled
        self._deliver(link, delivery_id, tag, message_format, settled, whole, events, state)
        if transfer.more:
            # Too large: the rest of it is still coming.
            link.partial_start, link.is_skipping = start, True

    def _deliver(
        self,
        link: ReceiverLink,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        events: list[Event],
        state: object = None,
    ) -> None:
        if len(payload) > link.limit_bytes and link.rejects_oversize:
            link.count_incoming(1)
            events.append(DeliveryTooLarge(link, delivery_id, settled, state))
            return
        if len(payload) > link.limit_bytes:
            link.detach(
                conditions.MESSAGE_SIZE,
                f"the message is larger than the {link.limit_bytes} bytes this link takes",
            )
            events.append(Detached(link, None, True))
            return
        link.count_incoming(1)
        events.append(
            DeliveryArrived(link, delivery_id, tag, message_format, settled, payload, state)
        )

    def _on_disposition(
        self, disposition: Disposition, payload: bytes, events: list[Event]
    ) -> None:
        flags = disposition.settled, disposition.state
        self._disposed(disposition.role, disposition.first, disposition.last, *flags, events)

    def _disposed(
        self,
        role: bool,
        first: int,
        last: int | None,
        settled: bool,
        state: object,
        events: list[Event],
    ) -> None:
        if last is None:
            last = first
        elif (last - first) & SERIAL_MASK >= HALF_SERIAL:
            raise ProtocolViolation(f"a disposition from {first} back to {last}", ERRANT_LINK)
        events.append(Disposed(self, role, first, last, settled, state))

    def _on_flow(self, flow: Flow, payload: bytes, events: list[Event]) -> None:
        self.flows += 1
        # Without an id the peer has not read our BEGIN, which said 0.
        on_their_way = serial_ahead(self.next_outgoing_id, flow.next_incoming_id or 0)
        self.remote_incoming_window = max(0, flow.incoming_window - on_their_way)
        if self._blocked or (self._window_waiters and self.remote_incoming_window):
            self._release_blocked()
            if not self._blocked:
                # Only those that waited: a flow must not cost an event for every link.
                events.extend(map(CreditChanged, self._window_waiters))
                self._window_waiters.clear()
        if flow.handle is not None:
            link = self._by_remote_handle.get(flow.handle)
            if isinstance(link, SenderLink) and link.state is not LinkState.CLOSED:
                link.take_flow(flow)
                if link.state is OPEN:
                    events.append(CreditChanged(link))
            elif isinstance(link, ReceiverLink):
                was_draining = link.is_draining
                link.take_flow(flow)
                if was_draining and not link.is_draining:
                    events.append(Drained(link))
                elif link.state is OPEN:
                    events.append(FlowArrived(link))
        if flow.echo:
            self.write_flow()

    def _on_attach(self, attach: Attach, payload: bytes, events: list[Event]) -> None:
        self._require_free(attach.handle)
        # The peer's role names its own end: a peer that receives makes us the sender.
        link = self._attaching.pop((attach.name, bool(attach.role)), None)
        if link is not None and link.state is LinkState.CLOSED:
            # Closed before this answer came. Another link may have its handle by now, so nothing
            # more is written for it: the peer answers the DETACH that it was sent.
            self._count(attach.handle, link)
            return
        if link is not None:
            link.state = LinkState.OPEN
        else:
            kind = SenderLink if attach.role else ReceiverLink
            link = kind(self, attach.name, self._new_handle())
            self.links[link.handle] = link
        link.remember(attach)
        if isinstance(link, ReceiverLink):
            link.delivery_count = attach.initial_delivery_count or 0
        self._count(attach.handle, link)
        events.append(Attached(link))

    def _require_free(self, handle: int) -> None:
        """Raise if the peer may not attach with `handle`; a link that we closed frees its own."""
        if handle > self._own_handle_max:
            raise ProtocolViolation(
                f"a link with handle {handle}; this session's handle-max is {self._own_handle_max}"
            )
        link = self._by_remote_handle.get(handle)
        limit = self.link_limit
        if link is None and limit is not None and len(self._by_remote_handle) >= limit:
            text = f"more than {limit} links on one session of a client without a token"
            raise ProtocolViolation(text, RESOURCE_LIMIT)
        if link is not None and link.state is not LinkState.CLOSED:
            raise ProtocolViolation(f"a second attach with handle {handle}", HANDLE_IN_USE)

    def _on_detach(self, detach: Detach, payload: bytes, events: list[Event]) -> None:
        link = self._by_remote_handle.pop(detach.handle, None)
        if link is None:
            return
        self._uncount(link)
        if link.state is LinkState.CLOSED:
            events.append(DetachAnswered(link))
            return
        link.detach()
        events.append(Detached(link, detach.error, bool(detach.closed)))

    def _attach(
        self,
        link: Link,
        source: Source,
        target: Target | Coordinator,
        properties: dict[object, object] | None,
    ) -> None:
        link.state = LinkState.ATTACHING
        link.source, link.target = source, target
        self.links[link.handle] = link
        self._attaching[(link.name, link.sends)] = link
        link._attach(source, target, 0, properties)

    def _new_handle(self) -> int:
        if self._free_handles:
            return self._free_handles.pop()
        if self._next_handle > self.handle_max:
            raise ProtocolViolation(
                f"more than {self.handle_max + 1} links on one session", ERRANT_LINK
            )
        self._next_handle += 1
        return self._next_handle - 1

    def _release_blocked(self) -> None:
        while self._blocked and self.remote_incoming_window > 0:
            self.remote_incoming_window -= 1
            self.next_outgoing_id = (self.next_outgoing_id + 1) & SERIAL_MASK
            link, frame = self._blocked.popleft()
            link.blocked_frames -= 1
            self._output.blocked_bytes -= len(frame)
            self._output.put(frame)


def _transaction_of(transfer: Transfer) -> TransactionalState | None:
    """The transaction of a delivery; an outcome means nothing there, and may be long."""
    state = transfer.state
    return TransactionalState(state.txn_id) if type(state) is TransactionalState else None
