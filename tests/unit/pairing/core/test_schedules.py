"""When a pair searches again, lists backlog queues and pings."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.core.failover import ForceFailover, PingTurns, ping_delay_s
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
from twinbus.testing.fake_sdk import FakePair, hangs, refuses

pytestmark = pytest.mark.virtual_time

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
    for world in worlds:
        await world.client.close()


def test_the_size_of_a_ping_is_known() -> None:
    assert 100 < ping_bytes() < 250
