"""The messages of one entity by number, those that are ready, and the ids seen lately."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, merge

from twinbus.broker.engine.limits import (
    MESSAGE_BYTES,
    PLAIN_ID_LENGTH,
    extra_bytes,
    is_plain,
    message_id_bytes,
)
from twinbus.broker.journal import Journal, MessageState, StoredMessage, copy_message

DEFERRED, SCHEDULED = MessageState.DEFERRED, MessageState.SCHEDULED

ORDER_SLACK = 64
"""Numbers of removed messages that the browsing order may hold beyond one for each left."""


SWEEP_FLOOR = 64
"""Dropped messages below which sweeping costs more than it frees."""


class MessageIndex:
    """Every message of one entity, whatever its state."""

    __slots__ = (
        "_of_session",
        "_of_session_count",
        "_order",
        "deferred_count",
        "extra_bytes",
        "messages",
        "scheduled_count",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        """By sequence number, in ascending order, since each new number is the highest yet."""
        self.size_bytes = 0
        self.extra_bytes = 0
        """Memory of the messages that are not plain (`memory`), beyond that of plain ones."""
        self.deferred_count = 0
        self.scheduled_count = 0
        self._order: list[int] | None = None
        """Ascending numbers, to start browsing anywhere; made when needed, may hold old ones."""
        self._of_session: dict[str, list[int]] | None = None
        """The same for each session."""
        self._of_session_count = 0
        """Numbers in it."""

    @property
    def memory_bytes(self) -> int:
        """Memory of all messages, by estimate (`memory`)."""
        return MESSAGE_BYTES * len(self.messages) + self.extra_bytes

    def add(self, message: StoredMessage) -> None:
        """Add a message; its number is higher than any before."""
        number = message.sequence_number
        self.messages[number] = message
        self.size_bytes += message.size_bytes
        # `is_plain`, written out: this is done for every message.
        if (
            message.session_id is not None
            or message.overrides is not None
            or len(message.message_id or "") > PLAIN_ID_LENGTH
        ):
            self.extra_bytes += extra_bytes(message)
        if message.state is SCHEDULED:
            self.scheduled_count += 1
        elif message.state is DEFERRED:
            self.deferred_count += 1
        if self._of_session is not None:
            self._note_session(message)
        order = self._order
        if order is not None:
            order.append(number)
            if len(order) > 2 * len(self.messages) + ORDER_SLACK:
                self._order = None

    def add_run(self, messages: list[StoredMessage]) -> None:
        """Add active messages that are plain (`limits`), in ascending order of their numbers."""
        by_number, numbers = self.messages, [message.sequence_number for message in messages]
        by_number.update(zip(numbers, messages, strict=True))
        self.size_bytes += sum([message.size_bytes for message in messages])
        order = self._order
        if order is not None:
            order.extend(numbers)
            if len(order) > 2 * len(by_number) + ORDER_SLACK:
                self._order = None

    def remove(self, message: StoredMessage) -> None:
        self.remove_all((message,))

    def remove_all(self, messages: Iterable[StoredMessage]) -> None:
        by_number, size_bytes = self.messages, 0
        for message in messages:
            del by_number[message.sequence_number]
            size_bytes += message.size_bytes
            # `is_plain`, written out: this is done for every message.
            if (
                message.session_id is not None
                or message.overrides is not None
                or len(message.message_id or "") > PLAIN_ID_LENGTH
            ):
                self.extra_bytes -= extra_bytes(message)
            if message.state is SCHEDULED:
                self.scheduled_count -= 1
            elif message.state is DEFERRED:
                self.deferred_count -= 1
        self.size_bytes -= size_bytes

    def defer(self, message: StoredMessage) -> None:
        if message.state is not DEFERRED:
            message.state = DEFERRED
            self.deferred_count += 1

    def override(self, message: StoredMessage, overrides: dict[str, object]) -> None:
        if not is_plain(message):
            self.extra_bytes -= extra_bytes(message)
        message.overrides = overrides
        self.extra_bytes += extra_bytes(message)

    def from_number(
        self, sequence_number: int, session_id: str | None = None
    ) -> Iterator[StoredMessage]:
        """Messages from that number on, of one session or (None) of all."""
        order = self._all_numbers() if session_id is None else self._session_numbers(session_id)
        messages = self.messages
        for index in range(bisect_left(order, sequence_number), len(order)):
            message = messages.get(order[index])
            if message is not None:
                yield message

    def _all_numbers(self) -> list[int]:
        order = self._order
        if order is None or len(order) > 2 * len(self.messages) + ORDER_SLACK:
            order = self._order = list(self.messages)
        return order

    def _session_numbers(self, session_id: str) -> list[int]:
        found = self._of_session
        if found is None or self._of_session_count > 2 * len(self.messages) + ORDER_SLACK:
            found = self._of_session = {}
            self._of_session_count = 0
            for message in self.messages.values():
                self._note_session(message)
        return found.get(session_id, [])

    def _note_session(self, message: StoredMessage) -> None:
        found, session_id = self._of_session, message.session_id
        if found is not None and session_id is not None:
            found.setdefault(session_id, []).append(message.sequence_number)
            self._of_session_count += 1
            if self._of_session_count > 2 * len(self.messages) + ORDER_SLACK:
                self._of_session = None


def first_number(message: StoredMessage) -> int:
    """The message's number in the entity that first stored it."""
    return message.enqueued_sequence_number or message.sequence_number


def copy_of(message: StoredMessage) -> StoredMessage:
    """A copy of the message to be moved; it has no number yet."""
    copy = copy_message(message)
    copy.sequence_number = copy.enqueued_sequence_number = 0
    return copy


class ReadyMessages:
    """The messages of a queue, or of one session, that are ready, lowest number first.

    New messages have ever higher numbers and are appended. Those that came back (abandoned,
    released, lock expired) keep their number and wait in a heap of their own.
    """

    __slots__ = ("_dropped", "_fresh", "_returned")

    def __init__(self) -> None:
        self._fresh: deque[StoredMessage] = deque()
        self._returned: list[tuple[int, StoredMessage]] = []
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned) - len(self._dropped)

    def __iter__(self) -> Iterator[StoredMessage]:
        fresh = ((message.sequence_number, message) for message in self._fresh)
        for number, message in merge(fresh, sorted(self._returned)):
            if number not in self._dropped:
                yield message

    def append(self, message: StoredMessage) -> None:
        """Add a message whose number is higher than any before."""
        self._fresh.append(message)

    def extend(self, messages: list[StoredMessage]) -> None:
        """Add messages in ascending order, each with a number higher than any before."""
        self._fresh.extend(messages)

    def give_back(self, message: StoredMessage) -> None:
        """Put a popped message back in its place."""
        heappush(self._returned, (message.sequence_number, message))

    def pop(self) -> StoredMessage | None:
        """Take out the message with the lowest number."""
        fresh, returned, dropped = self._fresh, self._returned, self._dropped
        while True:
            if returned and (not fresh or returned[0][0] < fresh[0].sequence_number):
                message = heappop(returned)[1]
            elif fresh:
                message = fresh.popleft()
            else:
                return None
            if not dropped or message.sequence_number not in dropped:
                return message
            dropped.discard(message.sequence_number)

    def drop(self, message: StoredMessage) -> None:
        """Take out a message from anywhere; it must be ready."""
        self._dropped.add(message.sequence_number)
        if len(self._dropped) > max(SWEEP_FLOOR, len(self)):
            self._sweep()

    def _sweep(self) -> None:
        dropped = self._dropped
        self._fresh = deque(m for m in self._fresh if m.sequence_number not in dropped)
        self._returned = [entry for entry in self._returned if entry[0] not in dropped]
        heapify(self._returned)
        self._dropped = set()


class DuplicateHistory:
    """The ids of one entity within its duplicate detection window, which begins at acceptance."""

    __slots__ = ("_entity_id", "_first_seen", "_journal", "_oldest", "memory_bytes", "window_ms")

    def __init__(self, entity_id: int, journal: Journal, window_ms: int) -> None:
        self._entity_id = entity_id
        self._journal = journal
        self.window_ms = window_ms
        self.memory_bytes = 0
        """Memory of all ids, by estimate (`memory`)."""
        self._first_seen: dict[str, int] = {}
        self._oldest: deque[tuple[int, str]] = deque()

    def __len__(self) -> int:
        return len(self._first_seen)

    def has(self, message_id: str, now_ms: int) -> bool:
        """Whether `accept` would return false."""
        seen_ms = self._first_seen.get(message_id)
        return seen_ms is not None and now_ms < seen_ms + self.window_ms

    def accept(self, message_id: str, now_ms: int) -> bool:
        """Remember an id; false if it was accepted before, within the window."""
        seen_ms = self._first_seen.get(message_id)
        if seen_ms is not None and now_ms < seen_ms + self.window_ms:
            return False
        self._first_seen[message_id] = now_ms
        self._oldest.append((now_ms, message_id))
        self.memory_bytes += message_id_bytes(message_id)
        self._journal.put_message_id(self._entity_id, message_id, now_ms)
        return True

    def retract(self, message_id: str) -> None:
        """Forget an id that was accepted just now: its message could not be stored."""
        if self._first_seen.pop(message_id, None) is not None:
            self._journal.put_message_id(self._entity_id, message_id, None)

    def forget_old(self, now_ms: int, limit: int) -> int:
        """Drop up to `limit` ids that left the window; returns how many."""
        oldest, count = self._oldest, 0
        while oldest and count < limit and oldest[0][0] + self.window_ms <= now_ms:
            seen_ms, message_id = oldest.popleft()
            self.memory_bytes -= message_id_bytes(message_id)
            count += 1
            # An id accepted again after its window has a later entry.
            if self._first_seen.get(message_id) == seen_ms:
                del self._first_seen[message_id]
                self._journal.put_message_id(self._entity_id, message_id, None)
        return count

    def next_ms(self) -> int:
        """When the oldest id leaves the window, 0 if there is none."""
        return self._oldest[0][0] + self.window_ms if self._oldest else 0

    def restore(self, first_seen: dict[str, int]) -> None:
        self._first_seen = dict(first_seen)
        self._oldest = deque(sorted((seen_ms, name) for name, seen_ms in first_seen.items()))
        self.memory_bytes = sum(map(message_id_bytes, first_seen))
