"""When a pair searches again for backlog queues that are not in use (SPEC 2.5).

    since the last change   the secondary answers                        it does not answer
    10 minutes              every 60 s                                   every 5 s
    the first hour          every 60 s                                   every 60 s
    later                   a sixtieth of that time, at most 5 minutes   the same

A change is a queue that was found or left out, a loss, or a secondary that begins or ceases to
answer. Every wait is shortened by chance, by a fifth at most: many processes that lose a queue at
the same time do not search at the same time, and 60 s stay the longest wait of the first hour.
While every wanted queue is in use there is no search at all.
"""

from __future__ import annotations

from typing import Final

from twinbus.wording import plain

USUAL_S: Final = 60.0
"""Azure takes minutes to apply a granted right; people take minutes to make or enable queues."""

UNREACHABLE_S: Final = 5.0
"""A search without an answer costs nothing, and an outage mostly ends within minutes."""

EAGER_S: Final = 600.0
"""How long a secondary that does not answer is searched at the short wait."""

SLOW_DOWN: Final = 60.0
"""The wait is the time since the last change divided by this, once that is more than usual."""

LONGEST_S: Final = 300.0
JITTER: Final = 0.2

LOSS_SPREAD_S: Final = 1.0
"""A queue that a divert found missing is searched within this time."""

REFUSAL_S: Final = 3_600.0
"""A queue that refused a message for lack of a session is used again after this time where nothing
else can show that it was repaired: only another message can."""


def wait_s(since_change_s: float, *, answers: bool, chance: float) -> float:
    """Time until the next search; `chance` is from 0 to 1."""
    if not answers and since_change_s < EAGER_S:
        usual = UNREACHABLE_S
    else:
        usual = max(USUAL_S, min(LONGEST_S, since_change_s / SLOW_DOWN))
    return usual * (1.0 - JITTER * chance)


def wait_after_loss_s(since_search_s: float, *, chance: float) -> float:
    """Time until the search for a queue that a divert found missing or disabled.

    No sooner than the shortest wait after the search before.
    """
    return max(0.0, UNREACHABLE_S - since_search_s) + LOSS_SPREAD_S * chance


def is_same_reason(before: str | None, after: str) -> bool:
    """Whether two answers say the same, apart from the marks that a service puts on each."""
    return before is not None and plain(before) == plain(after)
