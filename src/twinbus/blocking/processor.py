"""A processor for code without asyncio: its handlers are plain functions and run on threads.

    def handle(message):
        ...                                     # return: complete; an exception: abandon

    with pair.process("orders", handle, concurrency=8) as processor:
        processor.run_until_stopped()

Receiving, renewing and settling happen on the thread of the pair, so a handler that blocks for
minutes keeps its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from azure.servicebus import ServiceBusReceivedMessage

from twinbus.blocking.loop_thread import LoopThread
from twinbus.errors import error_text
from twinbus.pairing.core.processing import ProcessOptions, ProcessSettings
from twinbus.pairing.lifecycle.closing import BlockingOnly
from twinbus.pairing.receiving.handling import with_receiver
from twinbus.pairing.receiving.processor import Processor as CoreProcessor
from twinbus.pairing.receiving.sources import OwnedClient, namespace_of, receivers_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.receiving.processor import ProcessorOwner

Handler = (
    Callable[[ServiceBusReceivedMessage], object]
    | Callable[[ServiceBusReceivedMessage, Any], object]
)
"""Takes a message; one with a second parameter gets the receiver too, to settle or defer by itself
and to read the state of the session."""

THREAD_NAME: Final = "twinbus-handler"


def process(
    namespace: str | Namespace,
    entity_name: str,
    handler: Handler,
    *,
    subscription: str | None = None,
    **options: Unpack[ProcessOptions],
) -> Processor:
    """Run `handler` for each message of a queue, or of a topic's subscription, without a pair.

    `namespace` is a connection string, sb://HOST?credential=SOURCE or a Namespace.
    """
    client = OwnedClient(namespace_of(namespace))
    loop_thread = LoopThread("twinbus-process")
    names = entity_name, subscription
    return processor_of(
        client, names, handler, options, loop_thread, on_stopped=client.close, owns_thread=True
    )


def processor_of(
    source: Any,
    names: tuple[str, str | None],
    handler: Handler,
    options: ProcessOptions,
    loop_thread: LoopThread,
    *,
    on_stopped: Callable[[], Awaitable[None]] | None = None,
    owner: ProcessorOwner | None = None,
    owns_thread: bool = False,
    **receiver_options: Any,
) -> Processor:
    """Return a processor on this thread; `source` has the methods of the asyncio client."""
    called = getattr(type(handler), "__call__", None)  # noqa: B004
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)
    if is_async or not callable(handler):
        raise TypeError(
            f"handler must be a plain function of a message; got {handler!r:.80}; for an async"
            " function use twinbus itself instead of twinbus.blocking"
        )
    threads = HandlerThreads(ProcessSettings.of(options).handlers_max)
    run = with_receiver(handler)

    async def on_thread(message: ServiceBusReceivedMessage, receiver: Any) -> None:
        await threads.run(partial(run, message, OnLoop(receiver, loop_thread)))

    name, get_receiver = receivers_of(source, *names, **receiver_options)

    async def stopped() -> None:
        threads.end()
        if on_stopped is not None:
            await on_stopped()

    core = CoreProcessor(
        get_receiver, on_thread, name=name, on_stopped=stopped, owner=owner, **options
    )
    return Processor(core, loop_thread, threads, owns_thread=owns_thread)


class Processor(BlockingOnly):
    """Runs a handler for every message of a queue or subscription, until it is stopped."""

    def __init__(
        self,
        core: CoreProcessor,
        loop_thread: LoopThread,
        threads: HandlerThreads,
        *,
        owns_thread: bool,
    ) -> None:
        self._core = core
        self._loop_thread = loop_thread
        self._threads = threads
        self._owns_thread = owns_thread
        self._is_started = False

    def __repr__(self) -> str:
        return repr(self._core)

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def run_until_stopped(self) -> None:
        """Return when a stop was requested and everything has ended; starts it if necessary.

        Interrupted (Ctrl-C), it stops the processor as `stop` does and raises. It raises
        PairClosedError or PairFaultedError if the pair ended meanwhile.
        """
        if not self._is_started:
            self._start()
        try:
            failure = self._loop_thread.run(self._core.stop_requested)
        finally:
            self.stop()
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Receive no more, wait for running handlers, settle, and close; idempotent.

        The messages of handlers that run after `stop_timeout` are abandoned; a thread cannot be
        interrupted, so such a handler runs on. Interrupted (Ctrl-C), the wait is over at once.
        Called by a handler, it returns immediately.
        """
        if self._threads.is_current:
            self.stop_soon()
            return
        self._loop_thread.finish(self._core.stop)
        self._threads.end()
        if self._owns_thread:
            self._loop_thread.stop()

    def stop_soon(self) -> None:
        """Begin to stop and return immediately, for signal handlers and for handlers."""
        with contextlib.suppress(RuntimeError):
            self._loop_thread.loop.call_soon_threadsafe(self._core.stop_soon)

    def _start(self) -> None:
        self._loop_thread.run(self._core.__aenter__)
        self._is_started = True


class OnLoop:
    """An object of asyncio, as a handler on a thread calls it: methods return their results."""

    def __init__(self, wrapped: Any, loop_thread: LoopThread) -> None:
        self._wrapped = wrapped
        self._loop_thread = loop_thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if inspect.iscoroutinefunction(found):
            return lambda *args, **options: self._loop_thread.run(lambda: found(*args, **options))
        if name == "session" and found is not None:
            return OnLoop(found, self._loop_thread)
        return found


class HandlerThreads:
    """Runs handlers on daemon threads, which do not keep a program from ending."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._items: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        """Handlers that were given to the threads and have not ended."""

    @property
    def is_current(self) -> bool:
        """Whether the caller is one of these threads."""
        return threading.current_thread() in self._threads

    async def run(self, work: Callable[[], object]) -> None:
        """Return when a thread has run the work, or raise its error."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        context = contextvars.copy_context()

        def on_thread() -> None:
            error: Exception | None = None
            try:
                context.run(work)
            except Exception as raised:  # noqa: BLE001  # it belongs to the one who waits
                error = raised
            except BaseException as raised:  # noqa: BLE001  # it must not end the loop
                error = RuntimeError(f"the handler raised {error_text(raised)}")
            if isinstance(error, StopIteration):
                # A future refuses it.
                error = RuntimeError("the handler raised StopIteration")
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._ended, ended, error)

        self._waiting += 1
        if self._waiting > len(self._threads) < self._count:
            thread = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._items.put(on_thread)
        await ended

    def end(self) -> None:
        """Let each thread end when its handler has returned; idempotent."""
        for _ in self._threads:
            self._items.put(None)

    def _ended(self, future: asyncio.Future[None], error: Exception | None) -> None:
        self._waiting -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _serve(self) -> None:
        while (item := self._items.get()) is not None:
            item()
