"""Strict session order inside one backlog queue: whose turn it is in each session (SPEC 3).

    a lane = the messages of one session, by number:   head, next, next, ...
    the head goes when it is in hand and nothing before it can be unknown; the next one goes when
    the queue has confirmed what became of the head

A message that is known but not in hand keeps its place: it was deferred, or somebody else has its
lock (a syphon that died), or it went back. Those behind it wait. What this process was never told
of is found by a survey: the queue is peeked wherever the numbers that it delivers have a gap.

Pure: it answers what may go, what must step aside, and what is to be peeked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from twinbus.syphon.core.backlog_message import BacklogMessage

__all__ = ["PeekedEntry", "SessionLane", "SessionLanes"]

KNOWN_MAX: Final = 100_000
"""Numbers remembered of messages that are not in hand. With so many known nothing more is deferred
for room's sake and no survey goes on, until some of them have been delivered."""

FETCH_RUN: Final = 16
"""Deferred messages of one session that are asked for at once; a session goes one by one, so that
more would only sit in memory."""

RUNS_MAX: Final = 1_000
"""Runs of delivered numbers kept beyond the survey; forgotten ones are peeked at again."""


class PeekedEntry(NamedTuple):
    """One message of the backlog queue as a peek shows it."""

    number: int
    path: str
    session: str | None
    is_deferred: bool


class MissingMessage(Enum):
    """Where a message is that is known and not in hand."""

    ELSEWHERE = "in the queue, or locked by somebody; it will be delivered, or is gone"
    DEFERRED = "set aside, to be received by its number"
    REQUESTED = "asked for by its number"


class SessionLane:
    """One session of one destination."""

    __slots__ = ("_numbers", "current", "destination", "messages", "path", "session", "waiting")

    def __init__(self, path: str, session: str) -> None:
        self.path = path
        self.destination = path.lower()
        self.session = session
        self.messages: dict[int, BacklogMessage | MissingMessage] = {}
        self.waiting: dict[int, BacklogMessage] = {}
        """In hand, and not their turn."""
        self.current: BacklogMessage | None = None
        """Handed over to be sent; until the queue confirmed what became of it."""
        self._numbers: list[int] = []

    def __repr__(self) -> str:
        return f"<lane {self.session} to {self.destination}, {len(self.messages)} known>"

    def put(self, number: int, place: BacklogMessage | MissingMessage) -> None:
        if number not in self.messages:
            heappush(self._numbers, number)
        self.messages[number] = place

    def head(self) -> int | None:
        """The lowest number that is left."""
        numbers, messages = self._numbers, self.messages
        while numbers and numbers[0] not in messages:
            heappop(numbers)
        return numbers[0] if numbers else None

    def deferred_run(self, count: int) -> list[int]:
        """The numbers from the head on that are deferred, without a gap, up to `count`."""
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
        """`in_memory_max` is how many of one session may wait in hand; the rest is set aside."""
        self.known_up_to = 0
        """Every message up to this number that has a session is known here, or gone."""
        self._in_memory_max = max(1, in_memory_max)
        self._lanes: dict[tuple[str, str], SessionLane] = {}
        self._by_number: dict[int, SessionLane] = {}
        self._missing: dict[int, MissingMessage] = {}
        self._copies: dict[int, BacklogMessage] = {}
        """A second delivery of a message whose first is still in hand: its lock was lost."""
        self._changed: dict[SessionLane, None] = {}
        self._stuck: dict[SessionLane, None] = {}
        """Lanes whose head is away."""
        self._to_fetch: dict[str, dict[SessionLane, None]] = {}
        self._with_waiting: dict[str, dict[SessionLane, None]] = {}
        """By destination, the lanes in which messages in hand wait for their turn."""
        self._beyond_known: list[int] = []
        """Numbers in hand beyond the survey: a heap."""
        self._runs: list[list[int]] = []
        """First and last of runs of numbers that were delivered beyond the survey, in order."""
        self._highest = 0
        self._peeked_up_to = 0
        """The highest number known when the peek that is under way was asked for."""

    def __len__(self) -> int:
        return len(self._lanes)

    # What happens to messages

    def delivered(self, number: int) -> None:
        """A message was delivered, of whatever kind."""
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
        """A message with a session came. An earlier copy is returned, whose lock must be gone."""
        number = message.sequence_number
        lane = self._lane(number, message.path, message.session or "")
        if isinstance(lane.messages.get(number), BacklogMessage):
            older = self._copies.get(number)
            self._copies[number] = message
            return older
        self._add(lane, message)
        return None

    def removed(self, message: BacklogMessage) -> None:
        """A message is no longer in hand; as far as is known it keeps its place."""
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
        """A message is in the primary or dead-lettered: the next may go.

        A copy of it that is in hand is returned: nothing is to be sent any more.
        """
        number = message.sequence_number
        lane = self._by_number.get(number)
        # It may have taken the place of the one that left a moment ago.
        copy = None if lane is None else lane.waiting.get(number)
        return self._finish(number) or (copy if copy is not message else None)

    def was_deferred(self, message: BacklogMessage) -> None:
        """A message was deferred."""
        lane = self._by_number.get(message.sequence_number)
        if lane is not None:
            self._set_missing(lane, message.sequence_number, MissingMessage.DEFERRED)

    def withdraw(self, message: BacklogMessage) -> bool:
        """Whether a message waited here for its turn, which it then does no more."""
        number = message.sequence_number
        if self._copies.get(number) is message:
            return True
        lane = self._by_number.get(number)
        if lane is None or lane.waiting.get(number) is not message:
            return False
        self._not_waiting(lane, number)
        return True

    def is_waiting(self, message: BacklogMessage) -> bool:
        """Whether a message waits here for its turn, or for the end of its other copy."""
        number = message.sequence_number
        lane = self._by_number.get(number)
        if lane is None:
            return False
        return lane.waiting.get(number) is message or self._copies.get(number) is message

    def take_waiting(self, destination: str) -> list[BacklogMessage]:
        """All that wait for their turn to one destination, which they then do no more."""
        taken = [
            p for lane in self._with_waiting.pop(destination, ()) for p in lane.waiting.values()
        ]
        for message in taken:
            self._by_number[message.sequence_number].waiting.clear()
        return sorted(taken, key=lambda message: message.sequence_number)

    def has_waiting(self, destination: str) -> bool:
        return destination in self._with_waiting

    # Whose turn it is

    def take_changed(self) -> list[SessionLane]:
        """The lanes in which something may have changed."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def next_to_go(self, lane: SessionLane) -> BacklogMessage | None:
        """The lane's head, handed over to be sent; None: it is not its turn, or not in hand."""
        head = lane.head()
        if head is None or lane.current is not None or head > self.known_up_to:
            return None
        message = lane.waiting.get(head)
        if message is not None:
            self._not_waiting(lane, head)
            lane.current = message
        return message

    def out_of_turn(self, lane: SessionLane) -> list[BacklogMessage]:
        """What must not stay in hand: those behind a head that is not, and those that are too many.

        Left where they are they could fill the pump, and the head would find no room.
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
        """Whether a session's head waits to be received by its number."""
        return destination in self._to_fetch

    def take_deferred(self, destination: str, room: int) -> list[int]:
        """Numbers to receive now: heads, and what follows them."""
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
        """Those that were asked for and did not come are not where they were thought to be."""
        for number in list(self._missing) if numbers is None else numbers:
            if self._missing.get(number) is MissingMessage.REQUESTED:
                self._set_missing(self._by_number[number], number, MissingMessage.ELSEWHERE)

    # The survey

    @property
    def is_stuck(self) -> bool:
        """Whether a lane waits for a message of which nobody knows where it is."""
        return bool(self._stuck)

    def peek_from(self) -> int | None:
        """Where to peek, because messages in hand lie beyond what is known; None: none does."""
        if not self._beyond_known or len(self._missing) >= KNOWN_MAX:
            return None
        return self.known_up_to + 1

    def recheck_from(self, after: int) -> int | None:
        """Where to peek for heads that do not come: the first beyond `after`, or the first."""
        heads = [head for lane in self._stuck if (head := lane.head()) is not None]
        return min((h for h in heads if h > after), default=min(heads, default=None))

    def peek_started(self) -> None:
        """A peek is asked for now."""
        self._peeked_up_to = max(self._highest, self.known_up_to)

    def peeked(self, start: int, page: Iterable[PeekedEntry]) -> int:
        """What a peek from `start` showed; up to which number that says everything."""
        entries: dict[int, PeekedEntry] = {entry.number: entry for entry in page}
        # A page may be short for its size alone, so that only an empty one shows the end; and even
        # then only of what was there when it was asked for. Numbers are given in order: whatever
        # lies before the last one seen, and was not seen, is no longer there.
        end = max(entries, default=self._peeked_up_to)
        for number in [n for n in self._missing if start <= n <= end and n not in entries]:
            self._finish(number)
        for entry in entries.values():
            self.seen(entry)
        if start <= self.known_up_to + 1 and end > self.known_up_to:
            self._extend_known(end)
        return end

    def seen(self, entry: PeekedEntry) -> None:
        """A message was seen in the queue."""
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

    # Places

    def _lane(self, number: int, path: str, session: str) -> SessionLane:
        lane, key = self._by_number.get(number), (path.lower(), session)
        if lane is not None and (lane.destination, lane.session) != key:
            # A queue that was deleted and made anew counts from the start again.
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
        """Only sessions of which something is left are remembered."""
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
        """Something changed in a lane: it is to be looked at, and where its head is, is noted."""
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
