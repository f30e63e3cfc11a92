"""From when to when a command looks, as people write it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.times import window_of
from twinbus.pipeline.reports.documents import ReportRequest

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def ms(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("since", "until", "window"),
    [
        (None, None, (None, None)),
        # A day begins at midnight UTC, and as an end it counts whole.
        ("2026-11-15", "2026-11-15", (ms(2026, 11, 15), ms(2026, 11, 16))),
        ("2026-11-15T06:30", None, (ms(2026, 11, 15, 6, 30), None)),
        ("2026-11-15 06:30:15", None, (ms(2026, 11, 15, 6, 30, 15), None)),
        ("2026-11-15T06:30+02:00", None, (ms(2026, 11, 15, 4, 30), None)),
        ("2026-11-15T06:30Z", None, (ms(2026, 11, 15, 6, 30), None)),
        ("24h", None, (ms(2026, 11, 15, 12), None)),
        ("7d", "90min", (ms(2026, 11, 9, 12), ms(2026, 11, 16, 10, 30))),
        ("90m", None, (ms(2026, 11, 16, 10, 30), None)),
        (" 1h30min ", None, (ms(2026, 11, 16, 10, 30), None)),
    ],
)
def test_a_window(
    since: str | None, until: str | None, window: tuple[int | None, int | None]
) -> None:
    assert window_of(since, until, NOW) == window


@pytest.mark.parametrize(
    ("since", "until", "told"),
    [
        ("2026-11-16", "2026-11-14", "the window ends before it begins: --since 2026-11-16 is"),
        ("1h", "24h", "the window ends before it begins"),
        ("1h", "1h", "the window ends before it begins"),
        ("-24h", None, "--since must be a day like 2026-11-16"),
        ("yesterday", None, "got 'yesterday'"),
        ("", None, "--since must be a day"),
        ("5", None, "--since must be a day"),
        ("20261116", None, "--since must be a day"),
        ("2026-13-45", None, "--since must be a day"),
        ("2026-11-16T25:00", None, "--since must be a day"),
        ("3 fortnights", None, "--since must be a day like"),
        (None, "9999-12-31", "--until must be a day"),
        ("1" * 16 + "d", None, "--since must be"),
        ("0001-01-01T00:00+05:00", None, "--since must be a day"),
    ],
)
def test_what_makes_no_sense_is_one_line(since: str | None, until: str | None, told: str) -> None:
    with pytest.raises(WrongUse) as error:
        window_of(since, until, NOW)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_long_ago_is_long_ago_and_no_error() -> None:
    assert window_of("3650d", None, NOW)[0] == ms(2016, 11, 18, 12)
    assert NOW - timedelta(days=3650) == datetime(2016, 11, 18, 12, tzinfo=UTC)


def test_all_times_are_a_window_that_has_a_day_before_and_after_it() -> None:
    since_ms, until_ms = window_of("0001-01-01", "9999-12-31T23:59", NOW)
    asked = ReportRequest(since_ms=since_ms, until_ms=until_ms)
    assert asked.first_day is not None
    assert asked.last_day is not None
    day = timedelta(days=1)
    # Spark's dates have four digits for the year.
    assert (asked.first_day - day, asked.last_day + day) == (date(1969, 12, 31), date(9999, 12, 31))
    long_ago = ReportRequest(until_ms=window_of(None, "0001-01-01T00:00", NOW)[1])
    assert long_ago.last_day == date(1969, 12, 31)
