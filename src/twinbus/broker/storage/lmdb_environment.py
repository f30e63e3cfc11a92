"""Opens an LMDB environment safely, and turns LMDB's errors into one readable line.

LMDB reads through a memory map, so a file that is shorter than its pages does not raise: touching
what is missing kills the process (SIGBUS). A short file is therefore first walked by a child.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import lmdb

from twinbus.broker.storage import records
from twinbus.broker.storage.data_directory import out_of_room, sync_directory
from twinbus.errors import StoreError, StoreFull

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.broker.storage.data_directory import DataDirectory

MAP_SIZE_BYTES = 2**40
"""Address space for the file to grow into; it costs neither memory nor disk. So large that it need
never be enlarged, which LMDB cannot do beside a read."""

MAP_SIZE_MIN_BYTES = 2**30
"""Where a platform or a limit gives less address space, half is asked for, down to this."""

_DATA_FILE = "data.mdb"

_DAMAGE = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)

_WALK = """
import lmdb, sys
environment = lmdb.open(sys.argv[1], readonly=True, lock=False, map_size=int(sys.argv[2]))
with environment.begin() as transaction:
    for _ in transaction.cursor():
        pass
"""
"""Reads every byte of every record."""


def open_environment(directory: DataDirectory, map_size: int) -> lmdb.Environment:
    """The environment in a directory that we hold, made if it is not there, checked if it is."""
    try:
        environment = _open(directory.path, map_size)
        try:
            _check_length(directory.path, environment)
            _check_format(directory.path, environment)
            sync_directory(directory.path)
        except BaseException:
            environment.close()
            raise
    except lmdb.Error as error:
        raise translated(directory, error) from error
    except OSError as error:
        raise StoreError(f"{directory.path} cannot be opened: {error.strerror}") from error
    return environment


def _open(path: Path, map_size: int) -> lmdb.Environment:
    while True:
        try:
            # sync and metasync are LMDB's defaults; they are the promise of SPEC 9, so they are
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
    length, needed = (path / _DATA_FILE).stat().st_size, needed_bytes(environment)
    if length >= needed or not sys.executable:
        return
    map_size = environment.info()["map_size"]
    walk = [sys.executable, "-c", _WALK, os.fspath(path), str(map_size)]
    done = subprocess.run(walk, capture_output=True, check=False)  # noqa: S603 - our own text
    if done.returncode:
        raise StoreError(
            f"{path / _DATA_FILE} is damaged: it has {length} bytes where its index names {needed}."
            " Put back a copy of the directory, or move it away to start empty"
        )
    lengthen(path, needed)


def needed_bytes(environment: lmdb.Environment) -> int:
    """How long the data file is when every page that was ever used is in it."""
    return (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]


def lengthen(path: Path, length: int) -> None:
    """Make a sound file as long as its pages, so that no start has to walk it."""
    data = path / _DATA_FILE
    if data.stat().st_size < length:
        os.truncate(data, length)


def _check_format(path: Path, environment: lmdb.Environment) -> None:
    with environment.begin(write=False) as transaction:
        found = transaction.get(records.FORMAT_KEY)
        is_new = found is None and transaction.stat()["entries"] == 0
    if is_new:
        with environment.begin(write=True) as transaction:
            transaction.put(records.FORMAT_KEY, records.pack_format())
        return
    if found is None:
        raise StoreError(
            f"{path} holds an LMDB file that is not Twinbus's: choose another directory"
        )
    version = records.unpack_format(found)
    if version > records.FORMAT_VERSION:
        raise StoreError(
            f"{path} has store format {version}, this Twinbus reads up to"
            f" {records.FORMAT_VERSION}: use the newer Twinbus that wrote it, or another directory"
        )


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
        return StoreError(
            f"{path / _DATA_FILE} is damaged or not a store ({error}). Put back a copy of the"
            " directory, or move it away to start empty"
        )
    return StoreError(f"{path}: {error}")
