"""A fleet in virtual time: hosts with the shipped code, one primary, one board, liars."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.fleet.hosts import FleetProcess, SimPool, side
from tests.simulation.fleet.places import (
    BROKER_CLOCK_S,
    NEVER_S,
    REFUSED_S,
    Refused,
    SimBoard,
    SimHost,
    SimLeases,
    SimLocks,
    SimUpstream,
    sim_peek_page,
)
from tests.simulation.fleet.plan import ENTITY, FAILOVER_S, PING_S, QUORUM, FleetPlan
from tests.simulation.fleet.truth import FleetTruth
from tests.simulation.machine import SimLoop
from twinbus.amqp.message import Header, encode_message
from twinbus.fleet import board, pinger
from twinbus.fleet.core.notices import EPOCH_MAX, SINCE_MAX_S, Notice, encode
from twinbus.fleet.core.pinging import ping_session
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.sending import client

YEAR_S: Final = 31_536_000.0
BLIP_S: Final = 1.0
LATE_S: Final = 100.0
"""How seldom a host sends that is to fail late."""
LIE_EVERY_S: Final = 60.0
"""As often as an honest host posts."""


class FleetWorld:
    """All hosts and what they share."""

    def __init__(self, seed: int, loop: SimLoop, plan: FleetPlan) -> None:
        self.rng = Random(seed)
        self.loop, self.plan = loop, plan
        self.options = SendAvailabilityOptions(
            failover_interval=FAILOVER_S, ping_primary_interval=PING_S, quorum=QUORUM
        )
        self.sides = side("primary"), side("secondary")
        self.board = SimBoard(plan, loop.time, self.rng)
        self.leases = SimLeases(loop.time)
        self.truth = FleetTruth(loop.time, self._said_on_board)
        self.hosts: list[SimHost] = []
        self.processes: list[FleetProcess] = []
        liars = round(plan.hosts * plan.liars)
        for number in range(plan.hosts - liars):
            self._add_host(number)
        self.liars = [self._id() for _ in range(liars)]
        self.errors: list[str] = []
        self.killed_at: float | None = None

    def _id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def _add_host(self, number: int) -> None:
        plan, rng = self.plan, self.rng
        is_wrong = rng.random() < plan.wrong_clocks
        clock_s = BROKER_CLOCK_S + rng.uniform(-1.0, 1.0)
        host = SimHost(self._id(), clock_s + is_wrong * rng.choice((-50.0, 90.0)) * YEAR_S)
        self.hosts.append(host)
        is_late = rng.random() < plan.late_hosts
        for process in range(1 + (number < plan.pairs_of_processes)):
            every_s = LATE_S if is_late else plan.send_every_s
            host.processes.append(FleetProcess(self, host, f"host-{number}.{process}", every_s))
        self.processes += host.processes

    async def run(self) -> None:
        """Tell the whole story of the plan."""
        plan = self.plan
        self.loop.set_exception_handler(self._on_exception)
        if plan.lying_holder:
            self.leases.take(ping_session(ENTITY), "a liar")
        for process in self.processes:
            process.start()
        lying = [asyncio.create_task(self._lie(one)) for one in self.liars]
        happenings = [self._blip(at) for at in plan.blips]
        happenings += [
            self._fail_once(process, self.rng.uniform(span.begins, span.ends))
            for span in plan.single_failures
            for process in self.processes
        ]
        if plan.kills_holder_at is not None:
            happenings.append(self._kill_holder(plan.kills_holder_at))
        await asyncio.gather(*happenings)
        await asyncio.sleep(plan.ends_s - self.loop.time())
        for liar in lying:
            liar.cancel()

    async def stop(self) -> None:
        """Leave no task behind."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def primary_takes(self, process: FleetProcess, message: object) -> None:
        """Answer an attempt on the primary: a call's number, or a ping."""
        is_call = isinstance(message, int)
        if not is_call:
            self.truth.pings.append((self.loop.time(), process, process.pinger))
        fails = process.fails_next or self.loop.time() < process.fails_until
        if fails and is_call:
            process.fails_next = False
            raise Refused
        if self.is_down:
            await asyncio.sleep(NEVER_S if self.plan.is_silent else REFUSED_S)
            raise Refused
        await asyncio.sleep(0.01)
        self.truth.ended(process)
        if is_call:
            assert isinstance(message, int)
            self.truth.stored.add(message)

    @property
    def is_down(self) -> bool:
        now = self.loop.time()
        return any(now in outage for outage in self.plan.outages) or any(
            at <= now < at + BLIP_S for at in self.plan.blips
        )

    async def _blip(self, at: float) -> None:
        await asyncio.sleep(at - self.loop.time())
        for process in self.processes:
            self.loop.call_later(self.rng.random() * 0.9 * BLIP_S, process.send_soon)

    async def _fail_once(self, process: FleetProcess, at: float) -> None:
        await asyncio.sleep(at - self.loop.time())
        process.fails_next = True
        process.fails_until = self.loop.time() + self.plan.failure_lasts_s
        process.send_soon()

    async def _kill_holder(self, at: float) -> None:
        await asyncio.sleep(at - self.loop.time())
        holder = self.leases.holders[ping_session(ENTITY)]
        assert isinstance(holder, FleetProcess)
        await holder.kill()
        self.processes.remove(holder)
        self.killed_at = self.loop.time()

    async def _lie(self, liar: str) -> None:
        while True:
            await asyncio.sleep(LIE_EVERY_S * self.rng.uniform(0.5, 1.5))
            self.board.store(self._forged(liar))

    def _forged(self, liar: str) -> bytes:
        """A message that a liar posts: valid, impossible, or no notice at all."""
        rng = self.rng
        victim = rng.choice(self.hosts).host_id
        if self.plan.is_forged_alone:
            names = (liar, victim)
            forged = [Notice(ENTITY, name, 1e9, (), EPOCH_MAX) for name in names]
            return encode_message(header=Header(durable=True), data=encode(forged))
        since = rng.choice((0.0, 1e9, SINCE_MAX_S, BROKER_CLOCK_S))
        epoch = rng.choice((0, 1, EPOCH_MAX))
        kinds = rng.choice(((), ("timeout 3",)))
        forged = [Notice(ENTITY.upper(), rng.choice((liar, self._id())), since, kinds, epoch)]
        match rng.randrange(5):
            case 0:
                # The word of a host that did not say it; each reader knows its own id.
                forged.append(Notice(ENTITY, victim, since, kinds, EPOCH_MAX))
            case 1:
                forged = [
                    Notice(ENTITY, rng.choice((liar, victim)), since, (), epoch, recovered=True)
                ]
            case 2:
                forged.append(Notice(f"ghost-{rng.randrange(1_000)}", liar, since, kinds, epoch))
        data = encode(forged)
        if rng.random() < 0.1:
            data = rng.choice((b"", b"{", rng.randbytes(40), b'{"v":1,"notices":[{}]}'))
        ttl_ms = rng.choice((None, 1_000, 180_000, 2**32 - 1))
        return encode_message(header=Header(durable=True, ttl=ttl_ms), data=data)

    def credits(self, window_s: int) -> float:
        """The most credits a second that the fleet took of the namespace in any such time."""
        taken = [self.board.credits[second] for second in range(int(self.plan.ends_s) + 1)]
        total = most = sum(taken[:window_s])
        for second in range(window_s, len(taken)):
            total += taken[second] - taken[second - window_s]
            most = max(most, total)
        return most / window_s

    def credits_in(self, begins: float, ends: float) -> float:
        """The credits a second that the fleet took in this time."""
        seconds = range(int(begins), int(ends))
        return sum(self.board.credits[second] for second in seconds) / max(1, len(seconds))

    def _said_on_board(self, process: FleetProcess) -> int:
        now, own = self.loop.time(), process.host.host_id
        # A look that was sent before may be answered a little later.
        until = now - board.ANSWER_S
        hosts = {
            notice.host
            for posted in reversed(self.board.history[-3_000:])
            if posted.until > until
            for notice in posted.notices
            if not notice.recovered and notice.entity_key == ENTITY
        }
        return len(hosts - {own})

    def _on_exception(self, loop: object, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


Planted = Callable[[], AbstractContextManager[Any]]


def run_fleet(seed: int, plan: FleetPlan, planted: Planted = nullcontext) -> FleetWorld:
    """Run one fleet to its end; what it did is in the world that is returned."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(board, "UpstreamConnection", SimUpstream))
        stack.enter_context(patch.object(board, "peek_page", sim_peek_page))
        stack.enter_context(patch.object(pinger, "SessionLocks", SimLocks))
        stack.enter_context(patch.object(client, "SenderPool", SimPool))
        stack.enter_context(planted())
        logger = logging.getLogger("twinbus")
        level = logger.level
        stack.callback(logger.setLevel, level)
        # A thousand processes log each failure of the board once.
        logger.setLevel(logging.ERROR)
        runner = stack.enter_context(asyncio.Runner(loop_factory=SimLoop))
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        world = FleetWorld(seed, loop, plan)
        runner.run(world.run())
        runner.run(world.stop())
        return world
