"""Rules over `$management`, in the described types that other SDKs than Python's read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.broker.links.management_world import NOW_MS, SUBSCRIPTION, World
from twinbus.amqp.types import Described, Int, Timestamp, ULong


@pytest.fixture
def world() -> World:
    return World()


def rules_of(world: World) -> list[Any]:
    status, _, answer = world.status(
        "enumerate-rules", {"top": Int(2**31 - 1), "skip": Int(0)}, SUBSCRIPTION
    )
    return [entry["rule-description"] for entry in answer["rules"]] if status == 200 else []


def described(descriptor: int, *fields: object) -> Described:
    return Described(ULong(descriptor), list(fields))


def test_rules_are_added_enumerated_and_removed(world: World) -> None:
    sql = {"sql-filter": {"expression": "a = 1"}, "sql-rule-action": {"expression": "SET b = 2"}}
    correlation = {
        "correlation-filter": {
            "label": "l", "to": None, "properties": {"n": Int(7), "t": Timestamp(NOW_MS)}
        }
    }  # fmt: skip
    for name, rule in (("sql", sql), ("corr", correlation)):
        body = {"rule-name": name, "rule-description": rule}
        assert world.status("add-rule", body, SUBSCRIPTION) == (200, None, {})
    assert world.status("remove-rule", {"rule-name": "$Default"}, SUBSCRIPTION)[0] == 200
    nothing = described(1335734829061)
    properties = {"n": 7, "t": Timestamp(NOW_MS)}
    assert sorted(rules_of(world), key=lambda each: str(each.value[2])) == [
        described(
            1335734829060,
            described(83483426825, None, None, None, None, "l", None, None, None, properties),
            nothing,
            "corr",
        ),
        described(
            1335734829060,
            described(83483426822, "a = 1"),
            described(1335734829062, "SET b = 2"),
            "sql",
        ),
    ]
    assert world.status("enumerate-rules", {"top": Int(1), "skip": Int(2)}, SUBSCRIPTION)[0] == 204


def test_the_default_rule_is_a_true_filter_without_an_action(world: World) -> None:
    (rule,) = rules_of(world)
    assert rule == described(
        1335734829060, described(83483426823), described(1335734829061), "$Default"
    )
