"""Backlog queues: their names, their drift, and the rotation that all senders share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest

from twinbus.pairing.core.backlog import (
    WANTED,
    BacklogDescription,
    KeptChoice,
    PullCause,
    Rotation,
    drift_of,
    session_queue,
)
from twinbus.servicebus.names import FOREVER_MS, backlog_paths, parse_backlog_path

QUEUES = backlog_paths("contoso", 3)
PINNED = [0, 0, 0, 1, 1, 0, 2, 2, 2, 0]
"""Queues of sessions a to j of `orders`. A change would part sessions from their backlog."""


def last(queues: Sequence[str]) -> str:
    return queues[-1]


def test_paths_are_the_documented_ones_and_can_be_read_back() -> None:
    assert backlog_paths("contoso", 2) == (
        "contoso/x-servicebus-transfer/0",
        "contoso/x-servicebus-transfer/1",
    )
    for index, path in enumerate(backlog_paths("localhost-5672", 100)):
        assert parse_backlog_path(path) == ("localhost-5672", index)


@pytest.mark.parametrize(
    "path",
    [
        "orders",
        "contoso/3",
        "contoso/x-servicebus-transfer",
        "contoso/x-servicebus-transfer/",
        "contoso/x-servicebus-transfer/x",
        "contoso/x-servicebus-transfer/07",
        "contoso/x-servicebus-transfer/-1",
        "contoso/x-servicebus-transfer/²",
        "/x-servicebus-transfer/1",
    ],
)
def test_other_paths_are_not_taken_for_backlog_queues(path: str) -> None:
    assert parse_backlog_path(path) is None


def test_what_we_create_is_exactly_the_documented_description() -> None:
    assert {f.name: getattr(WANTED, f.name) for f in fields(WANTED)} == {
        "max_size_mb": 5120,
        "max_delivery_count": 2147483647,
        "default_ttl_ms": FOREVER_MS,
        "auto_delete_on_idle_ms": FOREVER_MS,
        "lock_duration_ms": 60_000,
        "dead_letter_on_expiration": True,
        "enable_batched_operations": True,
        "requires_duplicate_detection": False,
        "requires_session": False,
        "enable_partitioning": False,
        "forward_to": None,
        "forward_dead_letters_to": None,
        "status": "Active",
    }
    assert drift_of(WANTED) == ()


@pytest.mark.parametrize(
    ("setting", "value", "unsafe"),
    [
        ("max_size_mb", 1024, False),
        ("max_delivery_count", 999, True),
        ("max_delivery_count", 1_000, False),
        ("default_ttl_ms", 60_000, False),
        ("auto_delete_on_idle_ms", 300_000, True),
        ("lock_duration_ms", 30_000, False),
        ("dead_letter_on_expiration", False, False),
        ("enable_batched_operations", False, False),
        ("enable_partitioning", True, False),
        ("requires_duplicate_detection", True, True),
        ("requires_session", True, True),
        ("forward_to", "orders", True),
        ("forward_dead_letters_to", "attic", True),
        ("status", "Disabled", True),
        ("status", "SendDisabled", True),
        ("status", "ReceiveDisabled", True),
    ],
)
def test_each_drift_is_told_and_is_safe_or_not(setting: str, value: object, unsafe: bool) -> None:
    [drift] = drift_of(replace(WANTED, **{setting: value}))  # type: ignore[arg-type]
    assert (drift.setting, drift.found, drift.unsafe) == (setting, value, unsafe)
    assert setting in str(drift)
    assert repr(value) in str(drift)


def test_a_time_to_live_is_unsafe_only_without_dead_lettering() -> None:
    lossy = BacklogDescription(default_ttl_ms=60_000, dead_letter_on_expiration=False)
    assert {drift.setting: drift.unsafe for drift in drift_of(lossy)} == {
        "default_ttl_ms": True,
        "dead_letter_on_expiration": False,
    }


def test_forms_that_mean_the_same_are_no_drift() -> None:
    same = BacklogDescription(
        default_ttl_ms=FOREVER_MS - 1, status="active", forward_to="", forward_dead_letters_to=""
    )
    assert drift_of(same) == ()


def test_a_pulled_queue_is_out_for_all_and_returns_by_time() -> None:
    rotation = Rotation(QUEUES)
    assert rotation.pull(QUEUES[0], "quota", now=100.0) == 130.0
    assert rotation.available(100.0) == [*QUEUES[1:]]
    assert rotation.absences(100.0) == {QUEUES[0]: "quota (back in 30 s)"}
    assert not rotation.is_in(QUEUES[0], 129.9)
    assert rotation.is_in(QUEUES[0], 130.0)
    assert rotation.absences(130.0) == {}


def test_each_pull_after_a_return_doubles_up_to_ten_minutes() -> None:
    rotation, now, rests = Rotation(QUEUES), 0.0, []
    for _ in range(8):
        back_at = rotation.pull(QUEUES[0], "timed out", now)
        assert back_at is not None
        rests.append(back_at - now)
        now = back_at
    assert rests == [30, 60, 120, 240, 480, 600, 600, 600]


def test_one_outage_seen_by_many_sends_is_one_pull() -> None:
    rotation = Rotation(QUEUES)
    for now in (0.0, 0.1, 5.0, 29.9):
        assert rotation.pull(QUEUES[0], "timed out", now) == 30.0
    assert rotation.pull(QUEUES[0], "timed out", 30.0) == 90.0


def test_a_success_ends_the_rest_and_the_doubling() -> None:
    rotation = Rotation(QUEUES)
    rotation.pull(QUEUES[0], "timed out", 0.0)
    rotation.pull(QUEUES[0], "timed out", 30.0)
    rotation.succeeded(QUEUES[0])
    assert rotation.is_in(QUEUES[0], 31.0)
    assert rotation.pull(QUEUES[0], "timed out", 100.0) == 130.0
    rotation.succeeded("somebody else's")


def test_a_pulled_queue_is_probed_six_times_in_its_pull_and_an_answer_returns_it_on_trial() -> None:
    rotation = Rotation(QUEUES)
    assert rotation.next_probe(0.0) is None
    rotation.pull(QUEUES[0], "full", 0.0, cause=PullCause.FULL)
    assert rotation.next_probe(1.0) is None
    assert not rotation.attached(QUEUES[0], 1.0)
    rotation.pull(QUEUES[1], "timed out", 0.0, cause=PullCause.SILENT)
    rotation.pull(QUEUES[2], "disabled", 1.0)
    assert rotation.next_probe(1.0) == (QUEUES[1], 5.0)
    rotation.probe_ended(QUEUES[1], 10.0, jitter=1.0)
    assert rotation.next_probe(10.0) == (QUEUES[2], 6.0)
    assert rotation.attached(QUEUES[2], 10.0)
    assert rotation.is_in(QUEUES[2], 10.0)
    assert rotation.next_probe(10.0) == (QUEUES[1], 14.0)
    assert rotation.next_probe(30.0) is None  # It has returned by time.
    # The second pull is twice as long, and so is the time between its probes.
    rotation.pull(QUEUES[1], "timed out", 31.0, cause=PullCause.SILENT)
    assert rotation.next_probe(31.0) == (QUEUES[1], 41.0)
    rotation.leave_out(QUEUES[1], "gone")
    rotation.probe_ended(QUEUES[1], 42.0, jitter=0.0)
    # What a probe returned and fails again returns by time, until it stores a message.
    rotation.pull(QUEUES[2], "disabled", 50.0)
    assert (rotation.next_probe(50.0), rotation.is_in(QUEUES[2], 109.0)) == (None, False)
    rotation.succeeded(QUEUES[2])
    rotation.pull(QUEUES[2], "disabled", 60.0)
    assert rotation.next_probe(60.0) == (QUEUES[2], 65.0)


def test_a_queue_left_out_is_neither_chosen_nor_pulled_until_it_is_added() -> None:
    rotation = Rotation(QUEUES)
    rotation.leave_out(QUEUES[1], "requires sessions")
    assert rotation.available(0.0) == [QUEUES[0], QUEUES[2]]
    assert rotation.pull(QUEUES[1], "late failure", 0.0) is None
    assert rotation.absences(0.0) == {QUEUES[1]: "requires sessions"}
    rotation.add(QUEUES[1])
    assert set(rotation.available(0.0)) == set(QUEUES)
    assert rotation.absences(0.0) == {}


def test_without_any_queue_a_pair_is_unprotected() -> None:
    assert not Rotation().protected
    rotation = Rotation()
    assert KeptChoice(rotation, last).choose(0.0) is None
    rotation.add(QUEUES[0])
    rotation.pull(QUEUES[0], "timed out", 0.0)
    assert rotation.protected
    assert rotation.queues == (QUEUES[0],)


def test_a_sender_keeps_its_queue_and_changes_it_only_when_it_must() -> None:
    rotation = Rotation(QUEUES)
    choice = KeptChoice(rotation, last)
    other = KeptChoice(rotation, lambda queues: queues[0])
    assert [choice.choose(0.0) for _ in range(3)] == [QUEUES[2]] * 3
    assert other.choose(0.0) == QUEUES[0]
    rotation.pull(QUEUES[2], "disabled", 1.0)
    assert choice.choose(1.0) == QUEUES[1]
    assert other.choose(1.0) == QUEUES[0]
    assert choice.choose(100.0) == QUEUES[1]
    assert choice.choose(100.0, tried={QUEUES[1]}) == QUEUES[2]
    assert choice.choose(100.0, tried=set(QUEUES)) is None
    assert choice.choose(100.0) == QUEUES[2]


def test_the_choice_is_by_chance_among_all_that_are_in() -> None:
    offered: list[Sequence[str]] = []

    def pick(queues: Sequence[str]) -> str:
        offered.append(list(queues))
        return queues[0]

    rotation = Rotation(QUEUES)
    rotation.pull(QUEUES[1], "quota", 0.0)
    KeptChoice(rotation, pick).choose(0.0)
    assert offered == [[QUEUES[0], QUEUES[2]]]


def test_strict_order_gives_a_session_one_queue_for_ever() -> None:
    chosen = {session: session_queue(QUEUES, "orders", session) for session in "abcdefghij"}
    assert set(chosen.values()) == set(QUEUES)
    for session, queue in chosen.items():
        assert session_queue(QUEUES, "ORDERS", session) == queue
    # Pinned: another process, another version, must choose the same.
    assert [QUEUES.index(chosen[s]) for s in "abcdefghij"] == PINNED


def test_jitter_makes_a_rest_shorter_by_a_fifth_at_most() -> None:
    rotation = Rotation(QUEUES)
    assert rotation.pull(QUEUES[0], "quota", 100.0, jitter=1.0) == 124.0
    assert rotation.pull(QUEUES[1], "quota", 100.0, jitter=0.5) == 127.0


def test_a_pulled_queue_can_be_tried_and_one_that_is_left_out_cannot() -> None:
    rotation = Rotation(QUEUES)
    choice = KeptChoice(rotation, last)
    rotation.pull(QUEUES[0], "quota", 0.0)
    rotation.pull(QUEUES[1], "quota", 0.0)
    rotation.leave_out(QUEUES[2], "requires sessions")
    assert choice.choose(1.0) is None
    assert choice.resting(1.0) == QUEUES[1]
    assert choice.resting(1.0, tried={QUEUES[1]}) == QUEUES[0]
    assert choice.resting(1.0, tried=set(QUEUES)) is None
    assert choice.may_return(0.0)
    assert not choice.may_return(0.0, tried=set(QUEUES[:2]))
    assert choice.resting(30.0) is None


def test_a_lost_secondary_is_the_reason_of_every_queue_that_has_no_other() -> None:
    rotation = Rotation(QUEUES)
    rotation.pull(QUEUES[0], "quota", 0.0)
    rotation.secondary.no_answer(QUEUES[1], "refused", began=0.0, now=0.0, timed_out=False)
    lost = "the secondary cannot be reached: refused"
    assert rotation.absences(1.0) == {
        QUEUES[0]: "quota (back in 29 s)",
        QUEUES[1]: lost,
        QUEUES[2]: lost,
    }
    assert rotation.available(1.0) == [*QUEUES[1:]]


def test_a_queue_that_cut_attempts_short_is_left_only_for_another() -> None:
    rotation = Rotation(QUEUES[:2])
    choice = KeptChoice(rotation, lambda queues: queues[0])
    first = choice.choose(0.0)
    assert first == QUEUES[0]
    choice.cut_short(first, 0.0)
    choice.answered(first)
    choice.cut_short(first, 0.0)
    assert choice.choose(0.0) == first, "not twice in a row"
    choice.cut_short(first, 0.0)
    assert choice.choose(0.0) == QUEUES[1]
    choice.cut_short(first, 0.0)
    assert choice.choose(0.0) == QUEUES[1], "it says nothing about the queue of today"
    rotation.pull(QUEUES[1], "full", 0.0)
    assert choice.choose(0.0) == first, "better than none"
