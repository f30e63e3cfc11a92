"""The files of one process in a ledger: written one after another, each ended by its rename.

    <process>-<number>.jsonl.open    being written, by one process that holds a lock on it
    <process>-<number>.jsonl         ended (full, old, or closed); it never changes again

A writer's numbers have no gap, so that a missing file is noticed (`chain`). Each file begins and
ends with a line about itself (`facts`). The next file begins before this one ends, so that a writer
that continues has a file whenever it is killed.

So a reader that follows a ledger takes every `.jsonl` once, and reads the `.open` files, which are
few and young, again each time. `adopt` renames open files of dead processes. If that happens to
a living one, it notices before its next write and continues in a new file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from twinbus.ledger.facts import place_of
from twinbus.ledger.open_file import HOST, OpenFile
from twinbus.ledger.record import FILE_SUFFIX, WRITER, encode

ROTATE_BYTES: Final = 64 * 1024 * 1024
"""A file of this size is one task's worth of reading for Spark."""

ROTATE_S: Final = 300.0
"""Maximum time that a file stays open: the lag of a stream, and what a report reads again."""

ROTATE_IDLE_S: Final = 6 * 3_600.0
"""The same for a file without a record: an idle process leaves four small files a day."""

HEARTBEAT_S: Final = 30.0
"""Time between two heartbeat lines: the time that the writer's death leaves unknown."""

BEFORE_MAX: Final = 100
"""Other writers that a first line names, the newest: the line stays below 20 KB."""

_NAMED_MAX: Final = 10_000
"""Writers that this one remembers to have named; beyond that it names them again."""

ID_NAME: Final = "ledger.id"
"""A file with a ledger's identity, which its copies share: tables belong to one ledger."""

MAX_BYTES: Final = 20_000_000_000
"""Size limit of the files of one host in a directory: some 70 million records. All processes of the
host share it, so restarting one does not raise it."""

MEASURE_AGAIN_S: Final = 10.0
"""Time between two checks for room while there is none: each reads the size of every file."""

RETRY_S: Final = 1.0
"""Time before the next try to create a file that could not be created."""

_named_ms: deque[int] = deque([0])
"""The newest time in the names of this process's writers: each time is used once."""


def process_name(prefix: str = "") -> str:
    """Return a unique name for a writer, with host and pid for `adopt`."""
    while True:
        # Two writers of one process may begin in the same millisecond. No lock: a fork might find
        # it taken by a thread that the child does not have.
        try:
            last_ms = _named_ms.popleft()
        except IndexError:
            time.sleep(0)
            continue
        named_ms = max(last_ms + 1, _now_ms())
        _named_ms.append(named_ms)
        head = f"{prefix}-{HOST}" if prefix else HOST
        return f"{head}-{os.getpid()}-{named_ms}"


class LedgerFiles:
    """Appends whole lines to the open file, and begins and ends files. For one thread."""

    def __init__(
        self,
        directory: Path,
        process: str,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_s: float = ROTATE_S,
        max_bytes: int = MAX_BYTES,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.trouble = ""
        """Why the last `append` did not write all."""
        self._rotate_bytes = rotate_bytes
        self._rotate_s = rotate_s
        self._max_bytes = max_bytes
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self.reset(process)

    def reset(self, process: str) -> None:
        """Start without a file, under this name, in a new or forked process."""
        self._process = process
        self._share = f"{HOST}-" if f"{HOST}-" in process else f"{process}-"
        self._started_ms = _now_ms()
        self._file: OpenFile | None = None
        self._number = 0
        """Number of the next file."""
        self._previous: str | None = None
        """The hash of the last file; None before the first."""
        self._lines = 0
        self._named: set[str] = set()
        self._others_bytes = 0
        self._measure_at_s = 0.0
        self._beat_at_s = 0.0
        self._retry_at_s = 0.0
        self._refusal = ""

    def append(self, data: bytes) -> int:
        """Append records; return the bytes of whole lines written. If not all: see `trouble`."""
        try:
            self._require_own()
            self.end_if_old()
            self._opened()
            self._require_room(len(data))
            file = self._opened()
        except OSError as error:
            self.trouble = f"{self.directory}: {error.strerror or error}"
            return 0
        file.has_records = True
        done = self._put(file, data)
        if file.size_bytes >= self._rotate_bytes:
            self.rotate()
        return done

    def begin(self) -> None:
        """Begin the first file before the first record, so that a kill before it is noticed."""
        with contextlib.suppress(OSError):
            self._opened()

    def beat(self) -> int | None:
        """Write a heartbeat once an interval; return a descriptor to sync, or None."""
        if self._previous is None and self._file is None:
            return None
        now_s = self._clock()
        if now_s < self._beat_at_s:
            return None
        try:
            self._require_own()
            file = self._opened()
            self._beat_at_s = now_s + self._heartbeat_s
            fields = {"state": "alive", "lines": self._lines, "hash": file.hash}
            return file.duplicate() if self._put(file, self._line(fields)) else None
        except OSError:
            # The next append or beat tries again, and lost records are counted.
            return None

    def end_if_old(self) -> None:
        """Begin another file if this one has been open for long."""
        if self._file is not None:
            age_s = self._clock() - self._file.began_s
            idle_s = max(self._rotate_s, ROTATE_IDLE_S)
            if age_s >= (self._rotate_s if self._file.has_records else idle_s):
                self.rotate()

    def hand_over(self) -> None:
        """Begin another file if this one has a record or a heartbeat."""
        if self._file is not None:
            age_s = self._clock() - self._file.began_s
            if self._file.has_records or age_s >= self._heartbeat_s:
                self.rotate()

    def rotate(self) -> None:
        """Begin the next file, then end this one: in this order a kill is noticed."""
        self._require_own()
        old = self._file
        if old is None:
            return
        old.end_torn_line()
        self._leave(old)
        try:
            self._file = self._begun(is_synced=True)
        except OSError:
            # The next file names the hash of all bytes of this one.
            pass
        else:
            self._close_with("continued", old)
        old.end()

    def try_again(self) -> None:
        """Let the next append try to begin a file, however recently that failed."""
        self._retry_at_s = 0.0

    def end(self) -> None:
        """Write the last line, and give the file its final name."""
        if self._previous is None and self._file is None:
            return
        with contextlib.suppress(OSError):
            self._require_own()
            self._close_with("ended", self._opened())
        if self._file is not None:
            self._file.end()
            self._leave(self._file)

    def abandon(self) -> None:
        """Close the file as it is: it belongs to another process."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _require_own(self) -> None:
        """Leave a file that was adopted or deleted: a reader may have read it already."""
        if self._file is not None and not self._file.is_ours():
            self._file.close()
            self._leave(self._file)

    def _leave(self, file: OpenFile) -> None:
        self._previous, self._number, self._file = file.hash, file.number + 1, None

    def _opened(self) -> OpenFile:
        if self._file is None:
            now_s = self._clock()
            if now_s < self._retry_at_s:
                raise OSError(errno.EAGAIN, self._refusal)
            try:
                self._file = self._begun()
            except OSError as error:
                # Beginning a file lists all others: not at every flush.
                self._retry_at_s, self._refusal = now_s + RETRY_S, error.strerror or str(error)
                raise
        return self._file

    def _put(self, file: OpenFile, data: bytes) -> int:
        done = file.append(data)
        if done < len(data):
            self.trouble = f"{self.directory}: {file.trouble}"
        self._lines += data.count(b"\n", 0, done)
        return done

    def _close_with(self, state: str, file: OpenFile) -> None:
        file.end_torn_line()
        self._put(file, self._line({"state": state, "lines": file.lines, "hash": file.hash}))

    def _begun(self, *, is_synced: bool = False) -> OpenFile:
        """Return a new file with its first line; OSError if it could not be written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._previous is None:
            _identify(self.directory)
        self._others_bytes, before = self._survey()
        began_s = self._clock()
        while (file := OpenFile.create(self._number, self._ended_path(), began_s)) is None:
            # Another writer of this name: hashes distinguish their chains.
            self._number += 1
        fields = {
            "state": "begin",
            "number": file.number,
            "previous": self._previous,
            "before": " ".join(f"{name}:{last}" for name, last in before.items()) or None,
            "host": HOST,
            "started_ms": self._started_ms,
            "interval_ms": int(self._heartbeat_s * 1000),
        }
        line = self._line(fields)
        if self._put(file, line) < len(line):
            file.remove()
            raise OSError(errno.ENOSPC, file.trouble)
        if len(self._named) > _NAMED_MAX:
            self._named.clear()
        self._named.update(before)
        if is_synced:
            sync(file.duplicate())
            sync(os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC))
        self._beat_at_s = self._clock() + self._heartbeat_s
        return file

    def _line(self, fields: dict[str, object]) -> bytes:
        return encode(self._process, _now_ms(), WRITER, fields)

    def _require_room(self, coming_bytes: int) -> None:
        """Raise OSError if records exceed this host's limit; lines about the writer may."""
        file_bytes = 0 if self._file is None else self._file.size_bytes
        if self._others_bytes + file_bytes + coming_bytes <= self._max_bytes:
            return
        if self._file is not None and self._file.has_records:
            # Ended files can be removed, which makes room.
            self.rotate()
        now_s = self._clock()
        if now_s >= self._measure_at_s:
            self._measure_at_s = now_s + MEASURE_AGAIN_S
            self._others_bytes = self._survey()[0]
        if self._others_bytes + coming_bytes > self._max_bytes:
            raise OSError(
                errno.EDQUOT,
                f"the ledger's files of {self._share[:-1]} have reached {self._max_bytes:,} bytes;"
                " compact or delete old ones, or raise TWINBUS_LEDGER_MAX_BYTES",
            )

    def _survey(self) -> tuple[int, dict[str, int]]:
        """Return the bytes of this host's files (of this writer's, if its name has no host), and
        the last numbers of other writers that this one has not named yet, newest first.
        """
        total = 0
        others: dict[str, tuple[float, int]] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                place = place_of(entry.name)
                is_new = place is not None and place[0] not in self._named
                if FILE_SUFFIX not in entry.name or not (is_new or self._share in entry.name):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat()
                    if self._share in entry.name:
                        total += found.st_size
                    if place is not None and is_new and place[0] != self._process:
                        newest, last = others.get(place[0], (0.0, 0))
                        others[place[0]] = max(newest, found.st_mtime), max(last, place[1])
        newest_first = sorted(others, key=lambda name: others[name][0], reverse=True)[:BEFORE_MAX]
        return total, {name: others[name][1] for name in newest_first}

    def _ended_path(self) -> Path:
        return self.directory / f"{self._process}-{self._number:05d}{FILE_SUFFIX}"


def _identify(directory: Path) -> None:
    """Give a ledger its id, unless it has one: the file appears whole, and never changes."""
    path = directory / ID_NAME
    if path.exists():
        return
    identity = uuid.uuid4().hex
    draft = directory / f".{ID_NAME}-{identity}"
    try:
        draft.write_text(f"{identity}\n")
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:
        # A file system without links: of two first writers at once, the last one wins.
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def sync(fd: int) -> None:
    """Sync a file or a directory to disk, and close its descriptor."""
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
