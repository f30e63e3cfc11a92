"""Keeps a host's place on the notice board: one task that looks and posts when `BoardTurns` says.

    watch = BoardWatch(board, host, failover_interval_s=60, quorum=2); watch.start()
    watch.changed()            whenever a state of the host has changed
    watch.recovered(notice)    an entity answered a ping: the others hear of it at once
    await watch.close()

Nothing waits for the task, and no error leaves it: without the board a pair does as it does alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from twinbus.client.connection import MACHINE, Environment
from twinbus.fleet.board import BoardError, BoardLook, FreshNotice
from twinbus.fleet.core.board_turns import BoardTurn, BoardTurns
from twinbus.fleet.core.notices import Notice

log = logging.getLogger("twinbus.fleet")

TICK_S: Final = 0.001
"""The shortest wait: a remainder of rounding is none, and could last for ever."""

RECOVERIES_MAX: Final = 100
"""Recoveries that wait for one post; a host pings fewer entities at once."""


@dataclass(frozen=True, slots=True)
class HostStates:
    """What the board's times depend on."""

    suspects: Set[str] = frozenset()
    """Keys of the entities that are SUSPECT."""
    notices: Sequence[Notice] = ()
    """Entities that failed over by this host's own interval."""
    watches: bool = False
    """Whether any entity has failed over, so that a recovery matters."""


class BoardHost(Protocol):
    """What the watch asks of the host, and gives to it. Called on the event loop."""

    def board_states(self) -> HostStates: ...

    def is_speaker(self) -> bool:
        """Whether this process uses the board for all processes of its host."""

    def take_notices(self, notices: list[FreshNotice]) -> None:
        """Notices that were read, of any host, ours too."""

    def other_hosts(self, entity_key: str, for_s: float) -> int:
        """How many other hosts have a notice that the entity failed over, which lasts so long."""


class WatchedBoard(Protocol):
    """A `NoticeBoard`."""

    async def look(self, count: int) -> BoardLook: ...
    async def post(self, notices: Sequence[Notice], time_to_live_s: float) -> None: ...
    async def rest(self) -> None: ...


class BoardWatch:
    """The task of one host on one board."""

    def __init__(
        self,
        board: WatchedBoard,
        host: BoardHost,
        *,
        failover_interval_s: float,
        quorum: int,
        environment: Environment = MACHINE,
    ) -> None:
        self._board = board
        self._host = host
        self._now = environment.monotonic
        self._chance = environment.chance
        self.turns = BoardTurns(
            failover_interval_s=failover_interval_s,
            quorum=quorum,
            now=self._now(),
            chance=self._chance(),
        )
        self.problem: str | None = None
        """Why the board cannot be read, and with that not be used; None: the last look worked, or
        none was made yet."""
        self.post_problem: str | None = None
        """Why the last post failed; None: it was stored, or there was none."""
        self.looks = 0
        """Looks that were answered."""
        self._recoveries: list[Notice] = []
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def off(self) -> str:
        """Why the board is not used; empty: it is."""
        return self.problem or self.post_problem or ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="notice board")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._board.rest()

    def changed(self) -> None:
        """Take the host's present states."""
        states = self._host.board_states()
        self.turns.update(
            suspects=states.suspects,
            speaks=frozenset(notice.entity_key for notice in states.notices),
            watches=states.watches,
            now=self._now(),
            chance=self._chance(),
        )
        self._woken.set()

    def recovered(self, notice: Notice) -> None:
        """Post a recovery at once. If that fails, the others find it by pings of their own."""
        assert notice.recovered
        if len(self._recoveries) < RECOVERIES_MAX:
            self._recoveries.append(notice)
        self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._wait()
            try:
                if self._recoveries:
                    await self._post()
                turn = self.turns.take(self._others(), self._now(), self._chance())
                if turn is not None and not self._host.is_speaker():
                    self.turns.passed(self._now(), self._chance())
                elif turn is not None:
                    await self._take(turn)
            except Exception:  # the task must go on; the board is asked again after a pause
                log.exception("the notice board failed")
                self.turns.look_failed(self._now(), self._chance(), is_refusal=False)

    async def _wait(self) -> None:
        self._woken.clear()
        wait_s = self.turns.due_at - self._now()
        if wait_s > 0 and not self._recoveries:
            try:
                async with asyncio.timeout(max(wait_s, TICK_S)):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _take(self, turn: BoardTurn) -> None:
        try:
            look = await self._board.look(turn.look)
        except BoardError as error:
            self.turns.look_failed(self._now(), self._chance(), is_refusal=error.is_refusal)
            self.problem = self._reported(self.problem, error)
            return
        self.looks += 1
        if self.problem is not None:
            log.info("the notice board can be read again")
            self.problem = None
        self.turns.looked(look.messages, self._now(), self._chance())
        if look.notices:
            self._host.take_notices(look.notices)
        states = self._host.board_states()
        if turn.post and self.turns.may_post(self._others(), self._now(), self._chance()):
            await self._post()
        if not (states.suspects or states.notices or states.watches):
            await self._board.rest()

    def _others(self) -> int:
        """Other hosts that say what we say; of the entity for which they are fewest."""
        keys = [one.entity_key for one in self._host.board_states().notices]
        return min((self._host.other_hosts(key, self.turns.silent_s) for key in keys), default=0)

    async def _post(self) -> None:
        recoveries, self._recoveries = self._recoveries, []
        notices = [*recoveries, *self._host.board_states().notices]
        if not notices:
            return
        try:
            await self._board.post(notices, self.turns.time_to_live_s)
        except BoardError as error:
            self.turns.post_failed(self._now(), self._chance(), is_refusal=error.is_refusal)
            self.post_problem = self._reported(self.post_problem, error)
            return
        self.turns.posted(self._now(), self._chance())
        self.post_problem = None

    @staticmethod
    def _reported(before: str | None, error: BoardError) -> str:
        """Log a problem once; return its text."""
        text = str(error)
        if text != before:
            log.warning("%s; this pair shares no evidence with other hosts meanwhile", text)
        return text
