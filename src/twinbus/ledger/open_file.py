"""One file of a ledger while it is written: appends whole lines, counts and hashes them.

The file is locked while it is open, so that `adoption` knows that its writer is alive. A write that
ends inside a line (a full disk) is taken back; where that fails too, the next one begins a line of
its own, and readers reject the torn one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import Self

from twinbus.ledger.record import OPEN_SUFFIX


class OpenFile:
    """Made by `create`. For one thread."""

    def __init__(self, fd: int, number: int, ended_path: Path) -> None:
        self.number = number
        self.ended_path = ended_path
        self.trouble = ""
        """Why the last `append` did not take all."""
        self.size_bytes = 0
        self.lines = 0
        self.has_records = False
        self.began_s = time.monotonic()
        self._fd = fd
        self._path = _open_path(ended_path)
        self._hash = hashlib.sha256()
        self._is_cut = False
        found = os.fstat(fd)
        self._identity = (found.st_dev, found.st_ino)

    @classmethod
    def create(cls, number: int, ended_path: Path) -> Self | None:
        """Create and lock the file; None: a file of this number is there, open or ended."""
        path = _open_path(ended_path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o640)
        except FileExistsError:
            return None
        if os.path.lexists(ended_path):
            # Asked only now: a file of this number is always there under one of its two names. An
            # adopter may have been quicker than the question; then it is our own, and empty.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.close(fd)
            return None
        with contextlib.suppress(OSError):
            # A file system without locks: then only the process id shows that we are alive.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(fd, number, ended_path)

    @property
    def hash(self) -> str:
        """The SHA-256 of all bytes that are in the file."""
        return self._hash.hexdigest()

    def append(self, data: bytes) -> int:
        """Append lines; how many bytes of whole lines are written, fewer than all in `trouble`."""
        done = whole = 0
        try:
            self._end_torn_line()
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
            whole = done
        except OSError as error:
            self.trouble = error.strerror or str(error)
            whole = data.rfind(b"\n", 0, done) + 1
            if whole < done:
                try:
                    os.ftruncate(self._fd, self.size_bytes + whole)
                    done = whole
                except OSError:
                    self._is_cut = True
        self._took(data[:done])
        return whole

    def end_torn_line(self) -> None:
        """End a line that a full disk tore, if that can be done now."""
        with contextlib.suppress(OSError):
            self._end_torn_line()

    def _end_torn_line(self) -> None:
        if self._is_cut:
            os.write(self._fd, b"\n")
            self._took(b"\n")
            self._is_cut = False

    def _took(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self.lines += data.count(b"\n")
        self._hash.update(data)

    def is_ours(self) -> bool:
        """Whether the name still leads to this file: it was not adopted or deleted."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def end(self) -> None:
        """Wait for the disk, give the file its last name and close it.

        Where that fails, or something has that name, the file keeps its name: readers take it as it
        is, and it is adopted when this process has ended.
        """
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
        with contextlib.suppress(OSError):
            if self.is_ours() and not os.path.lexists(self.ended_path):
                os.rename(self._path, self.ended_path)
        self.close()

    def close(self) -> None:
        """Close the file as it is. The lock is shared with a parent that forked this process."""
        os.close(self._fd)

    def remove(self) -> None:
        """Close and delete a file that nothing could be written to."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self.close()

    def duplicate(self) -> int:
        """Another descriptor of the file, for a caller that waits for the disk; it closes it."""
        return os.dup(self._fd)


def _open_path(ended_path: Path) -> Path:
    return Path(f"{ended_path}{OPEN_SUFFIX}")
