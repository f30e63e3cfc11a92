"""The two sides of a pair, alive: closed and faulted by hand, and by the rule of SPEC 7.

The shell of `sides`: it hands in events with their time, arms the one timer, and has what a side
holds open closed in the background. Whoever waits for that may be cancelled; the closing goes on,
and `gone` waits for all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from twinbus.clock import TimerFired
from twinbus.pairing.core.sides import (
    Announce,
    CloseSide,
    Event,
    FaultSide,
    LetGo,
    PairSides,
    Side,
    SideChange,
    SideState,
)

__all__ = ["PairSide", "SideKeeper"]

log = logging.getLogger("twinbus.pair")


class SideKeeper:
    """Ends the sides of one pair."""

    def __init__(
        self,
        *,
        syphon: bool,
        let_go: Callable[[Side], Awaitable[None]],
        changed: Callable[[SideChange], None],
    ) -> None:
        """`let_go` closes what a side holds open; `changed` is told first, and must not wait."""
        self.sides = PairSides(syphon=syphon)
        self._let_go = let_go
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None
        self._going: dict[Side, asyncio.Task[None]] = {}

    def tell(self, event: Event) -> None:
        """Hand in an event that happened now, and do what follows from it."""
        loop = asyncio.get_running_loop()
        actions = self.sides.handle(event, loop.time())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.sides.timer_at is not None:
            self._timer = loop.call_at(self.sides.timer_at, self.tell, TimerFired())
        for action in actions:
            match action:
                case LetGo(side):
                    self._going[side] = asyncio.create_task(
                        self._end(side), name=f"close the {side}"
                    )
                case Announce(change):
                    # Before the task above runs: calls must be refused first.
                    self._changed(change)

    async def gone(self, *sides: Side) -> None:
        """Return when what these sides (all that ended, unless named) held open is closed."""
        tasks = [task for side, task in self._going.items() if not sides or side in sides]
        if tasks:
            await asyncio.wait(tasks)

    async def _end(self, side: Side) -> None:
        try:
            await self._let_go(side)
        except Exception:
            # Nobody could do anything about it, and the rest must be closed all the same.
            log.exception("the %s could not be closed as it should", side)


class PairSide:
    """One namespace of a pair, to be closed or faulted by hand."""

    def __init__(self, keeper: SideKeeper, side: Side, endpoint: str) -> None:
        self._keeper = keeper
        self._side = side
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return f"PairSide({self._side}, {self.endpoint}, {self.state})"

    @property
    def state(self) -> SideState:
        """open, closed or faulted. A namespace that cannot be reached is open."""
        return self._keeper.sides.state(self._side)

    @property
    def reason(self) -> str:
        """Why it is not open; empty while it is."""
        return self._keeper.sides.reason(self._side)

    async def close(self) -> None:
        """Use this side no more: later calls that need it raise; what is in flight may end.

        Idempotent. Where the syphon runs, the other side must follow within 5 seconds, or it is
        faulted (SPEC 7).
        """
        self._keeper.tell(CloseSide(self._side))
        await self._keeper.gone(self._side)

    def fault(self, error: BaseException) -> None:
        """Declare that this side must not be used: later calls that need it raise because of it.

        The first fault is the one that stays. Where the syphon runs, the other side must follow
        within 5 seconds, or it is faulted too (SPEC 7).
        """
        _require_exception(error)
        self._keeper.tell(FaultSide(self._side, error))


def _require_exception(error: object) -> None:
    if not isinstance(error, BaseException):
        raise TypeError(f"a side is faulted with an exception; got {error!r}")
