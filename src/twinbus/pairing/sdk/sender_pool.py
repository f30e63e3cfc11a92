"""SDK senders of one entity, kept open: each serves one call at a time, more open on demand.

The SDK's asyncio sender is not made for several tasks at once: two of them open two links and lose
one, and read each other's answers with up to 0.2 s of delay. So a call leases one for itself. The
last one given back is the next one leased; under light load one connection serves all calls.

A sender whose call was cut short is in an unknown state. It is never used again; `SenderCloser`
closes it in the background, within a bound, whatever the peer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twinbus.pairing.sdk.pooled_sender import PooledSender, Resolve, SenderCloser
from twinbus.servicebus.failures import (
    ANSWER_MIN_S,
    CutShort,
    FailureMeaning,
    OpeningCutShort,
    of_error,
)

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusSender

log = logging.getLogger("twinbus.pairing")

T = TypeVar("T")

SENDERS_MAX: Final = 8
"""Connections of one pool. One uses a core's worth of SDK work; more hide the latency of Azure."""

OPENINGS_MAX: Final = 2
"""Senders of a pool that open at the same time. Opening takes the SDK half a second, a send a few
milliseconds: a waiting call is mostly served by a sender that is open, and many calls at once, as
at a failover, do not open eight."""

JOINED_MAX_S: Final = 1.0
"""Age up to which a call waits for an opening that another call left, rather than begin one. It is
twice the time that opening takes; an older one may wait for a peer that was down when it began."""

STILL_WAITING_S: Final = 0.05
"""Longer than a send to a service nearby takes."""

IDLE_MAX_S: Final = 100.0
"""Azure closes a connection that is silent for 240 s, and an idle sender is silent. A sender idle
for this long is replaced before a message finds its connection dead."""

REOPEN_CHECK_S: Final = 45.0
"""Time between two checks of whether a link is to be reopened: one that will have been idle for
`IDLE_MAX_S` at the next check is replaced ahead of use."""

REOPENINGS_MAX: Final = 45
"""Reopenings in a row without a call: after about an hour the link of a forgotten sender ends."""

CARRIED_OUT: Final = "cancelled during a call of the SDK that succeeded all the same"
"""Argument of such a CancelledError. `asyncio.timeout` recognizes no subclass of it."""

REUSABLE_AFTER: Final = frozenset(
    {FailureMeaning.BUSY, FailureMeaning.QUOTA, FailureMeaning.MESSAGE}
)
"""Failures after which a sender can be used again: the service answered, and the link is up."""


class OpeningFailed(Exception):
    """The link that a call waited for could not be opened: its own would fail in the same way."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error

    def own_error(self) -> Exception:
        """A copy of the error for one call: each raised error has ids of its own."""
        error = self.error
        own: Exception = type(error).__new__(type(error), *error.args)
        own.args = error.args
        own.__dict__.update(error.__dict__)
        own.__cause__ = error
        return own


class SenderPool:
    """The SDK senders of one entity: `take` one, then `attempt` a call with it."""

    def __init__(
        self,
        make: Callable[[], ServiceBusSender],
        resolve: Resolve,
        closer: SenderCloser,
    ) -> None:
        self._make, self._resolve = make, resolve
        self._closer = closer
        self.attempt_timer = closer.attempt_timer
        self.limit_bytes: int | None = None
        """The largest message that the entity takes, as the last link reported."""
        self.batch_limit_bytes: int | None = None
        self.on_slow: Callable[[], None] | None = None
        """Called when a call takes long, again and again until it ends."""
        self.on_open: Callable[[int | None, int | None], None] | None = None
        """Called with both limits whenever a link was opened."""
        self.idle: list[PooledSender] = []
        self.leased: set[PooledSender] = set()
        self.on_open_failed: Callable[[Exception], None] | None = None
        """Called when a link did not open, after every call that waited for it had given up."""
        self.opening_in_background: dict[PooledSender, None] = {}
        """Leased senders that open for the next call: no call waits for them now."""
        # No event until it is needed: of ten thousand pools few are ever waited for.
        self._waiters: list[asyncio.Future[None]] = []
        self._epoch = 0
        self.jitter: Callable[[], float] | None = None
        """Set: a link is reopened before it has been idle for too long, until the pool is closed.
        It returns numbers from 0 to 1: links of many processes do not open at once."""
        self._reopening: asyncio.TimerHandle | None = None
        self._reopenings = 0
        self._loop = asyncio.get_running_loop()
        self._drained: asyncio.Event | None = None
        self.closed = False

    def take_ready(self, now: float) -> PooledSender | None:
        """Lease the open sender that was given back last; None: `take` must find or open one.

        Every healthy send calls this.
        """
        if not self.idle:
            return None
        pooled = self.idle[-1]
        reader = pooled.reader
        if now - pooled.idle_since >= IDLE_MAX_S or not pooled.is_open:
            return None
        if reader is not None and (reader._eof or reader._exception is not None):
            return None
        self.idle.pop()
        self.leased.add(pooled)
        return pooled

    def take(self) -> PooledSender | None:
        """Lease a sender for one call; None: all are in use."""
        assert not self.closed
        while self.idle:
            pooled = self.idle.pop()
            is_fresh = self._loop.time() - pooled.idle_since < IDLE_MAX_S
            if is_fresh and not pooled.is_disconnected():
                self.leased.add(pooled)
                return pooled
            self._closer.close_later(pooled)
        openings = sum(not pooled.is_open for pooled in self.leased)
        is_full = len(self.leased) >= SENDERS_MAX or openings >= OPENINGS_MAX
        for pooled in self.opening_in_background:
            is_young = self._loop.time() - pooled.opening_since < JOINED_MAX_S
            if pooled.epoch == self._epoch and (is_young or is_full):
                del self.opening_in_background[pooled]
                return pooled
        return None if is_full else self._lease_new()

    def _lease_new(self) -> PooledSender:
        pooled = PooledSender(self._make(), self._epoch, self._resolve)
        pooled.on_check = self.on_slow
        self.leased.add(pooled)
        return pooled

    def open_ahead(self, idle_max_s: float = IDLE_MAX_S) -> None:
        """Begin to open a link for the next call; returns at once.

        Nothing is opened while a link is open that was idle for less than `idle_max_s`, or while a
        call is in progress. A failure is no evidence against the entity unless a call waits for
        the link.
        """
        if self.closed or self.leased:
            return
        now = self._loop.time()
        if self.idle:
            newest = self.idle[-1]
            if now - newest.idle_since < idle_max_s and not newest.is_disconnected():
                return
        pooled = self._lease_new()
        pooled.begin_opening(now, self._closer.opening_limit_s)
        self._leave_opening(pooled)

    def _arm_reopening(self, delay_s: float) -> None:
        if self.jitter is not None and not self.closed:
            delay_s *= 1 - self.jitter() / 5
            self._reopening = self._loop.call_later(delay_s, self._check_idle)

    def _check_idle(self) -> None:
        """Reopen the link that the next call would use, if it will be too old at the next check."""
        self._reopening = None
        now, idle_max_s = self._loop.time(), IDLE_MAX_S - REOPEN_CHECK_S
        self._close_idle(now)
        if not self.idle and not self.leased:
            return  # The next link that opens begins again.
        newest = self.idle[-1] if self.idle and not self.leased else None
        if newest is None or now - newest.idle_since < idle_max_s:
            self._arm_reopening(REOPEN_CHECK_S)
            return
        is_unused = newest.idle_since == newest.opened_ahead_at
        if is_unused and self._reopenings >= REOPENINGS_MAX:
            self._arm_reopening(IDLE_MAX_S)
        elif self._closer.may_reopen(now):
            self._reopenings = self._reopenings + 1 if is_unused else 1
            self.open_ahead(idle_max_s)
            self._arm_reopening(REOPEN_CHECK_S)
        else:
            self._arm_reopening(REOPEN_CHECK_S / 10)

    def _close_idle(self, now: float) -> None:
        """Close links that are idle for long; the newest only when it can be used no longer."""
        for pooled in tuple(self.idle):
            is_newest = pooled is self.idle[-1]
            limit_s = IDLE_MAX_S if is_newest else IDLE_MAX_S - REOPEN_CHECK_S
            if now - pooled.idle_since >= limit_s:
                self.idle.remove(pooled)
                self._closer.close_later(pooled)

    async def attempt(
        self,
        pooled: PooledSender,
        operation: Callable[[Any], Awaitable[T]],
        timeout_s: float,
        *,
        is_late: bool = False,
    ) -> T:
        """Make one SDK call on a leased sender, then give it back or discard it.

        TimeoutError after `timeout_s`; OpeningCutShort if the link was still opening then and had
        time left; CutShort if the opening, or the call before if it `is_late`, left too little. A
        cancellation of the task is raised, also where the SDK has swallowed it.
        """
        now = self._loop.time()
        left_s = timeout_s if is_late else math.inf
        self.attempt_timer.begin(pooled, now, timeout_s)
        try:
            if not pooled.is_open:
                pooled.is_wanted = True
                if pooled.opening is None:
                    pooled.begin_opening(now, max(timeout_s, self._closer.opening_limit_s))
                await pooled.finish_opening(min(timeout_s, pooled.opening_until - now))
                self._opened(pooled)
                left_s = pooled.deadline - self._loop.time()
            result = await operation(pooled.sdk)
        except BaseException as caught:
            error = self.end_attempt(pooled, caught)
            is_own_timeout = (
                type(error) is TimeoutError and timeout_s < self._closer.opening_limit_s
            )
            if is_own_timeout and left_s < ANSWER_MIN_S:
                # With a link that is open, the next call has its whole time for the answer.
                self.open_ahead()
                error = CutShort(f"{left_s:.2g} s")
            if error is None or error is caught:
                raise
            raise error from caught
        error = self.end_attempt(pooled, None)
        if error is not None:
            raise error
        return result

    async def send_ready(
        self, pooled: PooledSender, message: ServiceBusMessage, now: float, timeout_s: float
    ) -> None:
        """Send one message with a sender of `take_ready`; the short form of `attempt`."""
        self.attempt_timer.begin(pooled, now, timeout_s)
        try:
            await pooled.sdk.send_messages(message)
        except BaseException as caught:
            error = self.end_attempt(pooled, caught)
            if error is None or error is caught:
                raise
            raise error from caught
        if self.end_success(pooled, self._loop.time()):
            raise asyncio.CancelledError(CARRIED_OUT)

    def end_success(self, pooled: PooledSender, now: float) -> bool:
        """End an attempt that succeeded: give its sender back; return whether it was cancelled.

        The short form of `end_attempt`, for every healthy send.
        """
        is_cancelled = self.attempt_timer.end(pooled)[1]
        if self._waiters or self.closed or pooled.epoch != self._epoch:
            self.give_back(pooled)
        else:
            self.leased.discard(pooled)
            pooled.idle_since = now
            self.idle.append(pooled)
        return is_cancelled

    def end_attempt(
        self, pooled: PooledSender, error: BaseException | None
    ) -> BaseException | None:
        """End an attempt: give the sender back or discard it; return what to raise, or None.

        A cancellation of the task meanwhile is returned, also where the SDK has swallowed it.
        """
        timed_out, is_cancelled = self.attempt_timer.end(pooled)
        if error is None:
            self.give_back(pooled)
            return asyncio.CancelledError(CARRIED_OUT) if is_cancelled else None
        meaning = of_error(error)
        # Still opening, with time left, when its caller's own time was over.
        is_cut_short = pooled.opening is not None and (
            is_cancelled or pooled.deadline < pooled.opening_until
        )
        if is_cancelled:
            # The next call opens a link of its own: a person may have ended a call that hangs.
            pooled.opening_since = -math.inf
        if meaning is FailureMeaning.UNREACHABLE and not is_cut_short:
            self._share_failure(pooled, error)
            self.invalidate()
        elif meaning is FailureMeaning.STALE:
            self.invalidate()
        elif timed_out and not is_cancelled and not is_cut_short:
            self._share_failure(pooled, TimeoutError())
        if meaning in REUSABLE_AFTER and pooled.is_open:
            self.give_back(pooled)
        elif is_cut_short and not self.closed:
            # Else callers that wait for less than opening takes would each begin one and end none.
            self._leave_opening(pooled)
        else:
            self._discard(pooled)
        if isinstance(error, asyncio.CancelledError):
            if is_cancelled or not timed_out:
                return error
            error = TimeoutError()
        if is_cancelled and isinstance(error, Exception):
            return asyncio.CancelledError()
        return OpeningCutShort() if is_cut_short and type(error) is TimeoutError else error

    def _leave_opening(self, pooled: PooledSender) -> None:
        self.opening_in_background[pooled] = None
        if not pooled.is_finishing:
            pooled.is_finishing = True
            self._closer.run(self._finish(pooled))
        self.wake_one()

    async def _finish(self, pooled: PooledSender) -> None:
        """Finish opening a sender that no call waits for."""
        assert pooled.opening is not None
        left_s = pooled.opening_until - self._loop.time()
        await asyncio.wait({pooled.opening}, timeout=max(0.0, left_s))
        pooled.is_finishing = False
        if pooled not in self.opening_in_background:
            return  # A call waits for it, or the pool was closed and closes it.
        del self.opening_in_background[pooled]
        try:
            pooled.end_opening()
        except Exception as error:  # noqa: BLE001  # the entity hears of it, or the next call finds out
            log.debug("a sender did not open: %r", error)
            self._share_failure(pooled, error)
            self._discard(pooled)
            if pooled.is_wanted and self.on_open_failed is not None:
                self.on_open_failed(error)
        else:
            self._opened(pooled)
            self.give_back(pooled)
            pooled.opened_ahead_at = pooled.idle_since
            self._close_idle(pooled.idle_since)

    def _share_failure(self, pooled: PooledSender, error: BaseException) -> None:
        """Tell all calls that wait that the link did not open, unless another link is open.

        Otherwise each would find out by itself, two at a time, after an attempt of its own.
        """
        if pooled.is_open or not isinstance(error, Exception):
            return
        if any(other.is_open and other.epoch == self._epoch for other in self.leased):
            return
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(OpeningFailed(error))

    def _opened(self, pooled: PooledSender) -> None:
        if self._waiters:
            # Calls that still wait a moment later need one more sender than are open.
            self._loop.call_later(STILL_WAITING_S, self.wake_one)
        self.limit_bytes = pooled.limit_bytes or self.limit_bytes
        self.batch_limit_bytes = pooled.batch_limit_bytes or self.batch_limit_bytes
        if self._reopening is None:
            self._arm_reopening(REOPEN_CHECK_S)
        if self.on_open is not None:
            self.on_open(self.limit_bytes, self.batch_limit_bytes)

    def give_back(self, pooled: PooledSender) -> None:
        self.leased.discard(pooled)
        if pooled.epoch == self._epoch and not self.closed:
            pooled.idle_since = self._loop.time()
            self.idle.append(pooled)
        else:
            self._closer.close_later(pooled)
        if self._waiters or self.closed:
            self._released()

    def _discard(self, pooled: PooledSender) -> None:
        """Close a sender whose call ended in a way that leaves it in an unknown state."""
        self.leased.discard(pooled)
        self._closer.close_later(pooled)
        self._released()

    def invalidate(self) -> None:
        self._epoch += 1
        for pooled in self.idle:
            self._closer.close_later(pooled)
        self.idle.clear()

    async def lease(self, until: float, is_wanted: Callable[[], bool]) -> PooledSender | None:
        """Wait for a free sender; None: it is not wanted any more, or the time is over.

        OpeningFailed: the link that this call waited for could not be opened.
        """
        while is_wanted():
            pooled = self.take()
            if pooled is not None:
                return pooled
            await self._wait(until)
        self.wake_one()
        return None

    async def _wait(self, until: float) -> None:
        """Return when it is worth calling `take` or checking the route again.

        OpeningFailed: a link was being opened meanwhile, and that failed.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            timeout_s = max(0.0, until - self._loop.time())
            done, _ = await asyncio.wait({waiter}, timeout=timeout_s)
            if done:
                waiter.result()
        except asyncio.CancelledError:
            if waiter.done() and waiter.exception() is None:
                # This call was woken for a free sender; the next one must not sleep beside it.
                self.wake_one()
            raise
        finally:
            waiter.cancel()
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wake_one(self) -> None:
        """Wake one call that waits: a sender is free, or the call woken before did not need it."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    def _released(self) -> None:
        if self._drained is not None and not self.leased:
            self._drained.set()
        self.wake_one()

    async def close(self, limit_s: float) -> None:
        """Close idle senders; wait up to `limit_s` for those in use, then close them too."""
        self.closed = True
        if self._reopening is not None:
            self._reopening.cancel()
        self.invalidate()
        self.wake_all()
        for pooled in self.opening_in_background:
            self.leased.discard(pooled)
            self._closer.close_later(pooled)
        self.opening_in_background.clear()
        if self.leased:
            self._drained = self._drained or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._drained.wait()
        for pooled in list(self.leased):
            self._closer.close_later(pooled)
        self.leased.clear()


async def open_only(sdk: Any) -> None:
    """The operation of an attempt that only opens the link."""


def was_carried_out(cancelled: asyncio.CancelledError) -> bool:
    """Whether the attempt that raised a cancellation had succeeded."""
    return cancelled.args == (CARRIED_OUT,)
