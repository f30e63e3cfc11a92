"""The speed of a backlog and its end, in virtual time."""

from __future__ import annotations

import pytest

from twinbus.syphon.core.forecast import WINDOW_S, DrainMeter, time_to_empty_s


def test_a_steady_speed_is_seen_within_seconds() -> None:
    meter = DrainMeter()
    for tenth in range(100):
        meter.moved(50, tenth / 10)
    assert meter.per_s(10.0) == pytest.approx(500, rel=0.02)


def test_the_speed_is_that_of_the_last_window() -> None:
    meter = DrainMeter()
    for second in range(60):
        meter.moved(1_000, float(second))
    for second in range(60, 60 + WINDOW_S):
        meter.moved(10, float(second))
    assert meter.per_s(60.0 + WINDOW_S - 0.01) == pytest.approx(10, rel=0.05)


def test_a_standstill_is_seen_when_the_window_is_over() -> None:
    meter = DrainMeter()
    meter.moved(1_000, 0.0)
    assert meter.per_s(10.0) == pytest.approx(100)
    assert meter.per_s(WINDOW_S + 1.0) == 0


def test_the_first_batch_is_no_speed_and_nothing_is_none() -> None:
    meter = DrainMeter()
    assert meter.per_s(5.0) == 0
    meter.moved(0, 5.0)
    meter.moved(300, 5.001)
    assert meter.per_s(5.002) == 300


def test_memory_is_the_window_only() -> None:
    meter = DrainMeter()
    for second in range(10_000):
        meter.moved(1, float(second))
    assert len(meter._seconds) == WINDOW_S


def test_time_to_empty() -> None:
    assert time_to_empty_s(3_600, 2.0) == 1_800
    assert time_to_empty_s(0, 0.0) == 0
    assert time_to_empty_s(5, 0.0) is None
