"""SDK senders of one entity, kept open: each serves one call at a time, more open on demand.

The SDK's asyncio sender is not made for several tasks at once (two of them open two links and lose
one, and read each other's answers with up to 0.2 s of delay), so a call leases one for itself. The
last one given back is the next one lent: with little to do, one connection serves.

A sender whose call was cut short is in no known state. It is never used again; `SenderCloser`
closes it behind the scenes, within a bound, whatever the peer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twinbus.pairing.core.classify import FailureMeaning, meaning_of
from twinbus.pairing.sdk.sdk_cleanup import CLOSE_LIMIT_S, SdkCleanup, end_task
from twinbus.pairing.sdk.watchdog import Watch, Watchdog

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusSender

__all__ = ["PooledSender", "SenderCloser", "SenderPool", "attempt", "was_carried_out"]

log = logging.getLogger("twinbus.pairing")

T = TypeVar("T")

SENDERS_MAX: Final = 8
"""Connections of one pool. One fills a core's worth of SDK work; more hide the way to Azure."""

OPENINGS_MAX: Final = 2
"""Of those, how many open at the same time. Opening takes the SDK half a second, a send a few
milliseconds: whoever waits is mostly served by a sender that is open, and a crowd that comes at
once, as at a failover, does not open eight."""

STILL_WAITING_S: Final = 0.05
"""Longer than a send to a service nearby takes."""

IDLE_MAX_S: Final = 100.0
"""Azure ends a connection that says nothing for 240 s, and nobody speaks on an idle one. One idle
for this long is opened anew instead of being found dead by a message."""

CARRIED_OUT: Final = "cancelled during a call of the SDK that succeeded all the same"
"""Of a cancellation. A subclass would say it better, but `asyncio.timeout` knows none."""

WAIT_FOR_FRAME: Final = True
"""How the SDK's connection is told to wait until there is a frame, however long that takes."""

HARMLESS: Final = frozenset({FailureMeaning.BUSY, FailureMeaning.QUOTA, FailureMeaning.MESSAGE})
"""A sender that was told this can be used again: it answered, and its link stands."""


class PooledSender(Watch):
    """One SDK sender, what is known of it, and the watch of the one attempt that it serves."""

    __slots__ = (
        "batch_limit_bytes", "epoch", "idle_since", "is_open", "limit_bytes", "opening", "reader",
        "remains", "sdk",
    )  # fmt: skip

    def __init__(self, sdk: ServiceBusSender, epoch: int) -> None:
        super().__init__()
        self.sdk = sdk
        self.epoch = epoch
        self.is_open = False
        self.idle_since = 0.0
        self.opening: asyncio.Task[int | None] | None = None
        self.remains = SdkCleanup(sdk)
        self.reader: Any = None
        """What the SDK reads the connection from, once it is open."""
        self.limit_bytes: int | None = None
        """The largest message that the link takes, once it is open and if it says so."""
        self.batch_limit_bytes: int | None = None

    async def open(self, timeout_s: float) -> None:
        """Connect and attach, or raise TimeoutError in time.

        In a task of its own: cancelled in the middle of opening, the SDK first says goodbye to a
        peer that may not listen, and a caller must not wait for that.
        """
        self.opening = asyncio.create_task(self._attach())
        self.opening.add_done_callback(_note_end)
        await self.finish_opening(timeout_s)

    async def finish_opening(self, timeout_s: float) -> None:
        """Go on with what `open` began; TimeoutError in time."""
        assert self.opening is not None
        done, _ = await asyncio.wait({self.opening}, timeout=timeout_s)
        if not done or self.opening.cancelled():
            raise TimeoutError
        opening, self.opening = self.opening, None
        # Now, because a sender that meets an error forgets its connection before it raises.
        self.remains.look()
        self.reader = self.remains.reader()
        self.batch_limit_bytes = opening.result()
        # The SDK has a public word for the size of a batch only; a message may have more.
        own = getattr(self.sdk, "_max_message_size_on_link", None)
        self.limit_bytes = own if isinstance(own, int) and own > 0 else self.batch_limit_bytes
        self.is_open = True
        self._stop_polling()

    def _stop_polling(self) -> None:
        """Have the SDK wait for the next frame itself, and not in a task that it ends after 0.2 s.

        Those tasks are a tenth of what a send costs, and can swallow a cancellation. The bound in
        time is the watchdog's. The attribute is private: where it is missing, the polls go on.
        """
        handler: Any = getattr(self.sdk, "_handler", None)
        if isinstance(getattr(handler, "_socket_timeout", None), float):
            handler._socket_timeout = WAIT_FOR_FRAME

    def is_cut_off(self) -> bool:
        """Whether the peer has ended the connection while nobody used it.

        A message sent on it would be lost, and what it says of the entity or the backlog queue was
        true when the connection ended, not now.
        """
        reader = self.reader
        # `at_eof` would not do: it is false while there are words of goodbye left to read.
        return reader is not None and (reader._eof or reader._exception is not None)

    async def _attach(self) -> int | None:
        # The one call of the SDK that opens the link and sends nothing.
        batch = await self.sdk.create_message_batch()
        return getattr(batch, "max_size_in_bytes", None)


class SenderPool:
    """The senders of one entity: `take` one, use it, then `give_back` or `discard` it."""

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
        """The largest message that the entity takes, as the last link said."""
        self.batch_limit_bytes: int | None = None
        self.on_slow: Callable[[], None] | None = None
        """Called when a call takes long, again and again until it ends."""
        self.on_open: Callable[[int | None, int | None], None] | None = None
        """Told both limits whenever a link was opened."""
        self._idle: list[PooledSender] = []
        self._leased: set[PooledSender] = set()
        self._behind: set[PooledSender] = set()
        """Of those: what still opens although its caller has given up."""
        # A list and no event yet: of ten thousand senders few are ever waited for.
        self._waiters: list[asyncio.Future[None]] = []
        self._epoch = 0
        self._loop = asyncio.get_running_loop()
        self._drained: asyncio.Event | None = None
        self.closed = False

    def take_ready(self, now: float) -> PooledSender | None:
        """The open sender that was given back last; None: `take` one, which may have to be opened.

        This is on the way of every healthy send.
        """
        if not self._idle:
            return None
        conduit = self._idle[-1]
        reader = conduit.reader
        if now - conduit.idle_since >= IDLE_MAX_S or not conduit.is_open:
            return None
        if reader is not None and (reader._eof or reader._exception is not None):
            return None
        self._idle.pop()
        self._leased.add(conduit)
        return conduit

    def take(self) -> PooledSender | None:
        """A sender for one call; None: all are in use."""
        assert not self.closed
        while self._idle:
            conduit = self._idle.pop()
            if self._loop.time() - conduit.idle_since < IDLE_MAX_S and not conduit.is_cut_off():
                self._leased.add(conduit)
                return conduit
            self._closer.bury(conduit)
        if len(self._leased) >= self._limit or self._openings() >= OPENINGS_MAX:
            return None
        conduit = PooledSender(self._make(), self._epoch)
        conduit.on_look = self.on_slow
        self._leased.add(conduit)
        return conduit

    async def open(self, conduit: PooledSender, timeout_s: float) -> None:
        """Open a sender and note what its link says; TimeoutError in time."""
        await conduit.open(timeout_s)
        self._opened(conduit)

    def is_cut_short(self, conduit: PooledSender, timeout_s: float) -> bool:
        """Whether a sender was still opening when its caller's time, less than usual, was over."""
        return conduit.opening is not None and timeout_s < self._closer.opening_limit_s

    def open_behind(self, conduit: PooledSender, timeout_s: float) -> None:
        """Let a sender go on opening for those who come next.

        Else callers that wait for less than opening takes would each begin it and none end it.
        """
        self._behind.add(conduit)
        self._closer.run(self._open_behind(conduit, self._closer.opening_limit_s - timeout_s))

    async def _open_behind(self, conduit: PooledSender, timeout_s: float) -> None:
        try:
            await conduit.finish_opening(timeout_s)
        except Exception as error:  # noqa: BLE001  # a message that needs it will find out
            log.debug("a sender did not open: %r", error)
        if conduit not in self._behind:
            return  # The pool was closed meanwhile, and has buried it.
        self._behind.discard(conduit)
        if conduit.is_open:
            self._opened(conduit)
            self.give_back(conduit)
        else:
            self.discard(conduit)

    def _opened(self, conduit: PooledSender) -> None:
        if self._waiters:
            # Who still waits a moment later is not served by what is open: one more may open.
            self._loop.call_later(STILL_WAITING_S, self.pass_on)
        self.limit_bytes = conduit.limit_bytes or self.limit_bytes
        self.batch_limit_bytes = conduit.batch_limit_bytes or self.batch_limit_bytes
        if self.on_open is not None:
            self.on_open(self.limit_bytes, self.batch_limit_bytes)

    def now(self) -> float:
        """The time of the loop."""
        return self._loop.time()

    async def wait(self, until: float | None) -> None:
        """Return when it is worth to `take` again, or to look at the world again."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            timeout_s = None if until is None else max(0.0, until - self._loop.time())
            await asyncio.wait({waiter}, timeout=timeout_s)
        except asyncio.CancelledError:
            if waiter.done():
                # It was this one's turn; the next one must not sleep beside a free sender.
                self.pass_on()
            raise
        finally:
            waiter.cancel()
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def give_back(self, conduit: PooledSender) -> None:
        """The call ended well, or in a way that leaves the sender usable."""
        self._leased.discard(conduit)
        if conduit.epoch == self._epoch and not self.closed:
            conduit.idle_since = self._loop.time()
            self._idle.append(conduit)
        else:
            self._closer.bury(conduit)
        if self._waiters or self.closed:
            self._released()

    def done(self, conduit: PooledSender, now: float) -> bool:
        """An attempt succeeded: give its sender back; whether somebody cancelled the task.

        The short way of `ended`, for every healthy send.
        """
        is_cancelled = self.watchdog.end(conduit)[1]
        if self._waiters or self.closed or conduit.epoch != self._epoch:
            self.give_back(conduit)
        else:
            self._leased.discard(conduit)
            conduit.idle_since = now
            self._idle.append(conduit)
        return is_cancelled

    def ended(
        self, conduit: PooledSender, error: BaseException | None, timeout_s: float = math.inf
    ) -> BaseException | None:
        """An attempt is over: give the sender back or discard it; what is to be raised, or None.

        Whoever cancelled the task meanwhile is heard, also where the SDK has swallowed it.
        """
        timed_out, is_cancelled = self.watchdog.end(conduit)
        if error is None:
            self.give_back(conduit)
            return asyncio.CancelledError(CARRIED_OUT) if is_cancelled else None
        meaning = meaning_of(error)
        is_cut_short = self.is_cut_short(conduit, timeout_s)
        if meaning is FailureMeaning.UNREACHABLE and not is_cut_short:
            self.renew()
        if meaning in HARMLESS and conduit.is_open:
            self.give_back(conduit)
        elif is_cut_short and not self.closed:
            self.open_behind(conduit, timeout_s)
        else:
            self.discard(conduit)
        if isinstance(error, asyncio.CancelledError):
            return TimeoutError() if timed_out and not is_cancelled else error
        if is_cancelled and isinstance(error, Exception):
            return asyncio.CancelledError()
        return error

    def discard(self, conduit: PooledSender) -> None:
        """The call ended in a way that leaves the sender in no known state."""
        self._leased.discard(conduit)
        self._closer.bury(conduit)
        self._released()

    def renew(self) -> None:
        """Use none of the present senders again: what broke one has broken all."""
        self._epoch += 1
        for conduit in self._idle:
            self._closer.bury(conduit)
        self._idle.clear()

    def rouse(self) -> None:
        """Have everyone who waits look at the world again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self, limit_s: float) -> None:
        """Close what is idle; wait for what is in use, and past the limit close it all the same."""
        self.closed = True
        self.renew()
        self.rouse()
        for conduit in self._behind:
            self._leased.discard(conduit)
            self._closer.bury(conduit)
        self._behind.clear()
        if self._leased:
            self._drained = self._drained or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._drained.wait()
        for conduit in list(self._leased):
            self._closer.bury(conduit)
        self._leased.clear()

    def _released(self) -> None:
        if self._drained is not None and not self._leased:
            self._drained.set()
        self.pass_on()

    def _openings(self) -> int:
        return sum(not conduit.is_open for conduit in self._leased)

    def pass_on(self) -> None:
        """Wake one who waits: a sender came free, or whoever was woken has no use for it."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return


async def attempt(
    pool: SenderPool,
    conduit: PooledSender,
    operation: Callable[[Any], Awaitable[T]],
    timeout_s: float,
) -> T:
    """One SDK call on a leased sender, which is given back or discarded; TimeoutError in time.

    Whoever cancels the task meanwhile is heard, also where the SDK has swallowed it.
    """
    pool.watchdog.begin(conduit, pool.now(), timeout_s)
    try:
        if not conduit.is_open:
            await pool.open(conduit, timeout_s)
        result = await operation(conduit.sdk)
    except BaseException as caught:
        error = pool.ended(conduit, caught, timeout_s)
        if error is None or error is caught:
            raise
        raise error from caught
    error = pool.ended(conduit, None)
    if error is not None:
        raise error
    return result


def was_carried_out(cancelled: asyncio.CancelledError) -> bool:
    """Whether the attempt that a cancellation came out of had succeeded."""
    return cancelled.args == (CARRIED_OUT,)


class SenderCloser:
    """What the pools of a client share: it closes senders behind the scenes, and has the watchdog.

    `wait` for all of it at the end.
    """

    def __init__(self, opening_limit_s: float = 0.0) -> None:
        """`opening_limit_s` is how long a sender may take to open, whoever asked for it."""
        self.opening_limit_s = opening_limit_s
        self._tasks: set[asyncio.Task[None]] = set()
        self.watchdog = Watchdog()

    def bury(self, conduit: PooledSender) -> None:
        """Close a sender that nobody uses any more; returns at once."""
        self.run(_close(conduit))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something behind the scenes that ends by itself; returns at once."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Return when everything buried so far is closed; each takes a few seconds at most."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self.watchdog.close()
        # A socket that was cut is closed in the loop's next turn.
        await asyncio.sleep(0)


async def _close(conduit: PooledSender) -> None:
    remains = conduit.remains
    remains.look()
    if conduit.opening is not None:
        # Before each cancellation: one that is missed may go on to open a connection.
        await end_task(conduit.opening, remains.look)
        remains.look()
    await remains.stop_keep_alive()
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await conduit.sdk.close()
    except Exception as error:  # noqa: BLE001  # whatever it says, the socket is cut next
        log.debug("a sender could not say goodbye: %r", error)
    finally:
        remains.cut()


def _note_end(task: asyncio.Task[Any]) -> None:
    """Take an error that nobody waits for any more, so that asyncio does not complain of it."""
    if not task.cancelled():
        task.exception()
