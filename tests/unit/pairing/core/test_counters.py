"""Calls that raised in the last minute: counted by the second, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.core.counters import CANCELLED, RECENT_S, RecentErrors


@given(st.lists(st.integers(0, 300), max_size=200), st.integers(0, 400))
def test_the_count_is_that_of_the_last_sixty_seconds(raised: list[int], later: int) -> None:
    recent, times = RecentErrors(), sorted(raised)
    for at in times:
        recent.raised("not found", at + 0.5)
    now = (times[-1] if times else 0) + later
    assert recent.count(now + 0.9) == sum(now - RECENT_S < at for at in times)


def test_a_cancelled_call_counts_only_when_the_entity_stores_nothing() -> None:
    recent = RecentErrors()
    for second in range(20):  # Its callers give up now and then; the others are served.
        recent.own_fault(CANCELLED, stored=second, now=second)
    assert recent.count(20) == 0
    for second in range(20, 30):  # Every caller gives up, and nothing is stored.
        recent.own_fault(CANCELLED, stored=19, now=second)
    assert recent.count(30) == 6
    assert recent.reason == CANCELLED
    recent.own_fault(CANCELLED, stored=19, now=200)  # A lone one, minutes later.
    assert recent.count(200) == 0
