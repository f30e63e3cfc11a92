"""`kill -9` of the syphon, the secondary, the primary while 20,000 messages are drained.

What may arrive twice is known exactly: right after each kill, with the syphon dead or stopped, the
messages are looked up that the primary has and the backlog still holds. All others must arrive
once, and these too where the entity detects duplicates.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.end_to_end.syphon_world import DETECTING, RELAXED, STRICT, SyphonWorld

MESSAGES = 20_000
SESSIONS = 40
WINDOW = 400
"""In flight for each of the four pumps."""

KILLS = 3
SOAK_DRAINS, SOAK_KILLS = 5, 4
PATIENCE_S = 120.0
LAST_WORDS_S = 1.0
"""After a broker was killed, for what the syphon has under way at the other, on a busy machine."""


@dataclass
class Round:
    """One kill."""

    at: int
    """Messages that were forwarded by then."""
    allowed: set[str] = field(default_factory=set)
    """Sent and not completed: these may arrive once more."""


def kill_syphon(world: SyphonWorld) -> set[str]:
    world.syphon.kill9()
    allowed = world.in_both()
    world.say_that_the_syphon_is_dead()
    world.syphon.start()
    return allowed


def kill_secondary(world: SyphonWorld) -> set[str]:
    return _kill_broker(world, "secondary")


def kill_primary(world: SyphonWorld) -> set[str]:
    return _kill_broker(world, "primary")


def _kill_broker(world: SyphonWorld, side: str) -> set[str]:
    broker = world.primary if side == "primary" else world.secondary
    broker.kill9()
    time.sleep(LAST_WORDS_S)
    world.syphon.stop_for_a_while()
    broker.restart()
    allowed = world.in_both()
    world.syphon.go_on()
    return allowed


KILLERS = {"syphon": kill_syphon, "secondary": kill_secondary, "primary": kill_primary}


def drain_under_kills(directory: Path, victim: str, kills: int, seed: int) -> str:
    """One drain with several kills; the figures in one line."""
    chance = random.Random(f"{victim} {seed}")
    directory.mkdir(exist_ok=True)
    with SyphonWorld(directory, window=WINDOW) as world:
        asyncio.run(world.fill(MESSAGES, sessions=SESSIONS))
        began = time.monotonic()
        world.syphon.start()
        rounds: list[Round] = []
        for number in range(kills):
            share = (number + chance.uniform(0.1, 0.8)) / kills
            if not world.syphon.wait_for(int(MESSAGES * share), PATIENCE_S):
                break
            time.sleep(chance.uniform(0.0, 0.05))
            at = world.syphon.forwarded
            rounds.append(Round(at, KILLERS[victim](world)))
        world.syphon.wait_for(None, PATIENCE_S)
        took_s = time.monotonic() - began
        world.look()
        _check(world, rounds, kills)
        repeated = world.repeated()
        return (
            f"kill -9 of the {victim}: {len(rounds)} rounds at {[each.at for each in rounds]} of"
            f" {MESSAGES}, lost 0, sent and not completed {[len(r.allowed) for r in rounds]},"
            f" duplicates {repeated.total()}, window {WINDOW * len(RELAXED + STRICT)},"
            f" with duplicate detection 0, sessions out of order 0; {took_s:.1f} s"
        )


def _check(world: SyphonWorld, rounds: list[Round], kills: int) -> None:
    assert len(rounds) == kills, "it was done before the last kill"
    assert world.lost() == []
    assert world.left() == 0
    assert world.out_of_order() == []
    assert world.repeated(DETECTING).total() == 0
    for each in rounds:
        assert len(each.allowed) <= WINDOW * len(RELAXED + STRICT)
    often = world.repeated()
    for each in rounds:
        often.subtract(each.allowed)
    unexplained = sorted((+often).elements())
    assert unexplained == [], "these arrived again and were not in flight at a kill"


@pytest.mark.end_to_end
@pytest.mark.parametrize("victim", KILLERS)
def test_nothing_is_lost_and_only_what_was_in_flight_arrives_twice(
    victim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = drain_under_kills(tmp_path, victim, KILLS, seed=0)
    with capsys.disabled():
        sys.stdout.write(f"\n{figures}\n")


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("victim", KILLERS)
def test_the_same_holds_for_twenty_kills(
    victim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(SOAK_DRAINS):
        seed = random.randrange(1 << 30)
        figures = drain_under_kills(tmp_path / str(number), victim, SOAK_KILLS, seed)
        with capsys.disabled():
            sys.stdout.write(f"\nseed {seed}: {figures}\n")
