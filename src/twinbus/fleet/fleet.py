"""The fleet as one pair sees it: tells the others what it knows, and its pair what they know.

    fleet = Fleet(member, host, quorum=2)
    fleet.start(board, pinger)
    fleet.changed(path)        an entity of the pair changed its state
    await fleet.close()

One task reads and writes the files of the host while any entity of the pair is not healthy, and
rests otherwise. The board and the pinger have tasks of their own: neither delays the files. Nothing
here delays a send, and no error leaves it: without the others a pair does as it does alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Final

from twinbus.client.connection import MACHINE, Environment
from twinbus.errors import error_text
from twinbus.fleet.board import FreshNotice
from twinbus.fleet.board_watch import HostStates
from twinbus.fleet.core.evidence import Evidence
from twinbus.fleet.core.notices import Notice
from twinbus.fleet.parts import (
    AilingEntity,
    EachPings,
    FleetBoard,
    FleetMember,
    FleetPinger,
    HostEvidence,
    NoBoard,
)
from twinbus.status.document import EntityState
from twinbus.status.fleet import FleetStatus

log = logging.getLogger("twinbus.fleet")

SPEAKER: Final = "speaker"
HEALTHY_READER: Final = "healthy reader"
"""Roles on a host."""

READ_SPACING_S: Final = 0.1
"""Between two readings of the host's files, however many entities fail."""

SUSPECT_READ_S: Final = 0.5
FAILED_OVER_READ_S: Final = 3.0
"""Between two readings while an entity is SUSPECT, and while one waits for a recovery."""

SAY_AGAIN_S: Final = 10.0
"""How often a file is refreshed (`host_files.AGE_MAX_S`)."""

RECOVERY_LIVES_S: Final = 60.0
"""How long a process tells of a recovery that it found."""

FAILED_S: Final = 5.0
"""Pause after an error of our own."""

STOPPED_S: Final = 30.0
"""A process that was stopped or suspended for longer saw too little: what it knew of an entity is
told to others again after a failed ping of its own."""


class Fleet:
    """The others of one pair, from `start` to `close`."""

    def __init__(
        self,
        member: FleetMember,
        host: HostEvidence,
        *,
        quorum: int,
        environment: Environment = MACHINE,
    ) -> None:
        self._member = member
        self._host = host
        self._environment = environment
        self.evidence = Evidence(host.host_id, host.process, quorum=quorum)
        self._board: FleetBoard = NoBoard()
        self._pinger: FleetPinger = EachPings()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read_at = -math.inf
        self._said: list[Notice] = []
        self._said_at = -math.inf
        self._own: dict[tuple[str, float], Notice] = {}
        """By entity and when it failed over: what was said once is not said otherwise later."""
        self._answered: set[str] = set()
        self._changed_by_ping: set[str] = set()
        self._recoveries: dict[str, tuple[Notice, float]] = {}
        """What this process found, by entity, and until when it says so."""
        self._processes = 0
        self._untold: set[str] = set()
        """Keys of entities that failed before this process was stopped; no ping failed since."""
        self._suspended_s = self._suspended()
        self._due_at = math.inf
        self.problem = ""
        """Why nothing can be written for the other processes of this host; empty: it can."""

    def start(self, board: FleetBoard, pinger: FleetPinger) -> None:
        self._board, self._pinger = board, pinger
        self._task = asyncio.create_task(self._run(), name="fleet")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._pinger.close()
        await self._board.close()

    # What pairing tells and asks

    def changed(self, path: str) -> None:
        """An entity changed its state."""
        if path in self._answered:
            self._answered.discard(path)
            # The next turn finds out whether it is healthy, for all that were answered.
            self._changed_by_ping.add(path)
        self._woken.set()

    def pings(self, path: str) -> bool:
        """Whether this process sends the ping that is due now."""
        return self._pinger.pings(path)

    def ping_ended(self, path: str, *, answered: bool, may_send: bool = True) -> None:
        """A ping of this process ended; the pair changes its state after that."""
        if not may_send:
            self._pinger.not_allowed(path)
        if answered:
            self._answered.add(path)
        else:
            self._answered.discard(path)
            self._untold.discard(path.lower())

    def status(self, files_off: str = "") -> FleetStatus:
        """Return the others as this process sees them; `files_off`: why it has no files."""
        now = self._since_boot()
        return FleetStatus(
            host_id=self._host.host_id,
            files_off=files_off or self.problem,
            board_off=self._board.off,
            speaks=self._is_ailing() and self.is_speaker(),
            processes=self._processes,
            hosts=self.evidence.hosts_seen(now),
        )

    def said_of(self, path: str) -> str:
        """Who else says that an entity failed over, for the status; empty: no other process."""
        return self.evidence.text(path, self._since_boot())

    def pinger_of(self, path: str) -> str:
        """Who pings an entity, for the status."""
        return self._pinger.described(path)

    # What the board asks and tells

    def is_speaker(self) -> bool:
        """Whether this process uses the board for all processes of its host.

        Those with an entity that fails share one role, the healthy ones another: a healthy process
        does not read the files of the others, so it cannot speak for them.
        """
        return self._host.hold(SPEAKER if self._is_ailing() else HEALTHY_READER)

    def board_states(self) -> HostStates:
        ailing, now = self._member.ailing(), self._since_boot()
        self._notice_a_stop(ailing)
        notices = {notice.entity_key: notice for notice in self.evidence.of_host(now)}
        notices |= {notice.entity_key: notice for notice in self._own_notices(ailing)}
        suspects = {one.path.lower() for one in ailing if one.state is EntityState.SUSPECT}
        watches = any(one.state is EntityState.FAILED_OVER for one in ailing)
        return HostStates(suspects, list(notices.values()), watches)

    def other_hosts(self, entity_key: str, for_s: float) -> int:
        return self.evidence.hosts(entity_key, self._since_boot() + for_s)

    def take_notices(self, notices: Sequence[FreshNotice]) -> None:
        """Take what was read on the board, the oldest first."""
        now = self._since_boot()
        self._heard_recoveries(
            [one for one, valid_s in notices if self.evidence.heard_on_board(one, valid_s, now)]
        )
        self._woken.set()

    # The task

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                due = await self._turn()
            except Exception:  # the task must go on: a pair without it fails over alone
                log.exception("sharing evidence failed")
                due = self._now() + FAILED_S
            self._due_at = math.inf if due is None else due
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - self._now())):
                    await self._woken.wait()

    async def _turn(self) -> float | None:
        """Read, decide and write; return when to do so again. None: all is healthy and said."""
        ailing = self._member.ailing()
        self._notice_a_stop(ailing)
        if ailing and self._now() >= self._read_at + READ_SPACING_S:
            found = await self._host.read()
            self._read_at, self._processes = self._now(), len(found.keys() - {self._host.process})
            self._heard_recoveries(self.evidence.read_processes(found, self._since_boot()))
        now = self._since_boot()
        for one in self._member.ailing():
            if one.state is EntityState.SUSPECT:
                text = self.evidence.enough(one.path, now)
                if text is not None:
                    self._member.others_failed_over(one.path, text)
        ailing = self._member.ailing()
        self._say_recoveries(ailing)
        self.evidence.forget(now)
        await self._say(ailing, self._now())
        if not ailing:
            self._host.let_go(SPEAKER)
            self._processes = 0
        self._board.changed()
        self._pinger.watch({one.path for one in ailing if one.state is not EntityState.SUSPECT})
        if any(one.state is EntityState.SUSPECT for one in ailing):
            return self._read_at + SUSPECT_READ_S
        if ailing:
            return self._read_at + FAILED_OVER_READ_S * (0.5 + self._environment.chance())
        return self._said_at + SAY_AGAIN_S if self._said else None

    async def _say(self, ailing: Sequence[AilingEntity], now: float) -> None:
        """Write what the other processes of this host should know, if it is new or growing old."""
        boot_s = self._since_boot()
        self._recoveries = {key: one for key, one in self._recoveries.items() if one[1] > boot_s}
        own = self._own_notices(ailing)
        recovered = [notice for notice, _ in self._recoveries.values()]
        said = [*recovered, *own, *self.evidence.of_board(boot_s)]
        if said == self._said and (not said or now < self._said_at + SAY_AGAIN_S):
            return
        try:
            await self._host.publish(said)
        except OSError as error:
            if not self.problem:
                log.warning("other processes of this host hear nothing: %s", error_text(error))
            self.problem = error_text(error)
            self._said_at = now
            return
        self.problem, self._said, self._said_at = "", said, now

    def _own_notices(self, ailing: Sequence[AilingEntity]) -> list[Notice]:
        """What this process knows by its own failover intervals."""
        before, self._own = self._own, {}
        for one in ailing:
            if not one.is_evidence or one.path.lower() in self._untold:
                continue
            key = one.path, one.entered_at
            since = self._wall_s() - one.age_s
            self._own[key] = before.get(key) or Notice(
                entity=one.path,
                host=self._host.host_id,
                since=max(0.0, since),
                kinds=one.kinds,
                epoch=max(0, int((self._since_boot() - one.age_s) * 1_000)),
            )
        return list(self._own.values())

    def _say_recoveries(self, ailing: Sequence[AilingEntity]) -> None:
        """Tell of the entities that a ping healed, before the pinger gives their leases back."""
        changed, self._changed_by_ping = self._changed_by_ping, set()
        for path in sorted(changed - {one.path for one in ailing}):
            self._say_recovered(path)

    def _say_recovered(self, path: str) -> None:
        notice = Notice(
            entity=path,
            host=self._host.host_id,
            since=self._wall_s(),
            kinds=(),
            epoch=int(self._since_boot() * 1_000),
            recovered=True,
        )
        self._recoveries[path.lower()] = notice, self._since_boot() + RECOVERY_LIVES_S
        if self._pinger.speaks(path):
            self._board.recovered(notice)

    def _heard_recoveries(self, recoveries: Sequence[Notice]) -> None:
        keys = {notice.entity_key for notice in recoveries}
        for one in self._member.ailing() if keys else ():
            if one.path.lower() in keys and one.state is not EntityState.SUSPECT:
                self._pinger.heard_recovery(one.path)

    def _notice_a_stop(self, ailing: Sequence[AilingEntity]) -> None:
        """Keep to this process what it knew before it was stopped, or the machine suspended."""
        keys = {one.path.lower() for one in ailing}
        before, self._suspended_s = self._suspended_s, self._suspended()
        if max(self._suspended_s - before, self._now() - self._due_at) > STOPPED_S:
            self._due_at = math.inf
            self._untold = keys
        self._untold &= keys

    def _is_ailing(self) -> bool:
        return bool(self._member.ailing())

    def _now(self) -> float:
        return self._environment.monotonic()

    def _since_boot(self) -> float:
        """The time by which evidence ends: it goes on while the machine is suspended."""
        return self._environment.since_boot()

    def _suspended(self) -> float:
        """How long the machine was suspended, from some time on."""
        return self._since_boot() - self._now()

    def _wall_s(self) -> float:
        return self._environment.wall_ns() / 1e9
