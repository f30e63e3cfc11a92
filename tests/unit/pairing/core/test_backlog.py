"""Backlog queues: names, drift, rotation, and when a pair searches, lists and pings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.core.backlog import (
    WANTED,
    BacklogDescription,
    KeptChoice,
    PullCause,
    Rotation,
    drift_of,
    session_queue,
)
from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.core.pings import PingTurns, ping_delay_s
from twinbus.pairing.core.secondary import (
    JITTER,
    SEARCH_LONGEST_S,
    SEARCH_S,
    SEARCH_UNREACHABLE_S,
    ListingTimes,
    is_same_reason,
    search_wait_after_loss_s,
    search_wait_s,
)
from twinbus.pairing.sending.client import ping_bytes, send_ping
from twinbus.servicebus.names import FOREVER_MS, backlog_paths, parse_backlog_path
from twinbus.testing.fake_sdk import FakePair, hangs, refuses

pytestmark = pytest.mark.virtual_time

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


HOUR_S, DAY_S = 3_600.0, 86_400.0


@pytest.mark.parametrize(
    ("since_change_s", "answers", "expected"),
    [
        (0.0, True, 60.0),
        (HOUR_S - 1, True, 60.0),
        (2 * HOUR_S, True, 120.0),
        (4 * HOUR_S, True, 240.0),
        (5 * HOUR_S, True, 300.0),
        (300 * DAY_S, True, 300.0),
        (0.0, False, 5.0),
        (599.0, False, 5.0),
        (600.0, False, 60.0),
        (2 * HOUR_S, False, 120.0),
        (300 * DAY_S, False, 300.0),
    ],
)
def test_a_minute_in_the_first_hour_then_longer_up_to_five(
    since_change_s: float, answers: bool, expected: float
) -> None:
    assert search_wait_s(since_change_s, answers=answers, chance=0.0) == expected


@given(st.floats(0, 1e9), st.booleans(), st.floats(0, 1))
def test_chance_only_shortens_a_wait_and_by_a_fifth_at_most(
    since_change_s: float, answers: bool, chance: float
) -> None:
    longest = search_wait_s(since_change_s, answers=answers, chance=0.0)
    assert SEARCH_UNREACHABLE_S <= longest <= SEARCH_LONGEST_S
    assert longest * (1 - JITTER) <= search_wait_s(since_change_s, answers=answers, chance=chance)
    assert search_wait_s(since_change_s, answers=answers, chance=chance) <= longest


def searches(period_s: float, chance: float) -> int:
    at, count = 0.0, 0
    while (at := at + search_wait_s(at, answers=True, chance=chance)) <= period_s:
        count += 1
    return count


def test_the_number_of_searches_is_bounded() -> None:
    assert searches(HOUR_S, 0.0) == HOUR_S / SEARCH_S
    assert searches(DAY_S, 0.0) == 385
    assert searches(30 * DAY_S, 1.0) < 11_000


def test_a_lost_queue_is_searched_at_once_but_not_again_and_again() -> None:
    assert search_wait_after_loss_s(HOUR_S, chance=0.0) == 0.0
    assert search_wait_after_loss_s(HOUR_S, chance=1.0) == 1.0
    assert search_wait_after_loss_s(1.0, chance=0.0) == 4.0


def test_marks_of_the_service_do_not_make_another_reason() -> None:
    text = "SubCode=40301: no. TrackingId:{}, SystemTracker:x.y, Timestamp:2026-11-16T0{}:00:00"
    assert is_same_reason(text.format("a1", 1), text.format("b2", 2))
    assert not is_same_reason(text.format("a", 1), "SubCode=40100: no. TrackingId:a")
    assert not is_same_reason(None, "")


OUTAGE = range(2_000, 2_300)


def listings(until: int, *, moved_at: int | None = None) -> list[int]:
    """Return the seconds at which a syphon searches whose primary is down in OUTAGE."""
    times, found = ListingTimes(), []
    for now in range(until):
        moved = 1 if moved_at is not None and now >= moved_at else 0
        times.observe(is_down=now in OUTAGE, moved=moved, now=float(now))
        if now >= times.due_at(float(now)):
            times.searched(float(now))
            found.append(now)
    return found


def test_new_queues_are_found_within_a_minute_of_an_outage_and_for_a_while_after() -> None:
    idle, busy, late = [0, 900, 1_800], list(range(2_000, 3_200, 60)), [4_040]
    assert listings(4_500) == idle + busy + late


def test_messages_that_move_are_a_sign_of_an_outage_elsewhere() -> None:
    assert listings(1_200, moved_at=300)[:3] == [0, 300, 360]


def test_without_any_queue_a_syphon_searches_every_half_minute() -> None:
    times = ListingTimes()
    assert times.due_at(0.0, has_queues=False) == float("-inf")
    times.searched(100.0)
    assert times.due_at(100.0, has_queues=False) == 130.0


def test_turns_are_at_once_while_there_are_few_and_in_a_row_when_there_are_many() -> None:
    turns = PingTurns(0.25)
    assert turns.take(10.0) == 10.0
    assert [turns.take(10.0) for _ in range(3)] == [10.25, 10.5, 10.75]
    assert turns.take(10.9) == 11.0
    assert turns.take(60.0) == 60.0


class Sender:
    """A sender of the SDK that keeps what it gets."""

    def __init__(self) -> None:
        self.sent: list[ServiceBusMessage] = []

    async def send_messages(self, message: ServiceBusMessage) -> None:
        self.sent.append(message)


async def test_a_ping_is_empty_short_lived_and_has_a_session_of_its_own() -> None:
    sender = Sender()
    for _ in range(2):
        await send_ping(sender)
    for ping in sender.sent:
        assert b"".join(ping.body) == b""
        assert ping.content_type == "application/vnd.ms-servicebus-ping"
        assert ping.time_to_live == timedelta(seconds=1)
    first, second = (ping.session_id for ping in sender.sent)
    assert first
    assert second not in (None, first)


async def test_entities_that_failed_over_together_are_not_pinged_all_at_once() -> None:
    world = FakePair(ping_primary_interval=60.0)
    for number in range(1_000):
        world.client.entity(f"entity-{number}").tell(ForceFailover())
    await asyncio.sleep(60.001)
    assert world.primary.opened < 5
    await asyncio.sleep(2.5)
    assert 490 < world.primary.opened < 510
    await asyncio.sleep(2.5)
    assert world.primary.opened == 1_000
    await world.client.close()
    assert world.primary.closed == world.primary.opened


async def test_closing_does_not_wait_for_the_turn_of_a_ping() -> None:
    world = FakePair(ping_primary_interval=60.0)
    world.primary.behaviour = hangs
    for number in range(100):
        world.client.entity(f"entity-{number}").tell(ForceFailover())
    await asyncio.sleep(60.1)
    began = world.now
    await world.client.close()
    assert world.now - began < 0.2


def test_a_ping_is_late_by_a_tenth_of_the_interval_at_most() -> None:
    assert [ping_delay_s(60.0, jitter) for jitter in (0.0, 0.5, 1.0)] == [0.0, 3.0, 6.0]


async def test_pairs_that_failed_over_together_ping_at_different_times() -> None:
    worlds = [FakePair(ping_primary_interval=60.0) for _ in range(3)]
    for number, world in enumerate(worlds):
        jitters = iter([number / 2] * 3)
        world.client.state.jitter = lambda draws=jitters: next(draws)  # type: ignore[misc]
        world.primary.behaviour = refuses
        world.client.entity("orders").tell(ForceFailover())
    pinged = []
    await asyncio.sleep(0.5)
    for _ in range(70):
        await asyncio.sleep(1.0)
        pinged.append([world.primary.opened for world in worlds])
    # At 60, 63 and 66 s, once each.
    expected = [[0, 0, 0]] * 59 + [[1, 0, 0]] * 3 + [[1, 1, 0]] * 3 + [[1, 1, 1]] * 5
    assert pinged == expected


def test_the_size_of_a_ping_is_known() -> None:
    assert 100 < ping_bytes() < 250
