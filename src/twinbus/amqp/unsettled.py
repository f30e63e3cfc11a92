"""Deliveries that this end sent and the peer has not settled, by delivery id.

The peer settles ranges of ids. A range may be wide and hold few of them, and a frame of 30 bytes
names it, so the work of a range must not depend on its width or on what lies outside it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from twinbus.amqp.link import HALF_SERIAL, SERIAL_MASK, LinkState, SenderLink

CLOSED = LinkState.CLOSED

NARROW = 64
"""Width of a range whose ids are tried one by one; a client that settles each delivery needs 1."""

SWEEP_FLOOR = 64
"""Entries below which sweeping costs more than it frees."""


class Unsettled:
    __slots__ = ("_known_to", "_order", "_sweep_at", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[SenderLink, bytes]] = {}
        """Link and tag of each delivery, in the order in which they were sent."""
        self._order: list[int] = []
        """The ids in order, for wide ranges; made when one comes, may hold ids that are settled."""
        self._known_to = 0
        """The id from which on the order knows nothing."""
        self._sweep_at = SWEEP_FLOOR

    def take(self, first: int, last: int, next_id: int) -> list[tuple[int, SenderLink, bytes]]:
        """Remove the deliveries in that range; return id, link and tag of those on open links.

        `next_id` is the id of the next delivery that will be sent.
        """
        span = (last - first) & SERIAL_MASK
        if span < NARROW:
            ids = [n & SERIAL_MASK for n in range(first, first + span + 1)]
        else:
            self._note_to(next_id)
            ids = self._take_between(first, span)
        taken = []
        for delivery_id in ids:
            entry = self.by_id.pop(delivery_id, None)
            if entry is not None and entry[0].state is not CLOSED:
                taken.append((delivery_id, entry[0], entry[1]))
        return taken

    def forget(self) -> None:
        """Drop the deliveries of closed links, once they may be as many as the others."""
        if len(self.by_id) < self._sweep_at:
            return
        for delivery_id in [n for n, entry in self.by_id.items() if entry[0].state is CLOSED]:
            del self.by_id[delivery_id]
        self._sweep_at = max(SWEEP_FLOOR, 2 * len(self.by_id))

    def _note_to(self, next_id: int) -> None:
        """Bring the order up to date."""
        by_id, order = self.by_id, self._order
        count = (next_id - self._known_to) & SERIAL_MASK if by_id else 0
        if count + len(order) > 2 * len(by_id) + NARROW:
            # Most of them are settled, by narrow ranges: fewer are looked at here.
            self._order = list(by_id)
        else:
            new = (n & SERIAL_MASK for n in range(self._known_to, self._known_to + count))
            order.extend(n for n in new if n in by_id)
        self._known_to = next_id

    def _take_between(self, first: int, span: int) -> list[int]:
        """Ids of the order from `first` on, over `span`; none of them is unsettled after this."""
        order = self._order
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
        if len(ids) > NARROW:
            # Fewer stay in the order: to remove them would cost more than to meet them again.
            del order[low:high]
        return ids
