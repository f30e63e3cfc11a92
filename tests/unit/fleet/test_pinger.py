"""Hosts that share the pings of an entity, in virtual time, and what they survive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.unit.fleet.lock_service import LockService, now
from twinbus.fleet.core.pinging import SLOW_INTERVALS
from twinbus.fleet.pinger import LeasedPinger
from twinbus.namespace.access import endpoint_of
from twinbus.status.fleet import EACH_PINGS

pytestmark = pytest.mark.virtual_time

PLACE = endpoint_of("Endpoint=sb://second;SharedAccessKeyName=a;SharedAccessKey=b")
PING_S = 60.0
HOSTS = 4


@dataclass
class Roles:
    """The roles of one host, as one of its processes sees them."""

    held: dict[str, Roles]

    def hold(self, role: str) -> bool:
        return self.held.setdefault(role, self) is self

    def let_go(self, role: str) -> None:
        if self.held.get(role) is self:
            del self.held[role]


class Pinger:
    """A process with an entity that has failed over: it pings, or leaves that to another."""

    def __init__(
        self, service: LockService, roles: dict[str, Roles], chance: float, *, hears: bool = True
    ) -> None:
        self.roles = Roles(roles)
        self.hears = hears
        self.sent: list[float] = []
        self.tried: list[float] = []
        self.shared = LeasedPinger(
            PLACE,
            "contoso",
            PING_S,
            self.roles,
            lambda path: self.tried.append(now()),
            lambda: self.hears,
            environment=service.environment(chance),
        )
        self.shared.watch({"Orders"})
        self.task = asyncio.create_task(self._ping())

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            if self.shared.pings("Orders"):
                self.sent.append(now())

    async def die(self) -> None:
        """kill -9: the kernel frees its roles, and the service its sessions."""
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.shared.close()

    def pings_in(self, seconds: float) -> int:
        return sum(at > now() - seconds for at in self.sent)


@dataclass
class Fleet:
    service: LockService = field(default_factory=LockService)
    pingers: list[Pinger] = field(default_factory=list)

    def pings_in(self, seconds: float) -> list[int]:
        return [pinger.pings_in(seconds) for pinger in self.pingers]

    def holders(self) -> list[Pinger]:
        return [one for one in self.pingers if one.shared.speaks("orders")]


@asynccontextmanager
async def fleet(
    hosts: int = HOSTS,
    processes: int = 1,
    service: LockService | None = None,
    *,
    hears: bool = True,
) -> AsyncIterator[Fleet]:
    made = Fleet(service or LockService())
    for host in range(hosts):
        roles: dict[str, Roles] = {}
        made.pingers += [
            Pinger(made.service, roles, (host + 0.5) / hosts, hears=hears) for _ in range(processes)
        ]
    yield made
    for pinger in made.pingers:
        await pinger.die()
    assert made.service.holders == {}
    assert made.service.lines == []


async def test_one_host_pings_for_all_and_the_others_seldom() -> None:
    async with fleet() as made:
        await asyncio.sleep(PING_S * 2 * SLOW_INTERVALS + 1)
        assert sorted(made.pings_in(1_200.5)) == [2, 2, 2, 20]
        [holder] = made.holders()
        assert holder.shared.described("orders") == "this process, for all hosts"
        others = [one for one in made.pingers if one is not holder]
        assert {one.shared.described("orders") for one in others} == {"another host"}
        assert made.service.holders.keys() == {"ping/orders"}


async def test_of_one_host_one_process_competes_and_pings() -> None:
    async with fleet(hosts=2, processes=5) as made:
        await asyncio.sleep(PING_S * SLOW_INTERVALS + 1)
        [holder] = made.holders()
        said = [one.shared.described("orders") for one in made.pingers]
        assert said.count("another process of this host") == 8
        assert said.count("another host") == 1
        # One for each interval, and one slow one of each of the others.
        assert sum(made.pings_in(600.5)) == 10 + 9
        assert holder.pings_in(600.5) == 10
        # Each host asked once at first; the other one asks seldom.
        assert len(made.service.attaches) <= 2 + 600 / (0.5 * 3 * PING_S)


async def test_when_the_pinger_dies_the_others_still_ping_and_one_takes_over() -> None:
    async with fleet() as made:
        await asyncio.sleep(PING_S * 3)
        [holder] = made.holders()
        made.pingers.remove(holder)
        await holder.die()
        await asyncio.sleep(1.5 * 3 * PING_S + 1)
        assert len(made.holders()) == 1
        await asyncio.sleep(PING_S * SLOW_INTERVALS)
        assert all(made.pings_in(PING_S * SLOW_INTERVALS + 0.5))
        [holder] = made.holders()
        assert holder.pings_in(PING_S * 5) >= 4


async def test_when_the_process_of_a_host_dies_another_one_has_its_role_an_interval_later() -> None:
    async with fleet(hosts=1, processes=3) as made:
        await asyncio.sleep(PING_S * 2)
        [holder] = made.holders()
        made.pingers.remove(holder)
        await holder.die()
        await asyncio.sleep(PING_S + 1)
        [next_one] = made.holders()
        assert next_one is not holder


async def test_a_pinger_that_holds_the_lease_and_never_pings_prevents_no_recovery() -> None:
    """It hangs, or its pings are never answered: the others find out by their own."""
    async with fleet() as made:
        await asyncio.sleep(PING_S)
        [holder] = made.holders()
        holder.task.cancel()
        await asyncio.sleep(PING_S * SLOW_INTERVALS)
        others = [one for one in made.pingers if one is not holder]
        assert all(one.pings_in(PING_S * SLOW_INTERVALS) for one in others)


async def test_a_pinger_that_always_says_recovered_costs_one_try_an_interval() -> None:
    async with fleet() as made:
        for _ in range(600):
            await asyncio.sleep(1.0)
            made.pingers[0].shared.heard_recovery("ORDERS")
        assert 9 <= len(made.pingers[0].tried) <= 10


async def test_recoveries_are_tried_with_a_jitter_each() -> None:
    async with fleet(hosts=10) as made:
        await asyncio.sleep(1.0)
        heard = now()
        for pinger in made.pingers:
            pinger.shared.heard_recovery("orders")
        await asyncio.sleep(10.0)
        waited = sorted(at - heard for one in made.pingers for at in one.tried)
        assert waited == pytest.approx([0.25 + 0.5 * number for number in range(10)])


@pytest.mark.parametrize("trouble", ["no queue", "down", "no board"])
async def test_without_lease_or_board_each_host_pings(trouble: str) -> None:
    service = LockService(has_queue=trouble != "no queue", is_up=trouble != "down")
    async with fleet(processes=2, service=service, hears=trouble != "no board") as made:
        await asyncio.sleep(PING_S * SLOW_INTERVALS + 1)
        assert sorted(made.pings_in(600.5)) == [1] * HOSTS + [10] * HOSTS
        assert made.holders() == []
        said = {one.shared.described("orders").split(":")[0] for one in made.pingers}
        assert said == {EACH_PINGS, "another process of this host"}
        # A queue that is not there is not asked for every second.
        assert len(service.attaches) == 0
    if trouble == "no queue":
        assert len(service.lines) == 0


async def test_when_the_lease_queue_disappears_each_host_pings_until_it_is_back() -> None:
    async with fleet() as made:
        await asyncio.sleep(PING_S * 2)
        await asyncio.sleep(1.0)
        assert len(made.holders()) == 1
        made.service.has_queue = False
        made.service.go_down()
        made.service.is_up = True
        await asyncio.sleep(PING_S * 5)
        assert made.pings_in(PING_S * 3) == [3] * HOSTS
        made.service.has_queue = True
        await asyncio.sleep(PING_S * SLOW_INTERVALS)
        assert len(made.holders()) == 1
        assert max(made.pings_in(PING_S * 4)) == 4
        assert sum(made.pings_in(PING_S * 4)) <= 4 + HOSTS


async def test_a_process_that_hears_no_more_gives_the_lease_back_and_pings_for_itself() -> None:
    async with fleet() as made:
        await asyncio.sleep(PING_S * 2)
        [holder] = made.holders()
        holder.hears = False
        await asyncio.sleep(PING_S * 6 + 1)
        assert holder.pings_in(PING_S * 3) == 3
        [another] = made.holders()
        assert another is not holder


async def test_a_process_that_may_not_send_gives_the_lease_to_one_that_may() -> None:
    async with fleet(hosts=2) as made:
        await asyncio.sleep(PING_S * 2)
        [holder] = made.holders()
        holder.shared.not_allowed("orders")
        await asyncio.sleep(PING_S * 5)
        [another] = made.holders()
        assert another is not holder
        assert holder.pings_in(PING_S * 3) == 3


async def test_what_is_healthy_again_needs_no_connection() -> None:
    async with fleet() as made:
        await asyncio.sleep(PING_S * 2)
        assert len(made.service.lines) == HOSTS
        for pinger in made.pingers:
            pinger.shared.watch(frozenset())
        await asyncio.sleep(1.0)
        assert made.service.lines == []
        assert [pinger.roles.held for pinger in made.pingers] == [{}] * HOSTS
