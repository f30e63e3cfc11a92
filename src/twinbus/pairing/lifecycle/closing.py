"""Closes and faults the two sides of a pair, by hand and by the rule (docs/observability.md).

The shell of `sides`: it passes in events with their time, arms the one timer, and closes what a
side holds open in the background. A caller that waits for that may be cancelled; the closing goes
on, and `wait_closed` waits for all of it.

`AsyncOnly` and `BlockingOnly` explain a `with` block of the wrong kind: Python alone says only that
the object supports no such block. Type checkers do not see their methods, so they refuse the block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

from twinbus.pairing.core.failover import TimerFired
from twinbus.pairing.core.sides import (
    CloseSide,
    Event,
    FaultSide,
    PairSides,
    ReleaseSide,
    Side,
    SideChange,
)
from twinbus.status.document import SideState

log = logging.getLogger("twinbus.pair")


class SideKeeper:
    def __init__(
        self,
        *,
        syphon: bool,
        release: Callable[[Side], Awaitable[None]],
        changed: Callable[[SideChange], None],
    ) -> None:
        """`release` closes what a side holds open; `changed` is called first."""
        self.sides = PairSides(syphon=syphon)
        self._release = release
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None
        self._releasing: dict[Side, asyncio.Task[None]] = {}

    def tell(self, event: Event) -> None:
        """Pass an event that happened now to the machine, and perform its actions."""
        loop = asyncio.get_running_loop()
        actions = self.sides.handle(event, loop.time())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.sides.timer_at is not None:
            self._timer = loop.call_at(self.sides.timer_at, self.tell, TimerFired())
        for action in actions:
            match action:
                case ReleaseSide(side):
                    self._releasing[side] = asyncio.create_task(
                        self._close(side), name=f"close the {side}"
                    )
                case SideChange():
                    # Before the task above runs: calls must be refused first.
                    self._changed(action)

    async def wait_closed(self, *sides: Side) -> None:
        """Return when all that these sides held open is closed; without names, all that ended."""
        tasks = [task for side, task in self._releasing.items() if not sides or side in sides]
        if tasks:
            await asyncio.wait(tasks)

    async def _close(self, side: Side) -> None:
        try:
            await self._release(side)
        except Exception:
            # No caller could repair it, and the other side must still be closed.
            log.exception("the %s could not be closed completely", side)


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
        """Close this side: later calls that need it raise; calls in flight may end.

        Idempotent. Where the syphon runs, the other side must follow within 5 seconds, or it is
        faulted (docs/observability.md).
        """
        self._keeper.tell(CloseSide(self._side))
        await self._keeper.wait_closed(self._side)

    def fault(self, error: BaseException) -> None:
        """Declare that this side must not be used: later calls that need it raise.

        `error` is the cause of what they raise; the first fault stays. Where the syphon runs, the
        other side must follow within 5 seconds, or it is faulted too (docs/observability.md).
        """
        given: object = error
        if not isinstance(given, BaseException):
            raise TypeError(f"a side is faulted with an exception; got {given!r}")
        self._keeper.tell(FaultSide(self._side, error))


class AsyncOnly:
    """A class for asyncio: `with` raises a TypeError that names the two ways out."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} is for asyncio: write `async with`, or import"
                " pair_namespaces from twinbus.blocking"
            )

        def __exit__(self, *exc: object) -> None:
            """Never called; Python wants it before it calls `__enter__`."""


class BlockingOnly:
    """A class for code without asyncio: `async with` raises a TypeError that says so."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} is of twinbus.blocking: write `with`, or import"
                " pair_namespaces from twinbus"
            )

        async def __aexit__(self, *exc: object) -> None:
            """Never called; Python wants it before it calls `__aenter__`."""
