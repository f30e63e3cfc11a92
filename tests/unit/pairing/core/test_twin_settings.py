"""Differences between an entity and its twin: which are errors, and how each is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from twinbus.pairing.core.twin_settings import (
    UNREADABLE,
    Kind,
    TwinRule,
    TwinSettings,
    summary,
    twin_differences,
)
from twinbus.servicebus.names import FOREVER_MS
from twinbus.servicebus.twins import unfinished_mark

QUEUE = TwinSettings(
    kind=Kind.QUEUE,
    name="orders",
    requires_session=False,
    requires_duplicate_detection=False,
    duplicate_detection_window_ms=600_000,
    dead_letter_on_expiration=False,
    lock_duration_ms=60_000,
    max_delivery_count=10,
    max_size_mb=1_024,
    max_message_size_kb=256,
    enable_partitioning=False,
)
DETECTING = replace(QUEUE, requires_duplicate_detection=True)
RED = TwinRule("red", "\"color = 'red'\"", "'SET x = 1'")
AUDIT = TwinSettings(
    kind=Kind.SUBSCRIPTION,
    name="Audit",
    requires_session=False,
    dead_letter_on_expiration=False,
    dead_letter_on_filter_error=True,
    lock_duration_ms=60_000,
    max_delivery_count=10,
    rules={"red": RED},
)
TOPIC = TwinSettings(kind=Kind.TOPIC, name="events", subscriptions={"audit": AUDIT})

TWINS = {"orders", "events", "billing"}


def texts(primary: TwinSettings, twin: TwinSettings) -> list[tuple[bool, str]]:
    return [(one.is_error, one.says) for one in twin_differences(primary, twin, TWINS)]


@pytest.mark.parametrize("entity", [QUEUE, DETECTING, TOPIC])
def test_an_exact_copy_has_no_difference(entity: TwinSettings) -> None:
    assert twin_differences(entity, replace(entity, user_metadata="twinbus-twin-of:x"), TWINS) == []


@pytest.mark.parametrize(
    ("primary", "twin", "is_error", "said"),
    [
        ({"requires_session": True}, {}, True, "sessions is off in the twin and on in the primary"),
        ({}, {"requires_session": True}, True, "messages without a session id are refused"),
        ({"requires_duplicate_detection": True}, {}, False, "duplicates that the primary would"),
        ({}, {"requires_duplicate_detection": True}, True, "whose id was used before is dropped"),
        ({}, {"default_ttl_ms": 3_600_000}, True, "is 1 h 0 min in the twin and unlimited in the"),
        ({"default_ttl_ms": 3_600_000}, {}, False, "messages expire later"),
        ({"dead_letter_on_expiration": True}, {}, True, "expired messages are deleted"),
        ({}, {"dead_letter_on_expiration": True}, False, "are kept as dead letters"),
        ({}, {"lock_duration_ms": 5_000}, False, "a handler that takes longer"),
        ({}, {"lock_duration_ms": 300_000}, False, "come back later"),
        ({}, {"max_delivery_count": 3}, True, "is 3 in the twin and 10 in the primary"),
        ({}, {"max_delivery_count": 30}, False, "after more deliveries"),
        ({"max_size_mb": 81_920}, {}, False, "is 1,024 in the twin and 81,920 in the primary"),
        ({"max_message_size_kb": 1_024}, {}, True, "larger messages are refused"),
        ({}, {"max_message_size_kb": 1_024}, False, "cannot be moved there"),
        ({"enable_partitioning": True}, {}, False, "partitioning is off in the twin"),
        ({}, {"auto_delete_on_idle_ms": 300_000}, True, "deleted after 5 min 0 s without use"),
        ({"auto_delete_on_idle_ms": 300_000}, {}, False, "the twin stays"),
        (
            {"auto_delete_on_idle_ms": 300_000},
            {"auto_delete_on_idle_ms": 300_000},
            True,
            "a twin is idle while the primary works",
        ),
        ({}, {"status": "Disabled"}, True, "the status of the twin is Disabled, not Active"),
        ({"forward_to": "billing"}, {}, True, "does not forward to billing, where the receivers"),
        ({}, {"forward_to": "billing"}, True, "forwards to billing and the primary's does not"),
        ({"forward_to": "billing"}, {"forward_to": "x"}, True, "forwards to x, not to billing"),
        ({"forward_to": "live"}, {"forward_to": "LIVE"}, True, "forwards to LIVE, which is not a"),
        ({"forward_dead_letters_to": "billing"}, {}, False, "dead letters stay in the twin"),
        ({}, {"forward_dead_letters_to": "live"}, True, "dead letters to live, which is not a"),
        ({}, {"forward_dead_letters_to": "billing"}, False, "they stay where they are"),
    ],
)
def test_each_difference_is_one_sentence(
    primary: dict[str, Any], twin: dict[str, Any], is_error: bool, said: str
) -> None:
    ((found_error, text),) = texts(replace(QUEUE, **primary), replace(QUEUE, **twin))
    assert said in text
    assert found_error is is_error


@pytest.mark.parametrize(
    ("primary", "twin"),
    [
        ({}, {"max_size_mb": 5_120}),
        ({"max_message_size_kb": None}, {"max_message_size_kb": 1_024}),
        ({"default_ttl_ms": FOREVER_MS}, {"default_ttl_ms": FOREVER_MS - 1_000}),
        ({"duplicate_detection_window_ms": 20_000}, {}),
        ({"status": "ReceiveDisabled"}, {"status": "ReceiveDisabled"}),
        ({"status": "Disabled"}, {}),
        ({"forward_to": "Billing"}, {"forward_to": "billing"}),
        ({"forward_dead_letters_to": "billing"}, {"forward_dead_letters_to": "billing"}),
    ],
)
def test_what_does_not_matter_is_not_said(primary: dict[str, Any], twin: dict[str, Any]) -> None:
    assert texts(replace(QUEUE, **primary), replace(QUEUE, **twin)) == []


@pytest.mark.parametrize(("window_ms", "is_error"), [(60_000, False), (86_400_000, True)])
def test_only_a_longer_window_of_duplicate_detection_drops_messages(
    window_ms: int, is_error: bool
) -> None:
    twin = replace(DETECTING, duplicate_detection_window_ms=window_ms)
    ((found, text),) = texts(DETECTING, twin)
    assert found is is_error
    assert "the window of duplicate detection" in text


def with_audit(**changes: Any) -> TwinSettings:
    return replace(TOPIC, subscriptions={"audit": replace(AUDIT, **changes)})


@pytest.mark.parametrize(
    ("twin", "is_error", "is_added", "said"),
    [
        (replace(TOPIC, subscriptions={}), True, True, "subscription Audit is missing"),
        (with_audit(rules={}), True, True, "subscription Audit: rule red is missing"),
        (
            with_audit(rules={}, user_metadata=unfinished_mark("contoso")),
            True,
            True,
            "subscription Audit: its rules are not complete",
        ),
        (
            with_audit(rules={"red": replace(RED, filter="true")}),
            True,
            False,
            "rule red has the filter true, not \"color = 'red'\"",
        ),
        (
            with_audit(rules={"red": replace(RED, action="")}),
            True,
            False,
            "rule red has the action none, not 'SET x = 1'",
        ),
        (
            with_audit(rules={"red": RED, "$default": TwinRule("$Default", "true")}),
            True,
            False,
            "rule $Default is not in the primary",
        ),
        (with_audit(rules={"red": replace(RED, filter=UNREADABLE)}), True, False, "not compared"),
        (with_audit(dead_letter_on_filter_error=False), True, False, "whose filter fails is off"),
        (with_audit(max_delivery_count=2), True, False, "subscription Audit: the maximum delivery"),
        (with_audit(requires_session=True), True, False, "subscription Audit: sessions is on"),
        (
            replace(TOPIC, subscriptions={"audit": AUDIT, "x": replace(AUDIT, name="x")}),
            False,
            False,
            "subscription x is not in the primary",
        ),
    ],
)
def test_subscriptions_and_rules_are_compared(
    twin: TwinSettings, is_error: bool, is_added: bool, said: str
) -> None:
    (found,) = twin_differences(TOPIC, twin, TWINS)
    assert said in str(found)
    assert (found.is_error, found.is_added) == (is_error, is_added)


def test_errors_come_before_remarks() -> None:
    twin = replace(QUEUE, lock_duration_ms=5_000, status="Disabled", max_delivery_count=1)
    assert [one for one, _ in texts(QUEUE, twin)] == [True, True, False]


def test_a_person_who_decides_sees_kind_and_settings() -> None:
    text = summary(replace(QUEUE, requires_session=True, forward_to="x", status="Disabled"))
    assert text.startswith("queue: sessions on, ")
    assert "partitioning" not in text
    assert text.endswith("maximum message size in KB 256, forwards to x, status Disabled")
    assert summary(TOPIC).startswith("topic: 1 subscription, ")
