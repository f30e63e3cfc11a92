"""An idle syphon, hour after hour in virtual time: what it costs is what is documented (SPEC 8).

Relays, pumps, bookkeeping and the ledger on disk are the real ones; wires and time are simulated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.faults import create_backlog
from tests.simulation.machine import Process, SimLoop
from tests.simulation.seams import tied_to
from tests.simulation.world import World
from twinbus.ledger import LedgerWriter, read
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.backlog import backlog_paths
from twinbus.syphon.host import SyphonHost

HOUR_S = 3_600.0
START_S = 5.0
"""In which connections are made; a first poll begins with the link."""


def operations_of_an_idle_syphon(
    directory: Path, queues: int, poll_s: float, hours: float, *, detached_at_s: float | None = None
) -> Counter[str]:
    """Run a syphon on empty queues; how often each operation is in its ledger."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        world = World(1, loop)
        paths = backlog_paths("idle", queues)
        create_backlog(world.secondary, paths, 60.0)
        with tied_to(world), LedgerWriter(directory) as ledger:
            runner.run(_idle(world, paths, ledger, poll_s, hours, detached_at_s))
    return Counter(record["operation"] for record in read(directory))


async def _idle(
    world: World,
    paths: tuple[str, ...],
    ledger: LedgerWriter,
    poll_s: float,
    hours: float,
    detached_at_s: float | None,
) -> None:
    async def syphon() -> None:
        options = SendAvailabilityOptions(syphon_poll=poll_s)
        sides = world.side("primary"), world.side("secondary")
        host = SyphonHost(*sides, paths, options, ledger)
        await host.start()
        if detached_at_s is not None:
            world.loop.call_later(detached_at_s, world.detach_sources)
        await asyncio.sleep(hours * HOUR_S + START_S)
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


def test_a_link_closed_for_idleness_is_one_more_operation_and_no_failure(tmp_path: Path) -> None:
    found = operations_of_an_idle_syphon(tmp_path, 2, 900.0, 1, detached_at_s=2_000.0)
    # In each queue two polls, the attach in the middle of the third, and one poll after it.
    assert found["backlog_receive"] == 2 * (2 + 1 + 1)
