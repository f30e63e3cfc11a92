"""Receivers of official SDKs, with their defaults, through a gateway that gives them both sides.

Each side is killed and hung while programs send, each to an entity of its own, and one receives of
each. Nothing that was accepted is lost; what is handed out twice had a lock that was lost, or an
attempt without an answer. `TWINBUS_ROUNDS` is the number of long outages of each kind (20).
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from tests.other_languages.receiving_world import (
    GAP_MAX_S,
    LOCK_LOST,
    OTHER_PROCESS,
    UNANSWERED,
    ReceivingWorld,
)
from tests.outage_table import OutageTable

# The programs are built first, with an empty cache on a machine that does more.
pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1_800)]

BUSY_S = 15.0
"""What a machine that does much more may add to the gap."""

LEAD_S, OUTAGE_S, TAIL_S = 3.0, 30.0, 12.0
"""Of a long outage: of healthy sends, of the fault, and of sends after it."""

ROUNDS = int(os.environ.get("TWINBUS_ROUNDS", "20"))
ROUND_LIMIT_S = 300.0
SHORT_LOCK_S = 10.0
"""A killed receiver leaves locked messages behind, which wait for the end of their locks."""

LANGUAGES = ("go", "javascript", "java", "python")
PRIMARY, SECONDARY = 0, 1


def suffer(directory: Path, language: str, faults: list[tuple[str, int]]) -> None:
    """Let one side after the other have its fault until messages come."""
    with ExitStack() as stack:
        table = stack.enter_context(OutageTable.printed(f"{language}: {faults}"))
        world = ReceivingWorld(directory, [(language, "orders")], stack)
        for kind, number in faults:
            world.flow()
            began_s = time.time()
            side = world.sides[number]
            with world.fault(kind, side):
                world.flow(down=side)
                for name, gap_s in world.gaps(began_s).items():
                    table.add_gap(name, gap_s)
        world.flow()
        world.stop()
        world.check(table)
    assert table.lost == []
    assert table.reasons <= {LOCK_LOST, UNANSWERED}, table.rows
    assert table.gaps_over(GAP_MAX_S + BUSY_S) == {}


@pytest.mark.parametrize(
    "language",
    [
        "go",
        pytest.param("javascript", marks=pytest.mark.soak),
        pytest.param("java", marks=pytest.mark.soak),
    ],
)
def test_a_receiver_goes_on_while_the_primary_is_killed(language: str, tmp_path: Path) -> None:
    suffer(tmp_path, language, [("killed", PRIMARY)])


@pytest.mark.soak
def test_either_side_is_killed_and_hung_in_the_middle(tmp_path: Path) -> None:
    sides = (PRIMARY, SECONDARY)
    suffer(tmp_path, "python", [(kind, one) for kind in ("killed", "hung") for one in sides])


@pytest.mark.soak
@pytest.mark.timeout(ROUND_LIMIT_S * (ROUNDS + 1))
@pytest.mark.parametrize("are_killed", [False, True], ids=["fault alone", "receivers killed too"])
@pytest.mark.parametrize("kind", ["killed", "hung"])
def test_queues_and_topics_of_each_language_go_on_in_long_outages(
    kind: str, are_killed: bool, tmp_path: Path
) -> None:
    places = [
        (language, f"{prefix}.{language}{suffix}")
        for language in LANGUAGES
        for prefix, suffix in (("orders", ""), ("news", "/subscriptions/red"))
    ]
    seed = random.randrange(10**6)
    sys.stderr.write(f"seed {seed}\n")
    chance = random.Random(seed)
    title = f"{kind}, and receivers killed" if are_killed else kind
    with ExitStack() as stack:
        table = stack.enter_context(OutageTable.printed(title))
        lock_s = SHORT_LOCK_S if are_killed else 60.0
        world = ReceivingWorld(tmp_path, places, stack, lock_s)
        for _ in range(ROUNDS):
            world.flow()
            time.sleep(LEAD_S)
            began_s = time.time()
            with world.killing_receivers(chance) if are_killed else nullcontext():
                with world.fault(kind, world.sides[PRIMARY]):
                    time.sleep(OUTAGE_S)
                time.sleep(TAIL_S)
            for name, gap_s in world.gaps(began_s).items():
                table.add_gap(name, gap_s)
        world.stop()
        world.check(table)
        sys.stderr.write(f"{title}: killed receivers: {world.kills}\n")
        assert all(world.kills.values()) == are_killed, world.kills
    assert table.lost == []
    reasons = {LOCK_LOST, UNANSWERED, *([OTHER_PROCESS] if are_killed else [])}
    assert table.reasons <= reasons, table.rows
    if not are_killed:
        assert table.gaps_over(GAP_MAX_S) == {}
