"""Appends to the ledger without making a send wait: `record` notes, a thread writes in groups.

What was written (every `flush_s`, or by `flush`) survives the death of the process, for the bytes
are the kernel's; only `close` and the end of a file also wait for the disk itself. A disk that is
full, or gone, costs records and never a send: they are counted in `unrecorded`, the log says so
once, and the next line that can be written carries the count.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from twinbus.ledger.record import (
    FIELDS,
    FILE_SUFFIX,
    OPERATIONS,
    REQUIRED,
    LedgerError,
    LineForm,
    encode,
    encode_deliveries,
    encode_messages,
)

__all__ = ["LedgerWriter", "NullLedger", "open_ledger"]

log = logging.getLogger("twinbus.ledger")

ROTATE_BYTES: Final = 64 * 1024 * 1024
"""A file of this size is one task's worth of reading for Spark."""

FLUSH_S: Final = 0.2
"""The most that a `kill -9` can take with it."""

BUFFER_MAX: Final = 100_000
"""Records that wait to be written: seconds of the fastest sender, about 50 MB. A disk that is
slower for longer loses records, not the application's memory."""

_GROUP_MAX: Final = 2_000
"""Records in one write: some hundred KB, so that `close` and `flush` never wait for much more."""

_FORMS_MAX: Final = 20_000
"""Forms whose common part is kept as text, some 300 bytes each: two for every entity of a large
pair. Past that they are made anew, which costs time and nothing else."""

_OPTIONAL: Final = frozenset(FIELDS) - frozenset(REQUIRED)
_PROCESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""A name that every file system takes; Spark passes over files that begin with `_` or `.`."""

_Messages = Sequence[tuple[str | None, int | None]]
_Shared = tuple[tuple[str, object], ...]
_Deliveries = Sequence[tuple[str | None, int, int, int | None]]
_Noted = (
    tuple[int, str, dict[str, object]]
    | tuple[int, LineForm, int, _Messages]
    | tuple[int, str, _Shared, _Deliveries]
)
"""One record, or those of one call's messages: their form, how long it took, ids and sizes; or
those of many deliveries: what they have in common, and what not."""


class LedgerWriter:
    """One process's part of a ledger: files `<process>-<number>.jsonl` in `directory`."""

    def __init__(
        self,
        directory: Path | str,
        *,
        process: str | None = None,
        rotate_bytes: int = ROTATE_BYTES,
        flush_s: float = FLUSH_S,
    ) -> None:
        self.directory = _local(directory)
        self.process = process or _process_name()
        if not _PROCESS.fullmatch(self.process):
            raise LedgerError(
                f"the ledger's process name {self.process!r} is part of a file name: letters,"
                " digits, '.', '_' and '-', at most 200, the first a letter or digit"
            )
        self.unrecorded = 0
        """Records that could not be written, so far."""
        self._rotate_bytes = rotate_bytes
        self._flush_s = flush_s
        self._number = 0
        self._told = False
        self._closed = False
        self._forget()
        _writers.add(self)

    def _forget(self) -> None:
        """Begin with nothing noted and nothing open, as a new or a forked process does."""
        self._noted: deque[_Noted] = deque()
        self._more = 0
        """Records that are noted beyond one for each note; `_counting` guards it."""
        self._counting = threading.Lock()
        self._commons: dict[LineForm | tuple[str, _Shared], str] = {}
        self._unsaid = 0
        self._disk = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._size_bytes = 0
        self._cut = False

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Note one operation; returns at once, whatever the disk does, and never raises for it."""
        assert operation in OPERATIONS, f"no such operation: {operation}"
        assert fields.keys() <= _OPTIONAL, f"no such fields: {fields.keys() - _OPTIONAL}"
        if len(self._noted) + self._more >= BUFFER_MAX or self._closed:
            self._miss(1, "the records come faster than the disk takes them")
            return
        if at_ms is None:
            at_ms = time.time_ns() // 1_000_000
        self._noted.append((at_ms, operation, fields))
        if self._thread is None:
            self._start()

    def record_messages(self, form: LineForm, latency_us: int, messages: _Messages) -> None:
        """Note one call about messages, `(id, size in bytes)` each, as a line for each of them.

        A small part of the price of as many `record`s. As there, it returns at once.
        """
        more = len(messages) - 1
        if len(self._noted) + self._more + more >= BUFFER_MAX or self._closed:
            self._miss(more + 1, "the records come faster than the disk takes them")
            return
        if more > 0:
            with self._counting:
                self._more += more
        self._noted.append((time.time_ns() // 1_000_000, form, latency_us, messages))
        if self._thread is None:
            self._start()

    def record_deliveries(
        self, operation: str, shared: _Shared, at_ms: int | None, deliveries: _Deliveries
    ) -> None:
        """Note an operation on many messages, with fields that all share, as a line for each.

        Of each: id, size in bytes, sequence number, and how long it took in us or None.
        """
        assert operation in OPERATIONS, f"no such operation: {operation}"
        more = len(deliveries) - 1
        if len(self._noted) + self._more + more >= BUFFER_MAX or self._closed:
            self._miss(more + 1, "the records come faster than the disk takes them")
            return
        if more > 0:
            with self._counting:
                self._more += more
        if at_ms is None:
            at_ms = time.time_ns() // 1_000_000
        self._noted.append((at_ms, operation, shared, deliveries))
        if self._thread is None:
            self._start()

    def flush(self) -> None:
        """Write what was noted before this call; on return it survives the process."""
        for _ in range(BUFFER_MAX // _GROUP_MAX + 1):
            with self._disk:
                if not self._write_group():
                    return

    def close(self) -> None:
        """Write what is noted, wait for the disk, end the thread. Later records are not taken."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        with self._disk:
            self._say_unrecorded()
            self._end_file()
        atexit.unregister(self.close)
        _writers.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        # Two first records at once must not start two threads.
        with self._disk:
            if self._thread is not None or self._closed:
                return
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name="twinbus-ledger", daemon=True
            )
            self._thread.start()
        atexit.register(self.close)

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._flush_s):
            self.flush()

    def _write_group(self) -> bool:
        """Write up to one group; whether more may be waiting."""
        lines: list[str] = []
        count = 0
        noted, commons = self._noted, self._commons
        while noted and count < _GROUP_MAX:
            note = noted.popleft()
            records = 1 if len(note) == 3 else len(note[3])
            try:
                if len(note) == 3:
                    line = encode(self.process, *note).decode()
                elif isinstance(note[1], LineForm):
                    at_ms, form, latency_us, messages = note
                    common = commons.get(form) or self._common(form)
                    line = encode_messages(common, at_ms, latency_us, messages)
                else:
                    at_ms, operation, shared, deliveries = note
                    assert isinstance(shared, tuple)
                    common = commons.get((operation, shared)) or self._common((operation, shared))
                    line = encode_deliveries(common, at_ms, deliveries)
            except (TypeError, ValueError) as error:
                # A value of the wrong kind is the caller's mistake, and costs what came with it.
                self._miss(records, f"a record holds a value of the wrong kind: {error}")
            else:
                lines.append(line)
                count += records
            if records > 1:
                with self._counting:
                    self._more -= records - 1
        if lines:
            self._say_unrecorded()
            self._append("".join(lines).encode("ascii"), count)
        return bool(noted)

    def _common(self, form: LineForm | tuple[str, _Shared]) -> str:
        """What the lines of a form have in common, kept for the next."""
        if len(self._commons) >= _FORMS_MAX:
            self._commons.clear()
        whole = form if isinstance(form, LineForm) else LineForm(form[0], **dict(form[1]))
        common = self._commons[form] = whole.of(self.process)
        return common

    def _say_unrecorded(self) -> None:
        """Put the count of missing records into the ledger itself, once there is room again."""
        missing = self._unsaid
        if missing:
            fields: dict[str, object] = {"state": "unrecorded", "unrecorded": missing}
            line = encode(self.process, time.time_ns() // 1_000_000, "state", fields)
            if self._append(line, 0):
                self._unsaid -= missing

    def _append(self, data: bytes, count: int) -> bool:
        """Append whole lines to the file; those of `count` that did not get there are counted."""
        done = 0
        try:
            self._open()
            if self._cut:
                # The last write ended inside a line, which the reader will set aside.
                self._size_bytes += os.write(self._fd, b"\n")
                self._cut = False
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
            self._size_bytes += done
        except OSError as error:
            kept = data.count(b"\n", 0, done)
            self._mend(done - (data.rfind(b"\n", 0, done) + 1), done)
            if count:
                self._miss(count - kept, f"{self.directory}: {error.strerror or error}")
            return False
        if self._size_bytes >= self._rotate_bytes:
            self._end_file()
        return True

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        while True:
            path = self.directory / f"{self.process}-{self._number:05d}{FILE_SUFFIX}"
            try:
                self._fd = os.open(path, flags, 0o640)
            except FileExistsError:
                # Another writer of this process, or of one that had its name.
                self._number += 1
            else:
                self._size_bytes = 0
                return

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

    def _end_file(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._number += 1

    def _miss(self, count: int, why: str) -> None:
        self.unrecorded += count
        self._unsaid += count
        if not self._told:
            self._told = True
            log.warning(
                "ledger: %d records not written (%s); sends go on, the count goes into the ledger",
                count,
                why,
            )


class NullLedger:
    """No ledger: takes every record and keeps none, so that nobody asks whether there is one."""

    unrecorded = 0
    keeps_records = False

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Nothing."""

    def record_messages(self, form: LineForm, latency_us: int, messages: _Messages) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing."""


def open_ledger(directory: Path | str | None) -> LedgerWriter | NullLedger:
    """A writer into `directory`, or with None (or an empty string) one that keeps nothing."""
    if directory is None or directory == "":
        return NullLedger()
    return LedgerWriter(directory)


def _local(directory: Path | str) -> Path:
    text = str(directory)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(directory)
    if scheme == "file":
        return Path(rest)
    raise LedgerError(
        f"a process writes its ledger to a directory, and {text} is a URL: name a directory"
    )


def _process_name() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()).strip(".-")[:100] or "host"
    return f"{host}-{os.getpid()}-{time.time_ns() // 1_000_000}"


_writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()


def _start_anew_after_fork() -> None:
    """In a forked child: what was noted is the parent's to write, and so is the open file."""
    for writer in list(_writers):
        if writer._fd >= 0:
            os.close(writer._fd)
        writer._forget()
        writer.unrecorded = 0
        writer._number = 0
        writer.process = _process_name()


os.register_at_fork(after_in_child=_start_anew_after_fork)
