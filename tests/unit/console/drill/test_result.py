"""What a drill concludes from its tables, and when it passes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.console.drill.drill_results import PASSED, WINDOWS, drilled, window
from twinbus.console.drill.result import DrillPlan
from twinbus.pipeline.store.writers import SENDS, WriterGap


def test_a_drill_in_which_all_came_back_passes() -> None:
    assert PASSED.passed
    assert (PASSED.lost, PASSED.lost_ids, PASSED.doubts) == (0, (), ())


def test_a_message_that_was_acknowledged_and_never_came_is_lost() -> None:
    # The table says delivered, for the primary took it; the receivers emptied the primary.
    result = drilled(received=2_999, not_received_ids=("orders-000007",))
    assert (result.lost, result.lost_ids) == (1, ("orders-000007",))
    assert not result.passed


def test_a_message_left_in_the_backlog_is_not_lost_but_the_drill_fails() -> None:
    left = replace(
        drilled(received=2_998, not_received_ids=("a", "b"), waiting=2),
        left_behind=frozenset({"a", "b"}),
    )
    assert (left.lost, left.lost_ids, left.not_received) == (0, (), 2)
    assert not left.passed


def test_lost_ids_are_named_once_and_without_those_that_a_peek_saw() -> None:
    result = drilled(
        received=2_997,
        not_received_ids=("b", "a", "c"),
        dead_lettered=1,
    )
    assert replace(result, left_behind=frozenset({"c"})).lost_ids == ("a", "b")
    assert result.lost == 2


GAP = WriterGap(
    process="app-1",
    from_ms=1,
    to_ms=2,
    roles=("sender",),
    doubts=(SENDS,),
    closed_by=None,
    sentence="app-1 stopped without an end",
)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"unrecorded": 2}, "2 records could not be written"),
        ({"rejected": {"torn": 1}}, "1 lines of the ledger cannot be read"),
        ({"accepted": 2_999, "received": 2_999}, "3,000 sends returned"),
        ({"accepted": 0, "received": 0}, "no message was accepted"),
        ({"received": None}, "no receiver wrote"),
        ({"undecided": 3}, "3 messages are undecided"),
        ({"missing": ("records are missing",)}, "records are missing"),
        ({"gaps": (GAP,)}, "app-1 stopped without an end"),
    ],
)
def test_a_ledger_that_is_not_whole_proves_nothing(changes: dict[str, Any], doubt: str) -> None:
    result = drilled(**changes)
    assert not result.passed
    assert any(doubt in line for line in result.doubts)


def test_times_run_to_the_last_entity_and_leave_out_what_was_before() -> None:
    early, late = window("orders", 1_000, 2_000), window("slow", 5_000, 13_000)
    result = drilled(windows=(early, *WINDOWS, late))
    assert result.failover_s == pytest.approx(2.1)
    assert result.recover_s == pytest.approx(1.2)
    assert result.drain_s == 2.0
    assert result.drain_rate == 750.0


def test_without_a_failover_there_are_no_times() -> None:
    result = drilled(windows=(), drain_began_ms=None, drain_ended_ms=None, sends=(), forwarded=0)
    times = result.failover_s, result.recover_s, result.drain_s, result.drain_rate
    assert times == (None, None, None, None)
    assert result.passed


def test_receivers_of_one_entity_are_enough_to_know_what_was_received() -> None:
    silent = PASSED.total._replace(entity="events", accepted=10, received=None)
    conservation = PASSED.report.conservation
    heard = replace(conservation, entities=(*conservation.entities, silent))
    result = replace(PASSED, report=replace(PASSED.report, conservation=heard))
    assert result.received == 3_000


def test_the_json_has_what_was_promised_and_is_plain() -> None:
    found = json.loads(json.dumps(PASSED.as_json()))
    promised = "accepted delivered received lost duplicates diverted caller_errors".split()
    assert [found[key] for key in promised] == [3_000, 3_000, 3_000, 0, 0, 1_500, 0]
    assert (found["failover_s"], found["recover_s"], found["drain_s"]) == (2.1, 0.6, 2.0)
    assert found["charges"][0]["operations"] == 1_500
    assert found["bill"]["amount_past_free"] == "0.007232"


@given(st.integers(1, 10_000), st.integers(1, 64), st.floats(0, 3_600), st.floats(0.001, 3_600))
def test_every_message_has_one_sender_and_the_outage_lies_inside_the_traffic(
    messages: int, senders: int, outage_s: float, interval_s: float
) -> None:
    plan = DrillPlan(
        messages=messages, senders=senders, outage_s=outage_s, failover_interval_s=interval_s
    )
    shares = [number for sender in range(senders) for number in plan.share(sender)]
    assert sorted(shares) == list(range(messages))
    assert plan.kill_after_s > 0
    assert plan.kill_after_s + outage_s < plan.traffic_s
