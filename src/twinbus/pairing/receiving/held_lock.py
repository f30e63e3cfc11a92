"""Renews the lock of a message, or of a session, in the background; `LockRenewal` decides when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    SessionLockLostError,
)

from twinbus.pairing.core.processing import LockRenewal

RENEWAL_TIMEOUT_S: Final = 10.0
RENEWAL_LIMIT_S: Final = 12.0
"""How long one attempt to renew a lock may take. The receiver's own timeout ends it first: a call
of the SDK that is cancelled may lose an answer."""

LOCK_LOST: Final = (MessageLockLostError, SessionLockLostError)


def remaining_s(locked_until: datetime | None) -> float | None:
    """Return the seconds until then, by the clock of this machine; None: there is no lock."""
    return None if locked_until is None else (locked_until - datetime.now(UTC)).total_seconds()


class HeldLock:
    """Renews one lock in the background until `end`, and knows whether it was lost."""

    def __init__(
        self,
        renew: Callable[[], Awaitable[datetime]],
        locked_until: datetime | None,
        max_renewal_s: float,
        on_lost: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._renew = renew
        self._on_lost = on_lost
        self._max_renewal_s = max_renewal_s
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._ended = False
        now, left_s = self._loop.time(), remaining_s(locked_until)
        self._core = LockRenewal(left_s or 0.0, now, until=now + max_renewal_s)
        if left_s is not None:
            self._arm()

    @property
    def is_lost(self) -> bool:
        return self._core.is_lost

    def extend(self) -> None:
        """Count the longest time of renewal from now on: the next message of a session began."""
        now = self._loop.time()
        self._core.extend(now + self._max_renewal_s, now)
        if self._renewing is None:
            self._arm()

    def lose(self) -> None:
        """The service says that the lock is lost."""
        self._core.lose()
        self._arm()

    def end(self) -> None:
        """Renew it no more. An attempt that is on its way is left alone: its result is ignored."""
        self._ended = True
        self._arm()

    async def ended(self) -> None:
        """Return when nothing of it runs any more; cancelled, it cancels the last attempt."""
        self.end()
        renewing = self._renewing
        if renewing is None:
            return
        try:
            await asyncio.wait({renewing})
        except asyncio.CancelledError:
            renewing.cancel()
            raise

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._core.timer_at
        if at is not None and not self._ended:
            self._timer = self._loop.call_at(at, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._renewing = self._loop.create_task(self._attempt(), name="renew a lock")

    async def _attempt(self) -> None:
        error: Exception | None = None
        locked_until: datetime | None = None
        try:
            async with asyncio.timeout(RENEWAL_LIMIT_S):
                locked_until = await self._renew()
        except Exception as failed:  # noqa: BLE001  # a renewal must not end the processor
            error = failed
        finally:
            self._renewing = None
        if self._ended:
            return
        now = self._loop.time()
        if error is None:
            self._core.renewed(remaining_s(locked_until) or 0.0, now)
        elif isinstance(error, MessageAlreadySettled):
            # The handler settled it and has not returned yet.
            self._ended = True
        elif isinstance(error, LOCK_LOST):
            self._core.lose()
        else:
            self._core.failed(now)
        if error is not None and self._core.is_lost:
            self._on_lost(error)
        self._arm()
