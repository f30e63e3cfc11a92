"""A silent link is checked in time, for free, and never at the cost of locks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.receiving.side import LOOK_S
from twinbus.pairing.receiving.watchdog import (
    CHECKS_MAX,
    DRAIN_ANSWER_S,
    SILENT_LEAST_S,
    SPREAD_S,
    LinkCheck,
    Watchdog,
)


def test_a_silent_link_is_first_replaced_between_30_and_40_seconds() -> None:
    for jitter in (0.0, 0.5, 1.0):
        watchdog = Watchdog(jitter)
        watchdog.credit_changed(0.0, is_out=True)
        due = watchdog.check_at
        assert due == SILENT_LEAST_S + SPREAD_S * jitter
        assert due + LOOK_S + DRAIN_ANSWER_S < 55
        assert watchdog.check(due - 0.1, unsettled=0, is_session=False) is LinkCheck.NOTHING
        assert watchdog.check(due, unsettled=0, is_session=False) is LinkCheck.REPLACE


def test_a_delivery_begins_the_time_again() -> None:
    watchdog = Watchdog(0.0)
    watchdog.credit_changed(0.0, is_out=True)
    watchdog.delivered(25.0)
    assert watchdog.check(40.0, unsettled=0, is_session=False) is LinkCheck.NOTHING
    assert watchdog.check_at == 55.0


def replaced_at(watchdog: Watchdog, until: float, **settled: Any) -> list[float]:
    """When links that answer every check, and bring nothing, are replaced."""
    found: list[float] = []
    watchdog.credit_changed(0.0, is_out=True)
    while (now := watchdog.check_at or 0.0) < until:
        match watchdog.check(now, **{"unsettled": 0, "is_session": False, **settled}):
            case LinkCheck.REPLACE:
                found.append(now)
                watchdog.replaced()
                watchdog.opened(now)
            case LinkCheck.DRAIN:
                watchdog.checked(now)
    return found


def test_links_that_answer_are_replaced_after_ever_longer_times() -> None:
    found = replaced_at(Watchdog(0.0), 3_000.0)
    assert found == [30, 90, 210, 450, *range(870, 3_000, 30 * CHECKS_MAX)]
    longest_s = CHECKS_MAX * (SILENT_LEAST_S + SPREAD_S)
    assert longest_s < 600, "the service detaches a link without transfers after 10 minutes"


@pytest.mark.parametrize("settled", [{"unsettled": 1}, {"is_session": True}])
def test_a_link_that_answers_is_kept_for_its_session_or_for_unsettled_messages(
    settled: dict[str, Any],
) -> None:
    watchdog = Watchdog(0.0)
    assert replaced_at(watchdog, 1_000.0, **settled) == []
    assert watchdog.check(2_000.0, unsettled=0, is_session=False) is LinkCheck.REPLACE


@pytest.mark.parametrize("event", ["delivered", "ended"])
def test_after_a_message_or_an_ended_link_the_time_is_short_again(event: str) -> None:
    watchdog = Watchdog(0.0)
    replaced_at(watchdog, 1_000.0)
    if event == "delivered":
        watchdog.delivered(1_000.0)
    else:
        watchdog.ended()
        watchdog.opened(1_000.0)
    assert watchdog.check_at == 1_030.0
    assert watchdog.check(1_030.0, unsettled=0, is_session=False) is LinkCheck.REPLACE


def test_short_receive_calls_add_up() -> None:
    watchdog = Watchdog(0.0)
    for second in range(29):
        watchdog.credit_changed(10.0 * second, is_out=True)
        watchdog.credit_changed(10.0 * second + 1, is_out=False)
        assert watchdog.check_at is None
    watchdog.credit_changed(1_000.0, is_out=True)
    assert watchdog.check_at == 1_001.0


@pytest.mark.parametrize(
    ("unsettled", "is_session", "check", "without_answer"),
    [
        (0, False, LinkCheck.REPLACE, LinkCheck.REPLACE),
        (2, False, LinkCheck.DRAIN, LinkCheck.REPLACE),
        (0, True, LinkCheck.DRAIN, LinkCheck.REPLACE),
        (2, True, LinkCheck.DRAIN, LinkCheck.NOTHING),
    ],
)
def test_a_session_with_unsettled_messages_is_never_given_up(
    unsettled: int, is_session: bool, check: LinkCheck, without_answer: LinkCheck
) -> None:
    watchdog = Watchdog(0.0)
    watchdog.credit_changed(0.0, is_out=True)
    assert watchdog.check(30.0, unsettled=unsettled, is_session=is_session) is check
    given_up = watchdog.not_answered(unsettled=unsettled, is_session=is_session)
    assert given_up is without_answer


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["out", "in", "delivered", "opened", "checked"]), st.floats(0.0, 30.0)
        ),
        max_size=40,
    )
)
def test_credit_is_never_out_for_longer_than_the_limit_without_a_check(
    steps: list[tuple[str, float]],
) -> None:
    watchdog, now, silent_s, is_out = Watchdog(1.0), 0.0, 0.0, False
    for kind, wait_s in steps:
        due = watchdog.check_at
        assert (due is not None) == is_out
        if due is not None:
            assert due - now == pytest.approx(SILENT_LEAST_S + SPREAD_S - silent_s)
        silent_s += wait_s if is_out else 0.0
        now += wait_s
        if kind in ("out", "in"):
            is_out = kind == "out"
            watchdog.credit_changed(now, is_out=is_out)
        else:
            getattr(watchdog, kind)(now)
            silent_s = 0.0
