"""Appends to the ledger without making a send wait: `record` notes, a thread writes in groups.

Written records (every `flush_s`, or by `flush`) survive the death of the process: the kernel has
them; only `close` and the end of a file also wait for the disk. A full or missing disk costs
records and never a send: they are counted in `unrecorded`, logged once, and the next line that can
be written has their number.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from twinbus.ledger.files import (
    HEARTBEAT_S,
    MAX_BYTES,
    ROTATE_BYTES,
    ROTATE_S,
    LedgerFiles,
    process_name,
    sync,
)
from twinbus.ledger.open_file import adopt
from twinbus.ledger.record import (
    FIELDS,
    OPERATIONS,
    REQUIRED,
    LedgerError,
    LineForm,
    encode,
    encode_deliveries,
    encode_message,
    encode_messages,
)

log = logging.getLogger("twinbus.ledger")

MAX_BYTES_VARIABLE: Final = "TWINBUS_LEDGER_MAX_BYTES"

FLUSH_S: Final = 0.2
"""Maximum age of records that a `kill -9` loses."""

BUFFER_MAX: Final = 100_000
"""Records that wait to be written: seconds of the fastest sender, about 50 MB. A disk that stays
slower costs records, not the application's memory."""

_GROUP_MAX: Final = 2_000
"""Records in one write: some hundred KB, so that `close` and `flush` never wait for much more."""

_FORMS_MAX: Final = 20_000
"""Forms whose common part is kept as text, some 300 bytes each: two for every entity of a large
pair. Beyond that they are recomputed, which only costs time."""

_LAST: Final = -1_000
"""After all finalizers of a process, which may still record something."""

_OPTIONAL: Final = frozenset(FIELDS) - frozenset(REQUIRED)
_PROCESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""A name for every file system; Spark skips files that begin with `_` or `.`."""

_Message = tuple[str | None, int | None]
_Messages = Sequence[_Message]
_Shared = tuple[tuple[str, object], ...]
_Deliveries = Sequence[tuple[str | None, int, int | None, int | None]]
_Noted = (
    tuple[int, str, dict[str, object]]
    | tuple[int, LineForm, int, str | None, int | None]
    | tuple[int, LineForm, int, _Messages]
    | tuple[int, str, _Shared, _Deliveries]
)
"""One record; that of one call's one message: form, how long it took, id and size; those of its
many messages; or those of many deliveries: what they have in common, and what not."""


class LedgerWriter:
    """One process's part of a ledger: its `files` in `directory`."""

    def __init__(
        self,
        directory: Path | str,
        *,
        process: str | None = None,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_s: float = ROTATE_S,
        max_bytes: int | None = None,
        flush_s: float = FLUSH_S,
        heartbeat_s: float = HEARTBEAT_S,
        buffer_max: int = BUFFER_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes`: of this host's files in the directory; `$TWINBUS_LEDGER_MAX_BYTES`, else
        20 GB, by default. Beyond it records are counted as unrecorded until there is room again.
        `heartbeat_s`: time between two heartbeat lines. `buffer_max`: of records in memory.
        """
        self.directory = _local(directory)
        self.process = process or process_name()
        if not _PROCESS.fullmatch(self.process):
            raise LedgerError(
                f"the ledger's process name {self.process!r} is part of a file name: letters,"
                " digits, '.', '_' and '-', at most 200, the first a letter or digit"
            )
        self.unrecorded = 0
        """Records that could not be written, so far."""
        self._files = LedgerFiles(
            self.directory,
            self.process,
            rotate_bytes=rotate_bytes,
            rotate_s=rotate_s,
            max_bytes=_max_bytes(os.environ) if max_bytes is None else max_bytes,
            heartbeat_s=heartbeat_s,
            clock=clock,
        )
        self._flush_s = flush_s
        self._buffer_max = buffer_max
        self._is_warned = False
        self._closed = False
        self._forget()
        _writers.add(self)

    def _forget(self) -> None:
        """Start with no records and no open file, in a new or forked process."""
        self._noted: deque[_Noted] = deque()
        self._more = 0
        """Records that are noted beyond one for each note; `_counting` guards it."""
        self._counting = threading.Lock()
        self._commons: dict[LineForm | tuple[str, _Shared], str] = {}
        self._unsaid = 0
        self._disk = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Note one operation; returns at once and never raises, whatever the disk does."""
        assert operation in OPERATIONS, f"no such operation: {operation}"
        assert fields.keys() <= _OPTIONAL, f"no such fields: {fields.keys() - _OPTIONAL}"
        if len(self._noted) + self._more >= self._buffer_max or self._closed:
            self._refuse(1)
            return
        if at_ms is None:
            at_ms = time.time_ns() // 1_000_000
        self._noted.append((at_ms, operation, fields))
        if self._thread is None:
            self._start()

    def record_message(self, form: LineForm, latency_us: int, message: _Message) -> None:
        """Note one call about one message: the cheap form of `record_messages`, and most used."""
        if len(self._noted) + self._more >= self._buffer_max or self._closed:
            self._refuse(1)
            return
        self._noted.append((time.time_ns() // 1_000_000, form, latency_us, *message))
        if self._thread is None:
            self._start()

    def record_messages(self, form: LineForm, latency_us: int, messages: _Messages) -> None:
        """Note one call about messages, `(id, size in bytes)` each, as a line for each of them.

        It costs much less than a `record` for each, and returns at once too.
        """
        note = (time.time_ns() // 1_000_000, form, latency_us, messages)
        self._note_many(note, len(messages) - 1)

    def record_deliveries(
        self, operation: str, shared: _Shared, at_ms: int | None, deliveries: _Deliveries
    ) -> None:
        """Note an operation on many messages, with fields that all share, as a line for each.

        For each: id, size in bytes, sequence number, and latency in us; None: not known.
        """
        assert operation in OPERATIONS, f"no such operation: {operation}"
        if at_ms is None:
            at_ms = time.time_ns() // 1_000_000
        self._note_many((at_ms, operation, shared, deliveries), len(deliveries) - 1)

    def _note_many(self, note: _Noted, more: int) -> None:
        """Add a note of one record and `more`, or count them as missing."""
        if len(self._noted) + self._more + more >= self._buffer_max or self._closed:
            self._refuse(more + 1)
            return
        if more > 0:
            with self._counting:
                self._more += more
        self._noted.append(note)
        if self._thread is None:
            self._start()

    def flush(self) -> None:
        """Write the records noted before this call; on return they survive the process."""
        for _ in range(self._buffer_max // _GROUP_MAX + 1):
            with self._disk:
                if not self._write_group():
                    return

    def hand_over(self) -> None:
        """Write the noted records and end the file, so that it can be uploaded."""
        self.flush()
        with self._disk:
            self._files.hand_over()

    def close(self) -> None:
        """Write the noted records, wait for the disk, end the thread. Later records are refused."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._disk:
            self._files.try_again()
        self.flush()
        with self._disk:
            self._files.try_again()
            self._say_unrecorded()
            self._files.end()
        atexit.unregister(self.close)
        _writers.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
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
        _at_exit(self.close)

    def _run(self, stop: threading.Event) -> None:
        # On this thread no send waits for it.
        with contextlib.suppress(OSError, LedgerError):
            adopt(self.directory)
        with self._disk:
            self._files.begin()
        while not stop.wait(self._flush_s):
            self.flush()
            with self._disk:
                self._files.end_if_old()
                fd = self._files.beat()
            if fd is not None:
                # Not under the lock: a slow disk must not stop a broker that flushes.
                with contextlib.suppress(OSError):
                    sync(fd)

    def _write_group(self) -> bool:
        """Write up to one group; return whether more may be waiting."""
        lines: list[str] = []
        count = 0
        noted, commons = self._noted, self._commons
        while noted and count < _GROUP_MAX:
            note = noted.popleft()
            records = len(note[3]) if len(note) == 4 else 1
            try:
                if len(note) == 5:
                    at_ms, form, latency_us, message_id, size_bytes = note
                    common = commons.get(form) or self._common(form)
                    line = encode_message(common, at_ms, latency_us, message_id, size_bytes)
                else:
                    line = self._encoded(note)
            except (TypeError, ValueError) as error:
                # A value of the wrong kind is the caller's mistake, and costs the whole note.
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

    def _encoded(self, note: _Noted) -> str:
        """Return the lines of a note of any kind but the most frequent."""
        assert len(note) != 5
        if len(note) == 3:
            return encode(self.process, *note).decode()
        if isinstance(note[1], LineForm):
            at_ms, form, latency_us, messages = note
            return encode_messages(self._common(form), at_ms, latency_us, messages)
        at_ms, operation, shared, deliveries = note
        assert isinstance(shared, tuple)
        return encode_deliveries(self._common((operation, shared)), at_ms, deliveries)

    def _common(self, form: LineForm | tuple[str, _Shared]) -> str:
        """Return the common part of the lines of a form, cached."""
        kept = self._commons.get(form)
        if kept is not None:
            return kept
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
        """Append whole lines to the file; count the records of `count` that were not written."""
        done = self._files.append(data)
        if done == len(data):
            return True
        if count:
            self._miss(count - data.count(b"\n", 0, done), self._files.trouble)
        return False

    def _refuse(self, count: int) -> None:
        """Count records that came after the close, or did not fit the buffer."""
        slow = "the records come faster than the disk takes them"
        self._miss(count, "they came after the ledger was closed" if self._closed else slow)

    def _miss(self, count: int, why: str) -> None:
        self.unrecorded += count
        self._unsaid += count
        if not self._is_warned:
            self._is_warned = True
            noted = "" if self._closed else ", the ledger gets their number"
            log.warning("ledger: %d records not written (%s); sends continue%s", count, why, noted)


class NullLedger:
    """A ledger that drops every record, so that callers need not check for one."""

    unrecorded = 0
    keeps_records = False

    def record(self, *_: object, **fields: object) -> None:
        """Nothing."""

    record_message = record_messages = flush = close = record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing."""


def open_ledger(directory: Path | str | None) -> LedgerWriter | NullLedger:
    """Return a writer into `directory`; with None or "" one that drops every record."""
    if directory is None or directory == "":
        return NullLedger()
    return LedgerWriter(directory)


def _at_exit(close: Callable[[], None]) -> None:
    """Call `close` as the last step when this process ends normally."""
    atexit.register(close)
    for name in ("multiprocessing", "billiard"):
        # A forked child of these (billiard is Celery's) runs their finalizers, and no `atexit`.
        process, util = sys.modules.get(f"{name}.process"), sys.modules.get(f"{name}.util")
        if process is not None and getattr(process.current_process(), "_parent_pid", None):
            assert util is not None
            util.Finalize(None, close, exitpriority=_LAST)


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


def _max_bytes(environment: Mapping[str, str]) -> int:
    text = environment.get(MAX_BYTES_VARIABLE, "")
    if not text:
        return MAX_BYTES
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise LedgerError(
            f"{MAX_BYTES_VARIABLE} is {text!r}: give a whole number of bytes, as in {MAX_BYTES}"
        )
    return int(text)


_writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()


def _start_anew_after_fork() -> None:
    """In a forked child: what was noted is the parent's to write, and so is the open file."""
    for writer in list(_writers):
        writer._files.abandon()
        writer._forget()
        writer.unrecorded = 0
        writer.process = process_name()
        writer._files.reset(writer.process)


os.register_at_fork(after_in_child=_start_anew_after_fork)
