"""What `twinbus syphon` says of how it goes: in every case a number, or the reason why not."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from twinbus.console.output import WrongUse
from twinbus.console.syphon.drain import DrainDisplay, outcome, progress_line
from twinbus.console.syphon.request import SyphonRequest, rate_of
from twinbus.console.watch.status import syphon_lines
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.status.document import SyphonQueueStatus, SyphonStatus
from twinbus.status.judgement import judgement_of
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.host import DrainProgress, SyphonGroup

NOW = 0.0
SECRET = ".example.net;SharedAccessKeyName=a;SharedAccessKey=b"


def standing(
    waiting: int, per_s: float = 0.0, still_s: float = 0.0, first: int = 1_000, **facts: Any
) -> str:
    progress = DrainProgress(waiting=waiting, forwarded=first - waiting, dead_lettered=0, **facts)
    return progress_line(progress, first, per_s, still_s)


def test_a_drain_that_moves_says_how_long_it_will_take() -> None:
    line = standing(250, per_s=2.0)
    assert line == "[##################......]  75%  250 of 1,000 left  2/s  2 min 5 s to go"


def test_a_drain_that_stands_says_why() -> None:
    line = standing(250, per_s=2.0, still_s=6.0, problems=("orders: it is disabled",))
    assert line.endswith("250 of 1,000 left  not moving: orders: it is disabled")
    assert standing(250, still_s=6.0).endswith("not moving: nothing was received")


def test_a_drain_that_moves_shows_what_it_holds_too() -> None:
    line = standing(250, per_s=50.0, problems=("orders: it is full",))
    assert line.endswith("50/s  5 s to go  orders: it is full")


def test_a_missing_destination_is_told_with_its_end() -> None:
    line = standing(
        3, still_s=9.0, problems=("gone: no such entity",), giving_up={"gone": 21_590.0}
    )
    assert line.endswith(
        "not moving: gone is missing: its messages are dead-lettered in 5 h 59 min (--grace)"
    )


def test_a_paused_drain_says_so() -> None:
    assert "paused: `twinbus syphon resume` resumes it" in standing(3, still_s=60.0, is_paused=True)


def test_what_a_drain_came_to() -> None:
    done = {"drained": True, "forwarded": 5_000, "dead_lettered": 2, "not_served": 7}
    line = outcome({**done, "seconds": 10.0})
    assert line.startswith("drained: 5,000 messages forwarded in 10 s, 500/s; 2 dead-lettered,")
    assert "7 of other destinations were deferred" in line


def test_a_status_lists_queues_and_what_is_in_the_way_once() -> None:
    state = SyphonQueueStatus(
        completed=1_234,
        in_flight=5,
        dead_lettered=1,
        deferred=2,
        held={"gone": "no such entity"},
        gives_up_in_s={"gone": 60.0},
        rate_per_s=99.6,
        limit="at most 120/s: the primary answers that it is busy",
    )
    queues = {"a/x-servicebus-transfer/0": state, "a/x-servicebus-transfer/1": state}
    found = SyphonStatus(queues=queues, waiting=600, rate_per_s=10.0, empty_in_s=60.0)
    lines = syphon_lines("a, syphon", found)
    assert lines[0] == "a, syphon"
    assert lines[2].split() == ["a/x-servicebus-transfer/0", "1,234", "5", "1", "2", "100/s"]
    assert lines[-3:] == [
        "  at most 120/s: the primary answers that it is busy",
        "  ! gone: no such entity (dead-lettered in 1 min 0 s) [2 queues]",
        "  600 messages wait, 10/s, empty in 1 min 0 s",
    ]
    still = syphon_lines("a", replace(found, empty_in_s=None, rate_per_s=0.0))
    assert still[-1] == "  600 messages wait, 0/s, not moving"


def test_queues_without_a_pump_are_named_and_need_attention() -> None:
    found = SyphonStatus(queues={}, without_pump=["a/6", "a/7"], waiting=5)
    lines = syphon_lines("a", found)
    assert lines[-2] == (
        "  ! 2 backlog queues have no pump here: a/6, a/7;"
        " start the syphon without --queues, or with a larger number"
    )
    assert [one.kind for one in judgement_of(found, NOW).concerns] == ["no pump"]


def test_a_paused_syphon_forecasts_no_end() -> None:
    host = SyphonGroup(Rate(None))
    sides = [Namespace.from_connection_string(f"Endpoint=sb://{n}{SECRET}") for n in ("a", "b")]
    request = SyphonRequest(primary=sides[0], secondary=sides[1], options=SendAvailabilityOptions())
    assert request.status(host, 600, 75.0).empty_in_s == 8.0
    host.pause()
    document = request.status(host, 600, 75.0)
    assert document.empty_in_s is None
    lines = syphon_lines("a, syphon", document)
    assert lines[0] == "a, syphon, PAUSED"
    assert lines[-1] == "  600 messages wait, paused: `twinbus syphon resume` resumes it"
    assert request.status(host, 0, 75.0).empty_in_s == 0.0


@pytest.mark.parametrize(
    ("facts", "needs_somebody"),
    [
        ({}, False),
        ({"problems": {"lease": "another syphon has the lease (session 0 of a)"}}, False),
        (
            {"problems": {"lease": "another syphon has the lease", "primary": "the lease is gone"}},
            False,
        ),
        ({"problems": {"lease": "another syphon has the lease", "secondary": "refused"}}, True),
        ({"problems": {"lease": "it was not requested yet"}}, True),
        ({"problems": {"lease": "there is no lease queue a"}}, True),
        ({"problems": {"primary": "it cannot be reached"}}, True),
        ({"held": {"gone": "no such entity"}}, True),
        ({"dead_lettered": 1}, False),
    ],
)
def test_a_standby_is_well_unless_a_side_is_out_of_reach(
    facts: dict[str, Any], needs_somebody: bool
) -> None:
    queues = {"a": SyphonQueueStatus(), "b": SyphonQueueStatus(**facts)}
    found = SyphonStatus(queues=queues)
    assert bool(judgement_of(found, NOW).concerns) is needs_somebody
    assert judgement_of(replace(found, paused=True), NOW).concerns


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_goes_and_a_log_has_few() -> None:
    screen, log, nothing = Screen(), io.StringIO(), io.StringIO()
    shows = [DrainDisplay(screen), DrainDisplay(log), DrainDisplay(nothing, is_quiet=True)]
    for waiting in (100, 60, 20):
        progress = DrainProgress(waiting=waiting, forwarded=100 - waiting, dead_lettered=0)
        for show in shows:
            show(progress)
    for show in shows:
        show.clear()
    assert screen.getvalue().count("\r\x1b[K[") == 3
    assert "20 of 100 left" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert log.getvalue().count("\n") == 1
    assert nothing.getvalue() == ""


def test_rates_as_people_write_them() -> None:
    assert (rate_of(None), rate_of("500"), rate_of("0.5")) == (None, 500, 0.5)
    assert (rate_of("500/s"), rate_of("30000/min"), rate_of("2k/s")) == (500, 500, 2_000)
    assert rate_of("Standard") == 250
    for text in ("fast", "", "-3", "0", "nan", "inf", "5/fortnight", "2M/s"):
        with pytest.raises(WrongUse, match=rf"^--rate must .*; got '{text}'; or `standard`"):
            rate_of(text)
    with pytest.raises(WrongUse, match=r"from 0.01 to 1,000,000 messages a second; got '1/h'$"):
        rate_of("1/h")
