"""One event loop on a thread of its own, on which other threads run work.

    loop_thread = LoopThread("twinbus-pair")
    result = loop_thread.run(work)      # any thread; `work` is a coroutine function
    answer = loop_thread.ask(begin)     # `begin` is a function of the promise that gets the answer
    loop_thread.stop()

If a caller is interrupted (Ctrl-C), its work is cancelled on the loop, and the caller waits for its
end, so no work goes on unseen.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from twinbus.blocking.promise import Promise
from twinbus.errors import PairClosedError, PairingError

log = logging.getLogger("twinbus.pair")

T = TypeVar("T")

GIVE_UP_S: Final = 15.0
"""How long an interrupted caller waits for its work to end. A send ends at once; a close runs to
its end, within the bounds of its parts."""

STOP_S: Final = 10.0
"""How long the thread may take to end when all work is done. It is a daemon and does not delay the
end of the process."""


class LoopThread:
    """An event loop thread that starts with the first call and ends with `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid: int | None = None
        """The process of the thread; None: it was not started."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._stopped = False
        self._items: set[_Item[Any]] = set()

    @property
    def is_forked(self) -> bool:
        """Whether the thread belongs to the process that this one was forked from."""
        return self._pid is not None and os.getpid() != self._pid

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the loop with the caller's context variables; return its result."""
        return self._answer_of(_Work(work))

    def ask(self, work: Callable[[Promise[T]], None]) -> T:
        """Call `work` on the loop; return what the promise gets that it was given.

        It takes a third of the time of `run`, because the loop needs no task for it.
        """
        return self._answer_of(_Question(work))

    def _answer_of(self, item: _Item[T]) -> T:
        loop = self.loop
        self._items.add(item)
        try:
            try:
                loop.call_soon_threadsafe(item.begin)
            except RuntimeError:
                raise _closed() from None
            return item.result.result()
        except BaseException:
            if not item.result.done():
                item.is_given_up = True
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(item.cancel)
                item.result.wait(GIVE_UP_S)
            raise
        finally:
            self._items.discard(item)

    def call(self, function: Callable[[], T]) -> T:
        async def on_loop() -> T:
            return function()

        return self.run(on_loop)

    def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work that closes something; do nothing if the thread has ended already."""
        if self._stopped or self.is_forked:
            return
        try:
            self.run(work)
        except PairClosedError:
            # Another thread has closed everything meanwhile.
            if not self._stopped:
                raise

    def stop(self) -> None:
        """End the thread and all work on the loop; idempotent."""
        if self.is_forked:
            return
        with self._lock:
            self._stopped = True
            thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stopping.set)
        thread.join(STOP_S)
        if thread.is_alive():
            log.warning("%s: its thread did not end within %g s", self._name, STOP_S)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; starts the thread if it was not started."""
        if self.is_forked:
            raise PairingError(
                "the pair was started before this process was forked, and its thread is in the"
                " parent; start a pair in each process, after the fork"
            )
        if self._loop is None or self._stopped:
            self._start()
        assert self._thread is not None
        if self._loop is None:
            raise _closed()
        if threading.get_ident() == self._thread.ident:
            raise PairingError(
                "a blocking call on the pair's own thread, from a classifier or a callback, would"
                " deadlock; make it on another thread"
            )
        return self._loop

    def _start(self) -> None:
        with self._lock:
            if self._stopped:
                raise _closed()
            if self._thread is not None:
                return
            self._pid = os.getpid()
            started: Future[None] = Future()
            # A daemon: a program that does not close its pair can end.
            self._thread = threading.Thread(
                target=self._serve, args=(started,), name=self._name, daemon=True
            )
            self._thread.start()
            started.result()

    def _serve(self, started: Future[None]) -> None:
        try:
            asyncio.run(self._until_stopped(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            # The loop is closed, so no work can be added; these callers would wait for ever.
            for item in list(self._items):
                item.abandon()

    async def _until_stopped(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(_DaemonThreads())
        started.set_result(None)
        await self._stopping.wait()


class _DaemonThreads(ThreadPoolExecutor):
    """Runs each blocking call (a DNS lookup, a credential) on a daemon thread of its own.

    Python waits at its end for the threads of an ordinary pool. A lookup that hangs would keep the
    process of a pair that was not closed from ending, and the close of another from returning.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # it belongs to the one who waits
                future.set_exception(error)

        threading.Thread(target=run, name="twinbus-lookup", daemon=True).start()
        return future


class _Item(ABC, Generic[T]):
    """One call of another thread; the loop gives its result."""

    def __init__(self) -> None:
        self.result: Promise[T] = Promise()
        self.is_given_up = False
        """Its caller was interrupted: it must not start any more."""

    def begin(self) -> None:
        """On the loop: start it."""
        if self.is_given_up:
            self.abandon()
        else:
            self._start()

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def cancel(self) -> None:
        """On the loop: cancel it, because its caller was interrupted."""

    def abandon(self) -> None:
        """End it with the error of a closed pair, if it has not ended."""
        if not self.result.done():
            self.result.set_exception(_closed())


class _Question(_Item[T]):
    """Work that gives its answer to a promise."""

    def __init__(self, work: Callable[[Promise[T]], None]) -> None:
        super().__init__()
        self._work = work

    def _start(self) -> None:
        try:
            self._work(self.result)
        except Exception as error:  # noqa: BLE001  # it belongs to the one who waits
            self.result.set_exception(error)

    def cancel(self) -> None:
        self.result.cancel()


class _Work(_Item[T]):
    """Work that is a task on the loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        super().__init__()
        self._work = work
        # The caller's trace must continue in the core.
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(), context=self._context)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.abandon()
            return
        error = task.exception()
        if error is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


def _closed() -> PairClosedError:
    return PairClosedError("the pair was closed; make a new one with pair_namespaces")
