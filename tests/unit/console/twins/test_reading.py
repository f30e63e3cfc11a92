"""Rules as texts that can be compared, and patience with a namespace that throttles."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from twinbus.console.twins import reading
from twinbus.console.twins.reading import patiently, rule_text
from twinbus.pairing.core.twin_settings import UNREADABLE


def text_of(rule_filter: Any, action: SqlRuleAction | None = None) -> tuple[str, str]:
    rule = RuleProperties("r", filter=rule_filter, action=action, created_at_utc=None)
    found = rule_text(rule)
    return found.filter, found.action


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (TrueRuleFilter(), SqlRuleFilter("1 = 1"), True),
        (TrueRuleFilter(), FalseRuleFilter(), False),
        (SqlRuleFilter(" a = 1 "), SqlRuleFilter("a = 1"), True),
        (SqlRuleFilter("a = 1"), SqlRuleFilter("a = 2"), False),
        (SqlRuleFilter("a = @b", {"@b": 1}), SqlRuleFilter("a = @b", {"@b": "1"}), False),
        (
            SqlRuleFilter("a = @b", {"@b": 1, "@c": 2}),
            SqlRuleFilter("a = @b", {"@c": 2, "@b": 1}),
            True,
        ),
        (CorrelationRuleFilter(label="a"), CorrelationRuleFilter(to="a"), False),
        # A property of the application is not the message's own.
        (CorrelationRuleFilter(label="a"), CorrelationRuleFilter(properties={"label": "a"}), False),
        (CorrelationRuleFilter(label="a", properties={}), CorrelationRuleFilter(label="a"), True),
        (SqlRuleFilter("label"), CorrelationRuleFilter(label="a"), False),
    ],
)
def test_filters_that_do_the_same_have_the_same_text(one: Any, other: Any, is_same: bool) -> None:
    assert (text_of(one) == text_of(other)) is is_same


def test_an_action_is_compared_with_its_parameters() -> None:
    always = TrueRuleFilter()
    assert text_of(always) == ("true", "")
    assert text_of(always, SqlRuleAction("SET a = @b", {"@b": 5})) == (
        "true",
        "'SET a = @b' (@b=5)",
    )


def test_a_filter_that_the_sdk_does_not_know_has_no_text() -> None:
    assert text_of(None)[0] == UNREADABLE


def throttled(status: int) -> HttpResponseError:
    error = HttpResponseError("busy")
    error.status_code = status
    return error


@pytest.mark.parametrize(
    ("statuses", "tries"), [([], 1), ([429, 503], 3), ([503, 503, 503], 4), ([400], None)]
)
def test_only_throttling_is_outlasted(
    monkeypatch: pytest.MonkeyPatch, statuses: list[int], tries: int | None
) -> None:
    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(reading, "asyncio", SimpleNamespace(sleep=at_once))
    left, made = list(statuses), 0

    async def call() -> str:
        nonlocal made
        made += 1
        if left:
            raise throttled(left.pop(0))
        return "done"

    if tries is None:
        with pytest.raises(HttpResponseError):
            asyncio.run(patiently(call))
        assert made == 1
    else:
        assert asyncio.run(patiently(call)) == "done"
        assert made == tries


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BUSY_WAITS_S", (0.0, 0.0))

    async def call() -> None:
        raise throttled(429)

    with pytest.raises(HttpResponseError):
        asyncio.run(patiently(call))
