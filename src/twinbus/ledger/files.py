"""The files of one process in a ledger: written one after another, each ended by its rename.

    <process>-<number>.jsonl.open    being written, by one process that holds a lock on it
    <process>-<number>.jsonl         ended (full, old, or closed); it never changes again

A writer's numbers have no gap, so that a file that is gone is missed (`missing`).

So a reader that follows a ledger takes every `.jsonl` once, and reads the `.open` files, which are
few and young, again each time. What a dead process left open is for `adoption` to rename; should
that ever happen to a living one, it notices before its next write and goes on in a new file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from pathlib import Path
from typing import Final

from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX

ROTATE_BYTES: Final = 64 * 1024 * 1024
"""A file of this size is one task's worth of reading for Spark."""

ROTATE_S: Final = 300.0
"""The most that a file stays open, however little comes: what a stream lags behind, and what a
report has to read again."""

MAX_BYTES: Final = 20_000_000_000
"""Of the files of one host in a directory: some 70 million records. A process that is started again
and again has no more than one that runs on."""

MEASURE_AGAIN_S: Final = 10.0
"""Between two looks for room while there is none: each asks for the size of every file."""

HOST: Final = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()).strip(".-")[:100] or "host"
"""This machine, as the names of files say it."""


def process_name(prefix: str = "") -> str:
    """A name for this process that no other has, with what `adoption` asks of it: host and pid."""
    head = f"{prefix}-{HOST}" if prefix else HOST
    return f"{head}-{os.getpid()}-{time.time_ns() // 1_000_000}"


class LedgerFiles:
    """Appends whole lines to the file that is open, and begins and ends files. For one thread."""

    def __init__(
        self,
        directory: Path,
        process: str,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_s: float = ROTATE_S,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.directory = directory
        self.trouble = ""
        """Why the last `append` did not take all."""
        self._rotate_bytes = rotate_bytes
        self._rotate_s = rotate_s
        self._max_bytes = max_bytes
        self.begin_anew(process)

    def begin_anew(self, process: str) -> None:
        """Begin with no file, under this name, as a new or a forked process does."""
        self._process = process
        self._share = f"{HOST}-" if f"{HOST}-" in process else f"{process}-"
        self._number = 0
        self._fd = -1
        self._path = self.directory
        self._identity = (0, 0)
        self._size_bytes = 0
        self._others_bytes = 0
        self._began_s = 0.0
        self._measure_at_s = 0.0
        self._cut = False

    def append(self, data: bytes) -> int:
        """Append lines; how many bytes of whole lines are written, fewer than all in `trouble`."""
        done = 0
        try:
            self._make_ready(len(data))
            if self._cut:
                # The last write ended inside a line, which the reader will set aside.
                self._size_bytes += os.write(self._fd, b"\n")
                self._cut = False
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
            self._size_bytes += done
        except OSError as error:
            self.trouble = f"{self.directory}: {error.strerror or error}"
            whole = data.rfind(b"\n", 0, done) + 1
            self._mend(done - whole, done)
            return whole
        if self._size_bytes >= self._rotate_bytes:
            self.end()
        return done

    def end_if_old(self) -> None:
        """End the file once it has been open for long, whether or not anything more came."""
        if self._fd >= 0 and time.monotonic() - self._began_s >= self._rotate_s:
            self.end()

    def end(self) -> None:
        """Wait for the disk and give the file its last name; the next append begins another."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
        # Where this fails the file keeps its name, and is adopted when this process has ended.
        is_empty = not self._size_bytes
        with contextlib.suppress(OSError):
            if self._is_ours():
                self._rename()
        self.abandon()
        if not is_empty:
            self._number += 1

    def abandon(self) -> None:
        """Close the file as it is: it belongs to somebody else."""
        if self._fd >= 0:
            # The lock is shared with a parent that forked this process, and must stay held.
            os.close(self._fd)
            self._fd = -1
            self._size_bytes = 0

    def _make_ready(self, coming_bytes: int) -> None:
        if self._fd >= 0 and not self._is_ours():
            # Adopted, or deleted: whoever reads it may have done so already.
            self.abandon()
            self._number += 1
        self.end_if_old()
        self._require_room(coming_bytes)
        if self._fd < 0:
            self._open()

    def _require_room(self, coming_bytes: int) -> None:
        now_s = time.monotonic()
        if self._fd < 0 and now_s >= self._measure_at_s:
            self._others_bytes = self._measured()
        if self._others_bytes + self._size_bytes + coming_bytes <= self._max_bytes:
            return
        # What is ended can be taken away, and there is room again.
        self.end()
        if now_s >= self._measure_at_s:
            self._measure_at_s = now_s + MEASURE_AGAIN_S
            self._others_bytes = self._measured()
        if self._others_bytes + coming_bytes > self._max_bytes:
            raise OSError(
                errno.EDQUOT,
                f"the ledger's files of {self._share[:-1]} have reached {self._max_bytes:,} bytes;"
                " compact or delete old ones, or raise TWINBUS_LEDGER_MAX_BYTES",
            )

    def _measured(self) -> int:
        """Bytes in the files of this host, or of this process where its name has no host."""
        total = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                if self._share in entry.name and FILE_SUFFIX in entry.name:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat().st_size
        return total

    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        while True:
            path = Path(f"{self._ended_path()}{OPEN_SUFFIX}")
            try:
                fd = os.open(path, flags, 0o640)
            except FileExistsError:
                # Another writer of this process, or of one that had its name.
                self._number += 1
                continue
            if not os.path.lexists(self._ended_path()):
                break
            # Asked only now: a file of this number is always there under one of its two names. An
            # adopter may have been quicker than the question; then it is our own, and empty.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.close(fd)
            self._number += 1
        with contextlib.suppress(OSError):
            # A file system without locks: then the process id alone tells that we live.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        self._fd, self._path, self._identity = fd, path, (found.st_dev, found.st_ino)
        self._size_bytes = 0
        self._began_s = time.monotonic()
        self._cut = False

    def _ended_path(self) -> Path:
        return self.directory / f"{self._process}-{self._number:05d}{FILE_SUFFIX}"

    def _is_ours(self) -> bool:
        """Whether the name still leads to the file that is open."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _rename(self) -> None:
        if not self._size_bytes:
            os.unlink(self._path)
            return
        while os.path.lexists(self._ended_path()):
            self._number += 1
        os.rename(self._path, self._ended_path())

    def _mend(self, torn_bytes: int, done: int) -> None:
        """Take the part of a line off the end of the file, so that the next begins a line."""
        if self._fd < 0:
            return
        self._size_bytes += done - torn_bytes
        if torn_bytes:
            try:
                os.ftruncate(self._fd, self._size_bytes)
            except OSError:
                self._cut = True
                self._size_bytes += torn_bytes
