"""What the sides of a receiver have brought, and what is still wanted of them.

Credit follows demand: without prefetch only while a call waits. What arrives later waits a moment
for the next call, and is released then. Second copies (copies.py) are completed here and never
leave. What a lost link has brought is checked before it is handed out: its locks may have been lost
with the namespace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from twinbus.client.lock_requests import renew_locks
from twinbus.client.outcomes import COMPLETE
from twinbus.client.receiving import Delivery, ReceivingLink
from twinbus.errors import error_text
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.copies import Copy, SecondCopies, read_copy
from twinbus.pairing.receiving.side import CLOSE_S, LINGER_S, ReceivingSide
from twinbus.servicebus.failures import NamespaceFailure
from twinbus.status.receiving import ReceiverStatus
from twinbus.transfer.identity import Head

log = logging.getLogger("twinbus.receiving")

FURTHER_S: Final = 0.2
"""How long a call that has a message waits for further ones, as the SDK's receiver does."""


class Entry(NamedTuple):
    """One message that was received, and not handed out yet."""

    side: ReceivingSide
    delivery: Delivery


class InboxOwner(Protocol):
    """The receiver that an inbox belongs to."""

    def on_opened(self, side: ReceivingSide, link: ReceivingLink) -> None: ...

    def on_failed(self, side: ReceivingSide) -> None: ...


class Inbox:
    """The owner of a receiver's sides, and the buffer between them and its calls."""

    def __init__(
        self,
        owner: InboxOwner,
        *,
        prefetch: int = 0,
        copies: SecondCopies | None = None,
        label: str = "",
    ) -> None:
        """`copies`: None if only one side is read. `label` is the primary's."""
        self.sides: list[ReceivingSide] = []
        self.second_copies = 0
        """Messages that were completed without being handed out."""
        self._given = 0
        """Messages that the application got."""
        self.is_stopped = False
        """Nothing more is handed out: the receiver is closed, or its session is lost."""
        self._is_asked = False
        """A call has asked for messages. Nothing is prefetched before, as with the SDK."""
        self._owner = owner
        self._prefetch = prefetch
        self._copies = copies
        self._label = label
        self._entries: deque[Entry] = deque()
        self._buffered: Counter[Side] = Counter()
        self._calls: list[_Call] = []
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def status(self, path: str) -> ReceiverStatus:
        """What the receiver of this path does now, and has done so far. From any thread."""
        return ReceiverStatus(
            path=path,
            sides={one.side.value: one.status() for one in self.sides},
            buffered=len(self._entries),
            handed_out=self._given,
            second_copies=self.second_copies,
        )

    # For the receiver

    async def take(self, count: int, until: float | None) -> list[Entry]:
        """Wait for messages until the loop's time `until`; None: for as long as it takes.

        The first message ends the wait soon: further ones may take FURTHER_S.
        """
        loop = asyncio.get_running_loop()
        taken = self._pop(count)
        call = _Call(count - len(taken))
        self._calls.append(call)
        self._is_asked = True
        release = self._release_soon
        try:
            self._refill()
            while call.left and not self.is_stopped:
                if taken and call.further_until is None:
                    call.further_until = loop.time() + FURTHER_S
                limits = [limit for limit in (until, call.further_until) if limit is not None]
                self._arrived.clear()
                async with asyncio.timeout_at(min(limits, default=None)):
                    await self._arrived.wait()
                more = self._pop(call.left)
                call.left -= len(more)
                taken += more
                # A second copy has used up credit of this call.
                self._refill()
        except TimeoutError:
            # Something may have come in the same moment.
            taken += self._pop(call.left)
        except BaseException:
            self._give_back(taken)
            release = self._release_unwanted  # No other call need follow.
            raise
        finally:
            self._calls.remove(call)
            release()
            self._refill()
        if call.further_until is None:
            return taken
        # The other copy of a message may have been completed while this call waited for more.
        return [entry for entry in taken if not self._suppressed(entry)]

    def handed_out(self, entry: Entry, number: int) -> None:
        """The application gets this message, with this sequence number of its namespace."""
        self._given += 1
        entry.side.handed_out(entry.delivery)
        if self._copies is None:
            return
        self._copies.handed_out((entry.side.side, number))
        if entry.delivery.settled:
            self.completed(entry.side, entry.delivery.data)

    def completed(
        self,
        side: ReceivingSide,
        data: bytes,
        stamps: tuple[int, int] | None = None,
        head: Head | None = None,
    ) -> None:
        """The service confirmed that a message which was handed out is completed.

        `stamps` are its sequence number and its enqueued time, and `head` its head, if they were
        read.
        """
        if self._copies is None:
            return
        copy = read_copy(side.side, data, self._label, stamps, head)
        if copy is not None:
            self._copies.completed(copy)

    def gone(self, side: ReceivingSide, number: int) -> None:
        """A message that was handed out is dead-lettered or deferred."""
        if self._copies is not None:
            self._copies.gone((side.side, number))

    def stop(self) -> None:
        """End calls that wait; what arrives from now on is released."""
        self.is_stopped = True
        self._arrived.set()

    async def close(self) -> None:
        """Release what was not handed out, and close the sides."""
        self.stop()
        entries, self._entries = list(self._entries), deque()
        lost = sum(entry.delivery.settled for entry in entries)
        if lost:
            # As with the SDK's receiver: the entity has deleted them when it sent them.
            log.error(
                "%d messages that were received and deleted are lost: the receiver was closed"
                " before it handed them out",
                lost,
            )
        for task in tuple(self._tasks):
            task.cancel()
        buffered = [entry.delivery for entry in entries]
        await asyncio.gather(*(side.close(buffered, CLOSE_S) for side in self.sides))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close_side(self, wanted: Side) -> None:
        """Read one side no more."""
        for side in self.sides:
            if side.side is wanted:
                await side.close([entry.delivery for entry in self._remove(side)], CLOSE_S)

    # For the sides

    def on_deliveries(self, side: ReceivingSide, run: list[Delivery]) -> None:
        if self.is_stopped:
            for delivery in run:
                if not delivery.settled:
                    side.release(delivery)
            run = [delivery for delivery in run if delivery.settled]
        self._entries.extend(Entry(side, delivery) for delivery in run)
        self._buffered[side.side] += len(run)
        if run:
            self._arrived.set()
            self._release_soon()

    def on_opened(self, side: ReceivingSide, link: ReceivingLink) -> None:
        self._owner.on_opened(side, link)
        self._refill()

    def on_failed(self, side: ReceivingSide) -> None:
        self._owner.on_failed(side)
        stale = [entry for entry in self._entries if self._is_stale(entry, side)]
        if not stale:
            return
        self._entries = deque(one for one in self._entries if not self._is_stale(one, side))
        self._buffered[side.side] -= len(stale)
        if side.is_session:
            self._give_up(stale)
        else:
            self._start(self._keep_locked(side, stale))

    def buffered_of(self, side: ReceivingSide) -> int:
        return self._buffered[side.side]

    def _is_stale(self, entry: Entry, side: ReceivingSide) -> bool:
        """Whether a side that failed brought this message on a link that is gone."""
        is_held = entry.delivery.settled or entry.delivery.link.is_open
        return entry.side is side and not is_held

    def give_back(self, side: ReceivingSide) -> None:
        """Release what a side brought and was not handed out: it must not be read."""
        for entry in self._remove(side):
            side.release(entry.delivery)

    async def _keep_locked(self, side: ReceivingSide, stale: list[Entry]) -> None:
        """Put messages of a lost link back that are still locked; others are delivered again."""
        tokens = {entry.delivery.lock_token: entry for entry in stale}
        wanted = [token for token in tokens if token is not None]
        kept: dict[UUID, Entry] = {}
        try:
            renewed = await renew_locks(side.connection, side.settings.path, wanted)
            if not side.has_ended:
                kept = {token: tokens[token] for token in wanted if token in renewed}
        except (NamespaceFailure, TimeoutError) as error:
            log.info("%s: %d not handed out: %s", side.settings.path, len(stale), error_text(error))
        finally:
            # Also when the receiver is closed meanwhile.
            self._give_up([one for one in stale if one.delivery.lock_token not in kept])
        self._put_first(list(kept.values()))
        if kept:
            self._arrived.set()

    def _give_up(self, entries: list[Entry]) -> None:
        """Record as released what a lost link brought: it comes again, and was not handed out."""
        for entry in entries:
            entry.side.release(entry.delivery)

    # The buffer

    @property
    def _demand(self) -> int:
        return sum(call.left for call in self._calls)

    def _pop(self, count: int) -> list[Entry]:
        """Take messages out of the buffer, without second copies."""
        taken: list[Entry] = []
        while self._entries and len(taken) < count and not self.is_stopped:
            entry = self._entries.popleft()
            self._buffered[entry.side.side] -= 1
            if not self._suppressed(entry):
                taken.append(entry)
        return taken

    def _suppressed(self, entry: Entry) -> bool:
        """Whether a message is a second copy; it is being completed then."""
        if self._copies is None or not self._copies.expects(entry.side.side):
            return False
        copy = self._copy_of(entry)
        if copy is None or not self._copies.is_second(copy):
            return False
        self.second_copies += 1
        entry.delivery.mark_second_copy()
        log.info(
            "%s: message %r of the %s is a second copy; it is completed and not handed out",
            entry.side.settings.path, copy.message_id, entry.side.side,
        )  # fmt: skip
        if not entry.delivery.settled:
            self._start(self._complete(entry, copy))
        return True

    async def _complete(self, entry: Entry, copy: Copy) -> None:
        token = entry.delivery.lock_token
        if token is None or self._copies is None:
            return
        try:
            await entry.side.settle(entry.delivery, token, COMPLETE)
        except (NamespaceFailure, TimeoutError) as error:
            # It is delivered again, and known.
            log.info("%s: a second copy stays: %s", entry.side.settings.path, error_text(error))
        else:
            self._copies.second_completed(copy)

    def _copy_of(self, entry: Entry) -> Copy | None:
        return read_copy(entry.side.side, entry.delivery.data, self._label)

    def _give_back(self, entries: Iterable[Entry]) -> None:
        """A call was cancelled: what it has taken was not handed out."""
        kept = []
        for entry in entries:
            if self._prefetch or entry.delivery.settled:
                kept.append(entry)
            else:
                entry.side.release(entry.delivery)
        self._put_first(kept)

    def _release_soon(self) -> None:
        """Give back what no call waits for, but not at once: the next call of a loop comes soon.

        What is released is delivered again, and each delivery is billed.
        """
        if not self._prefetch and len(self._entries) > self._demand:
            asyncio.get_running_loop().call_later(LINGER_S, self._release_unwanted)

    def _release_unwanted(self) -> None:
        """Give back what no call waits for any more: without prefetch it would stay locked."""
        while not self._prefetch and len(self._entries) > self._demand:
            entry = self._entries.pop()
            if entry.delivery.settled:
                self._entries.append(entry)
                return
            self._buffered[entry.side.side] -= 1
            entry.side.release(entry.delivery)

    def _remove(self, side: ReceivingSide) -> list[Entry]:
        """Take what a side brought out of the buffer."""
        gone = [entry for entry in self._entries if entry.side is side]
        self._entries = deque(entry for entry in self._entries if entry.side is not side)
        self._buffered[side.side] = 0
        return gone

    def _put_first(self, entries: list[Entry]) -> None:
        self._entries.extendleft(reversed(entries))
        self._buffered.update(entry.side.side for entry in entries)

    def _refill(self) -> None:
        """Tell each side how much may come."""
        if self.is_stopped or not self._is_asked:
            return
        demand = max(0, self._demand - len(self._entries))
        for side in self.sides:
            if not self._prefetch:
                side.want(demand)
                continue
            buffered = self._buffered[side.side]
            room = max(demand, self._prefetch - buffered)
            # Not a frame for each message: only when half of the room is to be granted again.
            if demand > side.credit or room - side.credit >= max(1, self._prefetch // 2):
                side.want(room)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Call:
    """A receive call that waits."""

    __slots__ = ("further_until", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.further_until: float | None = None
