"""Calls that wait for the secondary: the first in line gets the turn, a success frees all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.pairing.core.secondary import SecondaryHealth
    from twinbus.pairing.sending.entity_monitor import EntityMonitor

PASS_ON_S: Final = 0.1
"""A call that was woken for its turn and does not take it, because its time is over or its entity
is back, passes the turn on after this time."""


class WaitingCalls:
    """The calls of one pair that wait, in order, and the timer of the next turn."""

    def __init__(self, secondary: SecondaryHealth) -> None:
        self._secondary = secondary
        self._loop = asyncio.get_running_loop()
        # A dict keeps their order.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, entity: EntityMonitor, until: float) -> None:
        """Return for a turn, after a success, on a change of the entity, or at `until`."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        stop_listening = entity.on_change(lambda: _wake(waiter))
        self._waiters[waiter] = None
        if self._timer is None:
            self.arm()
        try:
            await asyncio.wait({waiter}, timeout=max(0.0, until - self._loop.time()))
        finally:
            stop_listening()
            self._waiters.pop(waiter, None)
            waiter.cancel()
            if not self._waiters:
                self._disarm()

    def arm(self) -> None:
        """Wake the first call in line at the time of the next turn."""
        self._disarm()
        if self._waiters:
            due = max(self._secondary.turn_at, self._loop.time())
            self._timer = self._loop.call_at(due, self._give_turn)

    def wake_all(self) -> None:
        """A queue may take messages again: have every call choose again."""
        for waiter in self._waiters:
            _wake(waiter)

    def _give_turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        if not self._secondary.is_turn(now):
            self.arm()
            return
        waiter = next((one for one in self._waiters if not one.done()), None)
        if waiter is not None:
            _wake(waiter)
            self._timer = self._loop.call_at(now + PASS_ON_S, self._give_turn)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
