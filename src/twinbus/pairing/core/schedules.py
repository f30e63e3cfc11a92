"""When a pair searches, lists and pings. Pure: time and chance are arguments.

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

from typing import Final

from twinbus.pairing.core.secondary import jittered
from twinbus.wording import plain

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
    """The time of the next search."""

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


PING_TIME_TO_LIVE_S = 1.0
"""A service that does not know pings keeps one for this long."""

PING_SPACING_S = 0.005
"""Time between the beginnings of two pings of a pair. One costs the SDK about a millisecond; a
thousand at once would delay every send by a second when all entities of a namespace are down."""


PING_JITTER = 0.1
"""Part of the ping interval by which a ping may be late: processes that saw the same failure at the
same time do not ping at the same time."""


def ping_delay_s(interval_s: float, jitter: float) -> float:
    """How late a ping begins after its interval; `jitter` is a random number from 0 to 1."""
    assert 0 <= jitter <= 1
    return interval_s * PING_JITTER * jitter


class PingTurns:
    """Spreads pings over time: few begin at once, many begin one after the other."""

    def __init__(self, spacing_s: float = PING_SPACING_S) -> None:
        self._spacing_s = spacing_s
        self._free_at = 0.0

    def take(self, now: float) -> float:
        """The time at which the next ping may begin."""
        at = max(now, self._free_at)
        self._free_at = at + self._spacing_s
        return at
