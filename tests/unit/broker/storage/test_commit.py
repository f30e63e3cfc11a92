"""Group commit: one tick is one batch, nothing runs before its batch is durable, order is kept."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from twinbus.broker.journal import StoredMessage
from twinbus.broker.storage.lmdb_store import SWEEP_RECORDS, LmdbStore
from twinbus.broker.storage.store import Batch, GroupCommit, MemoryStore
from twinbus.errors import StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class DiskByHand(MemoryStore):
    """A store whose disk answers when the test says so, and keeps a diary."""

    def __init__(self, *, free: bool = False) -> None:
        super().__init__()
        self.diary: list[str] = []
        self.noted: list[bytes] = []
        self.answers = threading.Semaphore(1_000_000 if free else 0)
        self.begun: SimpleQueue[str] = SimpleQueue()
        """Batches that reached the disk, whatever it answered."""
        self.error: Exception | None = None

    def note(self, name: str) -> None:
        self.noted.append(name.encode())

    def take_batch(self) -> Batch | None:
        noted, self.noted = self.noted, []
        return Batch(dict.fromkeys(noted)) if noted else None

    def write(self, batch: Batch) -> None:
        self.begun.put(self._names(batch))
        self.answers.acquire()
        if self.error is not None:
            raise self.error
        self.diary.append("write " + self._names(batch))

    def finish(self, batch: Batch) -> None:
        self.diary.append("finish " + self._names(batch))

    def discard(self) -> None:
        self.noted = []
        self.diary.append("discard")

    def line(self, name: str) -> Callable[[], None]:
        """A function for `after_commit` that writes into the diary."""
        return lambda: self.diary.append(name)

    @staticmethod
    def _names(batch: Batch) -> str:
        return b"+".join(batch.records).decode()


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_has_nothing_to_write_runs_at_the_end_of_the_tick() -> None:
    disk = DiskByHand()
    commit = GroupCommit(disk, asyncio.get_running_loop())
    commit.after_commit(disk.line("one"))
    commit.after_commit(disk.line("two"))
    assert disk.diary == []
    await ticks(1)
    assert disk.diary == ["one", "two"]
    await commit.close()


async def test_one_tick_is_one_batch_and_what_comes_meanwhile_is_the_next() -> None:
    disk = DiskByHand()
    commit = GroupCommit(disk, asyncio.get_running_loop())
    for name in ("a", "b"):
        disk.note(name)
        commit.after_commit(disk.line(f"acknowledge {name}"))
    await ticks(2)
    for name in ("c", "d"):
        disk.note(name)
        commit.after_commit(disk.line(f"acknowledge {name}"))
        await ticks(2)
    assert disk.diary == []
    assert disk.begun.get(timeout=30) == "a+b"
    assert disk.begun.empty()
    disk.answers.release(2)
    await commit.durable()
    assert disk.diary == [
        "write a+b",
        "finish a+b",
        "acknowledge a",
        "acknowledge b",
        "write c+d",
        "finish c+d",
        "acknowledge c",
        "acknowledge d",
    ]
    await commit.close()


async def test_the_loop_runs_on_while_the_disk_is_waited_for() -> None:
    disk = DiskByHand()
    loop = asyncio.get_running_loop()
    commit = GroupCommit(disk, loop)
    disk.note("a")
    commit.after_commit(disk.line("acknowledge a"))
    await ticks(1)
    assert disk.begun.get(timeout=30) == "a"
    loop.call_soon(disk.line("the loop runs on"))
    await ticks(2)
    assert disk.diary == ["the loop runs on"]
    disk.answers.release()
    await commit.close()
    assert disk.diary == ["the loop runs on", "write a", "finish a", "acknowledge a"]


async def test_a_function_without_a_write_of_its_own_waits_for_the_batch_in_flight() -> None:
    disk = DiskByHand()
    commit = GroupCommit(disk, asyncio.get_running_loop())
    disk.note("a")
    commit.after_commit(disk.line("first"))
    await ticks(2)
    commit.after_commit(disk.line("second"))
    await ticks(3)
    assert disk.diary == []
    disk.answers.release()
    await commit.durable()
    assert disk.diary == ["write a", "finish a", "first", "second"]
    await commit.close()


async def test_what_nobody_waits_for_is_committed_when_scheduled() -> None:
    disk = DiskByHand(free=True)
    commit = GroupCommit(disk, asyncio.get_running_loop())
    disk.note("a")
    commit.schedule()
    commit.schedule()
    await ticks(2)
    await commit.durable()
    assert disk.diary == ["write a", "finish a"]
    await commit.close()


async def test_who_waits_for_the_writer_to_compute_is_called_while_the_disk_works() -> None:
    class Packing(DiskByHand):
        """A disk that takes all records when the test says so, and keeps them with `answers`."""

        taken = threading.Semaphore(0)

        def write(self, batch: Batch) -> None:
            self.taken.acquire()
            batch.packed()
            super().write(batch)

    disk, called = Packing(), asyncio.Event()
    commit = GroupCommit(disk, asyncio.get_running_loop())
    assert not commit.once_packed(called.set)
    disk.note("a")
    commit.schedule()
    await ticks(1)
    assert commit.once_packed(called.set)
    await ticks(3)
    assert not called.is_set()
    disk.taken.release()
    await asyncio.wait_for(called.wait(), timeout=30)
    assert disk.diary == []
    assert not commit.once_packed(called.set)
    disk.answers.release()
    await commit.close()
    assert disk.diary == ["write a", "finish a"]


async def test_who_waits_for_the_writer_to_compute_is_called_when_its_disk_fails() -> None:
    disk, called = DiskByHand(), asyncio.Event()
    failures: list[Exception] = []
    commit = GroupCommit(disk, asyncio.get_running_loop(), failures.append)
    disk.error = StoreError("no disk")
    disk.note("a")
    commit.schedule()
    await ticks(1)
    assert commit.once_packed(called.set)
    disk.answers.release()
    await asyncio.wait_for(called.wait(), timeout=30)
    await commit.close()
    assert failures == [disk.error]


async def test_what_a_function_notes_in_its_turn_is_the_next_batch() -> None:
    disk = DiskByHand(free=True)
    commit = GroupCommit(disk, asyncio.get_running_loop())

    def deliver() -> None:
        disk.diary.append("deliver")
        disk.note("b")
        commit.after_commit(disk.line("settled"))

    disk.note("a")
    commit.after_commit(deliver)
    await commit.durable()
    await commit.durable()
    assert disk.diary == [
        *("write a", "finish a", "deliver"),
        *("write b", "finish b", "settled"),
    ]
    await commit.close()


async def test_a_failed_batch_drops_all_that_waited_and_tells_once() -> None:
    disk = DiskByHand()
    failures: list[Exception] = []

    def rebuild(failure: Exception) -> None:
        failures.append(failure)
        disk.diary.append("rebuild")
        commit.after_commit(disk.line("never: nothing is taken before the rebuild is done"))

    def note_b() -> None:
        assert disk.diary == []
        disk.note("b")
        commit.after_commit(disk.line("never b"))

    loop = asyncio.get_running_loop()
    commit = GroupCommit(disk, loop, rebuild)
    full = StoreFull("no room")
    disk.error = full
    disk.note("a")
    commit.after_commit(disk.line("never a"))
    loop.call_soon(note_b)
    promises = [asyncio.ensure_future(commit.durable()) for _ in range(2)]
    disk.answers.release()
    for promise in promises:
        with pytest.raises(StoreFull, match="no room"):
            await promise
    assert disk.diary == ["discard", "rebuild"]
    assert failures == [full]

    disk.error = None
    disk.answers.release(5)
    disk.note("c")
    commit.after_commit(disk.line("acknowledge c"))
    await commit.durable()
    assert disk.diary[2:] == ["write c", "finish c", "acknowledge c"]
    await commit.close()


async def test_without_anyone_to_rebuild_a_failure_is_for_ever() -> None:
    disk = DiskByHand(free=True)
    commit = GroupCommit(disk, asyncio.get_running_loop())
    disk.error = StoreError("disk on fire")
    disk.note("a")
    with pytest.raises(StoreError, match="disk on fire"):
        await commit.durable()
    disk.error = None
    disk.note("b")
    commit.after_commit(disk.line("never"))
    with pytest.raises(StoreError, match="nothing is stored any more: disk on fire"):
        await commit.durable()
    await ticks(3)
    await commit.close()
    assert disk.diary == ["discard"]


async def test_a_function_that_fails_does_not_take_the_others_with_it() -> None:
    disk = DiskByHand(free=True)
    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    commit = GroupCommit(disk, loop)
    error = ValueError("a peer that is gone")

    def fail() -> None:
        raise error

    disk.note("a")
    commit.after_commit(fail)
    commit.after_commit(disk.line("next"))
    await commit.durable()
    assert told == [error]
    assert disk.diary[-1] == "next"
    await commit.close()


async def test_closing_waits_for_what_is_in_flight_and_commits_the_rest() -> None:
    disk = DiskByHand()
    commit = GroupCommit(disk, asyncio.get_running_loop())
    disk.note("a")
    commit.after_commit(disk.line("first"))
    await ticks(2)
    disk.note("b")

    def last_words() -> None:
        disk.diary.append("second")
        disk.note("c")
        commit.after_commit(disk.line("third"))

    commit.after_commit(last_words)
    closing = asyncio.ensure_future(commit.close())
    await ticks(3)
    assert disk.diary == []
    disk.answers.release(3)
    await closing
    assert [line for line in disk.diary if " " not in line] == ["first", "second", "third"]
    assert [line for line in disk.diary if line.startswith("write")] == [
        "write a",
        "write b",
        "write c",
    ]
    assert not commit.writer.is_alive()
    await commit.close()
    with pytest.raises(StoreError, match="the broker is closing"):
        await commit.durable()


async def test_nothing_is_left_to_do_when_closing_returns() -> None:
    disk = DiskByHand(free=True)
    commit = GroupCommit(disk, asyncio.get_running_loop())

    def second() -> None:
        disk.diary.append("second")
        disk.note("c")

    def first() -> None:
        disk.diary.append("first")
        disk.note("b")
        commit.after_commit(second)

    disk.note("a")
    commit.after_commit(first)
    await commit.close()
    assert disk.diary == [
        *("write a", "finish a", "first"),
        *("write b", "finish b", "second"),
        *("write c", "finish c"),
    ]


async def test_closing_that_is_cancelled_still_ends_the_writer_after_its_commit() -> None:
    disk = DiskByHand()
    commit = GroupCommit(disk, asyncio.get_running_loop())
    disk.note("a")
    commit.after_commit(disk.line("acknowledge"))
    closing = asyncio.ensure_future(commit.close())
    await ticks(3)
    closing.cancel()
    disk.answers.release()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not commit.writer.is_alive()
    assert disk.diary == ["write a", "finish a", "acknowledge"]


async def test_closing_says_what_could_not_be_stored() -> None:
    disk = DiskByHand(free=True)
    commit = GroupCommit(disk, asyncio.get_running_loop())
    disk.error = StoreFull("no room")
    disk.note("a")
    with pytest.raises(StoreFull, match="no room"):
        await commit.close()
    assert not commit.writer.is_alive()


def test_a_loop_that_is_gone_ends_the_writer() -> None:
    disk = DiskByHand()
    loop = asyncio.new_event_loop()
    commit = GroupCommit(disk, loop)
    disk.note("a")
    commit.schedule()
    loop.run_until_complete(ticks(2))
    loop.close()
    disk.answers.release()
    commit.writer.join()
    assert disk.diary == ["write a"]


async def test_a_cancelled_wait_leaves_the_others_alone() -> None:
    disk = DiskByHand()
    commit = GroupCommit(disk, asyncio.get_running_loop())
    disk.note("a")
    one, other = (asyncio.ensure_future(commit.durable()) for _ in range(2))
    await ticks(2)
    one.cancel()
    disk.answers.release()
    await other
    assert one.cancelled()
    await commit.close()


async def test_a_store_in_memory_needs_no_commit() -> None:
    store = MemoryStore()
    commit = GroupCommit(store, asyncio.get_running_loop())
    store.put(1, StoredMessage(1, enqueued_at_ms=1, size_bytes=1), b"x")
    await commit.durable()
    assert commit.pending_bytes == 0
    await commit.close()


async def test_a_dropped_entity_is_swept_though_nobody_waits(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=2**30)
    commit = GroupCommit(store, asyncio.get_running_loop())
    store.put_entity(1, "queue", "q", {})
    for number in range(1, 3 * SWEEP_RECORDS):
        store.put(1, StoredMessage(number, enqueued_at_ms=1, size_bytes=1), b"x")
    assert commit.pending_bytes > 0
    await commit.durable()
    store.drop_entity(1)
    commit.schedule()
    async with asyncio.timeout(30):
        while store.opened().stat()["entries"] > 2:  # The records of format and inventory stay.
            await ticks(1)
    await commit.close()
    store.close()
