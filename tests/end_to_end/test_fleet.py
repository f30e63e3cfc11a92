"""Processes of one pair share what they know: real processes, and a primary that is killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.fleet_program import FleetPlan, RunningFleet, fleet
from tests.official_sdk import administration
from tests.processes import ServedBroker, short_directory

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A primary that is down, with its queue, and a secondary."""
    first, second = tmp_path_factory.mktemp("primary"), tmp_path_factory.mktemp("secondary")
    with (
        ServedBroker(first, "contoso") as primary,
        ServedBroker(second, "contoso-dr", ephemeral=True) as secondary,
    ):
        with administration(primary.connection_string()) as admin:
            admin.create_queue("orders")
        primary.kill9()
        yield primary.connection_string(), secondary.connection_string()


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as place:
        yield place


def test_processes_of_one_host_fail_over_with_their_first_failure(
    brokers: tuple[str, str], directory: Path
) -> None:
    plan = FleetPlan(processes=4, starts_s=2.0, life_s=4.0, options={"board": False})
    with fleet(plan, *brokers, "one-host", directory) as running:
        running.go()
        running.read("ends", plan.processes)
    assert "no success for 1 s" in running.of("failed over", 0)[0]["reason"]
    for number in range(1, plan.processes):
        [failover] = running.of("failed over", number)
        assert failover["reason"].startswith("own 1 connection error; 1 other process since ")
        [end] = running.of("ends", number)
        assert (end["state"], end["raised"]) == ("failed over", 0)
        assert end["diverted"] > 0
    # The early ones are no evidence: only the first process speaks.
    assert {one["evidence"] for one in running.of("ends", 0)} == {""}


@pytest.mark.parametrize("quorum", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_program_that_lives_ten_seconds_fails_over_by_what_other_hosts_say(
    brokers: tuple[str, str], directory: Path, quorum: int
) -> None:
    plan = FleetPlan(
        processes=quorum + 1, speakers=quorum, starts_s=12.0, life_s=10.0, hosts=True,
        options={"quorum": quorum},
    )  # fmt: skip
    with fleet(plan, *brokers, f"{quorum}-hosts", directory) as running:
        running.go()
        running.read("ends", plan.processes)
    job = quorum
    [failover] = running.of("failed over", job)
    said = "1 other host since" if quorum == 1 else "2 other hosts since"
    assert said in failover["reason"]
    [end] = running.of("ends", job)
    assert end["raised"] == 0
    assert end["diverted"] > 0


def late_s(running: RunningFleet, number: int) -> float:
    """How long after its own first failure, and those of the speakers, it failed over."""
    spoken = [running.at("failed over", one) for one in range(running.plan.speakers)]
    return running.at("failed over", number) - max(running.at("suspect", number), *spoken)


NOTICE_S = 20.0
"""After this time the notices of hosts that failed over are on the board."""


@pytest.mark.soak
@pytest.mark.parametrize("hosts", [False, True])
def test_a_hundred_processes_fail_over_within_seconds_of_their_own_failure(
    brokers: tuple[str, str], directory: Path, hosts: bool
) -> None:
    """The first sends come over two failover intervals; the first process waits for its own."""
    speakers, limit_s = (2, 10.0) if hosts else (1, 2.0)
    plan = FleetPlan(
        processes=100, first_interval_s=60.0, starts_s=1.2, stagger_s=118.8, life_s=200.0,
        pause_s=2.0, hosts=hosts, speakers=speakers, options={"board": hosts},
    )  # fmt: skip
    with fleet(plan, *brokers, f"hundred-{hosts}", directory) as running:
        running.go()
        running.read("ends", plan.processes)
    others = range(speakers, plan.processes)
    spoken_at = max(running.at("failed over", one) for one in range(speakers))
    # Without notices on the board yet, a host may be told by its own interval first.
    told = [one for one in others if not hosts or running.at("suspect", one) > spoken_at + NOTICE_S]
    late = sorted(late_s(running, one) for one in told)
    early = [one for one in running.of("failed over") if "other" in one["reason"]]
    pings = sorted(one["at"] - spoken_at for one in running.of("ping"))
    sys.stdout.write(
        f"{len(late)} processes: late by {late[len(late) // 2]:.2f} s at the median,"
        f" {late[-1]:.2f} s at most; {len(early)} of {len(others)} early; pings, in seconds after"
        f" the first failover: {' '.join(f'{at:.0f}' for at in pings)}\n"
    )
    assert {one["process"] for one in early} >= set(told)
    assert late[-1] <= limit_s
    assert sum(one["raised"] for one in running.of("ends")) == 0
