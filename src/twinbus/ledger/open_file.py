"""One file of a ledger while it is written, and the end of files that dead processes left open.

`OpenFile` appends whole lines, counts and hashes them. It locks the file while it is open. A write
that ends inside a line (a full disk) is taken back; where that fails too, the next one begins a
line of its own, and readers reject the torn one.

`adopt` renames an open file, so that a stream may take it, only if its writer is surely dead. Its
name has host and process id: on this host that process must be gone, or have started after the
file was named. Any other file (of another host, or named by its user) must be unchanged for a day.
A process that holds the file's lock is alive, whatever the other checks say.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, LedgerError

HOST: Final = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()).strip(".-")[:100] or "host"
"""This machine's name in the names of files."""

UNCHANGED_S: Final = 86_400.0
"""A living writer ends its file every few minutes, unless its machine is suspended."""

START_SLACK_MS: Final = 2_000
"""Accuracy of the kernel's boot time, and so of the start of a process."""

_NAME: Final = re.compile(
    rf"(?P<head>.+)-(?P<pid>\d+)-(?P<named_ms>\d+)-(?P<number>\d+)"
    rf"{re.escape(FILE_SUFFIX + OPEN_SUFFIX)}"
)


class OpenFile:
    """Made by `create`. For one thread."""

    def __init__(self, fd: int, number: int, ended_path: Path, began_s: float) -> None:
        self.number = number
        self.ended_path = ended_path
        self.trouble = ""
        """Why the last `append` did not take all."""
        self.size_bytes = 0
        self.lines = 0
        self.has_records = False
        self.began_s = began_s
        self._fd = fd
        self._path = _open_path(ended_path)
        self._hash = hashlib.sha256()
        self._is_cut = False
        found = os.fstat(fd)
        self._identity = (found.st_dev, found.st_ino)

    @classmethod
    def create(cls, number: int, ended_path: Path, began_s: float) -> Self | None:
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
        return cls(fd, number, ended_path, began_s)

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


def adopt(directory: Path | str) -> list[Path]:
    """Rename the open files of dead writers in a ledger; return their new paths."""
    home = Path(directory)
    if not home.is_dir():
        raise LedgerError(f"there is no ledger at {home}: it is not a directory")
    adopted = []
    for path in sorted(home.glob(f"*{FILE_SUFFIX}{OPEN_SUFFIX}")):
        # Gone meanwhile (ended, or adopted by another), or not ours to touch.
        with contextlib.suppress(OSError):
            ended = _adopt_one(path)
            if ended is not None:
                adopted.append(ended)
    return adopted


def writers_here(directory: Path | str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the processes of this host with open files in a ledger: alive, and surely dead.

    Nothing is renamed, so a reader needs no right to write.
    """
    alive, dead = set[str](), set[str]()
    for path in Path(directory).glob(f"*{FILE_SUFFIX}{OPEN_SUFFIX}"):
        if _here(path.name) is not None:
            with contextlib.suppress(OSError), _unlocked(path) as is_unlocked:
                is_dead = _is_dead(path.name) and is_unlocked
                (dead if is_dead else alive).add(path.name.rpartition("-")[0])
    return frozenset(alive), frozenset(dead - alive)


def _adopt_one(path: Path) -> Path | None:
    ended = path.with_name(path.name.removesuffix(OPEN_SUFFIX))
    with _unlocked(path) as is_unlocked:
        if not is_unlocked or os.path.lexists(ended):
            # Beside an ended file of the same name: one is a copy, which readers report.
            return None
        if not (_is_dead(path.name) or _is_unchanged(os.stat(path))):
            return None
        os.rename(path, ended)
    return ended


@contextlib.contextmanager
def _unlocked(path: Path) -> Iterator[bool]:
    """Whether no process holds the lock of a file; the block then holds it.

    The lock of a file whose process is there is not tried: a living writer must not find it taken.
    """
    if not (_is_dead(path.name) or _is_unchanged(os.stat(path))):
        yield False
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        is_unlocked = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_unlocked = False
        except OSError:
            # No locks on this file system: the writer has none either.
            pass
        found, named = os.fstat(fd), os.stat(path)
        yield is_unlocked and (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino)
    finally:
        os.close(fd)


def _is_unchanged(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime >= UNCHANGED_S


def _is_dead(name: str) -> bool:
    """Whether the process that a file is named after was on this host, and is no more."""
    parts = _here(name)
    if parts is None:
        return False
    pid = int(parts["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # Somebody else's, so it is there.
        pass
    started_ms = _started_ms(pid)
    return started_ms is not None and started_ms > int(parts["named_ms"]) + START_SLACK_MS


def _here(name: str) -> re.Match[str] | None:
    """The parts of an open file's name, where its process is of this host."""
    parts = _NAME.fullmatch(name)
    if parts is None or not (parts["head"] == HOST or parts["head"].endswith(f"-{HOST}")):
        return None
    return parts


def _started_ms(pid: int) -> int | None:
    """Return when a process started, in unix milliseconds; None if the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    except OSError:
        return None
    if boot is None:
        return None
    ticks, per_second = int(fields[19]), os.sysconf("SC_CLK_TCK")
    return int(boot[1]) * 1000 + ticks * 1000 // per_second
