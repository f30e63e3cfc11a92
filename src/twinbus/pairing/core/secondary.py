"""The secondary as a namespace: whether it can be reached, and whose turn it is to find out.

    REACHABLE --an attempt ends without an answer, and no queue answers--> LOST
        ^------------------ any answer of any backlog queue ---------------'

A connection that fails says something about the namespace, not about one queue: it pulls none. A
silent attempt is judged by what else was heard since it began. The queue answered others: the
attempt was slow. Another queue answered: this one is at fault. None did: the namespace is lost, and
what was tried meanwhile proves nothing about one queue. Only a queue that is silent once more,
after another one has answered, is at fault.

While the namespace is lost, or every queue is pulled, calls wait. One of them at a time has the
turn: it makes an attempt with its own message, and the first success frees all. Pure: time and
chance are arguments.

A healthy pair sends nothing to the secondary. Without a check now and then its status would claim a
protection that may have ended hours ago; `Verification` says when to check.

A pair searches again for backlog queues that are not in use (docs/failures.md):

    since the last change   the secondary answers                        it does not answer
    10 minutes              every 60 s                                   every 5 s
    the first hour          every 60 s                                   every 60 s
    later                   a sixtieth of that time, at most 5 minutes   the same

A change is a queue that was found or left out, a loss, or a secondary that begins or ceases to
answer. Every wait is shortened by chance, by a fifth at most: many processes that lose a queue at
the same time do not search at the same time, and 60 s stay the longest wait of the first hour.
While every wanted queue is in use there is no search at all.

A syphon lists the backlog queues, to find those that were made after its start:

    no backlog queue is known                                  every 30 s
    the primary is down, or was within the last 15 minutes     every minute
    messages move, or did within the last 15 minutes           every minute
    otherwise                                                  every 15 minutes, as an idle poll

An application that joins a pair later, or with more queues, creates them in an outage too: what it
diverts must not wait for the end of an idle interval.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from twinbus.wording import plain

JITTER: Final = 0.2
"""The share of a wait that chance may take off, so that many processes do not act as one."""

FIRST_PACE_S: Final = 0.2
LONGEST_PACE_S: Final = 5.0
"""Time between two turns: half the time since calls wait, within these bounds."""

TURN_GRACE_S: Final = 1.0
"""A turn that was not ended is lost this long after the time of its attempt."""


class DivertFault(Enum):
    """Who is at fault when a divert fails."""

    QUEUE = "the queue: it refused"
    SILENT_QUEUE = "the queue: it is silent while another queue answers"
    NAMESPACE = "the namespace: no queue answers"
    ATTEMPT = "the attempt: it was slow or lost its connection while others were answered"
    CALLER = "the caller: its own timeout was over"


def jittered(wait_s: float, jitter: float) -> float:
    """A wait made shorter by chance; `jitter` is from 0 (not at all) to 1."""
    return wait_s * (1.0 - JITTER * jitter)


class SecondaryHealth:
    """What all calls of a pair know of the secondary namespace."""

    def __init__(self) -> None:
        self.reason = ""
        """Why the namespace is lost; empty: it can be reached, as far as is known."""
        self.turn_at = -math.inf
        """When a waiting call may make the next attempt."""
        self._waiting_since: float | None = None
        self._answered: dict[str, float] = {}
        """When each queue answered last."""
        self._silent: dict[str, float] = {}
        """When each queue that has not answered since was silent for a whole attempt."""

    def __repr__(self) -> str:
        return f"SecondaryHealth({f'lost: {self.reason}' if self.reason else 'reachable'})"

    @property
    def is_lost(self) -> bool:
        return bool(self.reason)

    def answered(self, queue: str, now: float) -> None:
        """A queue answered, if only with a refusal: the namespace can be reached."""
        self._answered[queue] = now
        self._silent.pop(queue, None)
        self.reason = ""

    def forget(self, queue: str) -> None:
        """Nothing will be sent to this queue any more."""
        self._answered.pop(queue, None)
        self._silent.pop(queue, None)

    def stored(self, queue: str, now: float) -> None:
        """A queue stored a message: no call needs to wait any more."""
        self._waiting_since = None
        self.turn_at = -math.inf
        self.answered(queue, now)

    def no_answer(
        self, queue: str, reason: str, *, began: float, now: float, timed_out: bool
    ) -> DivertFault:
        """An attempt ended in silence, or its connection broke; return who is at fault."""
        if timed_out and self._answered.get(queue, -math.inf) > began:
            return DivertFault.ATTEMPT
        was_silent_at = math.inf
        if timed_out:
            was_silent_at = self._silent.get(queue, math.inf)
            self._silent[queue] = now
        if any(at > began or at >= was_silent_at for at in self._answered.values()):
            return DivertFault.SILENT_QUEUE if timed_out else DivertFault.ATTEMPT
        self.reason = reason
        if self._waiting_since is None:
            self._waiting_since = now
        return DivertFault.NAMESPACE

    def is_turn(self, now: float) -> bool:
        """Whether a call that waits may make an attempt now."""
        return now >= self.turn_at

    def begin_turn(self, now: float, attempt_s: float) -> None:
        if self._waiting_since is None:
            self._waiting_since = now
        self.turn_at = now + attempt_s + TURN_GRACE_S

    def end_turn(self, now: float, jitter: float) -> None:
        """The attempt ended. Unless it succeeded, the next follows after a pause."""
        if self._waiting_since is not None:
            pace_s = (now - self._waiting_since) / 2
            pace_s = min(max(pace_s, FIRST_PACE_S), LONGEST_PACE_S)
            self.turn_at = now + jittered(pace_s, jitter)


VERIFY_FIRST_S: Final = 10.0
"""Time after pairing until the first check: a program that starts has more urgent work."""

VERIFY_EVERY_S: Final = 180.0
"""Time between two checks that succeed; a stored divert counts as one."""

VERIFY_AGAIN_S: Final = 30.0
"""Time after a check that failed: a connection that is refused costs nothing."""


class Verification:
    """What is known of the protection of one pair."""

    def __init__(self) -> None:
        self.verified_at: float | None = None
        """When a backlog queue last answered, in unix seconds; None: not yet."""
        self.error = ""
        """Why the last check failed; empty: it succeeded, or none was made yet."""
        self._due_at = math.inf

    def begin(self, now: float, jitter: float) -> None:
        """Schedule the first check; `jitter` is from 0 to 1."""
        self._due_at = now + jittered(VERIFY_FIRST_S, jitter)

    def succeeded(self, now: float, at: float, jitter: float = 0.0) -> None:
        """A backlog queue answered at the unix time `at`, which is `now` on the pair's clock."""
        self.verified_at, self.error = at, ""
        self._due_at = now + jittered(VERIFY_EVERY_S, jitter)

    def failed(self, reason: str, now: float, jitter: float) -> None:
        self.error = reason
        self._due_at = now + jittered(VERIFY_AGAIN_S, jitter)

    def wait_s(self, now: float) -> float:
        return max(0.0, self._due_at - now)


SEARCH_S: Final = 60.0
"""Azure takes minutes to apply a granted right; people take minutes to make or enable queues."""

SEARCH_UNREACHABLE_S: Final = 5.0
"""A search without an answer costs nothing, and an outage mostly ends within minutes."""

SEARCH_EAGER_S: Final = 600.0
"""How long a secondary that does not answer is searched at the short wait."""

SEARCH_SLOW_DOWN: Final = 60.0
"""The wait is the time since the last change divided by this, once that is more than usual."""

SEARCH_LONGEST_S: Final = 300.0

LOSS_SPREAD_S: Final = 1.0
"""A queue that a divert found missing is searched within this time."""

REFUSAL_S: Final = 3_600.0
"""A queue that refused a message for lack of a session is used again after this time where nothing
else can show that it was repaired: only another message can."""


def search_wait_s(since_change_s: float, *, answers: bool, chance: float) -> float:
    """Time until the next search; `chance` is from 0 to 1."""
    if not answers and since_change_s < SEARCH_EAGER_S:
        usual = SEARCH_UNREACHABLE_S
    else:
        usual = max(SEARCH_S, min(SEARCH_LONGEST_S, since_change_s / SEARCH_SLOW_DOWN))
    return jittered(usual, chance)


def search_wait_after_loss_s(since_search_s: float, *, chance: float) -> float:
    """Time until the search for a queue that a divert found missing or disabled.

    No sooner than the shortest wait after the search before.
    """
    return max(0.0, SEARCH_UNREACHABLE_S - since_search_s) + LOSS_SPREAD_S * chance


def is_same_reason(before: str | None, after: str) -> bool:
    """Whether two answers say the same, apart from the marks that a service puts on each."""
    return before is not None and plain(before) == plain(after)


LIST_FIRST_S: Final = 30.0
LIST_BUSY_S: Final = 60.0
LIST_IDLE_S: Final = 900.0


class ListingTimes:
    def __init__(self) -> None:
        self._searched_at = float("-inf")
        self._busy_at = float("-inf")
        self._moved = 0

    def observe(self, *, is_down: bool, moved: int, now: float) -> None:
        """Take whether the primary is down, and the messages moved so far."""
        if is_down or moved != self._moved:
            self._busy_at = now
        self._moved = moved

    def searched(self, now: float) -> None:
        """Note that a search began; whether it is answered does not matter."""
        self._searched_at = now

    def due_at(self, now: float, *, has_queues: bool = True) -> float:
        """Return when to search next, as far as is known now."""
        if not has_queues:
            return self._searched_at + LIST_FIRST_S
        is_busy = now < self._busy_at + LIST_IDLE_S
        return self._searched_at + (LIST_BUSY_S if is_busy else LIST_IDLE_S)
