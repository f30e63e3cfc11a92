"""Options: defaults as documented, every range refused at its edges, durations in both forms."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from pathlib import Path

import pytest

from twinbus.options import SendAvailabilityOptions, Verdict

DOCUMENTED = {
    "backlog_queue_count": 10,
    "failover_interval": 60,
    "ping_primary_interval": 60,
    "ping_mode": "message",
    "healthy_pings": 1,
    "enable_syphon": False,
    "syphon_rate": None,
    "syphon_only": None,
    "twins": None,
    "twins_with_sessions": False,
    "syphon_poll": 900,
    "undeliverable_grace": 6 * 3600,
    "ttl_policy": "full",
    "session_order": "relaxed",
    "attempt_timeout": 5,
    "retry_total": None,
    "retry_backoff_factor": 0.8,
    "retry_backoff_max": 120,
    "create_backlog_queues": True,
    "require_secondary": False,
    "accept_drift": False,
    "strict_guards": False,
    "board": True,
    "quorum": 2,
    "message_size_limit": None,
    "links": "sdk",
    "ledger": None,
    "classify": None,
    "divert_on": frozenset(),
}
"""SPEC 1, option by option."""

RANGES = {
    "backlog_queue_count": (1, 100, 1),
    "failover_interval": (0, 3600, 0.001),
    "ping_primary_interval": (1, 1800, 0.001),
    "healthy_pings": (1, 10, 1),
    "quorum": (1, 100, 1),
    "syphon_rate": (0.01, 1_000_000, 0.001),
    "syphon_poll": (1, 900, 0.001),
    "undeliverable_grace": (0, 30 * 86_400, 0.001),
    "attempt_timeout": (0.1, 60, 0.001),
    "retry_total": (0, 1000, 1),
    "retry_backoff_factor": (0, 3600, 0.001),
    "retry_backoff_max": (0, 3600, 0.001),
    "message_size_limit": (1024, 100 * 1024 * 1024, 1),
}
"""Lowest and highest value, and a step beyond them."""

DURATIONS = [
    "failover_interval",
    "ping_primary_interval",
    "syphon_poll",
    "undeliverable_grace",
    "attempt_timeout",
    "retry_backoff_factor",
    "retry_backoff_max",
]


def made(**options: object) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(**options)  # type: ignore[arg-type]


def test_the_options_and_their_defaults_are_the_documented_ones() -> None:
    options = SendAvailabilityOptions()
    assert {f.name: getattr(options, f.name) for f in fields(options)} == DOCUMENTED


@pytest.mark.parametrize("option", RANGES)
def test_a_range_includes_its_ends_and_nothing_beyond(option: str) -> None:
    low, high, step = RANGES[option]
    for value in (low, high):
        assert getattr(made(**{option: value}), option) == value
    for value in (low - step, high + step):
        with pytest.raises(ValueError, match=option) as refused:
            made(**{option: value})
        text = str(refused.value)
        assert repr(value) in text
        assert f"{low:g}" in text or str(low) in text
        assert f"{high:g}" in text or str(high) in text


@pytest.mark.parametrize("option", RANGES)
@pytest.mark.parametrize("value", [True, "10", float("nan"), float("inf"), [], 1.5 + 0j])
def test_what_is_no_number_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        made(**{option: value})


@pytest.mark.parametrize(
    "option", ["backlog_queue_count", "healthy_pings", "quorum", "retry_total"]
)
def test_a_count_is_a_whole_number(option: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        made(**{option: 2.0})


@pytest.mark.parametrize("option", DURATIONS)
def test_a_duration_is_seconds_or_a_timedelta_and_read_in_seconds(option: str) -> None:
    for given in (2, 2.0, timedelta(seconds=2)):
        options = made(**{option: given})
        assert getattr(options, option) == given
        assert getattr(options, f"{option}_s") == 2.0
        assert type(getattr(options, f"{option}_s")) is float


@pytest.mark.parametrize("names", ["orders", [], [""], [1], 5])
def test_the_entities_of_a_syphon_are_names(names: object) -> None:
    with pytest.raises(ValueError, match="syphon_only must be names of queues and topics"):
        made(syphon_only=names)
    assert made(syphon_only=["orders"]).syphon_only == ["orders"]


@pytest.mark.parametrize("names", ["orders", "**", [], [""], [1], 5])
def test_twins_are_names_or_patterns(names: object) -> None:
    with pytest.raises(ValueError, match="twins must be names of queues and topics"):
        made(twins=names)
    for listed in (["orders", "audit-*"], "*", ["*"]):
        assert made(twins=listed).twins == listed


@pytest.mark.parametrize("causes", ["disabled", ["busy"], {"full", 1}, None, 5])
def test_causes_to_divert_are_a_set_of_three_words(causes: object) -> None:
    with pytest.raises(ValueError, match="divert_on must be a set of disabled, full, throttled"):
        made(divert_on=causes)
    assert made(divert_on=["full", "throttled"]).divert_on == ["full", "throttled"]


@pytest.mark.parametrize("cause", ["full", "throttled"])
def test_a_ping_by_link_would_be_answered_by_an_entity_that_takes_no_message(cause: str) -> None:
    with pytest.raises(ValueError, match=r"exclude each other.*got divert_on="):
        made(ping_mode="link", divert_on={cause, "disabled"})
    assert made(ping_mode="link", divert_on={"disabled"}).ping_mode == "link"


def test_twins_and_strict_order_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"exclude each other.*got twins=\['orders'\]"):
        made(twins=["orders"], session_order="strict")


def test_a_timedelta_out_of_range_is_refused_with_its_range() -> None:
    with pytest.raises(ValueError, match="failover_interval must be from 0 to 3600 seconds"):
        made(failover_interval=timedelta(hours=1, microseconds=1))


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("ping_mode", ("message", "link")),
        ("ttl_policy", ("full", "remaining")),
        ("session_order", ("relaxed", "strict")),
    ],
)
def test_a_choice_is_one_of_its_words(option: str, choices: tuple[str, str]) -> None:
    for choice in choices:
        assert getattr(made(**{option: choice}), option) == choice
    with pytest.raises(ValueError, match=f"{option} must be '{choices[0]}' or '{choices[1]}'"):
        made(**{option: "other"})


@pytest.mark.parametrize(
    "option",
    [
        "enable_syphon",
        "create_backlog_queues",
        "require_secondary",
        "accept_drift",
        "strict_guards",
    ],
)
def test_a_switch_is_true_or_false_and_nothing_like_it(option: str) -> None:
    assert getattr(made(**{option: True}), option) is True
    for value in ("yes", 1, None):
        with pytest.raises(ValueError, match=f"{option} must be True or False"):
            made(**{option: value})


def test_options_are_frozen_named_only_and_can_be_varied() -> None:
    options = made(failover_interval=timedelta(seconds=7))
    with pytest.raises(FrozenInstanceError):
        options.retry_total = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        SendAvailabilityOptions(10)  # type: ignore[call-arg]
    assert replace(options, retry_total=1).failover_interval_s == 7.0
    with pytest.raises(ValueError, match="retry_total"):
        replace(options, retry_total=-1)


def test_the_ledger_follows_the_option_then_the_environment() -> None:
    environment = {"TWINBUS_LEDGER": "/var/ledger"}
    assert made().ledger_location({}) is None
    assert made().ledger_location(environment) == "/var/ledger"
    assert made().ledger_location({"TWINBUS_LEDGER": ""}) is None
    assert made(ledger=Path("here")).ledger_location(environment) == "here"
    assert made(ledger="hdfs://host/l").ledger_location(environment) == "hdfs://host/l"
    assert made(ledger="").ledger_location(environment) is None
    with pytest.raises(ValueError, match="ledger"):
        made(ledger=7)


def test_a_classifier_can_be_called() -> None:
    options = made(classify=lambda error: Verdict.IGNORED)
    assert options.classify is not None
    assert options.classify(OSError()) is Verdict.IGNORED
    with pytest.raises(ValueError, match="classify"):
        made(classify="counts")
