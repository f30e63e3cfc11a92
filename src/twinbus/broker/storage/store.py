"""The port for a disk, a store in memory, and the group commit.

A store is a `Journal` that can make what was noted durable, one batch at a time:

    loop thread      take_batch -----------> finish      (or discard, then recover)
    writer thread                write ----'

Group commit: all changes of one tick of the loop go to disk as one batch. The writer is a thread of
its own: waiting for the disk must not block the loop.

    after_commit(fn) ... --end of tick--> take batch -> [writer thread: write] -> run the fns
                                             ^--- what came meanwhile is the next ---'
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from twinbus.broker.journal import (
    Damage,
    EncodedRun,
    EntityImage,
    Journal,
    Payload,
    SessionState,
    StoredMessage,
    copy_message,
)
from twinbus.broker.storage.pending import Records
from twinbus.errors import StoreError

K = TypeVar("K")
T = TypeVar("T")


@dataclass(slots=True)
class Batch:
    """The changes of one commit: the record of each key, None where it is to be deleted."""

    records: Records
    sweep: tuple[int, ...] = ()
    """Dropped entities; this batch deletes some of their remaining records."""
    swept: list[int] = field(default_factory=list)
    """Those of them without remaining records; known once the batch is written."""
    packed: Callable[[], None] = lambda: None
    """Called by `write` when nothing is left but to wait for the disk."""


class Store(Journal, Protocol):
    """A journal with a disk behind it. All but `write` belongs to the loop's thread."""

    damaged: dict[bytes, Damage]
    """Records that were read and cannot be trusted, by key."""

    @property
    def pending_bytes(self) -> int:
        """Approximate bytes that were noted and are not durable yet."""

    def recover(self) -> list[EntityImage]:
        """Everything that is durable, in order of entity id; other changes are dropped."""

    def payloads(self, entity_id: int, sequence_numbers: list[int]) -> Sequence[Payload]:
        """The payloads of these messages, in that order; valid until this step of the loop ends."""
        return [self.payload(entity_id, number) for number in sequence_numbers]

    def take_batch(self) -> Batch | None:
        """Everything noted since the last batch, to be committed; None if there is nothing to do.

        One batch at a time: the last one must have been finished or discarded.
        """

    def write(self, batch: Batch) -> None:
        """Return when the batch is durable. Raises StoreError; then none of it is visible."""

    def finish(self, batch: Batch) -> None:
        """Note that the batch is durable and free its memory."""

    def discard(self) -> None:
        """Drop all that is not durable, after a failed batch. `recover` must be called next."""

    def undoing(self) -> AbstractContextManager[None]:
        """A block whose changes are undone if it raises; a disk drops them with their batch."""
        return nullcontext()

    def low_on_space(self) -> str | None:
        """Why no more should be stored, in one line; None while there is space."""

    def lost(self) -> str | None:
        """Why a restart would not find what is stored, in one line; None if it would."""

    def close(self) -> None:
        """Close the disk. Uncommitted changes are lost. May be called twice."""


def flush(store: Store) -> None:
    """Commit what was noted, in this thread; no batch may be in flight."""
    batch = store.take_batch()
    if batch is not None:
        store.write(batch)
        store.finish(batch)


class MemoryStore(Store):
    """A store in memory (`--ephemeral`); it ends with the process."""

    pending_bytes = 0

    def __init__(self) -> None:
        self.damaged = {}
        self._images: defaultdict[int, EntityImage] = defaultdict(
            lambda: EntityImage(0, "", "", {})
        )
        """What is kept of each entity, its messages aside."""
        self._messages: defaultdict[int, dict[int, tuple[StoredMessage, bytes]]] = defaultdict(dict)
        """Messages and their payloads, by entity id and sequence number."""
        self._undo: list[Callable[[], object]] | None = None
        """What undoes the changes of a block, in their order; None: there is no block."""

    @contextmanager
    def undoing(self) -> Iterator[None]:
        assert self._undo is None, "a block in a block"
        undo: list[Callable[[], object]] = []
        self._undo = undo
        try:
            yield
        except BaseException:
            for change in reversed(undo):
                change()
            raise
        finally:
            self._undo = None

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        description = copy.deepcopy(description)
        image = self._images[entity_id]
        image = replace(image, entity_id=entity_id, kind=kind, path=path, description=description)
        self._set(self._images, entity_id, image)

    def drop_entity(self, entity_id: int) -> None:
        self._set(self._images, entity_id, None)
        self._set(self._messages, entity_id, None)

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        image, number = self._images[entity_id], message.sequence_number
        self._set(self._messages[entity_id], number, (_snapshot(message), payload))
        # It stays after an undo: a number is never used twice.
        image.last_sequence_number = max(image.last_sequence_number, number)

    def put_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> None:
        run = self.encode_run(entity_id, messages, ids, prefix, rests)
        self.put_encoded(entity_id, [run], messages[-1].sequence_number)

    def encode_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> EncodedRun:
        kept = zip(messages, rests, strict=True)
        return EncodedRun(
            {each.sequence_number: (_snapshot(each), prefix + rest) for each, rest in kept}
        )

    def put_encoded(self, entity_id: int, runs: list[EncodedRun], last_number: int) -> None:
        image, stored = self._images[entity_id], self._messages[entity_id]
        for run in runs:
            for number, kept in run.items():
                self._set(stored, number, kept)
        image.last_sequence_number = max(image.last_sequence_number, last_number)

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        before, payload = self._messages[entity_id][message.sequence_number]
        kept = _snapshot(before)
        kept.state, kept.delivery_count = message.state, message.delivery_count
        kept.overrides = copy.copy(message.overrides)
        self._set(self._messages[entity_id], message.sequence_number, (kept, payload))

    def remove(self, entity_id: int, sequence_number: int) -> None:
        self._set(self._messages[entity_id], sequence_number, None)

    def remove_all(self, entity_id: int, sequence_numbers: list[int]) -> None:
        for number in sequence_numbers:
            self.remove(entity_id, number)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        _, payload = self._messages[entity_id][sequence_number]
        self.remove(entity_id, sequence_number)
        self.put(to_entity_id, message, payload)

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        try:
            return self._messages[entity_id][sequence_number][1]
        except KeyError:
            raise LookupError(
                f"entity {entity_id} has no message {sequence_number} in the store"
            ) from None

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        self._set(self._images[entity_id].session_states, session_id, state)

    def put_rule(self, entity_id: int, name: str, record: dict[str, Any] | None) -> None:
        self._set(self._images[entity_id].rules, name, copy.deepcopy(record))

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        self._set(self._images[entity_id].message_ids, message_id, first_seen_ms)

    def recover(self) -> list[EntityImage]:
        images = [copy.deepcopy(image) for _, image in sorted(self._images.items()) if image.kind]
        for image in images:
            kept = sorted(self._messages[image.entity_id].items())
            image.messages = [_snapshot(message) for _, (message, _) in kept]
        return images

    def take_batch(self) -> Batch | None:
        return None

    def write(self, batch: Batch) -> None:
        raise AssertionError("a store in memory has no batches")

    finish = write

    def discard(self) -> None:
        """Nothing to drop: every change is kept, but those that `undoing` undid."""

    def low_on_space(self) -> str | None:
        return None

    def lost(self) -> str | None:
        return None

    def close(self) -> None:
        self._images.clear()
        self._messages.clear()

    def _set(self, table: dict[K, T], key: K, value: T | None) -> None:
        """Change an entry, None removes it; remember how to undo that."""
        if self._undo is not None:
            self._undo.append(partial(_put, table, key, table.get(key)))
        _put(table, key, value)


def _put(table: dict[K, T], key: K, value: T | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _snapshot(message: StoredMessage) -> StoredMessage:
    """A copy as a disk would return it: unlocked, and unaffected by later changes."""
    kept = copy_message(message)
    kept.overrides = copy.copy(message.overrides)
    return kept


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
        self._is_packing = False
        """Whether the writer computes: it needs the interpreter, and the loop too."""
        self._once_packed: Callable[[], None] | None = None
        self._distrusted: Exception | None = None
        """Why what was noted since the last batch must not be committed."""
        self._is_stopped = False
        self._is_closed = False
        self._promises: set[asyncio.Future[None]] = set()
        self._work: SimpleQueue[Batch | None] = SimpleQueue()
        self._outcome: Exception | None = None
        """The error of the writer's last batch; the loop reads it in `_land`."""
        self.writer = threading.Thread(target=self._write, name="twinbus-writer", daemon=True)
        self.writer.start()

    @property
    def pending_bytes(self) -> int:
        return self._store.pending_bytes

    @property
    def is_due(self) -> bool:
        """Whether one of the next steps of the loop takes what was noted."""
        return self._flush_is_due

    def once_packed(self, fn: Callable[[], None]) -> bool:
        """Call `fn` once the writer only waits for the disk; false if it does not compute now."""
        self._once_packed = fn
        if self._is_packing:
            return True
        # The writer may have seen it already: then it is called once more than asked.
        self._once_packed = None
        return False

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

    def distrust(self, error: Exception) -> None:
        """Drop what is not in a batch yet, as if its commit had failed with `error`."""
        self._distrusted = error
        self.schedule()

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
            self.writer.join()
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
        if self._distrusted is not None:
            error, self._distrusted = self._distrusted, None
            self._fail(error)
            return
        batch = self._store.take_batch()
        waiting, self._waiting = self._waiting, []
        if batch is None:
            self._run(waiting)
            return
        self._in_flight = batch, waiting
        self._is_packing = True
        batch.packed = self._packed
        self._work.put(batch)

    def _packed(self) -> None:
        """Called in the writer thread."""
        self._is_packing = False
        fn, self._once_packed = self._once_packed, None
        if fn is not None:
            with suppress(RuntimeError):  # The loop was closed before.
                self._loop.call_soon_threadsafe(fn)

    def _write(self) -> None:
        """The writer thread."""
        while (batch := self._work.get()) is not None:
            outcome: Exception | None = None
            try:
                self._store.write(batch)
            except Exception as error:  # noqa: BLE001 - the loop must get any error
                outcome = error
            self._packed()
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
        self._distrusted = None
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
