"""Due times; deliveries with their locks, which end at such a time; the outcomes of settlement.

`Deadlines` and `Timetable` index times that are kept elsewhere, earliest first. An entry is only a
hint: when it is due, it is compared with the present time of its key, so cancelling costs nothing.

A lock stands for one unsettled delivery. It ends once: settled by its token, or expired. In a queue
with sessions a message's lock lives as long as its session's, so only plain locks have deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, repeat
from typing import Final, Generic, NamedTuple, TypeVar, cast

from twinbus.amqp.encoding import encode
from twinbus.broker.descriptions import (
    MAX_DELIVERY_COUNT_LIMIT,
    QueueDescription,
    SubscriptionDescription,
)
from twinbus.broker.journal import StoredMessage
from twinbus.broker.refusals import ArgumentOutOfRange

K = TypeVar("K", bytes, int, str)
Q = TypeVar("Q")

SWEEP_FLOOR = 64
"""Entries below which sweeping costs more than it frees."""

SWEEP_FACTOR = 4
"""Growth between two sweeps: at most this many times the entries left by the last one."""


class Deadlines(Generic[K]):
    """Keys with a due time; `due_of` returns a key's present due time, 0 if it has none."""

    __slots__ = ("_due_of", "_heap", "_rows", "_rows_count", "_sweep_at")

    def __init__(self, due_of: Callable[[K], int]) -> None:
        self._due_of: Callable[[K], int] = due_of
        self._heap: list[tuple[int, K]] = []
        self._rows: list[tuple[int, list[K]]] = []
        """Keys that were added together, in a heap of their own: the last of a list is the next."""
        self._rows_count = 0
        """Keys in the rows."""
        self._sweep_at = SWEEP_FLOOR

    def __len__(self) -> int:
        """The number of entries, stale ones included."""
        return len(self._heap) + self._rows_count

    def add(self, due_ms: int, key: K) -> None:
        """Note that `key` is due at `due_ms`; `due_of` must return the same."""
        heappush(self._heap, (due_ms, key))
        if len(self) > self._sweep_at:
            self._sweep()

    def add_all(self, due_ms: int, keys: Sequence[K]) -> None:
        """The same for many, at least one."""
        if len(keys) == 1:
            self.add(due_ms, keys[0])
            return
        entry: tuple[int, list[K]] = due_ms, list(reversed(keys))
        heappush(self._rows, entry)
        self._rows_count += len(keys)
        if len(self) > self._sweep_at:
            self._sweep()

    def pop(self, now_ms: int) -> K | None:
        """One key that is due by now, or None."""
        while 0 < self._first_ms() <= now_ms:
            due_ms, key = self._pop_first()
            if self._due_of(key) == due_ms:
                return key
        return None

    def next_ms(self) -> int:
        """The earliest due time, 0 if there is none."""
        while (due_ms := self._first_ms()) and self._due_of(self._first_key()) != due_ms:
            self._pop_first()
        return due_ms

    def _comes_from_rows(self) -> bool:
        rows, heap = self._rows, self._heap
        return bool(rows) and (not heap or rows[0][0] <= heap[0][0])

    def _first_ms(self) -> int:
        """The due time of the first entry, which may be stale; 0 if there is none."""
        first = self._rows if self._comes_from_rows() else self._heap
        return first[0][0] if first else 0

    def _first_key(self) -> K:
        return self._rows[0][1][-1] if self._comes_from_rows() else self._heap[0][1]

    def _pop_first(self) -> tuple[int, K]:
        if not self._comes_from_rows():
            return heappop(self._heap)
        due_ms, keys = self._rows[0]
        key = keys.pop()
        self._rows_count -= 1
        if not keys:
            heappop(self._rows)
        return due_ms, key

    def _sweep(self) -> None:
        due_of = self._due_of
        self._heap = [entry for entry in self._heap if due_of(entry[1]) == entry[0]]
        heapify(self._heap)
        rows = [(due_ms, [k for k in keys if due_of(k) == due_ms]) for due_ms, keys in self._rows]
        self._rows = [row for row in rows if row[1]]
        heapify(self._rows)
        self._rows_count = sum(len(keys) for _, keys in self._rows)
        self._sweep_at = max(SWEEP_FLOOR, SWEEP_FACTOR * len(self))


class Timetable(Generic[Q]):
    """Things with one due time each, the earliest that was given.

    A thing without a due time is not in it, so ten thousand idle queues cost nothing.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """Times, each with the number of its entry: one that is stale holds nothing."""
        self._armed: dict[int, Q] = {}
        """By the number of the entry that is not stale."""
        self._due: dict[Q, tuple[int, int]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        """The number of entries, stale ones included."""
        return len(self._heap)

    def arm(self, thing: Q, due_ms: int) -> None:
        """Make `thing` due at `due_ms`, unless it is due earlier."""
        armed = self._due.get(thing)
        if armed is not None and armed[0] <= due_ms:
            return
        self.disarm(thing)
        self._due[thing] = entry = due_ms, next(self._numbers)
        self._armed[entry[1]] = thing
        heappush(self._heap, entry)
        if len(self._heap) > SWEEP_FLOOR + 2 * len(self._due):
            self._heap = sorted(self._due.values())

    def disarm(self, thing: Q) -> None:
        entry = self._due.pop(thing, None)
        if entry is not None:
            del self._armed[entry[1]]

    def take_due(self, now_ms: int) -> list[Q]:
        """Remove and return everything that is due by now, each once."""
        taken: list[Q] = []
        while self._heap and self._heap[0][0] <= now_ms:
            thing = self._armed.pop(heappop(self._heap)[1], None)
            if thing is not None:
                del self._due[thing]
                taken.append(thing)
        return taken

    def next_ms(self) -> int:
        """When the next thing is due, 0 if nothing is."""
        heap = self._heap
        while heap and heap[0][1] not in self._armed:
            heappop(heap)
        return heap[0][0] if heap else 0


REASON = "DeadLetterReason"
ERROR_DESCRIPTION = "DeadLetterErrorDescription"

# The reasons that Azure writes into a message it dead-letters by itself.
EXPIRED = "TTLExpiredException"
DELIVERED_TOO_OFTEN = "MaxDeliveryCountExceeded"
TOO_MANY_HOPS = "MaxTransferHopCountExceeded"
NO_SESSION_ID = "Session id is null."
FILTER_FAILED = "FilterException"
CANNOT_FORWARD = "ForwardingRefused"

OVERRIDE_BYTES_MAX = 64 * 1024
"""Properties that receivers give to a message, all together: as many as its sender may in Azure."""


class SettlementOutcome(Enum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    RELEASE = "release"
    """Ready again, without counting as a failed delivery."""


class RequestedSettlement(NamedTuple):
    """How a receiver ends a delivery."""

    lock_token: bytes
    outcome: SettlementOutcome
    overrides: dict[str, object] | None = None
    """Application properties that it gives to the message."""
    reason: str | None = None
    description: str | None = None
    session_id: str | None = None


class LockedMessage(NamedTuple):
    message: StoredMessage
    lock_token: bytes
    locked_until_ms: int
    payload: bytes | None = None
    """Only of a message received and deleted: the store no longer has it."""


_locked: Final = cast(
    "Callable[[tuple[StoredMessage, bytes, int, None]], LockedMessage]",
    partial(tuple.__new__, LockedMessage),
)


class Locks:
    """The deliveries of one queue that are not settled yet, by lock token."""

    __slots__ = ("_deliveries", "deadlines")

    def __init__(self) -> None:
        self._deliveries: dict[bytes, LockedMessage] = {}
        self.deadlines: Deadlines[bytes] = Deadlines(self._expiry_of)

    def __len__(self) -> int:
        return len(self._deliveries)

    def _expiry_of(self, token: bytes) -> int:
        delivery = self._deliveries.get(token)
        return 0 if delivery is None else delivery.locked_until_ms

    def add(
        self,
        messages: list[StoredMessage],
        fresh: Callable[[], bytes],
        until_ms: int,
        *,
        timed: bool,
    ) -> list[LockedMessage]:
        """Lock messages under fresh tokens; `timed` locks expire by themselves."""
        tokens = [fresh() for _ in messages]
        # Without a loop of Python's: this is done for every message.
        parts = zip(messages, tokens, repeat(until_ms), repeat(None), strict=False)
        deliveries = list(map(_locked, parts))
        self._deliveries.update(zip(tokens, deliveries, strict=True))
        for message, token in zip(messages, tokens, strict=True):
            message.lock_token = token
        if timed and tokens:
            self.deadlines.add_all(until_ms, tokens)
        return deliveries

    def get(self, token: bytes) -> LockedMessage | None:
        """The delivery that the token locks, if it still does."""
        return self._deliveries.get(token)

    def remove_all(self, tokens: list[bytes], now_ms: int) -> list[StoredMessage] | None:
        """End these locks, of which none is named twice; None, and nothing done, if one is over."""
        held = self._deliveries
        try:
            deliveries = [held[token] for token in tokens]
        except KeyError:
            return None
        if min([until_ms for _, _, until_ms, _ in deliveries], default=now_ms + 1) <= now_ms:
            return None
        messages = []
        for message, token, _, _ in deliveries:
            del held[token]
            message.lock_token = None
            messages.append(message)
        return messages

    def renew(self, token: bytes, until_ms: int) -> None:
        self._deliveries[token] = self._deliveries[token]._replace(locked_until_ms=until_ms)
        self.deadlines.add(until_ms, token)

    def remove(self, token: bytes) -> StoredMessage:
        message = self._deliveries.pop(token).message
        message.lock_token = None
        return message

    def clear(self) -> None:
        """End every lock at once, when the queue is deleted."""
        for token in list(self._deliveries):
            self.remove(token)


def dead_letter_description(parent: QueueDescription | SubscriptionDescription) -> QueueDescription:
    """The settings of an entity's dead-letter queue: no sessions, no expiry, no delivery limit."""
    return QueueDescription(
        lock_duration_ms=parent.lock_duration_ms,
        max_delivery_count=MAX_DELIVERY_COUNT_LIMIT,
        status=parent.status,
        forward_to=parent.forward_dead_letters_to,
    )


def require_bounded(changes: dict[str, object], reason: str | None, text: str | None) -> None:
    """Raise if what receivers give to a message is too much."""
    own = {name: value for name, value in ((REASON, reason), (ERROR_DESCRIPTION, text)) if value}
    size_bytes = len(encode({**changes, **own}))
    if size_bytes > OVERRIDE_BYTES_MAX:
        raise ArgumentOutOfRange(
            f"the properties that receivers gave to the message have {size_bytes} bytes, the limit "
            f"is {OVERRIDE_BYTES_MAX}; give it shorter ones"
        )
