"""The state of one destination on the primary, and what waits for it (docs/guarantees.md).

unattached --attach--> attached --refusal of the entity--> held --back-off--> on trial, with
                          ^                                  ^                one message
                          '-------- it was accepted ---------+--- it was not ---'

Its messages wait in memory to be sent, or deferred in the backlog queue. With strict session order,
messages of a session wait in the session's lane and go one by one.

This process knows the sequence numbers of the messages that it deferred. Messages that another
process deferred before it died are found by peeking, when the queue is quiet: in a full queue the
search would peek at every message. If the queue is never quiet, a forced search peeks only at its
front, where deferred messages are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from twinbus.syphon.core.intake import Intake
from twinbus.syphon.core.session_lanes import PeekedEntry, SessionLanes
from twinbus.transfer.unpacking import BacklogMessage

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 60.0
"""First and longest pause before a refusing destination is tried again; it doubles each time."""

BACKOFF_JITTER: Final = 0.5
"""A pause is longer by up to this share, by chance, so that pumps do not try all at once."""

IDLE_LINK_S: Final = 60.0
"""A link that carried nothing for this time is closed: a peer limits their number."""

ANY_NUMBER: Final = 1 << 30
"""No limit for one destination; the limit of the pump holds."""

WINDOW_MAX: Final = 1_000
"""A destination that takes this many at once has no limit of its own any more."""

ATTACHED_SOON_S: Final = 2.0
"""An attach usually takes milliseconds. If it takes longer, what waits for it must not block the
other destinations."""

ATTACH_ANSWER_S: Final = 10.0
"""An attach without an answer is given up after this time, or sooner with a shorter `answer_s`. It
carries no message, so that another one duplicates nothing, and an entity that hung does not answer
the old one when it works again."""

RECENT_S: Final = 10.0
"""A destination that accepted a message within this time is progressing."""


@dataclass(slots=True, eq=False, repr=False)
class Destination:
    """The messages to one entity of the primary, and whether more may be sent."""

    path: str
    attached: bool = False
    attached_at: float = float("-inf")
    attach_at: float | None = None
    """When an attach was requested that is not answered yet."""
    credit: int = 0
    limit_bytes: int = 0
    """Largest message that the link accepts; 0: unknown."""
    window: int = ANY_NUMBER
    waiting: deque[BacklogMessage] = field(default_factory=deque)
    unsorted: bool = False
    """Messages came back to `waiting` out of order."""
    sent: dict[bytes, BacklogMessage] = field(default_factory=dict)
    """In flight, the oldest first, by lock token."""
    deferred: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Sequence numbers of deferred messages. An OrderedDict, because taking from the front of a
    plain dict is slow."""
    held_until: float | None = None
    """None: it is not held."""
    is_on_trial: bool = False
    """It was held, and one message tries whether it accepts again."""
    is_selected: bool = True
    """The syphon serves it."""
    reason: str = ""
    backoff_s: float = 0.0
    missing_since: float | None = None
    accepted_at: float = float("-inf")
    progressed: bool = False
    """It accepted a message since its link was attached."""
    is_careful: bool = False
    """The link was closed for the content of one message: send one at a time to find it."""

    def __repr__(self) -> str:
        state = "open" if self.held_until is None else f"held: {self.reason}"
        return f"<{self.path}, {state}, {len(self.sent)} sent, {len(self.waiting)} waiting>"

    def is_progressing(self, now: float) -> bool:
        """Return whether messages to it arrive, so that held destinations must not block it."""
        if self.held_until is not None:
            return False
        return bool(self.sent or self.waiting) or now - self.accepted_at < RECENT_S

    @property
    def is_held(self) -> bool:
        """Whether nothing may be sent to it."""
        return self.held_until is not None and not self.is_on_trial

    @property
    def ready(self) -> int:
        """How many messages could be sent to it now."""
        if not self.attached or self.is_held:
            return 0
        return max(0, min(len(self.waiting), self.credit, self.window - len(self.sent)))

    def is_given_up(self, grace_s: float, now: float) -> bool:
        """Return whether it has been missing for the whole grace period."""
        return self.missing_since is not None and now - self.missing_since >= grace_s

    def due_at(self, answer_s: float) -> float | None:
        """Return when its back-off, or the time for an answer, ends; None: neither is running."""
        if self.is_held:
            return self.held_until
        if self.attach_at is not None:
            is_late = self.held_until is not None
            longest_s = ATTACH_ANSWER_S if is_late else ATTACHED_SOON_S
            return self.attach_at + min(answer_s, longest_s)
        return next((oldest.sent_at + answer_s for oldest in self.sent.values()), None)

    def hold(self, reason: str, now: float, chance: float) -> None:
        """Send it nothing until the back-off ends, which doubles each time in a row.

        `chance` is a random number from 0 to 1.
        """
        if not self.is_held:
            self.backoff_s = min(max(FIRST_BACKOFF_S, self.backoff_s * 2), LONGEST_BACKOFF_S)
            self.held_until = now + self.backoff_s * (1 + BACKOFF_JITTER * chance)
            self.is_on_trial = False
        self.reason = reason
        self.window = 1

    def is_idle(self, now: float) -> bool:
        """Return whether nothing was or is to be sent for a while."""
        if self.sent or self.waiting or self.deferred or self.held_until is not None:
            return False
        return self.attach_at is None and now - max(self.attached_at, self.accepted_at) >= (
            IDLE_LINK_S
        )

    def is_late(self, now: float) -> bool:
        """Return whether an attach takes unusually long."""
        if self.attach_at is None or self.held_until is not None:
            return False
        return now >= self.attach_at + ATTACHED_SOON_S

    def doubt(self, now: float) -> None:
        """Hold it while the attach is unanswered; try it with one message first."""
        self.held_until = now
        self.reason = (
            f"an attach to {self.path} is not answered; another follows after {ATTACH_ANSWER_S:g} s"
        )
        self.start_trial()

    def start_trial(self) -> None:
        """Try with one message whether it accepts again."""
        self.is_on_trial = True
        self.window = 1

    def succeeded(self, count: int, now: float) -> None:
        """Note that it accepted `count` messages: it is no longer held.

        What may be in flight grows from one message on by three for each that was accepted: what
        comes back does not get everything at once.
        """
        self.accepted_at = now
        self.progressed = True
        self.backoff_s = 0.0
        self.missing_since = None
        if self.is_on_trial:
            self.is_on_trial = False
            self.held_until = None
        if self.window < ANY_NUMBER and (not self.is_careful or not self.waiting):
            self.is_careful = False
            self.window += 3 * count
            if self.window > WINDOW_MAX:
                self.window = ANY_NUMBER

    def drop_link(self) -> list[BacklogMessage]:
        """Forget the link; return what was in flight on it, which waits again."""
        back = list(self.sent.values())
        self.sent.clear()
        self.waiting.extendleft(reversed(back))
        self.unsorted = self.unsorted or bool(back)
        self.attached = self.progressed = False
        self.attach_at = None
        self.credit = 0
        return back

    def take_waiting(self) -> list[BacklogMessage]:
        taken = list(self.waiting)
        self.waiting.clear()
        return taken

    def next_waiting(self) -> BacklogMessage:
        """Remove and return the message to send next, in the order of the backlog queue."""
        if self.unsorted:
            self.sort_waiting()
        return self.waiting.popleft()

    def sort_waiting(self) -> None:
        """Bring what waits into the order of the backlog queue."""
        self.waiting = deque(sorted(self.waiting, key=lambda each: each.sequence_number))
        self.unsorted = False


class Destinations:
    """The destinations that messages of one backlog queue belong to, and the primary's state."""

    def __init__(
        self, grace_s: float, only: frozenset[str] | None, draw: Callable[[], float]
    ) -> None:
        """`only` are the keys of the destinations to serve; None: all."""
        self.by_key: dict[str, Destination] = {}
        """By path in lower case."""
        self.held: set[str] = set()
        """Keys of destinations that took nothing when last tried, those on trial included."""
        self.grace_s = grace_s
        self.draw = draw
        """Random numbers from 0 to 1."""
        self._only = only
        self.home: Destination | None = None
        """The one destination of a twin's messages; None: the messages name their destinations."""
        self.is_primary_up = False
        self.primary_answered_at = float("-inf")
        """When the primary last answered anything, for any destination."""

    def __iter__(self) -> Iterator[Destination]:
        return iter(self.by_key.values())

    def find(self, path: str) -> Destination | None:
        """Return the destination with that path, in any case, if there is one."""
        return self.by_key.get(path.lower())

    def add(self, path: str) -> Destination:
        """Return the destination with that path; create it if there is none."""
        destination = self.by_key.get(path.lower())
        if destination is None:
            destination = self.by_key[path.lower()] = Destination(path)
            if not self.is_selected(path):
                destination.is_selected, destination.held_until = False, float("inf")
        return destination

    def set_home(self, path: str) -> None:
        """Let all messages go to one destination, which is on trial whenever it is not busy."""
        self.home = self.add(path)
        self.doubt_home()

    def doubt_home(self) -> None:
        """Try the home with one message before more are received for it."""
        assert self.home is not None
        if self.home.held_until is None:
            self.home.held_until, self.home.reason = 0.0, ""
            self.home.start_trial()
            self.held.add(self.home.path.lower())

    def is_selected(self, path: str) -> bool:
        return self._only is None or path.lower() in self._only

    def held_ones(self) -> list[Destination]:
        """Return the destinations that took nothing when last tried."""
        return [self.by_key[key] for key in self.held]


KNOWN_MAX: Final = 100_000
"""Sequence numbers kept for one destination; a search finds the others."""

SEARCH_AFTER_S: Final = 2.0
"""Quiet time before a search."""

SEARCH_AGAIN_S: Final = 10.0

FORCED_SEARCH_S: Final = 60.0
FORCED_SEARCH_MAX_S: Final = 3_600.0
"""How long a search waits for the queue to be quiet; doubled, up to the maximum, after each search
that did not reach the end of the queue."""

VALID_S: Final = 3_600.0
"""How long the result of a complete search is valid. After it, another process may have deferred
messages and died, or drained only some destinations. A search an hour costs less than the polls."""


class DeferredMessages:
    """The known deferred messages of one pump, and the times of its searches."""

    def __init__(self) -> None:
        self.search_at: float | None = 0.0
        """When to search if the queue is quiet; None: all deferred messages are known."""
        self.forced_at = float("inf")
        """When to search even if the queue is busy."""
        self._forced_s = FORCED_SEARCH_S
        self._valid_until = float("-inf")

    @property
    def due_at(self) -> float:
        """When to search next if the queue is quiet."""
        return self._valid_until if self.search_at is None else min(self.search_at, self.forced_at)

    def connected(self, now: float) -> None:
        """Schedule the first forced search: the queue can be reached."""
        self.forced_at = min(self.forced_at, now + FORCED_SEARCH_S)

    def message_arrived(self, now: float) -> None:
        """Put off the search: the queue is not quiet."""
        if self.search_at is not None:
            self.search_at = now + SEARCH_AFTER_S

    def may_hold_more(self, now: float) -> None:
        """Schedule a search: some deferred messages may be unknown."""
        self.search_at = now + SEARCH_AGAIN_S
        self.forced_at = min(self.forced_at, now + self._forced_s)

    def search_started(self, now: float) -> None:
        """Schedule the next search, in case this one fails."""
        self.search_at = now + SEARCH_AGAIN_S
        self.forced_at = now + self._forced_s

    def search_ended(self, now: float, *, is_all: bool) -> None:
        """Schedule the next search. `is_all`: this one reached the end of the queue."""
        self._valid_until = now + VALID_S
        if is_all:
            self.search_at, self._forced_s = None, FORCED_SEARCH_S
            self.forced_at = self._valid_until + FORCED_SEARCH_S
        else:
            self.search_at = now + SEARCH_AGAIN_S
            self._forced_s = min(2 * self._forced_s, FORCED_SEARCH_MAX_S)
            self.forced_at = now + self._forced_s

    def add(self, destination: Destination, number: int, now: float) -> None:
        if len(destination.deferred) < KNOWN_MAX:
            destination.deferred[number] = None
        elif self.search_at is None:
            self.may_hold_more(now)

    @staticmethod
    def take(destination: Destination, count: int) -> list[int]:
        """Remove and return the next numbers to receive."""
        known = destination.deferred
        return [known.popitem(last=False)[0] for _ in range(min(count, len(known)))]


class WaitingMessages:
    def __init__(
        self,
        destinations: Destinations,
        intake: Intake,
        deferred: DeferredMessages,
        lanes: SessionLanes | None,
    ) -> None:
        """`lanes` are given if the order of each session is strict."""
        self._destinations = destinations
        self._intake = intake
        self._deferred = deferred
        self._lanes = lanes

    def add(self, message: BacklogMessage, destination: Destination) -> None:
        if self._lanes is None or message.session is None:
            destination.waiting.append(message)
            return
        older = self._lanes.add(message)
        if older is not None:
            self._intake.forget(older)

    def has_any(self, destination: Destination) -> bool:
        """Return whether a message to this destination waits in memory."""
        if destination.waiting or self._lanes is None:
            return bool(destination.waiting)
        return self._lanes.has_waiting(destination.path.lower())

    def take_all(self, destination: Destination) -> list[BacklogMessage]:
        """Remove and return the messages to this destination that wait in memory."""
        taken = destination.take_waiting()
        if self._lanes is not None:
            taken += self._lanes.take_waiting(destination.path.lower())
        return taken

    def withdraw(self, message: BacklogMessage, destination: Destination) -> bool:
        """Remove one message; return whether it was waiting."""
        if message in destination.waiting:
            destination.waiting.remove(message)
            return True
        return self._lanes is not None and self._lanes.withdraw(message)

    def withdraw_undeliverable(self, message: BacklogMessage, destination: Destination) -> bool:
        """Remove a message that cannot be sent now; return whether it was removed."""
        if self._destinations.is_primary_up and not destination.is_held:
            return False
        return self.withdraw(message, destination)

    # Deferred in the backlog queue

    def has_deferred(self, destination: Destination) -> bool:
        """Return whether deferred messages of it are known that may be received by number."""
        if destination.deferred or self._lanes is None:
            return bool(destination.deferred)
        return self._lanes.has_deferred(destination.path.lower())

    def take_deferred(self, destination: Destination, room: int) -> list[int]:
        """Return the numbers to receive next, at most `room`; they are then no longer known."""
        if self._lanes is None:
            return self._deferred.take(destination, room)
        numbers = self._lanes.take_deferred(destination.path.lower(), room)
        return numbers + self._deferred.take(destination, room - len(numbers))

    def was_deferred(self, message: BacklogMessage, now: float) -> None:
        """Note that a message is deferred in the backlog queue and no longer in memory."""
        if self._lanes is None or message.session is None:
            destination = self._destinations.add(message.path)
            self._deferred.add(destination, message.sequence_number, now)
        else:
            self._lanes.was_deferred(message)

    def found_deferred(self, entry: PeekedEntry, now: float) -> None:
        """Note a deferred message that a peek found; any process may have deferred it."""
        if self._lanes is None or entry.session is None:
            self._deferred.add(self._destinations.add(entry.path), entry.number, now)
        else:
            self._lanes.seen(entry)
