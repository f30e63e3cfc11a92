"""Group commit: all changes of one tick of the loop go to disk as one batch.

    after_commit(fn) ... --end of tick--> take batch -> [writer thread: write] -> run the fns
                                             ^--- what came meanwhile is the next ---'

The writer is a thread of its own: waiting for the disk must not block the loop.
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from twinbus.broker.storage.store import flush
from twinbus.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.storage.store import Batch, Store


class GroupCommit:
    """Runs functions in order, each once the changes noted before it are durable."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self.on_failure = on_failure
        """Called when a batch could not be written and everything waiting was dropped. It restores
        from `store.recover()`; when it returns, commits continue, unless it has called `stop`."""
        self.commits = 0
        self.failures = 0
        """Batches that are on disk, and batches that could not be written."""
        self._store = store
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []
        self._in_flight: tuple[Batch, list[Callable[[], None]]] | None = None
        self._flush_is_due = False
        self._failure: Exception | None = None
        self._is_stopped = False
        self._is_closed = False
        self._promises: set[asyncio.Future[None]] = set()
        self._work: SimpleQueue[Batch | None] = SimpleQueue()
        self._outcome: Exception | None = None
        """The error of the writer's last batch; the loop reads it in `_land`."""
        self._writer = threading.Thread(target=self._write, name="twinbus-writer", daemon=True)
        self._writer.start()

    @property
    def pending_bytes(self) -> int:
        """Approximate bytes that were noted and are not durable yet."""
        return self._store.pending_bytes

    def after_commit(self, fn: Callable[[], None]) -> None:
        """Run `fn` on the loop once everything noted so far is durable; never if that fails."""
        if self._failure is None and not self._is_closed:
            self._waiting.append(fn)
            self.schedule()

    def schedule(self) -> None:
        """Commit what was noted at the end of this tick, even if nothing waits for it."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    async def durable(self) -> None:
        """Return once everything noted so far is durable; raises the error of its commit."""
        if self._failure is not None:
            raise StoreError(f"nothing is stored any more: {self._failure}") from self._failure
        if self._is_closed:
            raise StoreError("nothing is stored any more: the broker is closing")
        promise: asyncio.Future[None] = self._loop.create_future()
        self._promises.add(promise)
        promise.add_done_callback(self._promises.discard)

        def resolve() -> None:
            if not promise.done():
                promise.set_result(None)

        self.after_commit(resolve)
        await promise

    def stop(self, failure: Exception) -> None:
        """Store no more and run nothing that waits, because of `failure`."""
        self._is_stopped = True
        self._give_up(failure)

    async def close(self) -> None:
        """Commit what was noted, run what waits for it, end the writer. May be called twice.

        Raises the error of the last commit; the writer has ended in any case.
        """
        if self._is_closed:
            return
        try:
            if self._failure is None:
                await self.durable()
        finally:
            # Also when cancelled: the store is closed next, which must not happen under a commit.
            self._is_closed = True
            self._work.put(None)
            self._writer.join()
            self._land()
        if self._failure is None:
            # Changes that the last functions noted.
            flush(self._store)
            waiting, self._waiting = self._waiting, []
            self._run(waiting)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._in_flight is not None or self._failure is not None or self._is_closed:
            return
        batch = self._store.take_batch()
        waiting, self._waiting = self._waiting, []
        if batch is None:
            self._run(waiting)
            return
        self._in_flight = batch, waiting
        self._work.put(batch)

    def _write(self) -> None:
        """The writer thread."""
        while (batch := self._work.get()) is not None:
            outcome: Exception | None = None
            try:
                self._store.write(batch)
            except Exception as error:  # noqa: BLE001 - the loop must get any error
                outcome = error
            self._outcome = outcome
            try:
                self._loop.call_soon_threadsafe(self._land)
            except RuntimeError:
                # The loop was closed before this commit was: nothing can be called.
                return

    def _land(self) -> None:
        """Finish the batch that the writer has written, if any."""
        if self._in_flight is None:
            return
        batch, waiting = self._in_flight
        self._in_flight = None
        if self._is_stopped:
            return
        if self._outcome is not None:
            self._fail(self._outcome)
            return
        self.commits += 1
        self._store.finish(batch)
        self._run(waiting)
        # Even if nothing waits: the store may have more to sweep.
        self.schedule()

    def _fail(self, failure: Exception) -> None:
        self.failures += 1
        self._give_up(failure)
        self._store.discard()
        if self.on_failure is not None:
            self.on_failure(failure)
            if not self._is_stopped:
                self._failure = None

    def _give_up(self, failure: Exception) -> None:
        self._failure = failure
        self._waiting = []
        for promise in list(self._promises):
            if not promise.done():
                promise.set_exception(failure)

    def _run(self, waiting: list[Callable[[], None]]) -> None:
        for fn in waiting:
            try:
                fn()
            except Exception as error:  # noqa: BLE001 - one failure must not stop the others
                self._loop.call_exception_handler(
                    {"message": "a function failed after its commit", "exception": error}
                )
