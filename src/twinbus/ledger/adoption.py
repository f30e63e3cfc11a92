"""Ends the files that dead processes left open: renames them, so that a stream may take them.

A file is ended only if its writer is surely dead. Its name has host and process id: on this host
that process must be gone, or have started after the file was named. Any other file (of another
host, or named by its user) must be unchanged for a day. A process that holds the file's lock is
alive, whatever the other checks say.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from twinbus.ledger.files import HOST
from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, LedgerError

UNCHANGED_S: Final = 86_400.0
"""A living writer ends its file every few minutes, unless its machine is suspended."""

START_SLACK_MS: Final = 2_000
"""Accuracy of the kernel's boot time, and so of the start of a process."""

_NAME: Final = re.compile(
    rf"(?P<head>.+)-(?P<pid>\d+)-(?P<named_ms>\d+)-(?P<number>\d+)"
    rf"{re.escape(FILE_SUFFIX + OPEN_SUFFIX)}"
)


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
        parts = _here(path.name)
        if parts is not None:
            with contextlib.suppress(OSError), _unlocked(path) as is_unlocked:
                is_dead = _is_dead(path.name) and is_unlocked
                (dead if is_dead else alive).add(path.name.rpartition("-")[0])
    return frozenset(alive), frozenset(dead - alive)


def _adopt_one(path: Path) -> Path | None:
    if not (_is_dead(path.name) or _is_unchanged(os.stat(path))):
        return None
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
