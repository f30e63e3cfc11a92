"""Consumers go on while the primary is killed, or hangs, for 30 s: nothing is lost, no long gap.

A consumer of asyncio, one of threads and a Celery worker, each a process; a queue, and a topic with
a filter, each with a twin. `TWINBUS_ROUNDS` is the number of outages of each kind (20).
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.end_to_end.consuming_world import (
    GAP_MAX_S,
    NOT_CONFIRMED,
    OTHER_PROCESS,
    PROCESS_KILLED,
    ConsumingWorld,
)
from tests.outage_table import OutageTable

ROUNDS = int(os.environ.get("TWINBUS_ROUNDS", "20"))
ROUND_LIMIT_S = 300.0
LOCK_S = 20.0
"""What the fault catches between its delivery and its completion waits for the end of its lock."""
SHORT_LOCK_S = 10.0
"""A killed consumer leaves locked messages behind, which wait for the end of their locks."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(ROUND_LIMIT_S * (ROUNDS + 1))]


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_consumers_receive_again_in_time_and_nothing_is_lost(tmp_path: Path, fault: str) -> None:
    with (
        ConsumingWorld(tmp_path, LOCK_S).running() as world,
        OutageTable.printed(fault) as table,
    ):
        for _ in range(ROUNDS):
            for place, one in world.suffer(fault).items():
                table.add_gap(place, one.gap_s)
                table.add_messages(place, one.lost, one.twice)
        assert world.raised == []
    assert table.lost == []
    # One consumer process: no copy is handed out beside the other. What the fault caught between
    # its delivery and its completion is delivered again, as always.
    assert table.reasons <= {NOT_CONFIRMED}, table.rows
    assert table.gaps_over(GAP_MAX_S) == {}


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_consumers_that_are_killed_meanwhile_lose_nothing(tmp_path: Path, fault: str) -> None:
    seed = random.randrange(10**6)
    sys.stderr.write(f"seed {seed}\n")
    with (
        ConsumingWorld(tmp_path, SHORT_LOCK_S).running() as world,
        OutageTable.printed(f"{fault}, and consumers killed") as table,
    ):
        for number in range(ROUNDS):
            chance = random.Random(f"{seed} {number}")
            for place, one in world.suffer(fault, kill_consumers=chance).items():
                table.add_gap(place, one.gap_s)
                table.add_messages(place, one.lost, one.twice)
        assert world.raised == []
        kills = {kind: consumer.kills for kind, consumer in world.consumers.items()}
        sys.stderr.write(f"{fault}: killed consumers: {kills}\n")
        assert all(kills.values()), kills
    assert table.lost == []
    assert table.reasons <= {NOT_CONFIRMED, OTHER_PROCESS, PROCESS_KILLED}, table.rows
