"""Fleets of many hosts in virtual time: evidence spreads, commands never do."""

from __future__ import annotations

import sys
from statistics import mean

import pytest

from tests.simulation.fleet.checks import check_fleet, wrong
from tests.simulation.fleet.mutations import BUGS
from tests.simulation.fleet.plan import (
    PING_S,
    FleetPlan,
    dead_pinger,
    forger,
    lying_pinger,
    outage,
    slander,
    storms,
)
from tests.simulation.fleet.world import FleetWorld, run_fleet

HOSTS = 40
SOAK_HOSTS = 1_000
LIARS = 0.1
BAD_BOARDS = ("down", "silent", "slow", "full", "purged", "recreated")
SOAK_SEEDS = 3

STORIES = {
    "storms": storms(10),
    "dead pinger": dead_pinger(4),
    "forger": forger(),
    "slander": slander(12),
}
"""For planted bugs: as few hosts as show them. Without the bugs the tests above run them too."""


def run(seed: int, plan: FleetPlan) -> FleetWorld:
    world = run_fleet(seed, plan)
    broken = list(check_fleet(world))
    assert not broken, f"seed {seed}, {len(broken)} violations:\n" + "\n".join(broken[:10])
    # Seen with `-rP`.
    sys.stdout.write(figures(world) + "\n")
    return world


def figures(world: FleetWorld) -> str:
    truth, seconds = world.truth, world.plan.ends_s
    early = [one for one in truth.failovers if one.is_early]
    waited = [one.at - (one.failing_since or one.at) for one in early]
    undone = [one.ended - one.at for one in wrong(world)]
    requests, taken = world.board.requests.total(), world.board.credits.total()
    board = world.plan.board or "well"
    parts = [
        f"{len(world.hosts)} hosts, {len(world.liars)} liars, board {board}",
        f"{len(truth.failovers)} failovers, {len(early)} early",
        f"{len(undone)} wrong and undone within {max(undone, default=0.0):.0f} s",
        f"early after {mean(waited or [0.0]):.1f} s, at most {max(waited, default=0.0):.1f} s",
        f"{len(truth.returned)} calls returned, {len(truth.raised)} raised",
        f"board: {requests / seconds:.2f} requests and {taken / seconds:.2f} credits a second",
        f"peak {world.credits(10):.1f} credits a second in 10 s, {world.credits(60):.1f} in 60 s",
        f"{len(world.board.history)} messages",
        f"{len(truth.pings)} pings, {world.leases.requests} requests for their lease",
    ]
    return "; ".join(parts)


def test_a_fleet_ignores_a_blip_and_spreads_the_evidence_of_an_outage() -> None:
    world = run(1, storms(HOSTS))
    early = [one for one in world.truth.failovers if one.is_early]
    assert len(early) > HOSTS / 10
    assert len(world.truth.failovers) == len(world.processes)


def test_liars_and_wrong_clocks_fail_nobody_over_who_has_not_failed() -> None:
    world = run(2, storms(HOSTS, liars=LIARS))
    assert wrong(world), "the lies changed nothing, so the fleet shows nothing"


def test_a_wrong_early_failover_ends_within_a_ping_interval_although_a_liar_has_the_lease() -> None:
    world = run(9, slander(HOSTS))
    early = [one for one in world.truth.failovers if one.is_early]
    assert len(early) == len(wrong(world)) > HOSTS
    assert max(one.ended - one.at for one in early) <= PING_S


@pytest.mark.parametrize("board", BAD_BOARDS)
def test_with_a_useless_board_a_fleet_does_as_it_does_without(board: str) -> None:
    run(3, outage(6, board=board, lasts_s=160.0))


def test_expired_messages_that_the_service_still_shows_are_no_evidence() -> None:
    # Azure removes them when it likes, and a peek returns them until then.
    run(8, storms(10, board="lazy"))


def test_a_pinger_that_dies_or_lies_only_delays() -> None:
    run(4, dead_pinger(4))
    run(5, lying_pinger(4))
    world = run(6, forger())
    assert not world.truth.failovers


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_what_a_fleet_shares_is_found(name: str) -> None:
    planted, story, rule = BUGS[name]
    broken = list(check_fleet(run_fleet(7, STORIES[story], planted)))
    found = [text for text in broken if text.startswith(f"{rule}:")]
    assert found, f"{rule} saw nothing; others: {broken[:3]}"
    sys.stdout.write(f"{name}: {found[0]}\n")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOAK_SEEDS))
@pytest.mark.parametrize("liars", [0.0, LIARS])
def test_a_thousand_hosts(seed: int, liars: float) -> None:
    run(seed, storms(SOAK_HOSTS, liars=liars))


@pytest.mark.soak
@pytest.mark.parametrize("board", ["", "lazy", *BAD_BOARDS])
def test_a_thousand_hosts_with_any_board(board: str) -> None:
    run(10, outage(SOAK_HOSTS, board=board))


@pytest.mark.soak
def test_a_thousand_hosts_whose_pinger_dies_or_lies() -> None:
    run(11, dead_pinger(SOAK_HOSTS))
    run(12, lying_pinger(SOAK_HOSTS))
