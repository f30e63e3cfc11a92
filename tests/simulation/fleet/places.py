"""What the hosts of a simulated fleet share: the primary, the board, the leases."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.fleet.plan import ENTITY, FleetPlan
from twinbus.amqp.message import (
    Header,
    data_sections,
    decode_header,
    encode_message,
    split,
)
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.client.lock_validity import LEASE_LOCK_S, LockAddress
from twinbus.client.session_locks import NOT_REQUESTED, LockTerms
from twinbus.fleet.core.notices import Notice, decode, encode
from twinbus.servicebus.failures import FailureMeaning, NamespaceFailure
from twinbus.servicebus.names import ENQUEUED_TIME, SEQUENCE_NUMBER

if TYPE_CHECKING:
    from tests.simulation.fleet.hosts import FleetProcess

BROKER_CLOCK_S: Final = 1_900_000_000.0
"""Of the namespace, at the beginning: no host has the same."""

PURGE_EVERY_S: Final = 15.0
OLD_POSTS, OLD_S, OLD_TTL_MS = 6, 3_600.0, 180_000
"""What a board that is lazy still shows of an outage."""

REFUSED_S: Final = 0.02
"""How long a refused connection takes."""

NEVER_S: Final = 1e9


class Refused(NamespaceFailure):
    """The primary cannot be reached."""

    def __init__(self) -> None:
        text = "connection refused"
        super().__init__(text, FailureMeaning.UNREACHABLE, may_be_stored=False)


@dataclass
class Posted:
    """One message of the board."""

    number: int
    at: float
    until: float
    wire: bytes
    notices: list[Notice]


class SimBoard:
    """The queue of the notice board, with credits counted by second."""

    def __init__(self, plan: FleetPlan, now: Callable[[], float], rng: Random) -> None:
        self._now, self._rng = now, rng
        self.fault = plan.board
        self._messages: list[Posted] = []
        self._first_number = 1
        self.history: list[Posted] = []
        """What was ever stored, whatever became of it."""
        self.credits: Counter[int] = Counter()
        """By second: one for each message that is sent or read, and at least one for a request."""
        self.requests: Counter[int] = Counter()
        self._purged_at = 0.0
        if self.is_lazy:
            self._show_an_old_outage()

    @property
    def is_lazy(self) -> bool:
        """Whether expired messages are still shown, as Azure may."""
        return self.fault == "lazy"

    def _show_an_old_outage(self) -> None:
        for number in range(OLD_POSTS):
            notice = Notice(ENTITY, f"{number:016x}", 1e9, (), 1)
            wire = encode_message(header=Header(ttl=OLD_TTL_MS), data=encode([notice]))
            self.store(wire, at=-OLD_S + 5.0 * number)

    async def peek(self, number: int, count: int) -> list[bytes]:
        await self._answer()
        found = [one.wire for one in self._there() if one.number >= number][:count]
        self.credits[int(self._now())] += max(1, len(found)) - 1
        return found

    async def post(self, wire: bytes) -> None:
        await self._answer()
        if self.fault == "full":
            raise NamespaceFailure("the queue is full", FailureMeaning.QUOTA, may_be_stored=False)
        self.store(wire)

    def store(self, wire: bytes, at: float | None = None) -> None:
        """Store a message as the broker does: it writes number and time into it."""
        now, sections = self._now() if at is None else at, split(wire)
        body = b"".join(data_sections(sections.body))
        header = decode_header(sections.header)
        number = self._first_number + len(self._messages)
        annotations = {
            Symbol(SEQUENCE_NUMBER): number,
            Symbol(ENQUEUED_TIME): Timestamp(int((now + BROKER_CLOCK_S) * 1_000)),
        }
        lives_s = NEVER_S if header.ttl is None else header.ttl / 1_000
        stored = encode_message(
            header=Header(durable=True, ttl=header.ttl), message_annotations=annotations, data=body
        )
        posted = Posted(number, now, now + lives_s, stored, decode(body))
        self._messages.append(posted)
        self.history.append(posted)

    def _there(self) -> list[Posted]:
        now = self._now()
        if self.is_lazy:
            return self._messages
        while self._messages and self._messages[0].until <= now:
            self._messages.pop(0)
            self._first_number += 1
        return [one for one in self._messages if one.until > now]

    async def _answer(self) -> None:
        now = self._now()
        self.credits[int(now)] += 1
        self.requests[int(now)] += 1
        if self.fault == "down":
            raise Refused
        if self.fault == "silent":
            await asyncio.sleep(NEVER_S)
        slow_s = 8.0 if self.fault == "slow" else 0.0
        await asyncio.sleep(self._rng.uniform(0.01, 0.3) + slow_s * self._rng.random())
        if self.fault in ("purged", "recreated") and now > self._purged_at + PURGE_EVERY_S:
            self._purged_at = now
            # A queue that was made again begins its numbers at 1.
            is_new = self.fault == "recreated"
            self._first_number = 1 if is_new else self._first_number + len(self._messages)
            self._messages.clear()


class SimUpstream:
    """The connection of a `NoticeBoard`, which calls the simulated board directly."""

    def __init__(self, *_: object, connect: FleetProcess, **__: object) -> None:
        self._process = connect
        self._is_open = False

    async def opened(self) -> SimUpstream:
        return self

    def pool(self, path: str) -> SimUpstream:
        return self

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def send_messages(self, wire: Any) -> None:
        self._process.says(decode(b"".join(data_sections(split(wire.data).body))))
        await self._process.world.board.post(wire.data)

    async def peek(self, number: int, count: int) -> list[bytes]:
        return await self._process.world.board.peek(number, count)


async def sim_peek_page(
    connection: SimUpstream, path: str, from_number: int, count: int
) -> list[bytes]:
    return await connection.peek(from_number, count)


class SimLeases:
    """Who has the lock of each session of the lease queue."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.holders: dict[str, object] = {}
        self._free_at: dict[str, float] = {}
        self.requests = 0
        self.granted: list[tuple[float, str, object]] = []

    def take(self, session: str, holder: object) -> bool:
        self.requests += 1
        if session in self.holders or self._now() < self._free_at.get(session, 0.0):
            return False
        self.holders[session] = holder
        self.granted.append((self._now(), session, holder))
        return True

    def give_back(self, session: str, holder: object) -> None:
        if self.holders.get(session) is holder:
            del self.holders[session]

    def killed(self, holder: object) -> None:
        """A holder is gone without a word: its locks end by themselves."""
        for session, one in list(self.holders.items()):
            if one is holder:
                del self.holders[session]
                self._free_at[session] = self._now() + LEASE_LOCK_S


class SimLocks:
    """The session locks of one process, in the place of `SessionLocks`."""

    def __init__(
        self,
        endpoint: object,
        addresses: Mapping[str, LockAddress],
        on_change: Callable[[str, bool], None],
        terms: LockTerms,
        ledger: object,
        environment: Any,
    ) -> None:
        self._process: FleetProcess = environment.connect
        self._leases = self._process.world.leases
        self._chance = environment.chance
        self._terms = terms
        self._addresses = dict(addresses)
        self._problems = dict.fromkeys(self._addresses, NOT_REQUESTED)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        for name in self._addresses:
            self._tasks[name] = asyncio.create_task(self._keep(name))

    def add(self, name: str, address: LockAddress) -> None:
        self._addresses[name] = address
        self._problems[name] = NOT_REQUESTED
        self._tasks[name] = asyncio.create_task(self._keep(name))

    def remove(self, name: str) -> None:
        self._tasks.pop(name).cancel()
        self._leases.give_back(self._addresses.pop(name).session, self._process)

    async def close(self) -> None:
        for name in list(self._tasks):
            self.remove(name)

    def holds(self, name: str) -> bool:
        return self.problem(name) is None

    def problem(self, name: str) -> str | None:
        is_held = self._leases.holders.get(self._addresses[name].session) is self._process
        return None if is_held else self._problems[name]

    async def _keep(self, name: str) -> None:
        session = self._addresses[name].session
        await asyncio.sleep(0.1)
        while not self._leases.take(session, self._process):
            self._problems[name] = self._terms.taken
            pause_s = self._terms.pause_s(True, LEASE_LOCK_S)
            await asyncio.sleep(pause_s * (0.5 + self._chance()))


class SimHostFiles:
    """The files of one host, as one of its processes sees them: `HostEvidence` in memory."""

    def __init__(self, host: SimHost, process: FleetProcess) -> None:
        self.host_id, self.process = host.host_id, process.name
        self._host, self._process = host, process

    async def read(self) -> Mapping[str, Sequence[Notice]]:
        return {
            process.name: decode(data)
            for process, data in self._host.files.items()
            if process is not self._process and process.is_alive
        }

    async def publish(self, notices: Sequence[Notice]) -> None:
        self._host.publish(self._process, notices)

    def hold(self, role: str) -> bool:
        holder = self._host.roles.get(role)
        if holder is None or not holder.is_alive:
            self._host.roles[role] = holder = self._process
        return holder is self._process

    def let_go(self, role: str) -> None:
        if self._host.roles.get(role) is self._process:
            del self._host.roles[role]


class SimHost:
    """A machine: an id, a clock, the files and the roles of its processes."""

    def __init__(self, host_id: str, clock_s: float) -> None:
        self.host_id = host_id
        self.clock_s = clock_s
        """Its wall clock at the beginning."""
        self.processes: list[FleetProcess] = []
        self.files: dict[FleetProcess, bytes] = {}
        self.roles: dict[str, FleetProcess] = {}

    def publish(self, process: FleetProcess, notices: Sequence[Notice]) -> None:
        process.says(notices)
        if notices:
            self.files[process] = encode(notices)
        else:
            self.files.pop(process, None)
