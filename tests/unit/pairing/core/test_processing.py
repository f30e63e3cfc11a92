"""What a processor decides: settlement, receive sizes, renewals, reconnections, options."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import DeadLetterError
from twinbus.pairing.core.processing import (
    BATCH_WAIT_S,
    LOCK_MAX_S,
    LOCK_MIN_S,
    RECONNECT_MAX_S,
    SILENT_S,
    SINGLE_WAIT_S,
    LockRenewal,
    ProcessSettings,
    ReceiveSize,
    Reconnection,
    Settlement,
    settlement_of,
)


@pytest.mark.parametrize(
    ("error", "settlement"),
    [
        (None, Settlement.COMPLETE),
        (ValueError("wrong"), Settlement.ABANDON),
        (asyncio.CancelledError(), Settlement.ABANDON),
        (DeadLetterError("unreadable", "no JSON"), Settlement.DEAD_LETTER),
    ],
)
def test_a_message_is_settled_by_the_end_of_its_handler(
    error: BaseException | None, settlement: Settlement
) -> None:
    assert settlement_of(error, is_settled=False, is_lock_lost=False) is settlement
    assert settlement_of(error, is_settled=True, is_lock_lost=False) is Settlement.NOTHING
    assert settlement_of(error, is_settled=False, is_lock_lost=True) is Settlement.NOTHING


def test_a_dead_letter_has_a_reason_and_a_description() -> None:
    assert str(DeadLetterError("unreadable")) == "unreadable"
    error = DeadLetterError("unreadable", "no JSON")
    assert (error.reason, error.description, str(error)) == (
        *("unreadable", "no JSON"),
        "unreadable: no JSON",
    )


def test_receives_grow_while_messages_wait_and_shrink_when_none_do() -> None:
    size = ReceiveSize(8)
    asked = []
    for _ in range(5):
        wanted = size.wanted(0)
        asked.append(wanted)
        size.received(wanted, wanted)
    assert asked == [1, 2, 4, 8, 8]
    size.received(5, 8)
    assert size.wanted(0) == 1
    size.received(0, 1)
    assert size.wanted(0) == 1


def test_only_a_receive_of_one_message_waits_for_long() -> None:
    size = ReceiveSize(8)
    assert [size.wait_s(wanted) for wanted in (1, 2, 8)] == [
        *(SINGLE_WAIT_S, BATCH_WAIT_S, BATCH_WAIT_S),
    ]


def test_a_receive_that_was_small_for_lack_of_slots_changes_no_size() -> None:
    size = ReceiveSize(8)
    for wanted in (1, 2, 4):
        size.received(wanted, wanted)
    assert size.wanted(running=7) == 1
    size.received(1, 1)
    assert size.wanted(running=0) == 8


@given(
    concurrency=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000))),
)
def test_never_more_is_received_than_can_be_handled(
    concurrency: int, steps: list[tuple[int, int]]
) -> None:
    size = ReceiveSize(concurrency)
    for running, came in steps:
        running = min(running, concurrency)  # noqa: PLW2901
        wanted = size.wanted(running)
        assert running + wanted <= concurrency
        assert (wanted == 0) == (running == concurrency)
        if wanted:
            size.received(min(came, wanted), wanted)


def test_a_lock_is_renewed_at_half_of_its_time_until_the_longest_time_is_over() -> None:
    lock, times = LockRenewal(30.0, 100.0, until=150.0), []
    for remaining_s in (30.0, 60.0):
        assert lock.timer_at is not None
        times.append(lock.timer_at)
        lock.renewed(remaining_s, lock.timer_at)
    assert (times, lock.timer_at) == ([115.0, 130.0], None)
    assert not lock.is_lost


def test_no_renewal_is_made_when_its_longest_time_is_0() -> None:
    assert LockRenewal(30.0, 100.0, until=100.0).timer_at is None


def test_a_session_with_a_new_message_is_renewed_again() -> None:
    lock = LockRenewal(30.0, 100.0, until=110.0)
    assert [lock.timer_at] == [None]
    lock.extend(until=420.0, now=120.0)
    assert lock.timer_at == 125.0
    lock.extend(until=400.0, now=121.0)
    assert (lock.until, lock.timer_at) == (420.0, 125.0)


def test_a_renewal_that_fails_is_repeated_until_the_lock_has_ended() -> None:
    lock = LockRenewal(30.0, 100.0, until=1_000.0)
    times = []
    for _ in range(20):
        if lock.timer_at is None:
            break
        times.append(lock.timer_at)
        lock.failed(lock.timer_at)
    assert times[:3] == [115.0, 120.0, 125.0]
    assert times == sorted(times)
    assert 130.0 <= times[-1] <= 130.5
    assert lock.is_lost
    lock.extend(until=2_000.0, now=131.0)
    lock.renewed(30.0, 131.0)
    assert lock.timer_at is None


@given(remaining_s=st.floats(-1e9, 1e9))
def test_a_wrong_clock_neither_floods_nor_forgets_a_renewal(remaining_s: float) -> None:
    lock = LockRenewal(remaining_s, 0.0, until=1e9)
    assert lock.timer_at is not None
    assert LOCK_MIN_S / 2 <= lock.timer_at <= LOCK_MAX_S / 2


def test_reconnections_wait_longer_and_longer_and_go_on_for_ever() -> None:
    reconnection = Reconnection()
    waits = [reconnection.failed(0.0) for _ in range(2_000)]
    assert waits[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, RECONNECT_MAX_S]
    assert set(waits[7:]) == {RECONNECT_MAX_S}
    assert reconnection.failed(1.0) < RECONNECT_MAX_S
    reconnection.succeeded()
    assert (reconnection.failures, reconnection.failed(0.0)) == (0, 0.5)


def test_the_second_failure_in_a_row_wants_a_fresh_receiver() -> None:
    reconnection = Reconnection()
    reconnection.failed(0.0)
    assert not reconnection.needs_fresh_receiver
    reconnection.failed(0.0)
    assert reconnection.needs_fresh_receiver


def test_a_receiver_is_silent_when_it_has_brought_nothing_for_long() -> None:
    reconnection = Reconnection()
    assert not reconnection.is_silent(1_000.0)
    reconnection.heard(100.0)
    assert not reconnection.is_silent(100.0 + SILENT_S - 1)
    assert reconnection.is_silent(100.0 + SILENT_S)
    reconnection.heard(300.0)
    assert not reconnection.is_silent(300.0)


def test_durations_are_seconds_or_a_timedelta() -> None:
    settings = ProcessSettings(
        session_idle=timedelta(minutes=1), max_lock_renewal=timedelta(hours=1), stop_timeout=7
    )
    assert settings.session_idle_s == 60.0
    assert settings.max_lock_renewal_s == 3_600.0
    assert settings.stop_timeout_s == 7.0
    assert (
        ProcessSettings(concurrency=8).handlers_max,
        ProcessSettings(sessions=5).handlers_max,
    ) == (*(8, 5),)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"concurrency": 0},
            ValueError,
            "concurrency must be a whole number from 1 to 1000",
        ),
        ({"concurrency": 1_001}, ValueError, "from 1 to 1000; got 1001"),
        ({"concurrency": True}, ValueError, "got True"),
        ({"concurrency": "8"}, ValueError, "got '8'"),
        ({"sessions": 0}, ValueError, "sessions must be a whole number from 1 to 1000; got 0"),
        ({"sessions": 2, "concurrency": 2}, ValueError, "concurrency must not be given"),
        ({"session_idle": 0}, ValueError, "session_idle must be from 0.1 to 86400 seconds"),
        ({"max_lock_renewal": -1}, ValueError, "max_lock_renewal must be from 0 to 86400 seconds"),
        ({"stop_timeout": float("nan")}, ValueError, "stop_timeout must be from 0"),
        ({"stop_timeout": None}, ValueError, "got None"),
        ({"on_error": "log"}, TypeError, "on_error must be a function"),
        ({"concurency": 8}, TypeError, "a processor takes concurrency, sessions, .*'concurency'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(
    options: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as refused:
        ProcessSettings.of(options)
    assert "\n" not in str(refused.value)
