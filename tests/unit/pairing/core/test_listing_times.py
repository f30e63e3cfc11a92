"""When a syphon lists the backlog queues again."""

from __future__ import annotations

from twinbus.pairing.core.listing_times import ListingTimes

OUTAGE = range(2_000, 2_300)


def searches(until: int, *, moved_at: int | None = None) -> list[int]:
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
    assert searches(4_500) == idle + busy + late


def test_messages_that_move_are_a_sign_of_an_outage_elsewhere() -> None:
    assert searches(1_200, moved_at=300)[:3] == [0, 300, 360]


def test_without_any_queue_a_syphon_searches_every_half_minute() -> None:
    times = ListingTimes()
    assert times.due_at(0.0, has_queues=False) == float("-inf")
    times.searched(100.0)
    assert times.due_at(100.0, has_queues=False) == 130.0
