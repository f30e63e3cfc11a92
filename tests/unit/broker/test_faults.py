"""A fault strikes what it was asked for, as often and as long as it was asked, and no more."""

from __future__ import annotations

import pytest

from twinbus.broker.faults import (
    DELAY_MS_MAX,
    FAULTS_MAX,
    Fault,
    FaultPlan,
    Stage,
    fault_from_json,
    fault_to_json,
)
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange
from twinbus.servicebus.conditions import INTERNAL_ERROR, SERVER_BUSY

NOW_MS = 1_000_000


def never_lucky() -> float:
    raise AssertionError("a certain fault must not draw")


def plan_of(*faults: Fault) -> FaultPlan:
    plan = FaultPlan(never_lucky)
    for fault in faults:
        plan.add(fault)
    return plan


def test_a_fault_strikes_its_stage_and_its_entity_in_any_letter_case() -> None:
    refuse = Fault(kind="refuse_send", entity="Orders")
    plan = plan_of(refuse)
    assert plan.decide("send", "orders", NOW_MS) is refuse
    assert plan.decide("send", "ORDERS", NOW_MS) is refuse
    assert plan.decide("attach", "orders", NOW_MS) is None
    assert plan.decide("send", "orders/eu", NOW_MS) is None
    assert plan.decide("send", "invoices", NOW_MS) is None


def test_a_star_takes_every_path_below_and_not_the_path_itself() -> None:
    plan = plan_of(Fault(kind="hang", entity="contoso/x-servicebus-transfer/*"))
    assert plan.decide("send", "contoso/x-servicebus-transfer/7", NOW_MS) is not None
    assert plan.decide("send", "contoso/x-servicebus-transfer", NOW_MS) is None
    assert plan.decide("send", "contoso/x-servicebus-transferred/7", NOW_MS) is None


def test_a_fault_without_entity_strikes_everything_even_the_connection() -> None:
    plan = plan_of(Fault(kind="hang"))
    stages: list[Stage] = ["connect", "attach", "send", "receive"]
    assert all(plan.decide(stage, "", NOW_MS) for stage in stages)


def test_a_fault_of_an_entity_never_strikes_a_connection_that_names_none() -> None:
    assert plan_of(Fault(kind="hang", entity="orders")).decide("connect", "", NOW_MS) is None


def test_a_counted_fault_is_used_up_and_then_the_next_one_has_its_turn() -> None:
    plan = plan_of(
        Fault(kind="refuse_send", entity="orders", count=2), Fault(kind="throttle", count=1)
    )
    struck = [plan.decide("send", "orders", NOW_MS) for _ in range(4)]
    assert [fault and fault.kind for fault in struck] == [
        "refuse_send", "refuse_send", "throttle", None,
    ]  # fmt: skip
    assert plan.list(NOW_MS) == {}


def test_a_list_shows_what_is_left_of_a_count() -> None:
    plan = plan_of(Fault(kind="throttle", count=3))
    plan.decide("send", "orders", NOW_MS)
    assert [fault.count for fault in plan.list(NOW_MS).values()] == [2]


def test_an_operation_that_a_fault_does_not_touch_leaves_its_count_alone() -> None:
    plan = plan_of(Fault(kind="throttle", entity="orders", count=1))
    assert plan.decide("send", "invoices", NOW_MS) is None
    assert plan.decide("send", "orders", NOW_MS) is not None


def test_a_fault_ends_at_its_time() -> None:
    plan = plan_of(Fault(kind="hang", until_ms=NOW_MS + 10))
    assert plan.decide("send", "orders", NOW_MS + 9) is not None
    assert plan.decide("send", "orders", NOW_MS + 10) is None
    assert plan.list(NOW_MS + 10) == {}


def test_a_likely_fault_strikes_as_the_draw_says_and_only_then_counts() -> None:
    draws = iter([0.9, 0.29, 0.3])
    plan = FaultPlan(lambda: next(draws))
    plan.add(Fault(kind="throttle", probability=0.3, count=2))
    struck = [plan.decide("send", "orders", NOW_MS) is not None for _ in range(3)]
    assert struck == [False, True, False]
    assert [fault.count for fault in plan.list(NOW_MS).values()] == [1]


def test_faults_are_removed_by_id_and_all_at_once() -> None:
    plan = FaultPlan(never_lucky)
    first, second = plan.add(Fault(kind="hang")), plan.add(Fault(kind="throttle"))
    assert first != second
    assert plan.remove(first)
    assert not plan.remove(first)
    assert list(plan.list(NOW_MS)) == [second]
    plan.clear()
    assert plan.decide("send", "orders", NOW_MS) is None


def test_conditions_default_to_what_the_kind_means() -> None:
    assert Fault(kind="refuse_send").condition == INTERNAL_ERROR
    assert Fault(kind="throttle").condition == SERVER_BUSY
    assert Fault(kind="refuse_attach", condition="amqp:not-found").condition == "amqp:not-found"
    assert "refuse_send" in Fault(kind="refuse_send").description


def test_a_throttle_with_a_rate_passes_a_second_s_worth_and_then_the_rate() -> None:
    plan = plan_of(Fault(kind="throttle", per_s=100))

    def passed(count: int, now_ms: int) -> int:
        return sum(plan.decide("send", "orders", now_ms) is None for _ in range(count))

    assert passed(500, NOW_MS) == 100
    assert passed(500, NOW_MS + 100) == 10
    assert passed(500, NOW_MS + 60_000) == 100


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"kind": "explode"}, "explode"),
        ({"kind": "hang", "count": 0}, "count"),
        ({"kind": "hang", "probability": 0.0}, "probability"),
        ({"kind": "hang", "probability": 1.01}, "probability"),
        ({"kind": "hang", "per_s": 10}, "per_s"),
        ({"kind": "throttle", "per_s": 0.5}, "per_s"),
        ({"kind": "delay"}, "delay_ms"),
        ({"kind": "delay", "delay_ms": DELAY_MS_MAX + 1}, "delay_ms"),
        ({"kind": "hang", "delay_ms": -1}, "delay_ms"),
        ({"kind": "hang", "for_ms": 0}, "for_ms"),
        ({"kind": "hang", "for_ms": True}, "for_ms"),
        ({"kind": "hang", "count": "3"}, "count"),
        ({"kind": "hang", "entity": 5}, "entity"),
        ({"kind": "hang", "probability": "often"}, "probability"),
        ({"kind": "throttle", "per_s": "slow"}, "per_s"),
        ({"kind": "hang", "entty": "orders"}, "entty"),
        ({}, "kind"),
        (["hang"], "JSON object"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_the_word_that_is_wrong(
    fields: object, word: str
) -> None:
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange), match=word):
        fault_from_json(fields, NOW_MS)


def test_json_gives_the_fault_and_the_fault_gives_the_json_back() -> None:
    asked = {"kind": "delay", "entity": "orders", "delay_ms": 50, "count": 2, "for_ms": 500}
    fault = fault_from_json(asked, NOW_MS)
    assert fault == Fault(
        kind="delay", entity="orders", delay_ms=50, count=2, until_ms=NOW_MS + 500
    )
    shown = fault_to_json(7, fault)
    assert shown.pop("id") == 7
    assert fault_from_json(shown, NOW_MS) == fault


def test_the_list_of_faults_is_bounded() -> None:
    plan = plan_of(*(Fault(kind="hang", entity="x") for _ in range(FAULTS_MAX)))
    with pytest.raises(ArgumentOutOfRange, match=str(FAULTS_MAX)):
        plan.add(Fault(kind="hang"))
