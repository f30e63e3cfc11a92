"""Strict session order inside one backlog queue: whose turn it is in each session.

    a lane = the messages of one session, by sequence number:   head, next, next, ...
    the head is sent when it is in memory and every message before it is known; the next one is
    sent when the queue has confirmed the settlement of the head

A message that is known but not in memory keeps its place: it was deferred or released, or another
receiver holds its lock (a syphon that died). Those after it wait. The queue is peeked wherever the
numbers that it delivers have a gap, so that no message stays unknown.

Pure: it returns what may be sent, what must be deferred, and where to peek.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from twinbus.transfer.unpacking import BacklogMessage

KNOWN_MAX: Final = 100_000
"""Limit of known messages that are not in memory. At the limit nothing more is deferred for lack of
room and nothing is peeked, until some of them have been delivered."""

FETCH_RUN: Final = 16
"""Deferred messages of one session received in one request. They are sent one by one, so more would
only use memory."""

RUNS_MAX: Final = 1_000
"""Runs of delivered numbers kept beyond `known_up_to`; those dropped are peeked again."""


class PeekedEntry(NamedTuple):
    """One message of the backlog queue as a peek shows it."""

    number: int
    path: str
    session: str | None
    is_deferred: bool


class MissingMessage(Enum):
    """Where a message is that is known and not in memory."""

    ELSEWHERE = "in the queue, locked by another receiver, or gone"
    DEFERRED = "deferred, to be received by its sequence number"
    REQUESTED = "requested by its sequence number"


class SessionLane:
    """One session of one destination."""

    __slots__ = ("_numbers", "current", "destination", "messages", "path", "session", "waiting")

    def __init__(self, path: str, session: str) -> None:
        self.path = path
        self.destination = path.lower()
        self.session = session
        self.messages: dict[int, BacklogMessage | MissingMessage] = {}
        self.waiting: dict[int, BacklogMessage] = {}
        """In memory, until it is their turn."""
        self.current: BacklogMessage | None = None
        """Being sent, until the queue confirms its settlement."""
        self._numbers: list[int] = []

    def __repr__(self) -> str:
        return f"<lane {self.session} to {self.destination}, {len(self.messages)} known>"

    def put(self, number: int, place: BacklogMessage | MissingMessage) -> None:
        if number not in self.messages:
            heappush(self._numbers, number)
        self.messages[number] = place

    def head(self) -> int | None:
        """Return the lowest sequence number of the lane."""
        numbers, messages = self._numbers, self.messages
        while numbers and numbers[0] not in messages:
            heappop(numbers)
        return numbers[0] if numbers else None

    def deferred_run(self, count: int) -> list[int]:
        """Return up to `count` numbers from the head on, as long as they are deferred."""
        run: list[int] = []
        while len(run) < count:
            head = self.head()
            if head is None or self.messages[head] is not MissingMessage.DEFERRED:
                break
            run.append(heappop(self._numbers))
        for number in run:
            heappush(self._numbers, number)
        return run


class SessionLanes:
    """The lanes of one backlog queue."""

    def __init__(self, in_memory_max: int) -> None:
        """`in_memory_max` is how many of one session may wait in memory; the rest is deferred."""
        self.known_up_to = 0
        """Every message with a session up to this number is known or settled."""
        self._in_memory_max = max(1, in_memory_max)
        self._lanes: dict[tuple[str, str], SessionLane] = {}
        self._by_number: dict[int, SessionLane] = {}
        self._missing: dict[int, MissingMessage] = {}
        self._copies: dict[int, BacklogMessage] = {}
        """A second delivery of a message whose first one is in memory: its lock was lost."""
        self._changed: dict[SessionLane, None] = {}
        self._stuck: dict[SessionLane, None] = {}
        """Lanes whose head is elsewhere."""
        self._to_fetch: dict[str, dict[SessionLane, None]] = {}
        self._with_waiting: dict[str, dict[SessionLane, None]] = {}
        """By destination, the lanes in which messages wait in memory."""
        self._beyond_known: list[int] = []
        """Numbers in memory beyond `known_up_to`: a heap."""
        self._runs: list[list[int]] = []
        """First and last of runs of numbers delivered beyond `known_up_to`, in order."""
        self._highest = 0
        self._peeked_up_to = 0
        """The highest number known when the present peek started."""

    def __len__(self) -> int:
        return len(self._lanes)

    # Events

    def delivered(self, number: int) -> None:
        """Note the number of any delivered message."""
        self._highest = max(self._highest, number)
        if number == self.known_up_to + 1:
            self._extend_known(number)
        elif number > self.known_up_to:
            runs = self._runs
            if runs and runs[-1][1] + 1 == number:
                runs[-1][1] = number
            elif not runs or number > runs[-1][1]:
                runs.append([number, number])
                del runs[:-RUNS_MAX]

    def add(self, message: BacklogMessage) -> BacklogMessage | None:
        """Add a message with a session; return an earlier copy, which has lost its lock."""
        number = message.sequence_number
        lane = self._lane(number, message.path, message.session or "")
        if isinstance(lane.messages.get(number), BacklogMessage):
            older = self._copies.get(number)
            self._copies[number] = message
            return older
        self._add(lane, message)
        return None

    def removed(self, message: BacklogMessage) -> None:
        """Note that a message is no longer in memory; it keeps its place in the lane."""
        number = message.sequence_number
        lane = self._by_number.get(number)
        if lane is None:
            return
        if self._copies.get(number) is message:
            del self._copies[number]
            return
        if lane.messages.get(number) is not message:
            return
        if lane.current is message:
            lane.current = None
        self._not_waiting(lane, number)
        copy = self._copies.pop(number, None)
        if copy is not None:
            self._add(lane, copy)
            return
        self._set_missing(
            lane,
            number,
            MissingMessage.DEFERRED if message.is_deferred else MissingMessage.ELSEWHERE,
        )

    def finish(self, message: BacklogMessage) -> BacklogMessage | None:
        """Remove a message that the primary has or that is dead-lettered: the next may be sent.

        Return a copy of it that is in memory and must not be sent.
        """
        number = message.sequence_number
        lane = self._by_number.get(number)
        # The copy may already have taken the place of this one.
        copy = None if lane is None else lane.waiting.get(number)
        return self._finish(number) or (copy if copy is not message else None)

    def was_deferred(self, message: BacklogMessage) -> None:
        lane = self._by_number.get(message.sequence_number)
        if lane is not None:
            self._set_missing(lane, message.sequence_number, MissingMessage.DEFERRED)

    def withdraw(self, message: BacklogMessage) -> bool:
        """Remove a message that waits for its turn; return whether it was waiting."""
        number = message.sequence_number
        if self._copies.get(number) is message:
            return True
        lane = self._by_number.get(number)
        if lane is None or lane.waiting.get(number) is not message:
            return False
        self._not_waiting(lane, number)
        return True

    def take_waiting(self, destination: str) -> list[BacklogMessage]:
        """Remove and return all messages to one destination that wait for their turn."""
        taken = [
            p for lane in self._with_waiting.pop(destination, ()) for p in lane.waiting.values()
        ]
        for message in taken:
            self._by_number[message.sequence_number].waiting.clear()
        return sorted(taken, key=lambda message: message.sequence_number)

    def has_waiting(self, destination: str) -> bool:
        return destination in self._with_waiting

    # Turns

    def take_changed(self) -> list[SessionLane]:
        """Return the lanes that changed since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def next_to_go(self, lane: SessionLane) -> BacklogMessage | None:
        """Take the lane's head to be sent; None: it is not its turn, or it is not in memory."""
        head = lane.head()
        if head is None or lane.current is not None or head > self.known_up_to:
            return None
        message = lane.waiting.get(head)
        if message is not None:
            self._not_waiting(lane, head)
            lane.current = message
        return message

    def out_of_turn(self, lane: SessionLane) -> list[BacklogMessage]:
        """Take what must not stay in memory: messages after a missing head, and too many of them.

        They could fill the pump, and leave no room for the head.
        """
        head = lane.head()
        if head is None or not lane.waiting or head > self.known_up_to:
            return []
        if lane.messages[head] in (MissingMessage.ELSEWHERE, MissingMessage.DEFERRED):
            numbers: Iterable[int] = list(lane.waiting)
        elif len(self._missing) >= KNOWN_MAX:
            return []
        else:
            numbers = sorted(lane.waiting)[self._in_memory_max :]
        out = [lane.waiting[number] for number in numbers]
        for message in out:
            self._not_waiting(lane, message.sequence_number)
        return out

    # Deferred messages

    def has_deferred(self, destination: str) -> bool:
        """Return whether the head of some session is deferred."""
        return destination in self._to_fetch

    def take_deferred(self, destination: str, room: int) -> list[int]:
        """Return the numbers to receive now: deferred heads, and what follows them."""
        numbers: list[int] = []
        lanes = self._to_fetch.get(destination, {})
        while lanes and len(numbers) < room:
            lane = next(iter(lanes))
            del lanes[lane]
            run = lane.deferred_run(min(FETCH_RUN, room - len(numbers)))
            for number in run:
                lane.messages[number] = self._missing[number] = MissingMessage.REQUESTED
            numbers += run
        if not lanes:
            self._to_fetch.pop(destination, None)
        return numbers

    def fetch_ended(self, numbers: Iterable[int] | None = None) -> None:
        """Note that requested messages that did not come are not deferred; None: all of them."""
        for number in list(self._missing) if numbers is None else numbers:
            if self._missing.get(number) is MissingMessage.REQUESTED:
                self._set_missing(self._by_number[number], number, MissingMessage.ELSEWHERE)

    # Peeks

    @property
    def is_stuck(self) -> bool:
        """Whether a lane waits for a message that is elsewhere."""
        return bool(self._stuck)

    def peek_from(self) -> int | None:
        """Return where to peek if messages in memory are beyond what is known; else None."""
        if not self._beyond_known or len(self._missing) >= KNOWN_MAX:
            return None
        return self.known_up_to + 1

    def recheck_from(self, after: int) -> int | None:
        """Return where to peek for missing heads: the first one after `after`, or the first."""
        heads = [head for lane in self._stuck if (head := lane.head()) is not None]
        return min((h for h in heads if h > after), default=min(heads, default=None))

    def peek_started(self) -> None:
        self._peeked_up_to = max(self._highest, self.known_up_to)

    def peeked(self, start: int, page: Iterable[PeekedEntry]) -> int:
        """Take a page peeked from `start`; return the number up to which it is complete."""
        entries: dict[int, PeekedEntry] = {entry.number: entry for entry in page}
        # Only an empty page shows the end of the queue (a short one may have reached a size
        # limit), and only of what was there when the peek started. Numbers are assigned in order:
        # what is before the last entry, and not on the page, is no longer in the queue.
        end = max(entries, default=self._peeked_up_to)
        for number in [n for n in self._missing if start <= n <= end and n not in entries]:
            self._finish(number)
        for entry in entries.values():
            self.seen(entry)
        if start <= self.known_up_to + 1 and end > self.known_up_to:
            self._extend_known(end)
        return end

    def seen(self, entry: PeekedEntry) -> None:
        number = entry.number
        if entry.session is None:
            return
        lane = self._lane(number, entry.path, entry.session)
        known = lane.messages.get(number)
        if isinstance(known, BacklogMessage) or known is MissingMessage.REQUESTED:
            return
        self._set_missing(
            lane, number, MissingMessage.DEFERRED if entry.is_deferred else MissingMessage.ELSEWHERE
        )

    def _extend_known(self, number: int) -> None:
        self.known_up_to = number
        runs = self._runs
        while runs and runs[0][0] <= self.known_up_to + 1:
            self.known_up_to = max(self.known_up_to, runs.pop(0)[1])
        while self._beyond_known and self._beyond_known[0] <= self.known_up_to:
            lane = self._by_number.get(heappop(self._beyond_known))
            if lane is not None:
                self._mark_changed(lane)

    # State of the lanes

    def _lane(self, number: int, path: str, session: str) -> SessionLane:
        lane, key = self._by_number.get(number), (path.lower(), session)
        if lane is not None and (lane.destination, lane.session) != key:
            # A queue that was deleted and created again numbers its messages from 1.
            self._finish(number)
            lane = None
        if lane is None:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = SessionLane(path, session)
            self._by_number[number] = lane
        return lane

    def _add(self, lane: SessionLane, message: BacklogMessage) -> None:
        number = message.sequence_number
        self._missing.pop(number, None)
        lane.put(number, message)
        lane.waiting[number] = message
        self._with_waiting.setdefault(lane.destination, {})[lane] = None
        if number > self.known_up_to:
            heappush(self._beyond_known, number)
        self._mark_changed(lane)

    def _set_missing(self, lane: SessionLane, number: int, place: MissingMessage) -> None:
        lane.put(number, place)
        self._missing[number] = place
        self._mark_changed(lane)

    def _finish(self, number: int) -> BacklogMessage | None:
        lane = self._by_number.pop(number, None)
        self._missing.pop(number, None)
        if lane is None:
            return None
        place = lane.messages.pop(number, None)
        self._not_waiting(lane, number)
        if lane.current is place:
            lane.current = None
        if not lane.messages:
            self._forget(lane)
        else:
            self._mark_changed(lane)
        return self._copies.pop(number, None)

    def _forget(self, lane: SessionLane) -> None:
        """Remove a lane that has no message left."""
        del self._lanes[lane.destination, lane.session]
        self._changed.pop(lane, None)
        self._stuck.pop(lane, None)
        self._drop(self._to_fetch, lane)

    def _not_waiting(self, lane: SessionLane, number: int) -> None:
        if lane.waiting.pop(number, None) is not None and not lane.waiting:
            self._drop(self._with_waiting, lane)

    @staticmethod
    def _drop(lanes_of: dict[str, dict[SessionLane, None]], lane: SessionLane) -> None:
        lanes = lanes_of.get(lane.destination)
        if lanes is not None:
            lanes.pop(lane, None)
            if not lanes:
                del lanes_of[lane.destination]

    def _mark_changed(self, lane: SessionLane) -> None:
        """Mark a lane as changed, and note where its head is."""
        self._changed[lane] = None
        head = lane.head()
        place = None if head is None else lane.messages[head]
        if place is MissingMessage.ELSEWHERE:
            self._stuck[lane] = None
        else:
            self._stuck.pop(lane, None)
        if place is MissingMessage.DEFERRED:
            self._to_fetch.setdefault(lane.destination, {})[lane] = None
        else:
            self._drop(self._to_fetch, lane)
