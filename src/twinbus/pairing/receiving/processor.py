"""A processor: receives the messages of one entity and runs a handler for each.

    async def handle(message):
        ...                                     # return: complete; an exception: abandon

    async with pair.process("orders", handle, concurrency=8) as processor:
        await processor.run_until_stopped()

It works over any receiver with the interface of the SDK's, which it gets from a function, so that
it can replace one. Without sessions one task receives and starts a task for each message; with
sessions each of several tasks accepts a session and handles its messages one after another.
`core.processing` decides, `MessageHandling` handles one message, `OpenReceivers` waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError, SessionLockLostError

from twinbus.errors import PairClosedError, PairFaultedError, PairNotStartedError
from twinbus.pairing.core.processing import (
    ProcessOptions,
    ProcessSettings,
    ReceiveSize,
    Reconnection,
)
from twinbus.pairing.lifecycle.closing import AsyncOnly
from twinbus.pairing.receiving.handling import (
    Handler,
    MessageHandling,
    Receiver,
    line_of,
    require_async,
)
from twinbus.pairing.receiving.open_receivers import OpenReceivers, StopRequested
from twinbus.pairing.sdk.sdk_cleanup import cancel_until_done
from twinbus.status.receiving import ProcessorStatus
from twinbus.wording import counted

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from twinbus.pairing.receiving.held_lock import HeldLock

log = logging.getLogger("twinbus.processor")

RECEIVE_LIMIT_S: Final = 60.0
"""A receive that has not returned by then hangs; its receiver is replaced."""

ACCEPT_WAIT_S: Final = 30.0
ACCEPT_LIMIT_S: Final = 300.0
"""The same for accepting a session; the SDK repeats it some times."""

ACCEPT_PACE_S: Final = 1.0
"""Shortest time between two attempts to accept a session when there is none."""

SETTLE_S: Final = 10.0
"""How long a stop waits for settlements after the last handler has ended or was cancelled."""

ENDED: Final = (PairClosedError, PairFaultedError, PairNotStartedError)
"""No later attempt can succeed after these."""


class ProcessorOwner(Protocol):
    """The pair that a processor belongs to."""

    def started(self, processor: Processor) -> None: ...

    def stopped(self, processor: Processor) -> None: ...


class Processor(AsyncOnly):
    """Runs a handler for every message of a queue or subscription, until it is stopped."""

    def __init__(
        self,
        get_receiver: Callable[..., Any],
        handler: Handler,
        *,
        name: str = "processor",
        on_stopped: Callable[[], Awaitable[None]] | None = None,
        owner: ProcessorOwner | None = None,
        **options: Unpack[ProcessOptions],
    ) -> None:
        """`get_receiver` returns a new receiver; with sessions it gets `session_id` and
        `max_wait_time`, as `ServiceBusClient.get_queue_receiver` does. `name` is for the log and
        the status. `owner` is told when it starts and when it has stopped.
        """
        require_async(handler)
        if not callable(get_receiver):
            raise TypeError(f"get_receiver must be a function; got {get_receiver!r:.80}")
        self._name = name
        self._receivers = OpenReceivers(name, get_receiver)
        self._settings = ProcessSettings.of(options)
        self._handling = MessageHandling(name, handler, self._settings)
        self._on_stopped = on_stopped
        self._owner = owner
        self._workers: set[asyncio.Task[None]] = set()
        self._running: dict[asyncio.Task[None], Receiver] = {}
        """One task for each message, with the receiver that delivered it."""
        self._closing: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._stop_requested.is_set() else "running"
        return f"Processor({self._name}, {state if self._workers else 'not started'})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def stop_timeout_s(self) -> float:
        return self._settings.stop_timeout_s

    def status(self) -> ProcessorStatus:
        """What it does now, and has done so far. From any thread."""
        handling = self._handling
        has_ended = self._stopping is not None and self._stopping.done()
        is_running = bool(self._workers) and not has_ended
        failure, is_closed = self._failure, isinstance(self._failure, PairClosedError)
        return ProcessorStatus(
            path=self._name,
            running=int(is_running),
            concurrency=self._settings.handlers_max if is_running else 0,
            handling=len(handling.in_handlers),
            handled=handling.handled,
            failed=handling.failed,
            dead_lettered=handling.dead_lettered,
            error="" if failure is None or is_closed else line_of(failure),
        )

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def run_until_stopped(self) -> None:
        """Return when a stop was requested and everything has ended; starts it if necessary.

        Cancelled (Ctrl-C), it stops the processor as `stop` does and raises. It raises
        PairClosedError or PairFaultedError if the pair ended meanwhile.
        """
        if not self._workers:
            self._start()
        try:
            failure = await self.stop_requested()
        finally:
            await self.stop()
        if failure is not None:
            raise failure

    async def stop_requested(self) -> Exception | None:
        """Return when a stop was requested; the error if the processor cannot go on."""
        await self._stop_requested.wait()
        return self._failure

    async def stop(self) -> None:
        """Receive no more, wait for running handlers, settle, and close; idempotent.

        Handlers that run after `stop_timeout` are cancelled and their messages abandoned. If this
        call is cancelled, the wait is over at once. Called by a handler, it returns immediately.
        """
        self.stop_soon()
        stopping = self._stopping
        if stopping is None or self.is_handler(asyncio.current_task()):
            return
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self._hurry.set()
            await asyncio.wait({stopping})
            raise

    def end_soon(self, error: Exception) -> None:
        """Begin to stop because its pair ends: `run_until_stopped` raises this error."""
        if not self._stop_requested.is_set():
            self._failure = error
        self.stop_soon()

    def hurry(self) -> None:
        """Cancel handlers that run when it stops, instead of waiting for them."""
        self._hurry.set()

    def is_handler(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs a handler of this processor."""
        return task in self._running

    def stop_soon(self) -> None:
        """Begin to stop and return immediately, for signal handlers and for handlers."""
        self._stop_requested.set()
        if self._stopping is None and self._workers:
            self._stopping = asyncio.create_task(self._stop(), name=f"stop {self._name}")

    def _start(self) -> None:
        if self._workers or self._stop_requested.is_set():
            raise ValueError(f"{self!r} cannot be started again; make a new one")
        sessions = self._settings.sessions
        work = [self._receive()] if sessions is None else [self._accept() for _ in range(sessions)]
        self._workers = {asyncio.create_task(one, name=f"process {self._name}") for one in work}
        for worker in self._workers:
            worker.add_done_callback(self._worker_ended)
        if self._owner is not None:
            self._owner.started(self)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        error = None if worker.cancelled() else worker.exception()
        if isinstance(error, Exception) and not self._stop_requested.is_set():
            self._failure = error
            log.error("%s: the processor has ended: %s", self._name, line_of(error))
            self.stop_soon()

    async def _receive(self) -> None:
        """Receive for a processor without sessions."""
        receiver: Receiver | None = None
        size, reconnection = ReceiveSize(self._settings.concurrency), Reconnection()
        while not self._stop_requested.is_set():
            wanted = size.wanted(len(self._running))
            if wanted == 0:
                self._slot_freed.clear()
                await self._slot_freed.wait()
                continue
            try:
                if receiver is None:
                    receiver = await self._receivers.open({}, RECEIVE_LIMIT_S)
                    reconnection.heard(self._now)
                waiting = receiver.receive_messages(wanted, max_wait_time=size.wait_s(wanted))
                messages = await self._receivers.call(waiting, RECEIVE_LIMIT_S)
            except StopRequested:
                return
            except Exception as error:  # noqa: BLE001  # it tries again for ever
                size.received(0, wanted)
                await self._pause(error, reconnection)
                if receiver is not None and reconnection.needs_fresh_receiver:
                    self._retire(receiver)
                    receiver = None
                continue
            self._recovered(reconnection)
            size.received(len(messages), wanted)
            for message in messages:
                self._begin(receiver, message)
            if messages:
                reconnection.heard(self._now)
            elif reconnection.is_silent(self._now) and isinstance(receiver, ServiceBusReceiver):
                # A paired receiver finds a silent link by itself, and remembers what it completed.
                self._retire(receiver)
                receiver = None

    async def _accept(self) -> None:
        """Accept one session after another."""
        reconnection = Reconnection()
        given = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": ACCEPT_WAIT_S}
        while not self._stop_requested.is_set():
            began = self._now
            receiver: Receiver | None = None
            try:
                receiver = await self._receivers.open(given, ACCEPT_LIMIT_S)
                self._recovered(reconnection)
                await self._serve_session(receiver)
            except StopRequested:
                return
            except OperationTimeoutError:
                # No session has messages.
                await self._wait(ACCEPT_PACE_S - (self._now - began))
            except SessionLockLostError as error:
                self._handling.report(error, f"a session was lost: {line_of(error)}")
            except Exception as error:  # noqa: BLE001  # it tries again for ever
                await self._pause(error, reconnection)
            finally:
                if receiver is not None:
                    await self._receivers.close(receiver)

    async def _serve_session(self, receiver: Receiver) -> None:
        """Handle the messages of one session in order, until it is idle."""
        lock = self._handling.lock_of_session(receiver)
        idle_s = self._settings.session_idle_s
        try:
            while not lock.is_lost:
                waiting = receiver.receive_messages(1, max_wait_time=idle_s)
                messages = await self._receivers.call(waiting, idle_s + RECEIVE_LIMIT_S)
                if not messages:
                    return
                lock.extend()
                # Always one, because the next one must wait for it.
                for message in messages:
                    await asyncio.wait({self._begin(receiver, message, lock)})
        finally:
            await lock.ended()

    def _begin(
        self,
        receiver: Receiver,
        message: ServiceBusReceivedMessage,
        session: HeldLock | None = None,
    ) -> asyncio.Task[None]:
        """Start the handler of a message, or give the message back if the processor stops."""
        if self._stop_requested.is_set():
            work = self._handling.give_back(receiver, message)
        else:
            work = self._handling.handle(receiver, message, session)
        task = asyncio.create_task(work, name=f"handle a message of {self._name}")
        self._running[task] = receiver
        task.add_done_callback(self._handled)
        return task

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _handled(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._slot_freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._handling.report(error, f"a message was not settled: {line_of(error)}")

    async def _pause(self, error: Exception, reconnection: Reconnection) -> None:
        """Report a failed receive and wait before the next attempt; raise what has no remedy."""
        if isinstance(error, ENDED):
            raise error
        if self._stop_requested.is_set():
            return
        wait_s = reconnection.failed(random.random())  # noqa: S311  # spreads reconnections
        text = f"cannot receive: {line_of(error)}; next attempt in {wait_s:.1f} s"
        self._handling.report(error, text)
        await self._wait(wait_s)

    def _recovered(self, reconnection: Reconnection) -> None:
        if reconnection.failures:
            log.warning("%s: receiving again", self._name)
            reconnection.succeeded()

    async def _wait(self, seconds: float) -> None:
        """Wait for this time, or until a stop is requested."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._stop_requested.wait()

    def _retire(self, receiver: Receiver) -> None:
        """Close a receiver when the messages that it delivered are settled."""

        async def close_later() -> None:
            while tasks := [task for task, used in self._running.items() if used is receiver]:
                await asyncio.wait(tasks)
            await self._receivers.close(receiver)

        closing = asyncio.create_task(close_later(), name=f"close a receiver of {self._name}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _stop(self) -> None:
        self._slot_freed.set()
        await self._receivers.stop_calls()
        await self._finish_handlers()
        await _ended(self._running)
        await _ended(self._workers)
        # What a worker gave back before it ended.
        await _ended(self._running)
        await _ended(self._closing)
        await self._receivers.close_all()
        if self._owner is not None:
            self._owner.stopped(self)
        if self._on_stopped is not None:
            await self._on_stopped()

    async def _finish_handlers(self) -> None:
        """Wait for running handlers, then cancel those that are left."""
        ends = self._now + self._settings.stop_timeout_s
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            while self._running and not hurried.done():
                left_s = ends - self._now
                if left_s <= 0:
                    break
                await asyncio.wait(
                    {*self._running, hurried}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            hurried.cancel()
        cancelled = tuple(self._handling.in_handlers)
        if cancelled:
            handlers = counted(len(cancelled), "handler")
            log.warning("%s: stopping cancels %s", self._name, handlers)
        for task in cancelled:
            task.cancel()


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Return when the tasks have ended; cancel those that take longer than settlements may."""
    if waiting := set(tasks):
        _, late = await asyncio.wait(waiting, timeout=SETTLE_S)
        await asyncio.gather(*(cancel_until_done(task) for task in late))
