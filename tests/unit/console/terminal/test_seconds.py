"""Lengths of time in options: with a unit or without, and one line where they make no sense."""

from __future__ import annotations

import pytest

from tests.unit.console.commands import run
from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.times import seconds_of

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
