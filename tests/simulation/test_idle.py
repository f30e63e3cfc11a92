"""An idle syphon, hour after hour in virtual time: what it costs is what is documented (SPEC 8).

Relays, pumps, bookkeeping and the ledger on disk are the real ones; wires and time are simulated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.ledger_reading import read
from tests.simulation.faults import create_backlog
from tests.simulation.machine import Process, SimLoop
from tests.simulation.world import World
from twinbus.broker.descriptions import QueueDescription
from twinbus.cost.arithmetic import (
    deferred_search_operations,
    idle_syphon_operations,
    lease_operations,
)
from twinbus.ledger import LedgerWriter
from twinbus.options import SendAvailabilityOptions
from twinbus.pair import Pair
from twinbus.pairing.core.backlog import LEASE_LOCK_S, lease_path
from twinbus.servicebus.names import backlog_paths
from twinbus.syphon.host import SyphonHost

HOUR_S = 3_600.0
START_S = 5.0
"""In which connections are made; a first poll begins with the link."""


def operations_of_an_idle_syphon(
    directory: Path,
    queues: int,
    poll_s: float,
    hours: float,
    *,
    detached_every_s: float | None = None,
) -> Counter[str]:
    """Run a syphon on empty queues; how often each operation is in its ledger."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        world = World(1, loop)
        paths = backlog_paths("idle", queues)
        create_backlog(world.secondary, paths, 60.0)
        with world.logs(), LedgerWriter(directory) as ledger:
            runner.run(_idle(world, paths, ledger, poll_s, hours, detached_every_s))
    return Counter(record["operation"] for record in read(directory))


async def _idle(
    world: World,
    paths: tuple[str, ...],
    ledger: LedgerWriter,
    poll_s: float,
    hours: float,
    detached_every_s: float | None,
) -> None:
    async def syphon() -> None:
        options = SendAvailabilityOptions(syphon_poll=poll_s)
        sides = world.side("primary"), world.side("secondary")
        host = SyphonHost(*sides, paths, options, ledger, environment=world.environment)
        await host.start()
        ends = world.loop.time() + hours * HOUR_S + START_S
        while detached_every_s and world.loop.time() + detached_every_s < ends:
            await asyncio.sleep(detached_every_s)
            world.detach_sources()
        await asyncio.sleep(ends - world.loop.time())
        assert all(not relay.problems for relay in host.relays)
        await host.close()

    await Process(world.loop, "syphon", 1).spawn(syphon())


def test_ten_idle_queues_receive_forty_times_an_hour(tmp_path: Path) -> None:
    found = operations_of_an_idle_syphon(tmp_path, 10, 900.0, 1)
    assert found["backlog_receive"] == 40
    # One look for deferred messages when it begins, and one an hour later.
    assert set(found) == {"backlog_receive", "manage"}
    assert found["manage"] <= 20


@pytest.mark.parametrize(("poll_s", "expected"), [(60.0, 120), (450.0, 16)])
def test_the_poll_can_be_set(tmp_path: Path, poll_s: float, expected: int) -> None:
    found = operations_of_an_idle_syphon(tmp_path, 2, poll_s, 1)
    assert found["backlog_receive"] == expected


def test_links_that_azure_closes_for_idleness_cost_no_receive_and_are_no_failure(
    tmp_path: Path,
) -> None:
    # Azure detaches a link that carried nothing for 10 minutes: in the middle of each poll.
    found = operations_of_an_idle_syphon(tmp_path, 2, 900.0, 2, detached_every_s=600.0)
    assert found["backlog_receive"] == idle_syphon_operations(
        queue_count=2, poll_s=900.0, period_s=2 * HOUR_S
    )
    assert found["manage"] <= 6


def operations_of_an_idle_pair(directory: Path, hours: float) -> tuple[Counter[str], Counter[str]]:
    """Run a pair that sends nothing, and its syphon with leases, as programs of one process.

    Return the ledger by cause, and what the namespaces counted.
    """
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        world = World(1, loop)
        create_backlog(world.secondary, backlog_paths("primary", 10), 60.0)
        locked = QueueDescription(lock_duration_ms=int(LEASE_LOCK_S * 1000), requires_session=True)
        world.secondary.engine.create_queue(lease_path("primary"), locked, 0)
        with LedgerWriter(directory) as ledger:
            world.ledger = ledger  # type: ignore[assignment]
            with world.logs():
                runner.run(_idle_pair(world, hours))
    causes = Counter(str(record["cause"]) for record in read(directory))
    return causes, world.primary.requests + world.secondary.requests


async def _idle_pair(world: World, hours: float) -> None:
    async def application() -> None:
        sides = world.side("primary"), world.side("secondary")
        pair = Pair(*sides, SendAvailabilityOptions(backlog_queue_count=10), world.parts)
        await pair.start()
        host = SyphonHost(
            *sides,
            backlog_paths("primary", 10),
            None,
            world.ledger,
            lease=True,
            environment=world.environment,
        )
        await host.start()
        await asyncio.sleep(hours * HOUR_S + START_S)
        assert all(not host.problems(relay) for relay in host.relays)
        await host.close()
        await pair.close()

    await Process(world.loop, "application", 1).spawn(application())


def test_an_idle_pair_with_leases_costs_what_the_estimate_says(tmp_path: Path) -> None:
    causes, counted = operations_of_an_idle_pair(tmp_path, 1)
    leases = lease_operations(queue_count=10, period_s=HOUR_S)
    polls = idle_syphon_operations(queue_count=10, poll_s=900.0, period_s=HOUR_S)
    searches = deferred_search_operations(queue_count=10, period_s=HOUR_S)
    assert (causes["lease"], causes["poll"], causes["syphon"]) == (leases, polls, searches)
    recorded, estimated = causes.total(), leases + polls + searches
    assert recorded == pytest.approx(estimated, rel=0.01)
    assert recorded == counted.total(), (causes, counted)


def test_the_leases_of_ten_queues_cost_a_tenth_of_what_they_did() -> None:
    day_s = 24 * HOUR_S
    assert lease_operations(queue_count=10, period_s=day_s) <= 115_200 / 10
