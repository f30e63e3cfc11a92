"""Real processes share the pings of an entity: the pinger is killed, and the primary returns."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.fleet_program import FleetPlan, RunningFleet, fleet
from tests.official_sdk import administration
from tests.processes import ServedBroker, short_directory

pytestmark = pytest.mark.end_to_end

RECOVERY_S = 7.0
"""In which a process of the same host hears of a recovery, tries its next send, and is healthy. Its
own slow pings are 10 s apart."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedBroker, str]]:
    """A primary with a queue, and a secondary with a lease queue for each label."""
    first, second = tmp_path_factory.mktemp("primary"), tmp_path_factory.mktemp("secondary")
    with (
        ServedBroker(first, "contoso") as primary,
        ServedBroker(second, "contoso-dr", ephemeral=True) as secondary,
    ):
        with administration(primary.connection_string()) as admin:
            admin.create_queue("orders")
        yield primary, secondary.connection_string()


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as place:
        yield place


def pings(running: RunningFleet, count: int) -> Counter[int]:
    """The pings of each process, when there are so many more than now."""
    before = len(running.of("ping"))
    running.read("ping", before + count)
    return Counter(one["process"] for one in running.of("ping")[before:])


def kill_pinger(running: RunningFleet, seen: Counter[int]) -> int:
    [(pinger, _)] = seen.most_common(1)
    [ready] = running.of("ready", pinger)
    os.kill(ready["pid"], signal.SIGKILL)
    return pinger


def test_one_process_of_a_host_pings_and_when_it_is_killed_another_one_does(
    brokers: tuple[ServedBroker, str], directory: Path
) -> None:
    primary, secondary = brokers
    primary.kill9()
    options = {"board": False, "ping_primary_interval": 1.0}
    plan = FleetPlan(processes=3, speakers=3, life_s=60.0, options=options)
    with fleet(plan, primary.connection_string(), secondary, "one-pinger", directory) as running:
        running.go()
        seen = pings(running, 5)
        # Each of the others may have sent its first slow one.
        assert max(seen.values()) >= 3, seen
        killed = kill_pinger(running, seen)
        after = pings(running, 4)
        del after[killed]
        assert max(after.values()) >= 2, after
        primary.restart()
        running.read("healthy", 2)
    healed = sorted(one["at"] for one in running.of("healthy"))
    assert healed[1] - healed[0] <= RECOVERY_S
    reasons = {one["reason"] for one in running.of("healthy")}
    assert reasons <= {"the ping was answered", "a late send succeeded"}


@pytest.mark.soak
def test_one_host_pings_for_another_and_tells_it_of_the_recovery(
    brokers: tuple[ServedBroker, str], directory: Path
) -> None:
    primary, secondary = brokers
    with administration(secondary) as admin:
        admin.create_queue("two-hosts/x-twinbus-lease", requires_session=True)
    primary.kill9()
    plan = FleetPlan(
        processes=2, speakers=2, life_s=60.0, hosts=True,
        options={"ping_primary_interval": 5.0},
    )  # fmt: skip
    with fleet(plan, primary.connection_string(), secondary, "two-hosts", directory) as running:
        running.go()
        seen = pings(running, 6)
        assert max(seen.values()) >= 4, seen
        primary.restart()
        running.read("healthy", 2)
    # The board is read every 12 s, with a jitter, and slow pings are 50 s apart.
    healed = sorted(one["at"] for one in running.of("healthy"))
    assert healed[1] - healed[0] <= 25.0
