"""A data directory that one process holds: made, locked, measured, and left alone after a fork."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from twinbus.errors import StoreError, StoreFull

LOCK_FILE = "twinbus.lock"
DATA_FILE = "data.mdb"

LOW_SPACE_BYTES = 64 * 1024 * 1024
"""Below this no more messages should come in. Taking messages out needs room too, for a changed
page is written beside the old one; this much lets them all be taken out."""

START_SPACE_BYTES = 1024 * 1024
"""A start needs this much: LMDB maps its lock file into memory, and touching a page of it that the
disk has no room for kills the process."""

_LOOK_EVERY_S = 1.0
_LOOK_EVERY_BYTES = 8 * 2**20


class DataDirectory:
    """A directory that is this process's own, made if it is not there, until `release`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._looked_at_s = float("-inf")
        self._unseen_bytes = 0
        """Bytes written since the last check."""
        self._reason: str | None = None
        self._data_inode: int | None = None
        try:
            make_directories(path)
            self._lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            self._lock()
            self._check_start_space()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock_fd, 20, 0).decode("ascii", "replace").strip()
            raise StoreError(
                f"{self.path} is in use by process {holder or 'unknown'}: stop it or choose"
                " another data directory"
            ) from error
        except OSError as error:
            raise unusable(self.path, error) from error

    def _check_start_space(self) -> None:
        try:
            room = self.room_bytes()
            if room < START_SPACE_BYTES:
                raise StoreFull(
                    f"{self.path}: {room} bytes free on its disk, a start needs"
                    f" {START_SPACE_BYTES}: make room"
                )
            # Who holds the lock, for the message above in another process.
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            raise unusable(self.path, error) from error

    def room_bytes(self) -> int:
        """How much more may be written: the disk's free space, or what a file-size limit leaves."""
        disk = os.statvfs(self.path)
        room = disk.f_bavail * disk.f_frsize
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:
            data = self.path / DATA_FILE
            room = min(room, limit - (data.stat().st_size if data.exists() else 0))
        return max(room, 0)

    def lost(self) -> str | None:
        """Why what is written here cannot be found by the next start; None: it can.

        A file that was removed or replaced still takes writes from the process that has it open.
        """
        try:
            lock = (self.path / LOCK_FILE).stat()
            data_inode = (self.path / DATA_FILE).stat().st_ino
        except OSError as error:
            return f"{self.path}: the data files are gone ({error.strerror})"
        if self._data_inode is None:
            self._data_inode = data_inode
        if not os.path.samestat(lock, os.fstat(self._lock_fd)) or data_inode != self._data_inode:
            return f"{self.path}: the data files were replaced while the broker had them open"
        return None

    def is_nearly_full(self) -> bool:
        """Whether space is low now; false if the disk does not report it."""
        try:
            return self.room_bytes() < LOW_SPACE_BYTES
        except OSError:
            return False

    def wrote(self, size_bytes: int) -> None:
        """Note that room was used: a fast disk can fill up within a second."""
        self._unseen_bytes += size_bytes

    def low_on_space(self) -> str | None:
        """Why no more should be stored, checked now and then; None if there is space."""
        now_s = self._clock()
        if now_s - self._looked_at_s >= _LOOK_EVERY_S or self._unseen_bytes >= _LOOK_EVERY_BYTES:
            self._looked_at_s, self._unseen_bytes = now_s, 0
            self._reason = self._look()
        return self._reason

    def _look(self) -> str | None:
        try:
            room = self.room_bytes()
        except OSError as error:
            return f"{self.path}: cannot see how much room is left: {error.strerror}"
        if room >= LOW_SPACE_BYTES:
            return None
        return (
            f"{self.path}: {room // 2**20} MiB left, sends need {LOW_SPACE_BYTES // 2**20} MiB:"
            " receive messages or make room on the disk"
        )

    def release(self) -> None:
        """Give the directory up; also right in a forked child, whose parent keeps the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def make_directories(path: Path) -> None:
    """Make the directory and its missing parents so that a power cut cannot take them back."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def unusable(path: Path, error: OSError) -> StoreError:
    """The one line for a directory that the operating system would not give us."""
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return StoreError(f"{path}: a file is in the way of the data directory: move it")
    if out_of_room(error.errno):
        return StoreFull(f"{path}: the disk is full ({error.strerror}): make room")
    return StoreError(f"{path} cannot be used as a data directory: {error.strerror}")


def out_of_room(code: int | None) -> bool:
    return code in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
