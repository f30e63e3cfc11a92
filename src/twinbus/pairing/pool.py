"""SDK senders of one entity, kept open: each serves one call at a time, more open on demand.

The SDK's asyncio sender is not made for several tasks at once (two of them open two links and lose
one, and read each other's answers with up to 0.2 s of delay), so a call leases one for itself. The
last one given back is the next one lent: with little to do, one connection serves.

A sender whose call was cut short is in no known state. It is never used again; `Closer` closes it
behind the scenes, within a bound, whatever the peer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twinbus.pairing.classify import Meaning, meaning_of

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusSender

__all__ = ["Closer", "Conduit", "SenderPool", "attempt"]

log = logging.getLogger("twinbus.pairing")

T = TypeVar("T")

SENDERS_MAX: Final = 8
"""Connections of one pool. One fills a core's worth of SDK work; more hide the way to Azure."""

IDLE_MAX_S: Final = 240.0
"""Azure detaches a link that is idle for 10 minutes. One idle for this long is opened anew instead
of being found dead by a message."""

CLOSE_LIMIT_S: Final = 3.0
"""A goodbye takes milliseconds. A peer that hangs gets this long, then its socket is cut."""

CANCEL_AGAIN_S: Final = 0.05
"""Between two cancellations of a call of the SDK that has missed the first."""

HARMLESS: Final = frozenset({Meaning.BUSY, Meaning.QUOTA, Meaning.MESSAGE})
"""A sender that was told this can be used again: it answered, and its link stands."""


class Conduit:
    """One SDK sender, and what is known of it."""

    __slots__ = ("epoch", "idle_since", "is_open", "opening", "remains", "sdk")

    def __init__(self, sdk: ServiceBusSender, epoch: int) -> None:
        self.sdk = sdk
        self.epoch = epoch
        self.is_open = False
        self.idle_since = 0.0
        self.opening: asyncio.Task[object] | None = None
        self.remains = _Remains(sdk)

    async def open(self, timeout_s: float) -> None:
        """Connect and attach, or raise TimeoutError in time.

        In a task of its own: cancelled in the middle of opening, the SDK first says goodbye to a
        peer that may not listen, and a caller must not wait for that.
        """
        self.opening = asyncio.create_task(self._attach())
        self.opening.add_done_callback(_note_end)
        done, _ = await asyncio.wait({self.opening}, timeout=timeout_s)
        if not done:
            raise TimeoutError
        opening, self.opening = self.opening, None
        # Now, because a sender that meets an error forgets its connection before it raises.
        self.remains.look()
        opening.result()
        self.is_open = True

    async def _attach(self) -> None:
        # The one call of the SDK that opens the link and sends nothing.
        await self.sdk.create_message_batch()


class SenderPool:
    """The senders of one entity: `take` one, use it, then `give_back` or `discard` it."""

    def __init__(
        self, make: Callable[[], ServiceBusSender], closer: Closer, *, limit: int = SENDERS_MAX
    ) -> None:
        self._make = make
        self._closer = closer
        self._limit = limit
        self._idle: list[Conduit] = []
        self._leased: set[Conduit] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._epoch = 0
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self.closed = False

    def take(self) -> Conduit | None:
        """A sender for one call; None: all are in use."""
        assert not self.closed
        while self._idle:
            conduit = self._idle.pop()
            if self._loop.time() - conduit.idle_since < IDLE_MAX_S:
                self._leased.add(conduit)
                return conduit
            self._closer.bury(conduit)
        if len(self._leased) >= self._limit:
            return None
        conduit = Conduit(self._make(), self._epoch)
        self._leased.add(conduit)
        return conduit

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

    def give_back(self, conduit: Conduit) -> None:
        """The call ended well, or in a way that leaves the sender usable."""
        self._leased.discard(conduit)
        if conduit.epoch != self._epoch or self.closed:
            self._closer.bury(conduit)
        else:
            conduit.idle_since = self._loop.time()
            self._idle.append(conduit)
        self._released()

    def discard(self, conduit: Conduit) -> None:
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
        if self._leased:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._drained.wait()
        for conduit in list(self._leased):
            self._closer.bury(conduit)
        self._leased.clear()

    def _released(self) -> None:
        if self.closed and not self._leased:
            self._drained.set()
        self.pass_on()

    def pass_on(self) -> None:
        """Wake one who waits: a sender came free, or whoever was woken has no use for it."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return


async def attempt(
    pool: SenderPool,
    conduit: Conduit,
    operation: Callable[[Any], Awaitable[T]],
    timeout_s: float,
) -> T:
    """One SDK call on a leased sender, which is given back or discarded; TimeoutError in time."""
    kept = False
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    try:
        if not conduit.is_open:
            await conduit.open(timeout_s)
        with _Insistent(loop, deadline):
            result = await operation(conduit.sdk)
        kept = True
    except Exception as error:
        meaning = meaning_of(error)
        kept = meaning in HARMLESS and conduit.is_open
        if meaning is Meaning.UNREACHABLE:
            pool.renew()
        raise
    finally:
        if kept:
            pool.give_back(conduit)
        else:
            pool.discard(conduit)
    return result


class Closer:
    """Closes senders behind the scenes; `wait` for all of it at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def bury(self, conduit: Conduit) -> None:
        """Close a sender that nobody uses any more; returns at once."""
        task = asyncio.create_task(_close(conduit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Return when everything buried so far is closed; each takes a few seconds at most."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        # A socket that was cut is closed in the loop's next turn.
        await asyncio.sleep(0)


async def _close(conduit: Conduit) -> None:
    remains = conduit.remains
    remains.look()
    if conduit.opening is not None:
        # Before each cancellation: one that is missed may go on to open a connection.
        await _end(conduit.opening, remains.look)
        remains.look()
    await remains.stop_keep_alive()
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await conduit.sdk.close()
    except Exception as error:  # noqa: BLE001  # whatever it says, the socket is cut next
        log.debug("a sender could not say goodbye: %r", error)
    finally:
        remains.cut()


async def _end(task: asyncio.Task[object], before: Callable[[], None] | None = None) -> None:
    """Cancel a task of the SDK until it ends, for it may miss a cancellation."""
    for _ in range(round(CLOSE_LIMIT_S / CANCEL_AGAIN_S)):
        if before is not None:
            before()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        if done:
            return


def _note_end(task: asyncio.Task[object]) -> None:
    """Take an error that nobody waits for any more, so that asyncio does not complain of it."""
    if not task.cancelled():
        task.exception()


class _Remains:
    """What an SDK sender may leave behind: its keep-alive task and its sockets.

    The SDK cannot close without talking to the peer, and when opening is broken off it forgets the
    connection and leaves its socket open. So its private parts are looked at before and after;
    where a later version has others, nothing is found, and its own `close` must do.
    """

    def __init__(self, sdk: object) -> None:
        self._sdk = sdk
        self._handlers: list[object] = []
        self._transports: list[object] = []
        self._writers: list[object] = []

    def look(self) -> None:
        """Note what the sender holds now."""
        _note(self._handlers, getattr(self._sdk, "_handler", None))
        for handler in self._handlers:
            connection = getattr(handler, "_connection", None)
            _note(self._transports, getattr(connection, "_transport", None))
        for transport in self._transports:
            _note(self._writers, getattr(transport, "writer", None))

    async def stop_keep_alive(self) -> None:
        """End the task that wakes every second; `close` would wait for its next turn."""
        for handler in self._handlers:
            task = getattr(handler, "_keep_alive_thread", None)
            if isinstance(task, asyncio.Task):
                await _end(task)
                setattr(handler, "_keep_alive_thread", None)  # noqa: B010

    def cut(self) -> None:
        """Close the sockets without another word."""
        self.look()
        for writer in self._writers:
            transport = getattr(writer, "transport", None)
            if transport is not None:
                transport.abort()


def _note(known: list[object], found: object) -> None:
    if found is not None and all(found is not one for one in known):
        known.append(found)


class _Insistent:
    """`asyncio.timeout_at`, but it cancels again and again until the block ends.

    The SDK waits in `asyncio.wait_for` five times a second, which in Python 3.11 can swallow a
    cancellation that comes at the wrong moment.
    """

    __slots__ = ("_cancels", "_deadline", "_loop", "_task", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._loop = loop
        self._deadline = deadline
        self._cancels = 0

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = self._loop.call_at(self._deadline, self._cancel)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if not self._cancels:
            return
        # Those that are left are somebody else's, who wants the whole task to end.
        left = 0
        for _ in range(self._cancels):
            left = self._task.uncancel()
        if kind is asyncio.CancelledError and not left:
            raise TimeoutError from error

    def _cancel(self) -> None:
        self._cancels += 1
        self._task.cancel()
        self._timer = self._loop.call_later(CANCEL_AGAIN_S, self._cancel)
