"""What commands print: tables, JSON, and times."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from tests.unit.console.commands import run
from twinbus.console.output import WrongUse, money, table_lines
from twinbus.console.times import seconds_of, window_of
from twinbus.pipeline.reports.documents import ReportRequest


def test_money_is_exact_enough_to_see_and_unknown_is_not_nothing() -> None:
    assert money(Decimal("0.007232"), "USD") == "0.007232 USD"
    assert money(Decimal("12.3456"), "USD") == "12.35 USD"
    assert money(Decimal("1234567.8"), "USD") == "1,234,567.80 USD"
    assert money(Decimal(0), "USD") == "0.00 USD"
    assert money(None, "USD") == "not priced"


COLUMNS = ("ENTITY", ">SENT", "REASON")
REASON = "a send failed, fails over in 42 s"


def test_a_wide_table_wraps_its_last_column_between_words() -> None:
    lines = table_lines(COLUMNS, [("orders", 1_200, REASON), ("bills", 7, "")], width=34)
    assert lines == [
        "ENTITY   SENT  REASON",
        "orders  1,200  a send failed,",
        "               fails over in 42 s",
        "bills       7",
    ]
    wide = table_lines(COLUMNS, [("orders", 1_200, REASON)], width=80)
    assert wide[-1] == f"orders  1,200  {REASON}"


def test_a_table_without_room_for_its_last_column_becomes_paragraphs() -> None:
    rows = [("contoso/x-servicebus-transfer/0", 12, REASON), ("events", 0, ""), ("", 9, "")]
    assert table_lines(COLUMNS, rows, width=40) == [
        "contoso/x-servicebus-transfer/0",
        "  sent 12",
        "  reason a send failed, fails over in 42",
        "  s",
        "events",
        "  sent 0",
        "  sent 9",
    ]
    numbers = table_lines(("QUEUE", ">ACTIVE", ">DEAD"), [("a" * 20, 1, 2)], width=24)
    assert numbers == ["a" * 20, "  active 1  dead 2"]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "36")
    monkeypatch.setenv("LINES", "24")
    row = ("orders", 1_200, REASON)
    assert len(table_lines(COLUMNS, [row])) == 2
    with redirect_stdout(Screen()):
        assert table_lines(COLUMNS, [row]) == table_lines(COLUMNS, [row], width=34)
        assert len(table_lines(COLUMNS, [row])) == 3


SIDES = {
    "TWINBUS_PRIMARY": "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=k;"
    "SharedAccessKey=c2VjcmV0",
    "TWINBUS_SECONDARY": "Endpoint=sb://b.servicebus.windows.net/;SharedAccessKeyName=k;"
    "SharedAccessKey=c2VjcmV0",
}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8", 8.0),
        ("0.5", 0.5),
        ("0.1", 0.1),
        ("60s", 60.0),
        ("15min", 900.0),
        ("15m", 900.0),
        ("2h", 7_200.0),
        ("1h30min", 5_400.0),
        (" 250 ms ", 0.25),
    ],
)
def test_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text, "--it", least=0.1) == seconds


@pytest.mark.parametrize("text", ["0", "2h1s", "soon", "", "-5", "-5s", "nan", "inf", "1,5", "8 x"])
def test_one_line_names_the_option_the_limits_and_what_was_given(text: str) -> None:
    with pytest.raises(WrongUse) as told:
        seconds_of(text, "--it", least=0.1, most=7_200)
    assert str(told.value) == (
        f"--it must be from 0.1 to 7,200 seconds, written like 90, 90s or 15min; got {text!r}"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("syphon run --poll 0.5s", "--poll must be from 1 to 900 seconds"),
        ("syphon run --poll 16min", "--poll must be from 1 to 900 seconds"),
        ("syphon run --grace 31d", "--grace must be from 0 to 2,592,000 seconds"),
        ("syphon drain --grace soon", "--grace must be from 0 to 2,592,000 seconds"),
        ("syphon drain --timeout 0", "--timeout must be at least 0.1 seconds"),
        ("drill --outage 61min", "--outage must be from 0 to 3,600 seconds"),
        ("drill --failover-interval 2h", "--failover-interval must be from 0 to 3,600 seconds"),
        ("drill --ping-interval 500ms", "--ping-interval must be from 1 to 1,800 seconds"),
    ],
)
def test_the_limits_of_each_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    for name, value in SIDES.items():
        monkeypatch.setenv(name, value)
    ran = run(capsys, *words.split())
    assert ran.status == 2
    (line,) = ran.err.splitlines()
    assert line.startswith(f"twinbus: {said}, written like")
    assert line.endswith(f"got {words.rsplit(maxsplit=1)[-1]!r}")


@pytest.mark.parametrize("interval", ["1min", "50s"])
def test_a_gateway_whose_clients_would_not_wait_for_the_failover_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interval: str
) -> None:
    for name, value in SIDES.items():
        monkeypatch.setenv(name, value)
    # Without a directory for the secondary it would fail with another line.
    monkeypatch.setenv("TWINBUS_SECONDARY", "embedded:")
    ran = run(capsys, "gateway", "gate:0", "--failover-interval", interval)
    assert ran.status == 2
    assert ran.err == (
        f"twinbus: --failover-interval ({interval}) and --attempt-timeout (5s) together must be"
        " shorter than --patience (55s): else clients get errors before an entity fails over\n"
    )


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
