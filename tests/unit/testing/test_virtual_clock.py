"""The virtual clock fires what is due, in order, and nothing else; errors survive a pickle."""

from __future__ import annotations

import pickle
from typing import ClassVar

import pytest

from twinbus import errors
from twinbus.pairing.core.failover import TimerFired
from twinbus.testing import VirtualClock


class Ticker:
    """A machine that ticks every second, a given number of times."""

    def __init__(self, ticks: int, first_at: float | None = 1.0, step: float = 1.0) -> None:
        self.timer_at = first_at
        self.left = ticks
        self.step = step

    def handle(self, event: object, now: float) -> list[object]:
        assert event == TimerFired()
        self.left -= 1
        self.timer_at = now + self.step if self.left else None
        return [f"tick {self.left}", News()]


class News:
    announces: ClassVar[bool] = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, News)

    __hash__ = None  # type: ignore[assignment]


def test_timers_fire_at_their_time_and_the_clock_ends_where_it_was_sent() -> None:
    clock = VirtualClock()
    ticker = Ticker(3)
    assert clock.run(ticker, until=0.99) == []
    assert clock.run(ticker, until=2.5) == [(1.0, "tick 2"), (2.0, "tick 1")]
    assert clock.now == 2.5
    assert clock.run(ticker, until=100) == [(3.0, "tick 0")]
    assert clock.now == 100


def test_a_timer_whose_time_has_passed_fires_now() -> None:
    clock = VirtualClock(now=10.0)
    assert clock.run(Ticker(1, first_at=4.0), until=10.0) == [(10.0, "tick 0")]


def test_announcements_are_left_out_unless_asked_for() -> None:
    assert VirtualClock().run(Ticker(1), until=1.0) == [(1.0, "tick 0")]
    with_news = VirtualClock().run(Ticker(1), until=1.0, announcements=True)
    assert with_news == [(1.0, "tick 0"), (1.0, News())]


def test_a_machine_that_makes_no_progress_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.testing.virtual_time.FIRINGS_MAX", 100)
    with pytest.raises(AssertionError, match="100 timers"):
        VirtualClock().run(Ticker(1_000, step=0.0), until=1.0)


def test_time_never_goes_back() -> None:
    clock = VirtualClock(5.0)
    assert clock.advance(1.5) == 6.5
    with pytest.raises(AssertionError):
        clock.advance(-1)
    with pytest.raises(AssertionError):
        clock.run(Ticker(1), until=6.0)


@pytest.mark.parametrize(
    "error",
    [
        errors.BacklogMessageTooLargeError(size_bytes=300, overhead_bytes=70, limit_bytes=256),
        errors.ReservedPropertyError("x-ms-path"),
        errors.ScheduleUnknownError("lost", message_ids=["a", "b"]),
        errors.PartialDivertError("half", stored_ids=["a"], not_stored_ids=["b"]),
        errors.BacklogUnavailableError("none", primary_error=None, queue_errors={"q": "full"}),
        errors.EntityUnusableError("gone"),
        errors.AliasTypeError("odd"),
    ],
)
def test_an_error_crosses_a_process_border_whole(error: errors.TwinbusError) -> None:
    revived = pickle.loads(pickle.dumps(error))
    assert type(revived) is type(error)
    assert str(revived) == str(error)
    assert revived.__dict__ == error.__dict__


def test_error_texts_name_the_thing_the_limit_and_the_value() -> None:
    too_large = errors.BacklogMessageTooLargeError(
        size_bytes=262_100, overhead_bytes=90, limit_bytes=262_144
    )
    for number in ("262100", "90", "262144", "262054"):
        assert number in str(too_large)
    assert "'x-ms-path'" in str(errors.ReservedPropertyError("x-ms-path"))
    partial = errors.PartialDivertError("half", stored_ids=["a"], not_stored_ids=["b"])
    assert partial.message_ids == ("a", "b")
