"""The store on disk: one LMDB environment in a directory that belongs to this process.

Commits are synchronous, data and metadata, so a batch is wholly there or not at all,
whenever the process or the machine dies. After an error nothing is trusted: the environment is
opened again and what it holds is the truth (`discard`, then `recover`).

LMDB reads through a memory map, so a file that is shorter than its pages does not raise: touching
what is missing kills the process (SIGBUS). A short file is therefore first walked by a child.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import struct
import subprocess
import sys
import threading
import weakref
from itertools import islice
from typing import TYPE_CHECKING, cast

import lmdb

from twinbus.amqp.types import DecodeError
from twinbus.broker.storage import records
from twinbus.broker.storage.checksums import Data, is_sound
from twinbus.broker.storage.data_directory import (
    DATA_FILE,
    DataDirectory,
    out_of_room,
    sync_directory,
)
from twinbus.broker.storage.inventory import Inventory, read_inventory
from twinbus.broker.storage.last_commits import check_last_commits
from twinbus.broker.storage.record_journal import RecordJournal
from twinbus.broker.storage.records import MESSAGE
from twinbus.broker.storage.store import Batch, Store
from twinbus.broker.storage.upgrade import give_format, upgrade
from twinbus.errors import StoreDamaged, StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator
    from pathlib import Path

    from twinbus.broker.journal import EntityImage

MAP_SIZE_BYTES = 2**40
"""Address space for the file to grow into; it costs neither memory nor disk. So large that it need
never be enlarged, which LMDB cannot do beside a read."""

MAP_SIZE_MIN_BYTES = 2**30
"""Where a platform or a limit gives less address space, the store tries half, down to this."""

_DAMAGE = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)

REMEDY = "Put back a copy of the directory, or move it away to start empty"

_WALK = """
import lmdb, sys
environment = lmdb.open(sys.argv[1], readonly=True, lock=False, map_size=int(sys.argv[2]))
with environment.begin() as transaction:
    for _ in transaction.cursor():
        pass
"""
"""Reads every byte of every record."""

SWEEP_RECORDS = 1000
"""Leftovers of dropped entities removed with one batch: about a millisecond that a send may have to
wait for, however long the queue was."""

_SWEEP_AT_START_RECORDS = 50_000
"""The same at a start, when no loop waits: bounds the memory of one transaction."""


class LmdbStore(RecordJournal, Store):
    """A namespace's store in `directory`, held by this process alone until `close`."""

    def __init__(self, directory: Path, *, map_size: int = MAP_SIZE_BYTES) -> None:
        super().__init__()
        self._map_size = map_size
        self._environment: lmdb.Environment | None = None
        self.writing = threading.Lock()
        """Held during `write`; `close` must not pull the map from under it."""
        self._snapshot: lmdb.Transaction[memoryview] | None = None
        """What `payload` reads. It never outlives a commit: it would miss what that wrote, and
        keep LMDB from using pages that were freed since."""
        self._suspect = False
        """A batch failed: the environment must be opened again."""
        self.directory = DataDirectory(directory)
        try:
            self._environment = open_environment(self.directory, map_size)
        except BaseException:
            self.directory.release()
            raise
        _OPEN.add(self)

    def recover(self) -> list[EntityImage]:
        self._end_snapshot()
        if self._suspect:
            self._reopen()
        environment = self.opened()
        try:
            _sweep_all(environment)
            with environment.begin(buffers=True) as transaction, _no_collection():
                found = Inventory()
                images = self._restore(lambda kind: _scan(transaction, kind, found))
                _check_inventory(transaction, found, is_whole=not self.damaged)
                return images
        except lmdb.Error as error:
            raise translated(self.directory, error) from error
        except (ValueError, IndexError, struct.error, DecodeError) as error:
            raise damaged(self.directory.path, f"a record cannot be read ({error})") from error
        except StoreDamaged as error:
            raise damaged(self.directory.path, error) from error

    def _reopen(self) -> None:
        self.opened().close()
        self._environment = None
        self._environment = open_environment(self.directory, self._map_size)
        self._suspect = False

    def take_batch(self) -> Batch | None:
        assert not self._suspect, "recover() comes after discard()"
        changes = self._take_pending()
        if not changes and not self._dropped:
            return None
        return Batch(changes, tuple(self._dropped))

    def write(self, batch: Batch) -> None:
        with self.writing:
            environment = self.opened()
            if lost := self.directory.lost():
                raise StoreError(lost)
            try:
                with environment.begin(write=True) as transaction:
                    _apply(transaction, batch)
                    batch.packed()
            except lmdb.Error as error:
                raise translated(self.directory, error) from error
            except StoreDamaged as error:
                raise damaged(self.directory.path, error) from error

    def finish(self, batch: Batch) -> None:
        self._dropped.difference_update(batch.swept)
        self.directory.wrote(self._in_flight_size_bytes)
        self._landed()
        self._end_snapshot()

    def discard(self) -> None:
        self._suspect = True
        self._forget_all()
        self._end_snapshot()

    def _read(self, keys: list[bytes]) -> list[memoryview]:
        with self._cursor() as cursor:
            return [record for _, record in cursor.getmulti(keys)]

    def _read_row(self, first: bytes, count: int) -> list[memoryview]:
        with self._cursor() as cursor:
            if not cursor.set_key(first):
                return []
            # Step by step through the leaves: to search each key from the root takes three times
            # as long.
            return list(islice(cursor.iternext(keys=False, values=True), count))

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[lmdb.Cursor[memoryview]]:
        """A cursor on what is committed."""
        try:
            if self._snapshot is None:
                self._snapshot = self.opened().begin(buffers=True)
            with self._snapshot.cursor() as cursor:
                yield cursor
        except lmdb.Error as error:
            raise translated(self.directory, error) from error

    def _end_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.abort()
            self._snapshot = None

    def low_on_space(self) -> str | None:
        return self.directory.low_on_space()

    def lost(self) -> str | None:
        return self.directory.lost()

    def close(self) -> None:
        _OPEN.discard(self)
        if self._environment is not None:
            with self.writing:
                self._end_snapshot()
                needed = needed_bytes(self._environment)
                self._environment.close()
                self._environment = None
            with contextlib.suppress(OSError):
                lengthen(self.directory.path, needed)
        self.directory.release()

    def _leave_to_parent(self) -> None:
        """In a forked child: drop the references without touching what is the parent's."""
        # The objects are kept, unused, so that nothing is unmapped or unlocked on their behalf.
        _LEFT_TO_PARENT.append((self._environment, self._snapshot))
        self._environment = self._snapshot = None
        # The thread that may hold the old one does not exist here.
        self.writing = threading.Lock()
        self.directory.release()

    def opened(self) -> lmdb.Environment:
        """The open environment; raises `StoreError` if this process has none."""
        if self._environment is None:
            raise StoreError(
                f"{self.directory.path} is not open here: it was closed, or it was opened by the"
                " process of which this one is a fork"
            )
        return self._environment


def open_environment(directory: DataDirectory, map_size: int) -> lmdb.Environment:
    """The environment in a directory that we hold, made if it is not there, checked if it is."""
    try:
        environment = _open(directory.path, map_size)
        try:
            _check_length(directory.path, environment)
            _check_format(directory.path, environment)
            check_commits(directory.path)
            sync_directory(directory.path)
        except BaseException:
            environment.close()
            raise
    except lmdb.Error as error:
        raise translated(directory, error) from error
    except StoreDamaged as error:
        raise damaged(directory.path, error) from error
    except OSError as error:
        raise StoreError(f"{directory.path} cannot be opened: {error.strerror}") from error
    return environment


def _open(path: Path, map_size: int) -> lmdb.Environment:
    while True:
        try:
            # sync and metasync are LMDB's defaults; decision 2 rests on them, so they are
            # said here.
            return lmdb.open(
                os.fspath(path), map_size=map_size, sync=True, metasync=True, mode=0o600
            )
        except lmdb.MemoryError:
            if map_size // 2 < MAP_SIZE_MIN_BYTES:
                raise
            map_size //= 2


def _check_length(path: Path, environment: lmdb.Environment) -> None:
    """Refuse a file that was cut short.

    A sound file may be short too: LMDB does not write pages that a transaction took and gave back.
    """
    length, needed = (path / DATA_FILE).stat().st_size, needed_bytes(environment)
    if length >= needed or not sys.executable:
        return
    map_size = environment.info()["map_size"]
    walk = [sys.executable, "-c", _WALK, os.fspath(path), str(map_size)]
    done = subprocess.run(walk, capture_output=True, check=False)  # noqa: S603 - our own text
    if done.returncode:
        raise StoreDamaged(f"it has {length} bytes where its index names {needed}")
    lengthen(path, needed)


def needed_bytes(environment: lmdb.Environment) -> int:
    """How long the data file is when every page that was ever used is in it."""
    return (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]


def lengthen(path: Path, length: int) -> None:
    """Make a sound file as long as its pages, so that no start has to walk it."""
    data = path / DATA_FILE
    if data.stat().st_size < length:
        os.truncate(data, length)


def check_commits(path: Path) -> None:
    """Raise `StoreDamaged` unless the file shows the commit that was the last."""
    with (
        (path / DATA_FILE).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as data,
    ):
        check_last_commits(data)


def _check_format(path: Path, environment: lmdb.Environment) -> None:
    with environment.begin(write=False) as transaction:
        found = transaction.get(records.FORMAT_KEY)
        is_new = found is None and transaction.stat()["entries"] == 0
    if is_new:
        with environment.begin(write=True) as transaction:
            give_format(transaction, Inventory())
        return
    if found is None:
        raise StoreError(
            f"{path} holds an LMDB file that is not Twinbus's: choose another directory"
        )
    if len(found) != records.FORMAT_BYTES and not is_sound(records.FORMAT_KEY, found):
        raise StoreDamaged("the record of its format cannot be read")
    version = records.unpack_format(found)
    if version not in (records.FORMAT_VERSION, records.UNCHECKED_VERSION):
        raise StoreError(
            f"{path} has store format {version}, this Twinbus reads format"
            f" {records.FORMAT_VERSION}: use the Twinbus that wrote it, or another directory"
        )
    upgrade(environment, found)


def damaged(path: Path, why: object) -> StoreDamaged:
    """The one line for a data file that is not what was stored."""
    return StoreDamaged(f"{path / DATA_FILE} is damaged: {why}. {REMEDY}")


def translated(directory: DataDirectory, error: lmdb.Error) -> StoreError:
    """An LMDB error as an error that says what it means and what to do."""
    # An error of the binding itself, such as the use of a closed object, has no code.
    path, code = directory.path, getattr(error, "code", None)
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(
            f"{path}: the store is as large as its map allows: receive messages, or start with more"
            " address space (ulimit -v)"
        )
    # A write that the disk took only in part reaches us as EIO.
    if out_of_room(code) or (code == errno.EIO and directory.is_nearly_full()):
        return StoreFull(f"{path}: the disk is full ({error}): make room")
    if isinstance(error, _DAMAGE):
        return StoreDamaged(f"{path / DATA_FILE} is damaged or not a store ({error}). {REMEDY}")
    return StoreError(f"{path}: {error}")


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Spare the garbage collector millions of new objects of which none is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _scan(
    transaction: lmdb.Transaction[memoryview], kind: int, found: Inventory
) -> Iterator[tuple[Data, Data]]:
    """The keys of one kind with their records, added to `found`; in order, or `StoreDamaged`."""
    cursor, last = transaction.cursor(), b""
    if cursor.set_range(bytes([kind])):
        for view, record in cursor:
            if view[0] != kind:
                return
            key = bytes(view)
            if key <= last:
                raise StoreDamaged("the index is wrong: records are not in order")
            last = key
            found.add(key, record)
            yield key, record


def _check_inventory(
    transaction: lmdb.Transaction[memoryview], found: Inventory, *, is_whole: bool
) -> None:
    """Raise unless `found` is all that is stored; `is_whole`: no record is damaged."""
    stored = read_inventory(transaction.get(records.INVENTORY_KEY))
    if stored is None:
        raise StoreDamaged("its inventory is missing or damaged")
    if found.count != stored.count:
        raise StoreDamaged(
            f"the index is wrong: {found.count} records are found, {stored.count} were stored"
        )
    # A damaged record no longer shows what it was counted as.
    if is_whole and found.total != stored.total:
        raise StoreDamaged("the index is wrong: other records are found than were stored last")


def _apply(transaction: lmdb.Transaction[bytes], batch: Batch) -> None:
    inventory = _inventory(transaction)
    # A commit can have thousands of messages, and all clients wait for it: no call for each, and no
    # object that the garbage collector would have to look at.
    changes = puts = batch.records.items()
    removed = [key for key, record in changes if record is None]
    if removed:
        puts = {key: record for key, record in changes if record is not None}.items()
    added = [key for key, _ in puts if key[0] == MESSAGE]
    inventory.add_messages(added)
    inventory.drop_messages([key for key in removed if key[0] == MESSAGE])
    if len(added) < len(puts):
        for key, record in puts:
            if key[0] != MESSAGE and record is not None:
                _replaced(transaction, key, inventory)
                inventory.add(key, record)
    for key in removed:
        if key[0] != MESSAGE:
            _replaced(transaction, key, inventory)
        if not transaction.delete(key) and key[0] == MESSAGE:
            entity_id, number = records.key_numbers(key)
            raise StoreDamaged(
                f"the index is wrong: message {number} of entity {entity_id} is to be removed,"
                " and is not found"
            )
    with transaction.cursor() as cursor:
        cursor.putmulti(cast("ItemsView[bytes, bytes]", puts))
    limit = SWEEP_RECORDS
    for entity_id in batch.sweep:
        limit -= _sweep(transaction, entity_id, limit, inventory)
        if limit <= 0:
            break
        batch.swept.append(entity_id)
    transaction.put(records.INVENTORY_KEY, inventory.pack(transaction.id()))


def _inventory(transaction: lmdb.Transaction[bytes]) -> Inventory:
    inventory = read_inventory(transaction.get(records.INVENTORY_KEY))
    if inventory is None:
        raise StoreDamaged("its inventory is missing or damaged")
    return inventory


def _replaced(transaction: lmdb.Transaction[bytes], key: bytes, inventory: Inventory) -> None:
    """Take what is stored under the key, if anything, out of the inventory."""
    stored = transaction.get(key)
    if stored is not None:
        inventory.drop(key, stored)


def _sweep(
    transaction: lmdb.Transaction[bytes], entity_id: int, limit: int, inventory: Inventory
) -> int:
    """Remove up to `limit` leftovers of a dropped entity; fewer removed means that none is left."""
    removed = 0
    with transaction.cursor() as cursor:
        for kind in records.HELD_KINDS:
            prefix = records.entity_key(kind, entity_id)
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                if removed == limit:
                    return removed
                inventory.drop(*cursor.item())
                found = cursor.delete() and bool(cursor.key())
                removed += 1
    key = records.entity_key(records.DROPPED, entity_id)
    _replaced(transaction, key, inventory)
    transaction.delete(key)
    return removed


def _sweep_all(environment: lmdb.Environment) -> None:
    """Finish what was dropped before, so that an entity id may be used again."""
    prefix = bytes([records.DROPPED])
    while True:
        with environment.begin(write=True) as transaction:
            with transaction.cursor() as cursor:
                if not cursor.set_range(prefix) or not cursor.key().startswith(prefix):
                    return
                entity_id = records.key_entity(cursor.key())
            inventory = _inventory(transaction)
            _sweep(transaction, entity_id, _SWEEP_AT_START_RECORDS, inventory)
            transaction.put(records.INVENTORY_KEY, inventory.pack(transaction.id()))


_OPEN: weakref.WeakSet[LmdbStore] = weakref.WeakSet()
_LEFT_TO_PARENT: list[object] = []


def _leave_all_to_parent() -> None:
    for store in list(_OPEN):
        store._leave_to_parent()
    _OPEN.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
