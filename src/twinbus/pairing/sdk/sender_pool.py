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
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twinbus.pairing.core.classify import FailureMeaning, meaning_of
from twinbus.pairing.sdk.sdk_cleanup import CLOSE_LIMIT_S, SdkCleanup, cancel_until_done
from twinbus.pairing.sdk.watchdog import Watch, Watchdog

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusSender

log = logging.getLogger("twinbus.pairing")

T = TypeVar("T")

SENDERS_MAX: Final = 8
"""Connections of one pool. One uses a core's worth of SDK work; more hide the latency of Azure."""

OPENINGS_MAX: Final = 2
"""Senders of a pool that open at the same time. Opening takes the SDK half a second, a send a few
milliseconds: a waiting call is mostly served by a sender that is open, and many calls at once, as
at a failover, do not open eight."""

STILL_WAITING_S: Final = 0.05
"""Longer than a send to a service nearby takes."""

IDLE_MAX_S: Final = 100.0
"""Azure closes a connection that is silent for 240 s, and an idle sender is silent. A sender idle
for this long is replaced before a message finds its connection dead."""

CARRIED_OUT: Final = "cancelled during a call of the SDK that succeeded all the same"
"""Argument of such a CancelledError. `asyncio.timeout` recognizes no subclass of it."""

WAIT_FOR_FRAME: Final = True
"""Value that makes the SDK's connection wait for the next frame, however long that takes."""

REUSABLE_AFTER: Final = frozenset(
    {FailureMeaning.BUSY, FailureMeaning.QUOTA, FailureMeaning.MESSAGE}
)
"""Failures after which a sender can be used again: the service answered, and the link is up."""


class PooledSender(Watch):
    """One SDK sender, what is known of it, and the watch of the one attempt that it serves."""

    __slots__ = (
        "batch_limit_bytes", "cleanup", "epoch", "idle_since", "is_open", "limit_bytes", "opening",
        "reader", "sdk",
    )  # fmt: skip

    def __init__(self, sdk: ServiceBusSender, epoch: int) -> None:
        super().__init__()
        self.sdk = sdk
        self.epoch = epoch
        self.is_open = False
        self.idle_since = 0.0
        self.opening: asyncio.Task[int | None] | None = None
        self.cleanup = SdkCleanup(sdk)
        self.reader: Any = None
        """The stream that the SDK reads the connection from, once it is open."""
        self.limit_bytes: int | None = None
        """The largest message that the link takes, once it is open and if it reports it."""
        self.batch_limit_bytes: int | None = None

    async def open(self, timeout_s: float) -> None:
        """Connect and attach; TimeoutError after `timeout_s`.

        In a task of its own: cancelled while it opens, the SDK first closes what it has opened,
        with a peer that may hang, and a caller must not wait for that.
        """
        self.opening = asyncio.create_task(self._attach())
        self.opening.add_done_callback(_retrieve_error)
        await self.finish_opening(timeout_s)

    async def finish_opening(self, timeout_s: float) -> None:
        """Wait for what `open` began; TimeoutError after `timeout_s`."""
        assert self.opening is not None
        done, _ = await asyncio.wait({self.opening}, timeout=timeout_s)
        if not done or self.opening.cancelled():
            raise TimeoutError
        opening, self.opening = self.opening, None
        # Now, because a sender that meets an error forgets its connection before it raises.
        self.cleanup.collect()
        self.reader = self.cleanup.reader()
        self.batch_limit_bytes = opening.result()
        # The SDK's public API has the limit of a batch only; a message may be larger.
        own = getattr(self.sdk, "_max_message_size_on_link", None)
        self.limit_bytes = own if isinstance(own, int) and own > 0 else self.batch_limit_bytes
        self.is_open = True
        self._stop_polling()

    def _stop_polling(self) -> None:
        """Have the SDK wait for the next frame directly, not in a task that it ends after 0.2 s.

        Those tasks are a tenth of the cost of a send, and can swallow a cancellation. The watchdog
        bounds the time. The attribute is private: where it is missing, the SDK goes on polling.
        """
        handler: Any = getattr(self.sdk, "_handler", None)
        if isinstance(getattr(handler, "_socket_timeout", None), float):
            handler._socket_timeout = WAIT_FOR_FRAME

    def is_disconnected(self) -> bool:
        """Whether the peer has ended the connection while it was idle.

        A message sent on it would be lost, and its error would describe the entity at the time
        when the connection ended, not now.
        """
        reader = self.reader
        # `at_eof` does not serve: it is false while bytes of the peer's close are left to read.
        return reader is not None and (reader._eof or reader._exception is not None)

    async def _attach(self) -> int | None:
        # The one call of the SDK that opens the link and sends nothing.
        batch = await self.sdk.create_message_batch()
        return getattr(batch, "max_size_in_bytes", None)


class SenderPool:
    """The SDK senders of one entity: `take` one, then `attempt` a call with it."""

    def __init__(
        self,
        make: Callable[[], ServiceBusSender],
        closer: SenderCloser,
        *,
        limit: int = SENDERS_MAX,
    ) -> None:
        self._make = make
        self._closer = closer
        self.watchdog = closer.watchdog
        self._limit = limit
        self.limit_bytes: int | None = None
        """The largest message that the entity takes, as the last link reported."""
        self.batch_limit_bytes: int | None = None
        self.on_slow: Callable[[], None] | None = None
        """Called when a call takes long, again and again until it ends."""
        self.on_open: Callable[[int | None, int | None], None] | None = None
        """Called with both limits whenever a link was opened."""
        self._idle: list[PooledSender] = []
        self._leased: set[PooledSender] = set()
        self._opening_in_background: set[PooledSender] = set()
        """Leased senders that still open although their caller has given up."""
        # No event until it is needed: of ten thousand pools few are ever waited for.
        self._waiters: list[asyncio.Future[None]] = []
        self._epoch = 0
        self._loop = asyncio.get_running_loop()
        self._drained: asyncio.Event | None = None
        self.closed = False

    def take_ready(self, now: float) -> PooledSender | None:
        """Lease the open sender that was given back last; None: `take` must find or open one.

        Every healthy send calls this.
        """
        if not self._idle:
            return None
        pooled = self._idle[-1]
        reader = pooled.reader
        if now - pooled.idle_since >= IDLE_MAX_S or not pooled.is_open:
            return None
        if reader is not None and (reader._eof or reader._exception is not None):
            return None
        self._idle.pop()
        self._leased.add(pooled)
        return pooled

    def take(self) -> PooledSender | None:
        """Lease a sender for one call; None: all are in use."""
        assert not self.closed
        while self._idle:
            pooled = self._idle.pop()
            is_fresh = self._loop.time() - pooled.idle_since < IDLE_MAX_S
            if is_fresh and not pooled.is_disconnected():
                self._leased.add(pooled)
                return pooled
            self._closer.close_later(pooled)
        openings = sum(not pooled.is_open for pooled in self._leased)
        if len(self._leased) >= self._limit or openings >= OPENINGS_MAX:
            return None
        pooled = PooledSender(self._make(), self._epoch)
        pooled.on_check = self.on_slow
        self._leased.add(pooled)
        return pooled

    async def attempt(
        self, pooled: PooledSender, operation: Callable[[Any], Awaitable[T]], timeout_s: float
    ) -> T:
        """Make one SDK call on a leased sender, then give it back or discard it.

        TimeoutError after `timeout_s`. A cancellation of the task is raised, also where the SDK
        has swallowed it.
        """
        self.watchdog.begin(pooled, self._loop.time(), timeout_s)
        try:
            if not pooled.is_open:
                await pooled.open(timeout_s)
                self._opened(pooled)
            result = await operation(pooled.sdk)
        except BaseException as caught:
            error = self.end_attempt(pooled, caught, timeout_s)
            if error is None or error is caught:
                raise
            raise error from caught
        error = self.end_attempt(pooled, None)
        if error is not None:
            raise error
        return result

    def end_success(self, pooled: PooledSender, now: float) -> bool:
        """End an attempt that succeeded: give its sender back; return whether it was cancelled.

        The short form of `end_attempt`, for every healthy send.
        """
        is_cancelled = self.watchdog.end(pooled)[1]
        if self._waiters or self.closed or pooled.epoch != self._epoch:
            self.give_back(pooled)
        else:
            self._leased.discard(pooled)
            pooled.idle_since = now
            self._idle.append(pooled)
        return is_cancelled

    def end_attempt(
        self, pooled: PooledSender, error: BaseException | None, timeout_s: float = math.inf
    ) -> BaseException | None:
        """End an attempt: give the sender back or discard it; return what to raise, or None.

        A cancellation of the task meanwhile is returned, also where the SDK has swallowed it.
        """
        timed_out, is_cancelled = self.watchdog.end(pooled)
        if error is None:
            self.give_back(pooled)
            return asyncio.CancelledError(CARRIED_OUT) if is_cancelled else None
        meaning = meaning_of(error)
        # Still opening when its caller's time, less than usual, was over.
        is_cut_short = pooled.opening is not None and timeout_s < self._closer.opening_limit_s
        if meaning is FailureMeaning.UNREACHABLE and not is_cut_short:
            self.invalidate()
        if meaning in REUSABLE_AFTER and pooled.is_open:
            self.give_back(pooled)
        elif is_cut_short and not self.closed:
            # Else callers that wait for less than opening takes would each begin one and end none.
            self._opening_in_background.add(pooled)
            self._closer.run(self._finish(pooled, self._closer.opening_limit_s - timeout_s))
        else:
            self._discard(pooled)
        if isinstance(error, asyncio.CancelledError):
            return TimeoutError() if timed_out and not is_cancelled else error
        if is_cancelled and isinstance(error, Exception):
            return asyncio.CancelledError()
        return error

    async def _finish(self, pooled: PooledSender, timeout_s: float) -> None:
        """Finish opening a sender for the calls to come."""
        try:
            await pooled.finish_opening(timeout_s)
        except Exception as error:  # noqa: BLE001  # a message that needs it will find out
            log.debug("a sender did not open: %r", error)
        if pooled not in self._opening_in_background:
            return  # The pool was closed meanwhile, and closes it.
        self._opening_in_background.discard(pooled)
        if pooled.is_open:
            self._opened(pooled)
            self.give_back(pooled)
        else:
            self._discard(pooled)

    def _opened(self, pooled: PooledSender) -> None:
        if self._waiters:
            # Calls that still wait a moment later need one more sender than are open.
            self._loop.call_later(STILL_WAITING_S, self.wake_one)
        self.limit_bytes = pooled.limit_bytes or self.limit_bytes
        self.batch_limit_bytes = pooled.batch_limit_bytes or self.batch_limit_bytes
        if self.on_open is not None:
            self.on_open(self.limit_bytes, self.batch_limit_bytes)

    def give_back(self, pooled: PooledSender) -> None:
        """Return a sender that is usable to the pool."""
        self._leased.discard(pooled)
        if pooled.epoch == self._epoch and not self.closed:
            pooled.idle_since = self._loop.time()
            self._idle.append(pooled)
        else:
            self._closer.close_later(pooled)
        if self._waiters or self.closed:
            self._released()

    def _discard(self, pooled: PooledSender) -> None:
        """Close a sender whose call ended in a way that leaves it in an unknown state."""
        self._leased.discard(pooled)
        self._closer.close_later(pooled)
        self._released()

    def invalidate(self) -> None:
        """Use none of the present senders again: what broke one has broken all."""
        self._epoch += 1
        for pooled in self._idle:
            self._closer.close_later(pooled)
        self._idle.clear()

    async def wait(self, until: float | None) -> None:
        """Return when it is worth calling `take` or checking the route again."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            timeout_s = None if until is None else max(0.0, until - self._loop.time())
            await asyncio.wait({waiter}, timeout=timeout_s)
        except asyncio.CancelledError:
            if waiter.done():
                # This call was woken for a free sender; the next one must not sleep beside it.
                self.wake_one()
            raise
        finally:
            waiter.cancel()
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def wake_all(self) -> None:
        """Have every call that waits check its route again."""
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
        if self._drained is not None and not self._leased:
            self._drained.set()
        self.wake_one()

    async def close(self, limit_s: float) -> None:
        """Close idle senders; wait up to `limit_s` for those in use, then close them too."""
        self.closed = True
        self.invalidate()
        self.wake_all()
        for pooled in self._opening_in_background:
            self._leased.discard(pooled)
            self._closer.close_later(pooled)
        self._opening_in_background.clear()
        if self._leased:
            self._drained = self._drained or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._drained.wait()
        for pooled in list(self._leased):
            self._closer.close_later(pooled)
        self._leased.clear()


async def open_only(sdk: Any) -> None:
    """The operation of an attempt that only opens the link."""


def was_carried_out(cancelled: asyncio.CancelledError) -> bool:
    """Whether the attempt that raised a cancellation had succeeded."""
    return cancelled.args == (CARRIED_OUT,)


class SenderCloser:
    """Closes the senders of all pools of a client in the background; owns their watchdog."""

    def __init__(self, opening_limit_s: float = 0.0) -> None:
        """`opening_limit_s` bounds how long a sender may open, whatever its caller's timeout."""
        self.opening_limit_s = opening_limit_s
        self._tasks: set[asyncio.Task[None]] = set()
        self.watchdog = Watchdog()

    def close_later(self, pooled: PooledSender) -> None:
        """Close a sender that is not used any more; returns at once."""
        self.run(_close(pooled))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that ends by itself in the background; returns at once."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Return when all background work so far is done; each takes a few seconds at most."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self.watchdog.close()
        # An aborted socket is closed in the next turn of the loop.
        await asyncio.sleep(0)


async def _close(pooled: PooledSender) -> None:
    cleanup = pooled.cleanup
    cleanup.collect()
    if pooled.opening is not None:
        # Before each cancellation: a task that misses it may go on to open a connection.
        await cancel_until_done(pooled.opening, cleanup.collect)
        cleanup.collect()
    await cleanup.stop_keep_alive()
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await pooled.sdk.close()
    except Exception as error:  # noqa: BLE001  # whatever it is, the socket is aborted next
        log.debug("a sender of the SDK did not close: %r", error)
    finally:
        cleanup.abort_sockets()


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve an error that no caller awaits; asyncio would log it otherwise."""
    if not task.cancelled():
        task.exception()
