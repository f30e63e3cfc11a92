"""Consumers go on while the primary is killed, or hangs, for 30 s: nothing is lost, no long gap.

A consumer of asyncio, one of threads and a Celery worker, each a process; a queue, and a topic with
a filter, each with a twin. `TWINBUS_ROUNDS` is the number of outages of each kind (20).
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.consuming_program import CELERY_QUEUE
from tests.end_to_end.consuming_world import (
    GAP_MAX_S,
    NOT_CONFIRMED,
    ConsumingWorld,
    PlaceResult,
)

ROUNDS = int(os.environ.get("TWINBUS_ROUNDS", "20"))
ROUND_LIMIT_S = 300.0
LOCK_S = 60.0
SHORT_LOCK_S = 10.0
"""A killed consumer leaves locked messages behind, which wait for the end of their locks."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(ROUND_LIMIT_S * (ROUNDS + 1))]


def said(number: int, fault: str, found: dict[str, PlaceResult]) -> None:
    """Print one round for the log of a soak run."""
    for place, one in found.items():
        reasons = dict(Counter(one.twice.values()))
        says = f"gap {one.gap_s:.1f} s, {len(one.twice)} handed out twice {reasons or ''}"
        sys.stderr.write(f"{fault} {number}: {place}: {says}\n")


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_consumers_receive_again_in_time_and_nothing_is_lost(tmp_path: Path, fault: str) -> None:
    with ConsumingWorld(tmp_path, LOCK_S).running() as world:
        for number in range(ROUNDS):
            found = world.suffer(fault)
            said(number, fault, found)
            assert world.raised == []
            for place, one in found.items():
                assert not one.lost, (place, one.lost)
                assert one.gap_s <= GAP_MAX_S, (place, one.gap_s)
                # One consumer process: no copy is handed out beside the other. What the fault
                # caught between its delivery and its completion is delivered again, as always.
                assert {*one.twice.values()} <= {NOT_CONFIRMED}, (place, one.twice)


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_consumers_that_are_killed_meanwhile_lose_nothing(tmp_path: Path, fault: str) -> None:
    seed = random.randrange(10**6)
    sys.stderr.write(f"seed {seed}\n")
    with ConsumingWorld(tmp_path, SHORT_LOCK_S).running() as world:
        for number in range(ROUNDS):
            found = world.suffer(fault, kill_consumers=random.Random(f"{seed} {number}"))
            said(number, fault, found)
            assert world.raised == []
            for place, one in found.items():
                assert not one.lost, (place, one.lost)
                # A task of Celery does not know its message, nor whether it was acknowledged.
                if place != CELERY_QUEUE:
                    assert all(one.twice.values()), (place, one.twice)
