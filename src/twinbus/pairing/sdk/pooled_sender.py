"""One sender of the SDK, as a pool keeps it: how it opens, what is known of its link, its end.

One timer bounds every attempt of a client in time. A timer for each attempt would cost a healthy
send as much as its line in the ledger. So all attempts in progress are in one set, and one timer is
armed for the earliest time at which one of them may have to end; a send that ends in time, as
nearly all do, never touches it.

The timer also repeats lost cancellations. The SDK waits in `asyncio.wait_for` five times a
second, which in Python 3.11 can swallow a cancellation that comes at the wrong moment: an attempt
that was cancelled and goes on is cancelled again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import ServiceBusConnectionError

from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.pairing.sdk.sdk_cleanup import (
    CANCEL_AGAIN_S,
    CLOSE_LIMIT_S,
    SdkCleanup,
    cancel_until_done,
)

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

log = logging.getLogger("twinbus.pairing")

CHECK_INTERVAL_S: Final = 0.25
"""How long a swallowed cancellation may go unnoticed. Four checks a second cost nothing, and an
attempt that ends sooner is never checked."""

NAP_S: Final = 0.001
"""Pause between two frames of an opening. It lets other tasks run, should a frame not be waited
for."""

REOPEN_SPACING_S: Final = 0.25
"""Time between two reopenings of a pair. Each takes 20 ms of processor time: ten thousand idle
senders must not keep a processor busy. Links that get no turn are opened by the next call."""

WAIT_FOR_FRAME: Final = True
"""Value that makes the SDK's connection wait for the next frame, however long that takes."""


Resolve = Callable[[], Awaitable[None]]
"""Awaited before the SDK connects; returns when the address of its host is known."""


class PooledSender:
    """One SDK sender, what is known of it, and the one attempt that it serves."""

    __slots__ = (
        "batch_limit_bytes", "cancelling_before", "cleanup", "deadline", "epoch", "idle_since",
        "is_finishing", "is_open", "is_wanted", "limit_bytes", "on_check", "opened_ahead_at",
        "opening", "opening_since", "opening_until", "own_cancels", "reader", "resolve", "sdk",
        "task",
    )  # fmt: skip

    def __init__(self, sdk: ServiceBusSender, epoch: int, resolve: Resolve) -> None:
        self.on_check: Callable[[], None] | None = None
        """Called at each check that finds an attempt in progress; a quick one rarely is."""
        self.task: asyncio.Task[object] | None = None
        """The task of the attempt in progress."""
        self.deadline = 0.0
        self.cancelling_before = self.own_cancels = 0
        self.sdk = sdk
        self.resolve = resolve
        self.epoch = epoch
        self.is_open = False
        self.idle_since = 0.0
        self.opening: asyncio.Task[int | None] | None = None
        self.opening_since = self.opening_until = 0.0
        """An opening that has not ended by then has failed, whatever its callers' timeouts."""
        self.opened_ahead_at: float | None = None
        """Equal to `idle_since` while no call has used a link that was opened ahead."""
        self.is_wanted = False
        """Whether a call has waited for the link to open."""
        self.is_finishing = False
        """Whether the pool waits for the opening in the background."""
        self.cleanup = SdkCleanup(sdk, _open_quickly)
        self.reader: Any = None
        """The stream that the SDK reads the connection from, once it is open."""
        self.limit_bytes: int | None = None
        """The largest message that the link takes, once it is open and if it reports it."""
        self.batch_limit_bytes: int | None = None

    def begin_opening(self, now: float, limit_s: float) -> None:
        """Begin to connect and attach.

        In a task of its own: cancelled while it opens, the SDK first closes what it has opened,
        with a peer that may hang, and a caller must not wait for that.
        """
        self.opening_since, self.opening_until = now, now + limit_s
        self.opening = asyncio.create_task(self._attach())
        self.opening.add_done_callback(_retrieve_error)

    async def finish_opening(self, timeout_s: float) -> None:
        """Wait until the link is open; TimeoutError after `timeout_s`."""
        assert self.opening is not None
        await asyncio.wait({self.opening}, timeout=timeout_s)
        self.end_opening()

    def end_opening(self) -> None:
        """Take the result of the opening, or raise its error; TimeoutError if it has not ended."""
        assert self.opening is not None
        if not self.opening.done() or self.opening.cancelled():
            raise TimeoutError
        opening, self.opening = self.opening, None
        # Now, because a sender that meets an error forgets its connection before it raises.
        self.cleanup.collect()
        self.reader = self.cleanup.reader()
        self.batch_limit_bytes = opening.result()
        self.limit_bytes = message_limit_bytes(self.sdk) or self.batch_limit_bytes
        self.is_open = True
        self._stop_polling()

    def _stop_polling(self) -> None:
        """Have the SDK wait for the next frame directly, not in a task that it ends after 0.2 s.

        Those tasks are a tenth of the cost of a send, and can swallow a cancellation. The timer
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
        try:
            await self.resolve()
        except OSError as error:
            # As the SDK itself says it.
            raise ServiceBusConnectionError(message=str(error)) from error
        # The one call of the SDK that opens the link and sends nothing.
        batch = await self.sdk.create_message_batch()
        return getattr(batch, "max_size_in_bytes", None)


def message_limit_bytes(sdk: Any) -> int | None:
    """Return the largest message that the open link of a sender takes; None: it is not known.

    The SDK's public API has the limit of a batch only; a message may be larger.
    """
    limit = getattr(sdk, "_max_message_size_on_link", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve an error that no caller awaits; asyncio would log it otherwise."""
    if not task.cancelled():
        task.exception()


def _open_quickly(handler: Any) -> None:
    """Have a handler of the SDK open its link without naps.

    While a link opens, the SDK reads one frame and then sleeps for 50 ms, nine times: 0.45 s of the
    half second that opening takes with a peer nearby. `client_ready_async` waits for a frame
    itself, so it is called again until the link is ready, and the SDK's own loop finds it ready at
    the first call. The method is private: where it is missing, the SDK opens in its own way.
    """
    ready: Callable[[], Awaitable[bool]] | None = getattr(handler, "client_ready_async", None)
    if ready is None:
        return

    async def until_ready() -> bool:
        task = asyncio.current_task()
        if task is not None and getattr(task.get_coro(), "cr_code", None) is until_ready.__code__:
            # On Python 3.11 the SDK waits in a task of its own. It may miss a cancellation, and
            # fail when the handler is closed and no caller waits any more.
            task.add_done_callback(_retrieve_error)
        is_ready = await ready()
        while not is_ready:
            await asyncio.sleep(NAP_S)
            is_ready = await ready()
        # Every send asks again; from now on the SDK's own method answers.
        vars(handler).pop("client_ready_async", None)
        return True

    handler.client_ready_async = until_ready


class AttemptTimer:
    """All attempts of one client that are in progress."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.attempts: dict[PooledSender, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self, attempt: PooledSender, now: float, timeout_s: float) -> None:
        """Time an attempt of the current task that begins now; `end` it whatever happens."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        attempt.task = task
        attempt.deadline = deadline = now + timeout_s
        # A task that was cancelled and goes on, to clean up, may send while it does.
        attempt.cancelling_before = task.cancelling()
        attempt.own_cancels = 0
        self.attempts[attempt] = None
        if self._timer is None or deadline < self._due:
            self._arm(min(deadline, now + CHECK_INTERVAL_S))

    def end(self, attempt: PooledSender) -> tuple[bool, bool]:
        """Whether the time was over, and whether other code has cancelled the task."""
        self.attempts.pop(attempt, None)
        task, own_cancels = attempt.task, attempt.own_cancels
        assert task is not None
        attempt.task = None
        if not own_cancels:
            return False, task.cancelling() > attempt.cancelling_before
        for _ in range(own_cancels):
            task.uncancel()
        return True, task.cancelling() > attempt.cancelling_before

    def close(self) -> None:
        """Leave no timer behind, unless an attempt that could not be ended still goes on."""
        if self._timer is not None and not self.attempts:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self.attempts:
            return
        now = self._loop.time()
        due = now + CHECK_INTERVAL_S
        for attempt in self.attempts:
            task = attempt.task
            assert task is not None
            is_cancelled = task.cancelling() - attempt.own_cancels > attempt.cancelling_before
            if now >= attempt.deadline or is_cancelled:
                attempt.own_cancels += 1
                task.cancel()
                due = min(due, now + CANCEL_AGAIN_S)
                continue
            due = min(due, attempt.deadline)
            if attempt.on_check is not None:
                attempt.on_check()
        self._arm(due)


class Peeker:
    """A receiver of the SDK that only peeks, in the shape in which a pool opens and closes it."""

    def __init__(self, sdk: ServiceBusClient, queue: str) -> None:
        self.receiver: ServiceBusReceiver = sdk.get_queue_receiver(queue, **KEEP_ALIVE_OFF)
        # When its link opens, the SDK requests one message more than it is to prefetch, and would
        # lock one that the syphon waits for. With -1 it requests none.
        self.receiver._prefetch_count = -1

    async def create_message_batch(self) -> None:
        """Open the link: the call with which a pool opens a sender."""
        await self.receiver.__aenter__()

    async def close(self) -> None:
        await self.receiver.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.receiver, name)


class SenderCloser:
    """What the pools of a client share: closing in the background, a timer, reopening turns."""

    def __init__(self, opening_limit_s: float = 0.0) -> None:
        """`opening_limit_s` bounds how long a sender may open, whatever its caller's timeout."""
        self.opening_limit_s = opening_limit_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._reopened_at = -math.inf
        self.attempt_timer = AttemptTimer()

    def may_reopen(self, now: float) -> bool:
        """Whether a link may be reopened now; if so, the next one must wait for its turn."""
        if now - self._reopened_at < REOPEN_SPACING_S:
            return False
        self._reopened_at = now
        return True

    def close_later(self, pooled: PooledSender) -> None:
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
        self.attempt_timer.close()
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
