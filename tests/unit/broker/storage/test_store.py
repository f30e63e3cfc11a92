"""The stores: what is kept, what is refused at start, what an error leaves behind."""

from __future__ import annotations

import errno
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import lmdb
import pytest

from tests.processes import room_for
from twinbus.broker.journal import DamagedMessage, MessageState, SessionState, StoredMessage
from twinbus.broker.storage import records
from twinbus.broker.storage.checksums import seal
from twinbus.broker.storage.data_directory import DataDirectory, unusable
from twinbus.broker.storage.lmdb_store import SWEEP_RECORDS, LmdbStore, translated
from twinbus.broker.storage.pending import Records
from twinbus.broker.storage.store import Batch, MemoryStore, Store, flush
from twinbus.errors import StoreDamaged, StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAP_SIZE = 2**30


def message(number: int, **fields: object) -> StoredMessage:
    return StoredMessage(number, enqueued_at_ms=5, size_bytes=3, **fields)  # type: ignore[arg-type]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(tmp_path / "ns", map_size=MAP_SIZE)
    yield store
    store.close()


def entries(store: LmdbStore) -> int:
    """Records in the environment, those of format and inventory aside."""
    return store.opened().stat()["entries"] - 2


def numbers(store: Store) -> list[int]:
    return [kept.sequence_number for image in store.recover() for kept in image.messages]


def said(kind: type[lmdb.Error], code: int) -> lmdb.Error:
    """An error as LMDB raises it from a commit."""
    error = kind("mdb_txn_commit")
    error.code = code  # type: ignore[misc]
    return error


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_an_entity_and_all_it_holds_comes_back(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else LmdbStore(tmp_path, map_size=MAP_SIZE)
    description: dict[str, object] = {"max_size_mb": 1}
    store.put_entity(2, "dead-letter", "q/$DeadLetterQueue", {})
    store.put_entity(1, "queue", "q", description)
    first, second = message(4, message_id="a"), message(9, session_id="s")
    store.put(1, first, b"one")
    store.put(1, second, b"two")
    store.put_session_state(1, "s", SessionState(b"state", 5))
    store.put_message_id(1, "a", 77)
    flush(store)
    first.state, first.delivery_count = MessageState.DEFERRED, 2
    store.amend(1, first)
    # Changes that nobody noted are not stored.
    second.delivery_count = 8
    second.lock_token = b"t"
    description["max_size_mb"] = 2
    flush(store)
    queue, dead_letters = store.recover()
    assert (queue.kind, queue.path, queue.description) == ("queue", "q", {"max_size_mb": 1})
    assert (dead_letters.entity_id, dead_letters.messages) == (2, [])
    assert queue.last_sequence_number == 9
    assert queue.session_states == {"s": SessionState(b"state", 5)}
    assert queue.message_ids == {"a": 77}
    assert [(m.sequence_number, m.state, m.delivery_count) for m in queue.messages] == [
        (4, MessageState.DEFERRED, 2),
        (9, MessageState.ACTIVE, 0),
    ]
    assert queue.messages[1].lock_token is None
    assert store.payload(1, 4) == b"one"
    store.close()
    store.close()


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_message_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else LmdbStore(tmp_path, map_size=MAP_SIZE)
    expected = LookupError if kind == "memory" else DamagedMessage
    with pytest.raises(expected, match=r"entity 3.* message 8"):
        store.payload(3, 8)
    store.close()


def test_a_message_put_and_removed_in_one_batch_never_meets_the_disk(disk: LmdbStore) -> None:
    kept = message(1)
    disk.put(1, kept, b"x" * 1000)
    kept.delivery_count = 1
    disk.amend(1, kept)
    disk.remove(1, kept.sequence_number)
    assert disk.pending_bytes == 0
    batch = disk.take_batch()
    assert batch is not None
    # Only the counter: a sequence number is never given twice, even to a message that went at once.
    assert list(batch.records) == [records.entity_key(records.COUNTER, 1)]


def test_removing_a_message_removes_its_amendment_too(disk: LmdbStore) -> None:
    kept = message(1)
    disk.put(1, kept, b"x")
    disk.amend(1, kept)
    flush(disk)
    assert entries(disk) == 3
    disk.remove(1, kept.sequence_number)
    flush(disk)
    assert entries(disk) == 1


def test_an_amendment_of_the_last_run_goes_with_its_message(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=MAP_SIZE)
    store.put_entity(1, "queue", "q", {})
    store.put(1, message(1), b"x")
    store.amend(1, message(1, delivery_count=3))
    flush(store)
    store.close()
    store = LmdbStore(tmp_path, map_size=MAP_SIZE)
    store.recover()
    store.remove(1, 1)
    flush(store)
    assert entries(store) == 2, "the entity and its counter"
    store.close()


def test_commits_are_synchronous_for_data_and_metadata(disk: LmdbStore) -> None:
    flags = disk.opened().flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"]) == (True, True, False)


def test_a_payload_is_found_pending_in_flight_and_on_disk(disk: LmdbStore) -> None:
    disk.put(1, message(1), b"payload")
    assert disk.payload(1, 1) == b"payload"
    batch = disk.take_batch()
    assert batch is not None
    assert disk.payload(1, 1) == b"payload"
    disk.write(batch)
    assert disk.payload(1, 1) == b"payload"
    disk.finish(batch)
    assert disk.pending_bytes == 0
    assert disk.payload(1, 1) == b"payload"


def test_reads_do_not_keep_the_file_growing(disk: LmdbStore) -> None:
    disk.put(1, message(1), b"kept")
    for number in range(2, 300):
        disk.put(1, message(number), b"x" * 20_000)
        flush(disk)
        assert disk.payload(1, 1) == b"kept"
        disk.remove(1, number)
        flush(disk)
    assert disk.opened().info()["last_pgno"] < 100


def test_pending_bytes_rise_with_what_is_noted_and_fall_when_it_is_durable(disk: LmdbStore) -> None:
    disk.put(1, message(1), b"x" * 1000)
    noted = disk.pending_bytes
    assert noted >= 1000
    batch = disk.take_batch()
    assert batch is not None
    disk.put(1, message(2), b"x" * 1000)
    assert disk.pending_bytes == 2 * noted
    disk.write(batch)
    disk.finish(batch)
    assert disk.pending_bytes == noted


def test_a_dropped_entity_is_swept_a_slice_at_a_time(disk: LmdbStore) -> None:
    disk.put_entity(1, "queue", "q", {})
    disk.put_entity(2, "queue", "other", {})
    disk.put(2, message(1), b"stays")
    for number in range(1, 2_501):
        disk.put(1, message(number), b"x")
    disk.put_session_state(1, "s", SessionState(b"state", 5))
    disk.put_message_id(1, "m", 1)
    flush(disk)
    disk.drop_entity(1)
    left = []
    while (batch := disk.take_batch()) is not None:
        disk.write(batch)
        disk.finish(batch)
        left.append(entries(disk))
    # 2,500 messages, a state, an id and a counter, then the note that the entity was dropped; the
    # other entity's three records stay.
    assert left == [2_507 - SWEEP_RECORDS, 2_507 - 2 * SWEEP_RECORDS, 3]
    assert [image.path for image in disk.recover()] == ["other"]
    assert disk.payload(2, 1) == b"stays"


def test_a_sweep_cut_off_by_a_crash_is_finished_at_the_next_start(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=MAP_SIZE)
    store.put_entity(1, "queue", "q", {})
    for number in range(1, 2_501):
        store.put(1, message(number), b"x")
    flush(store)
    store.drop_entity(1)
    flush(store)
    store.close()
    store = LmdbStore(tmp_path, map_size=MAP_SIZE)
    assert entries(store) == 2_502 - SWEEP_RECORDS
    assert store.recover() == []
    assert entries(store) == 0
    # The id may be used again, and nothing of the old entity shows.
    store.put_entity(1, "queue", "new", {})
    flush(store)
    assert numbers(store) == []
    store.close()


def test_an_entity_dropped_before_its_first_commit_leaves_nothing(disk: LmdbStore) -> None:
    disk.put_entity(1, "queue", "q", {})
    disk.put(1, message(1), b"x")
    disk.put(2, message(1), b"another's")
    disk.drop_entity(1)
    batch = disk.take_batch()
    assert batch is not None
    assert [key for key, record in batch.records.items() if record] == [
        records.message_key(2, 1),
        records.entity_key(records.DROPPED, 1),
        records.entity_key(records.COUNTER, 2),
    ]
    disk.write(batch)
    disk.finish(batch)
    assert entries(disk) == 2
    assert disk.take_batch() is None


def test_a_second_opener_is_told_who_is_there(disk: LmdbStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"ns is in use by process {os.getpid()}: stop it"):
        LmdbStore(tmp_path / "ns", map_size=MAP_SIZE)
    disk.close()
    LmdbStore(tmp_path / "ns", map_size=MAP_SIZE).close()


@pytest.mark.parametrize("version", [1, 4])
def test_another_format_is_refused(tmp_path: Path, version: int) -> None:
    LmdbStore(tmp_path, map_size=MAP_SIZE).close()
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(records.FORMAT_KEY, version.to_bytes(4, "little"))
    with pytest.raises(StoreError, match=f"store format {version}, this Twinbus reads format 3: "):
        LmdbStore(tmp_path, map_size=MAP_SIZE)


def test_somebody_elses_lmdb_file_is_left_alone(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"theirs", b"1")
    with pytest.raises(StoreError, match="not Twinbus's"):
        LmdbStore(tmp_path, map_size=MAP_SIZE)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    for path in (tmp_path / "data", tmp_path / "data" / "ns"):
        with pytest.raises(StoreError, match="a file is in the way of the data directory: move it"):
            LmdbStore(path)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EACCES, StoreError, "cannot be used as a data directory: Permission denied"),
        (errno.EROFS, StoreError, "cannot be used as a data directory: Read-only file system"),
        (errno.ENOSPC, StoreFull, "the disk is full .*: make room"),
        (errno.EDQUOT, StoreFull, "the disk is full .*: make room"),
    ],
)
def test_a_directory_that_cannot_be_made_is_one_line(
    tmp_path: Path, code: int, kind: type[StoreError], words: str
) -> None:
    error = unusable(tmp_path / "ns", OSError(code, os.strerror(code)))
    assert type(error) is kind
    assert re.fullmatch(rf"{tmp_path}/ns:? {words}", str(error))


def test_a_start_on_a_full_disk_is_refused_and_gives_the_lock_back(tmp_path: Path) -> None:
    refused = pytest.raises(StoreFull, match="4096 bytes free on its disk, a start needs 1048576")
    with room_for(4096), refused:
        LmdbStore(tmp_path)
    LmdbStore(tmp_path, map_size=MAP_SIZE).close()


def test_low_space_is_said_before_the_disk_is_full_and_looked_up_once_a_second(
    tmp_path: Path,
) -> None:
    now_s = [100.0]
    directory = DataDirectory(tmp_path, lambda: now_s[0])
    assert directory.low_on_space() is None
    with room_for(63 * 2**20):
        now_s[0] += 0.5
        assert directory.low_on_space() is None
        now_s[0] += 0.5
        assert "63 MiB left, sends need 64 MiB" in (directory.low_on_space() or "")
    with room_for(64 * 2**20):
        now_s[0] += 0.5
        assert directory.low_on_space() is not None
        now_s[0] += 0.5
        assert directory.low_on_space() is None
    directory.release()


def test_room_is_what_the_disk_gives_to_us(disk: LmdbStore, tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    room = disk.directory.room_bytes()
    assert abs(room - space.f_bavail * space.f_frsize) < 2**30


def test_a_full_map_writes_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=2**20)
    store.put_entity(1, "queue", "q", {})
    store.put(1, message(1), b"kept")
    flush(store)
    store.put(1, message(2), b"x" * 2**21)
    store.put(1, message(3), b"lost with it")
    batch = store.take_batch()
    assert batch is not None
    with pytest.raises(StoreFull, match="as large as its map allows"):
        store.write(batch)
    store.discard()
    store.put(1, message(4), b"noted by an engine that is about to go")
    assert numbers(store) == [1]
    assert store.payload(1, 1) == b"kept"
    store.put(1, message(2), b"small")
    flush(store)
    assert numbers(store) == [1, 2]
    store.close()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (said(lmdb.DiskError, errno.ENOSPC), StoreFull, "the disk is full"),
        (said(lmdb.Error, errno.EFBIG), StoreFull, "the disk is full"),
        (said(lmdb.Error, errno.EIO), StoreError, "ns: mdb_txn_commit"),
        (said(lmdb.PanicError, -30795), StoreError, "ns: mdb_txn_commit"),
        (said(lmdb.CorruptedError, -30796), StoreDamaged, "data.mdb is damaged or not a store"),
    ],
)
def test_what_lmdb_says_becomes_one_line(
    disk: LmdbStore, error: lmdb.Error, kind: type[StoreError], words: str
) -> None:
    line = translated(disk.directory, error)
    assert type(line) is kind
    assert words in str(line)
    assert "\n" not in str(line)


def test_a_short_write_on_a_full_disk_is_a_full_disk(disk: LmdbStore) -> None:
    with room_for(2**20):
        assert isinstance(translated(disk.directory, said(lmdb.Error, errno.EIO)), StoreFull)


def test_a_record_that_makes_no_sense_is_one_line(disk: LmdbStore) -> None:
    disk.put_entity(1, "queue", "q", {})
    flush(disk)
    key = records.message_key(1, 1)
    disk.write(Batch({key: seal(key, b"too short")}))
    with pytest.raises(StoreDamaged, match=r"data\.mdb is damaged: a record cannot be read"):
        disk.recover()


class AnnouncedLock:
    """A lock that says when a second one asks for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.contended = threading.Event()

    def __enter__(self) -> None:
        if self.lock.locked():
            self.contended.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_closing_waits_for_the_commit_in_flight(disk: LmdbStore, tmp_path: Path) -> None:
    lock, begun, seen = AnnouncedLock(), threading.Event(), []
    disk.writing = lock  # type: ignore[assignment]
    disk.put_entity(1, "queue", "q", {})
    disk.put(1, message(1), b"x")
    batch = disk.take_batch()
    assert batch is not None

    class Slow(Records):
        """Records that the transaction reads until another thread wants the lock."""

        def items(self) -> Any:
            begun.set()
            seen.append(lock.contended.wait(timeout=60) and disk.opened() is not None)
            return super().items()

    slow = Batch(Slow(batch.records))
    writer = threading.Thread(target=disk.write, args=(slow,), daemon=True)
    writer.start()
    assert begun.wait(timeout=60)
    disk.close()
    writer.join()
    assert seen == [True]
    with pytest.raises(StoreError, match="is not open here"):
        disk.recover()
    again = LmdbStore(tmp_path / "ns", map_size=MAP_SIZE)
    assert numbers(again) == [1]
    again.close()
