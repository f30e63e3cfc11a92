"""Pauses between the links of a side."""

from __future__ import annotations

import pytest

from twinbus.pairing.receiving.reopening import LASTED_S, PAUSE_MAX_S, ReopenPauses


def test_the_pause_doubles_while_no_link_is_opened() -> None:
    pauses = ReopenPauses(lambda: 1.0)
    found = [pauses.after_failure() for _ in range(9)]
    assert found == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5])


def test_half_of_a_pause_is_chance() -> None:
    pauses = ReopenPauses(lambda: 0.0)
    assert [pauses.after_failure() for _ in range(2)] == pytest.approx([0.1, 0.2])
    assert pauses.after_end(0.0) == 0.0, "the first link of all has not failed"


def test_links_that_end_at_once_are_like_links_that_were_not_opened() -> None:
    pauses, now = ReopenPauses(lambda: 1.0), 0.0
    for _ in range(8):
        pauses.opened(now)
        now += pauses.after_end(now)
    assert now == pytest.approx(0.2 + 0.4 + 0.8 + 1.6 + 3.2 + 5 + 5 + 5)
    pauses.opened(now)
    assert pauses.after_end(now + 0.1) == PAUSE_MAX_S
    pauses.restart()
    assert pauses.after_failure() == 0.2


@pytest.mark.parametrize("how", ["a message", "time"])
def test_after_a_link_that_worked_the_pause_is_short(how: str) -> None:
    pauses = ReopenPauses(lambda: 1.0)
    for _ in range(5):
        pauses.after_failure()
    pauses.opened(100.0)
    if how == "a message":
        pauses.delivered()
    assert pauses.after_end(100.0 + (1.0 if how == "a message" else LASTED_S)) == 0.2
    assert pauses.after_failure() == 0.2
