"""The fleet of one pair in virtual time: what it reads, decides and says, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from twinbus.client.connection import Environment
from twinbus.fleet.board import FreshNotice
from twinbus.fleet.core.notices import Notice
from twinbus.fleet.fleet import RECOVERY_LIVES_S, Fleet
from twinbus.fleet.parts import AilingEntity, EachPings, NoBoard
from twinbus.status.document import EntityState
from twinbus.status.fleet import EACH_PINGS

pytestmark = pytest.mark.virtual_time

OWN, OTHER = "0" * 16, "1" * 16
SUSPECT, FAILED_OVER, UNUSABLE = (
    EntityState.SUSPECT,
    EntityState.FAILED_OVER,
    EntityState.UNUSABLE,
)


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class HostInMemory:
    """The files of one host as a dict."""

    host_id: str = OWN
    process: str = "own"
    files: dict[str, Sequence[Notice]] = field(default_factory=dict)
    said: list[tuple[float, list[Notice]]] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    error: OSError | None = None

    async def read(self) -> Mapping[str, Sequence[Notice]]:
        self.reads.append(now())
        return self.files

    async def publish(self, notices: Sequence[Notice]) -> None:
        if self.error is not None:
            raise self.error
        self.said.append((now(), list(notices)))

    def hold(self, role: str) -> bool:
        if role in self.taken:
            return False
        self.roles.add(role)
        return True

    def let_go(self, role: str) -> None:
        self.roles.discard(role)


@dataclass
class Member:
    """A pair with one entity."""

    entity: AilingEntity | None = None
    told: list[tuple[float, str, str]] = field(default_factory=list)
    fleet: Fleet | None = None
    asked: int = 0
    """How often its entities were gone through: a pair may have ten thousand."""

    def ailing(self) -> list[AilingEntity]:
        self.asked += 1
        if self.entity is None:
            return []
        return [replace(self.entity, age_s=now() - self.entity.entered_at)]

    def others_failed_over(self, path: str, evidence: str) -> None:
        self.told.append((now(), path, evidence))
        if self.entity is not None and self.entity.state is SUSPECT:
            self.become(FAILED_OVER)

    def try_primary(self, path: str) -> None:
        raise AssertionError("only a pinger asks for that")

    def become(self, state: EntityState | None, *, is_evidence: bool = False) -> None:
        self.entity = None
        if state is not None:
            self.entity = AilingEntity("orders", state, is_evidence, now(), 0.0, ("timeout 3",))
        if self.fleet is not None:
            self.fleet.changed("orders")


@dataclass
class Board(NoBoard):
    recoveries: list[Notice] = field(default_factory=list)
    off: str = ""

    def recovered(self, notice: Notice) -> None:
        self.recoveries.append(notice)


@dataclass
class Pinger(EachPings):
    watched: list[Set[str]] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    has_lease: bool = False

    def watch(self, failed_over: Set[str]) -> None:
        self.watched.append(failed_over)

    def speaks(self, path: str) -> bool:
        return self.has_lease

    def heard_recovery(self, path: str) -> None:
        self.heard.append(path)


@dataclass
class World:
    host: HostInMemory = field(default_factory=HostInMemory)
    member: Member = field(default_factory=Member)
    board: Board = field(default_factory=Board)
    pinger: Pinger = field(default_factory=Pinger)
    stopped_s: float = 0.0
    suspended_s: float = 0.0
    wall_s: float = 1e9

    async def __aenter__(self) -> Fleet:
        loop = asyncio.get_running_loop()
        environment = Environment(
            monotonic=lambda: loop.time() + self.stopped_s,
            since_boot=lambda: loop.time() + self.stopped_s + self.suspended_s,
            wall_ns=lambda: int((loop.time() + self.wall_s) * 1e9),
            chance=lambda: 0.5,
        )
        self.fleet = Fleet(self.member, self.host, quorum=2, environment=environment)
        self.member.fleet = self.fleet
        self.fleet.start(self.board, self.pinger)
        return self.fleet

    async def __aexit__(self, *_: object) -> None:
        await self.fleet.close()


def notice(host: str = OWN, **changes: object) -> Notice:
    made = Notice(entity="orders", host=host, since=1e9, kinds=(), epoch=1)
    return replace(made, **changes)  # type: ignore[arg-type]


async def test_a_healthy_pair_reads_and_writes_nothing() -> None:
    world = World()
    async with world:
        await asyncio.sleep(3_600)
    assert (world.host.reads, world.host.said) == ([], [])


async def test_the_first_failure_reads_the_files_at_once_and_fails_over_by_them() -> None:
    world = World()
    world.host.files = {"a": [notice()]}
    async with world:
        await asyncio.sleep(100)
        began = now()
        world.member.become(SUSPECT)
        await asyncio.sleep(1)
    [(at, path, evidence)] = world.member.told
    assert (at, path) == (began, "orders")
    assert evidence.startswith("1 other process since ")


async def test_a_suspect_reads_twice_a_second_and_hears_who_fails_over_later() -> None:
    world = World()
    async with world:
        began = now()
        world.member.become(SUSPECT)
        await asyncio.sleep(10.2)
        assert [at - began for at in world.host.reads] == [0.5 * n for n in range(21)]
        world.host.files = {"a": [notice()]}
        await asyncio.sleep(0.5)
    [(at, _, _)] = world.member.told
    assert at - began == 10.5


async def test_an_entity_that_failed_over_reads_seldom_and_an_early_one_says_nothing() -> None:
    world = World()
    world.host.files = {"a": [notice()]}
    async with world:
        world.member.become(SUSPECT)
        await asyncio.sleep(60)
    assert len(world.host.reads) <= 23
    assert world.host.said == []


async def test_what_failed_over_by_its_own_interval_is_said_once_and_refreshed() -> None:
    world = World()
    async with world:
        began = now()
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(31)
        world.member.become(None)
        await asyncio.sleep(60)
    times = [round(at - began) for at, _ in world.host.said]
    assert times[0] == 0
    assert times[-1] == 31
    assert all(late - early <= 13 for early, late in pairwise(times))
    said = [notices for _, notices in world.host.said]
    assert said[-1] == [], "it is withdrawn"
    [first] = said[0]
    assert (first.entity, first.host, first.kinds) == ("orders", OWN, ("timeout 3",))
    assert first.since == pytest.approx(began + 1e9)
    assert all(notices == [first] for notices in said[:-1]), "its time and epoch do not change"


async def test_a_quorum_of_the_board_fails_over_and_is_passed_on_to_the_host() -> None:
    world = World()
    async with world as fleet:
        world.member.become(SUSPECT)
        await asyncio.sleep(1)
        fleet.take_notices([FreshNotice(notice(OTHER), 60.0)])
        await asyncio.sleep(1)
        assert world.member.told == []
        fleet.take_notices([FreshNotice(notice("2" * 16), 60.0)])
        await asyncio.sleep(1)
        assert [text for _, _, text in world.member.told] == [fleet.said_of("orders")]
        assert {one.host for one in world.host.said[-1][1]} == {OTHER, "2" * 16}
        assert fleet.status().hosts == 2


async def test_another_pair_of_the_process_is_no_other_process_but_speaks_for_the_host() -> None:
    world = World()
    world.host.files = {"own": [notice(), notice(OTHER)]}
    async with world as fleet:
        world.member.become(SUSPECT)
        await asyncio.sleep(5)
        assert world.member.told == []
        assert (fleet.status().processes, fleet.status().hosts) == (0, 1)
        assert fleet.said_of("orders").startswith("1 other host since")
        assert [one.entity for one in fleet.board_states().notices] == ["orders"]
        world.host.files["a"] = [notice()]
        await asyncio.sleep(5)
        assert world.member.told[0][2].startswith("1 other process and 1 other host since")


async def test_others_alone_change_nothing() -> None:
    world = World()
    world.host.files = {"a": [notice()]}
    async with world as fleet:
        fleet.take_notices([FreshNotice(notice(host), 60.0) for host in (OTHER, "2" * 16)])
        await asyncio.sleep(300)
        world.member.become(UNUSABLE)
        await asyncio.sleep(300)
    assert world.member.told == []


async def test_an_answered_ping_is_told_when_the_pair_is_healthy() -> None:
    world = World()
    world.pinger.has_lease = True
    async with world as fleet:
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(5)
        fleet.ping_ended("orders", answered=True)
        world.member.become(None)
        await asyncio.sleep(5)
        [recovery] = world.host.said[-1][1]
        assert recovery.recovered
        assert world.board.recoveries == [recovery]
        await asyncio.sleep(RECOVERY_LIVES_S + 20)
        assert world.host.said[-1][1] == []
        # A recovery by a late send is no ping: the others find it by their own.
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(5)
        world.member.become(None)
        await asyncio.sleep(5)
    assert world.board.recoveries == [recovery]


async def test_many_recoveries_go_through_the_entities_a_few_times() -> None:
    world = World()
    world.pinger.has_lease = True
    paths = [f"entity-{number}" for number in range(400)]
    async with world as fleet:
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(5)
        before = world.member.asked
        for path in paths:
            fleet.ping_ended(path, answered=True)
            fleet.changed(path)
        found = [FreshNotice(notice(OTHER, entity=path, recovered=True), 60.0) for path in paths]
        fleet.take_notices([*found, FreshNotice(notice(OTHER, recovered=True), 60.0)])
        await asyncio.sleep(1)
        assert [one.entity for one in world.board.recoveries] == sorted(paths)
        assert world.pinger.heard == ["orders"]
        assert world.member.asked - before <= 10


@pytest.mark.parametrize("state", [SUSPECT, FAILED_OVER, UNUSABLE])
async def test_a_recovery_of_another_process_is_passed_to_the_pinger(state: EntityState) -> None:
    world = World()
    world.host.files = {"a": [notice(recovered=True, epoch=7)]}
    async with world:
        world.member.become(state)
        await asyncio.sleep(100)
    assert world.pinger.heard == ([] if state is SUSPECT else ["orders"])


@pytest.mark.parametrize("way", ["stopped_s", "suspended_s"])
async def test_a_process_that_slept_tells_what_it_knew_only_after_a_failed_ping(way: str) -> None:
    world = World()
    async with world as fleet:
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(5)
        assert fleet.board_states().notices
        setattr(world, way, 3_600.0)
        assert not fleet.board_states().notices
        await asyncio.sleep(20)
        assert world.host.said[-1][1] == []
        fleet.ping_ended("orders", answered=False)
        fleet.changed("orders")
        await asyncio.sleep(5)
        assert [one.entity for one in world.host.said[-1][1]] == ["orders"]
        # What fails after that is as fresh as ever.
        setattr(world, way, 3_610.0)
        await asyncio.sleep(20)
        assert fleet.board_states().notices


@pytest.mark.parametrize("way", ["stopped_s", "suspended_s"])
async def test_what_was_heard_before_a_sleep_has_ended_after_it(way: str) -> None:
    world = World()
    async with world as fleet:
        fleet.take_notices([FreshNotice(notice(host), 180.0) for host in (OTHER, "2" * 16)])
        assert fleet.status().hosts == 2
        setattr(world, way, 200.0)
        world.member.become(SUSPECT)
        await asyncio.sleep(5)
    assert world.member.told == []


async def test_a_wall_clock_that_is_set_back_makes_no_failover_older_than_a_recovery() -> None:
    world = World()
    world.pinger.has_lease = True
    async with world as fleet:
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(5)
        fleet.ping_ended("orders", answered=True)
        world.member.become(None)
        await asyncio.sleep(5)
        world.wall_s -= 3_600.0
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(5)
        recovery, failover = world.host.said[-1][1]
    assert recovery.recovered
    assert failover.epoch > recovery.epoch


async def test_a_directory_that_cannot_be_written_is_in_the_status_and_tried_again() -> None:
    world = World()
    world.host.error = OSError(28, "No space left on device")
    async with world as fleet:
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(5)
        assert "No space left" in fleet.status().files_off
        world.host.error = None
        await asyncio.sleep(30)
        assert fleet.status().files_off == ""
    assert world.host.said


async def test_one_process_speaks_for_the_ailing_ones_of_its_host() -> None:
    world = World()
    async with world as fleet:
        assert fleet.is_speaker()
        assert world.host.roles == {"healthy reader"}
        world.host.taken = {"speaker"}
        world.member.become(SUSPECT)
        assert not fleet.is_speaker()
        world.host.taken = set()
        assert fleet.is_speaker()
        await asyncio.sleep(1)
        world.member.become(None)
        await asyncio.sleep(1)
        assert "speaker" not in world.host.roles
        assert fleet.pinger_of("orders") == EACH_PINGS


async def test_the_board_speaks_for_the_other_processes_of_the_host() -> None:
    world = World()
    world.host.files = {"a": [notice(entity="billing")]}
    async with world as fleet:
        world.member.become(SUSPECT)
        await asyncio.sleep(1)
        states = fleet.board_states()
        assert (states.suspects, states.watches) == ({"orders"}, False)
        assert [one.entity for one in states.notices] == ["billing"]
        world.member.become(FAILED_OVER, is_evidence=True)
        await asyncio.sleep(1)
        states = fleet.board_states()
        assert states.watches
        assert {one.entity for one in states.notices} == {"billing", "orders"}
