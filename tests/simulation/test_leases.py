"""Two syphons and one set of leases, through partitions, silence, resets, crashes and kills.

Leases and their validity are the real ones; the broker's engine grants the locks. It frees the
locks of a connection that it has lost, long before they end and before the client knows.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.simulation.faults import create_backlog
from tests.simulation.machine import Process, SimLoop
from tests.simulation.world import World
from twinbus.broker.descriptions import QueueDescription
from twinbus.client.lock_validity import SILENCE_S
from twinbus.ledger import NullLedger
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.core.backlog import LEASE_LOCK_S, lease_path
from twinbus.servicebus.names import backlog_paths
from twinbus.syphon.lease import Leases

QUEUES = backlog_paths("primary", 3)
STEP_S = 0.1
TROUBLE_S = 1_800.0
TAKEOVER_S = 300.0
"""The longest time until a lease whose holder is gone has another one, as documented."""


class Rivals:
    """Two programs that want the same leases, and what was seen of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leases: dict[str, Leases] = {}
        self.processes: dict[str, Process] = {}
        self.both: list[tuple[float, str]] = []
        """When two held one lease."""
        self.had: set[tuple[str, str]] = set()
        self.seen = {queue: [frozenset[str]()] for queue in QUEUES}
        """Who held each lease, from change to change."""

    async def start(self, name: str) -> None:
        self.processes[name] = Process(self.world.loop, name, len(self.processes))

        async def run() -> None:
            side = endpoint_of(self.world.side("secondary"))
            self.leases[name] = Leases(
                side, QUEUES, lambda *_: None, NullLedger(), self.world.environment
            )
            self.leases[name].start()

        await self.processes[name].spawn(run())

    async def kill(self, name: str) -> None:
        del self.leases[name]
        await self.processes[name].kill()

    async def stop(self, name: str) -> None:
        """Stop one as a person does: cleanly."""
        leases = self.leases.pop(name)
        await self.processes[name].spawn(leases.close())

    def look(self) -> None:
        for queue in QUEUES:
            holders = [name for name, leases in self.leases.items() if leases.holds(queue)]
            self.had.update((name, queue) for name in holders)
            if self.seen[queue][-1] != frozenset(holders):
                self.seen[queue].append(frozenset(holders))
            if len(holders) > 1:
                self.both.append((self.world.loop.time(), queue))

    async def watch(self, seconds: float) -> None:
        ends = self.world.loop.time() + seconds
        while self.world.loop.time() < ends:
            self.look()
            await asyncio.sleep(STEP_S)

    @property
    def is_each_held(self) -> bool:
        return all(any(each.holds(queue) for each in self.leases.values()) for queue in QUEUES)

    async def until_each_is_held(self) -> float:
        """Wait until each lease has a holder; how long that took."""
        began = self.world.loop.time()
        while not self.is_each_held:
            assert self.world.loop.time() < began + 2 * TAKEOVER_S, "a lease has no holder"
            await self.watch(1.0)
        return self.world.loop.time() - began


async def storm(rivals: Rivals, rng: Random) -> None:
    """Have things happen to the paths, the namespace and the programs for a while."""
    world = rivals.world
    ends = world.loop.time() + TROUBLE_S
    while world.loop.time() < ends:
        name = rng.choice(["one", "two"])
        weather = world.network.weather(name, "secondary")
        match rng.choice(["partition", "cut off", "flaky", "detach", "kill", "calm"]):
            case "partition":
                weather.blocked_until = world.loop.time() + rng.uniform(1.0, 300.0)
            case "cut off":
                weather.blocked_until = world.loop.time() + rng.uniform(30.0, 300.0)
                await rivals.watch(rng.uniform(0.0, 20.0))
                world.detach_sources()
            case "flaky":
                weather.flaky = rng.uniform(0.0, 0.5)
            case "detach":
                world.detach_sources()
            case "kill":
                await rivals.kill(name)
                await rivals.watch(rng.uniform(0.0, 60.0))
                await rivals.start(name)
            case "calm":
                weather.flaky = weather.blocked_until = 0.0
        await rivals.watch(rng.uniform(0.0, 120.0))
    world.network.calm()


def rivals_on(loop: asyncio.AbstractEventLoop, seed: int) -> tuple[World, Rivals]:
    assert isinstance(loop, SimLoop)
    world = World(seed, loop)
    create_backlog(world.secondary, QUEUES, 60.0)
    locked = QueueDescription(lock_duration_ms=int(LEASE_LOCK_S * 1000), requires_session=True)
    world.secondary.engine.create_queue(lease_path("primary"), locked, 0)
    return world, Rivals(world)


def run_rivals(seed: int) -> tuple[Rivals, float]:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        world, rivals = rivals_on(runner.get_loop(), seed)

        async def main() -> float:
            await rivals.start("one")
            await rivals.watch(5.0)
            await rivals.start("two")
            await storm(rivals, Random(seed))
            took_s = await rivals.until_each_is_held()
            for name in list(rivals.leases):
                await rivals.kill(name)
            return took_s

        with world.logs():
            return rivals, runner.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_two_syphons_never_both_hold_a_lease(seed: int) -> None:
    rivals, took_s = run_rivals(seed)
    assert rivals.both == []
    assert {name for name, _ in rivals.had} == {"one", "two"}, "the leases changed hands"
    assert took_s <= TAKEOVER_S


def takeover_s(what: str) -> float:
    """Have something happen to the holder; how long a program that starts then waits."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        world, rivals = rivals_on(runner.get_loop(), seed=1)

        async def main() -> float:
            await rivals.start("one")
            await rivals.until_each_is_held()
            match what:
                case "cut off":
                    world.network.weather("one", "secondary").blocked_until = float("inf")
                    await rivals.watch(1.0)
                    world.detach_sources()
                case "kill":
                    await rivals.kill("one")
                case "stop":
                    await rivals.stop("one")
            began = world.loop.time()
            await rivals.start("two")
            while not all(map(rivals.leases["two"].holds, QUEUES)):
                await rivals.watch(STEP_S)
            took_s = world.loop.time() - began
            for name in list(rivals.leases):
                await rivals.kill(name)
            return took_s

        with world.logs():
            took_s = runner.run(main())
    assert rivals.both == []
    return took_s


@pytest.mark.parametrize("what", ["cut off", "kill"])
def test_a_program_that_starts_waits_for_a_holder_that_may_not_have_stopped(what: str) -> None:
    assert SILENCE_S <= takeover_s(what) <= SILENCE_S + 1.0


def test_a_program_that_starts_after_a_clean_stop_does_not_wait() -> None:
    assert takeover_s("stop") <= 1.0


def test_a_standby_takes_all_leases_over_within_70_s_of_a_kill() -> None:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        world, rivals = rivals_on(runner.get_loop(), seed=1)

        async def main() -> float:
            await rivals.start("one")
            await rivals.until_each_is_held()
            await rivals.start("two")
            await rivals.watch(100.0)
            attempts = world.secondary.requests["accept-session"]
            # One for each lease and holder, and each of the standby's every 12 to 38 s.
            assert attempts <= 3 + 3 * (1 + 100 // 12)
            await rivals.kill("one")
            took_s = await rivals.until_each_is_held()
            await rivals.kill("two")
            return took_s

        with world.logs():
            assert runner.run(main()) <= 70.0
    assert rivals.both == []
