"""One event loop on a thread of its own, and the way for other threads to have work done there.

    loop_thread = LoopThread("twinbus-pair")
    answer = loop_thread.run(work)      # any thread; `work` is a coroutine function
    loop_thread.stop()

A caller that is interrupted (Ctrl-C) has its work cancelled on the loop and waits for its end, so
that nothing goes on behind its back.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from twinbus.errors import PairClosedError, PairingError

__all__ = ["LoopThread"]

log = logging.getLogger("twinbus.pair")

T = TypeVar("T")

GIVE_UP_S: Final = 15.0
"""How long an interrupted caller waits for its work to end. A send ends at once; a close, which is
finished all the same, within the bounds of its parts."""

STOP_S: Final = 10.0
"""How long the thread may take to end when all work is done. What could hold it up is a name that
is still being looked up; it is a daemon and then ends by itself."""


class LoopThread:
    """Starts with the first call; ends with `stop`, or with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._stopped = False
        self._works: set[_Work[Any]] = set()

    @property
    def is_forked(self) -> bool:
        """Whether the thread belongs to the process that this one was forked from."""
        return os.getpid() != self._pid

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns or raises, done on the loop in the caller's context variables."""
        asked = _Work(work)
        loop = self._running_loop()
        self._works.add(asked)
        try:
            try:
                loop.call_soon_threadsafe(asked.begin)
            except RuntimeError:
                raise _closed() from None
            return asked.answer.result()
        except BaseException:
            if not asked.answer.done():
                self._give_up(loop, asked)
            raise
        finally:
            self._works.discard(asked)

    def call(self, function: Callable[[], T]) -> T:
        """What a plain function returns, called on the loop."""

        async def on_loop() -> T:
            return function()

        return self.run(on_loop)

    def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something closed; nothing is to be done where the thread is gone already."""
        if self._stopped or self.is_forked:
            return
        try:
            self.run(work)
        except PairClosedError:
            # Another thread closed everything meanwhile.
            if not self._stopped:
                raise

    def stop(self) -> None:
        """End the thread, and with it whatever still runs on the loop; idempotent."""
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

    def _give_up(self, loop: asyncio.AbstractEventLoop, asked: _Work[T]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(asked.cancel)
        with contextlib.suppress(Exception):
            asked.answer.exception(GIVE_UP_S)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self.is_forked:
            raise PairingError(
                "the pair was made before this process was forked, and its thread stayed behind;"
                " make a pair in each process, after the fork"
            )
        if self._loop is None or self._stopped:
            self._start()
        assert self._thread is not None
        if self._loop is None:
            raise _closed()
        if threading.get_ident() == self._thread.ident:
            raise PairingError(
                "a blocking call on the pair's own thread, from a classifier or a callback, would"
                " wait for itself; make it on another thread"
            )
        return self._loop

    def _start(self) -> None:
        with self._lock:
            if self._stopped:
                raise _closed()
            if self._thread is not None:
                return
            started: Future[None] = Future()
            # A daemon: a program that forgets to close its pair ends all the same.
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
            # The loop is closed, so that none can be added: these would wait for ever.
            for asked in list(self._works):
                asked.abandon()

    async def _until_stopped(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        started.set_result(None)
        await self._stopping.wait()


class _Work(Generic[T]):
    """One call of another thread, as a task on the loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.answer: Future[T] = Future()
        self._work = work
        # The trace that the caller is in must go on in the core.
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def begin(self) -> None:
        """On the loop: start it."""
        if self._cancelled:
            self.abandon()
            return
        self._task = asyncio.get_running_loop().create_task(self._work(), context=self._context)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """On the loop: its caller has been interrupted."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> None:
        """It will not be done, or nobody is left to do it."""
        if not self.answer.done():
            self.answer.set_exception(_closed())

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.abandon()
            return
        error = task.exception()
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


def _closed() -> PairClosedError:
    return PairClosedError("the pair was closed; make a new one with pair_namespaces")
