"""Reads the newest part of a ledger: a bounded number of bytes, whatever the ledger holds.

The beginning of a line has the same order in every record (`ledger.record`), so that most lines
are read by a pattern and not as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twinbus.ledger.facts import stem_of
from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, decode
from twinbus.page.core.model import ShownEvent
from twinbus.page.core.timeline import SendBuckets, StateRecord, entity_rows

TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
"""About 130,000 records."""

PIECE_BYTES: Final = 4 * 1024 * 1024
EVENTS_MAX: Final = 1_000
SHOWN: Final = (b"state", b"action")
"""Operations that are events for people."""

_LINE: Final = re.compile(
    rb'\{"v":1,"at_ms":(?P<at_ms>\d+),"operation":"(?P<operation>\w+)","process":"(?P<process>[^"]+)"'
)
_ID: Final = re.compile(rb'"message_id":("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class TailLine:
    """One record, read as far as every reader needs it."""

    at_ms: int
    operation: bytes
    process: bytes
    line: bytes

    def is_of(self, label: bytes) -> bool:
        """Whether a pair of this label wrote it, or a syphon of its backlog queues."""
        queue = b'"backlog_queue":"' + label + b"/"
        return b'"pair":"' + label + b"+" in self.line or queue in self.line

    @property
    def is_ok(self) -> bool:
        return b'"outcome":"ok"' in self.line

    @property
    def message_id(self) -> bytes:
        found = _ID.search(self.line)
        return found[1] if found else b""


@dataclass(slots=True)
class LedgerTail:
    """The newest lines of a ledger since a time; iterate it once, newest file first."""

    directory: Path
    since: float
    bytes_max: int = TAIL_BYTES_MAX
    without: Collection[str] = ()
    """Names of files to leave out."""
    is_cut: bool = False
    """Whether older lines since that time were left out."""
    covered_from: float = field(default=0.0)
    """From here on every line was read; after the iteration."""

    def __iter__(self) -> Iterator[TailLine]:
        left, earliest = self.bytes_max, None
        self.covered_from = self.since
        for path, size in self._files():
            take = min(size, left)
            self.is_cut |= take < size
            left -= take
            for line in _lines(path, size - take):
                found = _LINE.match(line)
                if found is None:
                    continue
                at_ms = int(found["at_ms"])
                if self.is_cut and (earliest is None or at_ms < earliest):
                    earliest = at_ms
                if at_ms >= self.since * 1000:
                    yield TailLine(at_ms, found["operation"], found["process"], line)
            if left <= 0:
                self.is_cut = True
                break
        if self.is_cut and earliest is not None:
            self.covered_from = max(self.since, earliest / 1000)

    def _files(self) -> list[tuple[Path, int]]:
        """Return the files that may hold such lines, and their sizes, newest first."""
        found: dict[str, tuple[float, Path, int]] = {}
        left_out = set(map(stem_of, self.without))
        for pattern in (f"*{FILE_SUFFIX}", f"*{FILE_SUFFIX}{OPEN_SUFFIX}"):
            for path in self.directory.glob(pattern):
                if stem_of(path.name) in left_out:
                    continue
                try:
                    stat = path.stat()
                except OSError:
                    continue
                # A file that is there under both its names is read once.
                _, _, size = found.get(stem_of(path.name), (0.0, path, -1))
                if stat.st_mtime >= self.since and stat.st_size > size:
                    found[stem_of(path.name)] = stat.st_mtime, path, stat.st_size
        return [(path, size) for _, path, size in sorted(found.values(), reverse=True)]


def _lines(path: Path, start: int) -> Iterator[bytes]:
    """Yield the lines from a byte on, without a first one that is cut."""
    try:
        # A file that was ended meanwhile has its last name.
        file = (path if path.exists() else path.with_name(path.stem)).open("rb")
    except OSError:
        return
    with file:
        file.seek(start)
        rest = b""
        is_cut = start > 0
        while piece := file.read(PIECE_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            if is_cut and whole:
                del whole[0]
                is_cut = False
            yield from whole


def timeline(
    directory: Path,
    label: str,
    begins: float,
    ends: float,
    running: Collection[int],
    without: Collection[int] = (),
) -> dict[str, Any]:
    """Return the timeline of the pairs of a label; `running` are the ids of its processes here.

    The states of the processes `without` are left out: they have timelines of their own.
    """
    others = [f"-{pid}-".encode() for pid in without]
    tail, name = LedgerTail(directory, begins), label.encode()
    sends, records = SendBuckets(begins, ends), []
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    for line in tail:
        if line.operation not in (b"send", b"divert", b"state", b"ping") or not line.is_of(name):
            continue
        first[line.process] = min(line.at_ms, first.get(line.process, line.at_ms))
        last[line.process] = max(line.at_ms, last.get(line.process, 0))
        at = line.at_ms / 1000
        if line.operation in (b"send", b"divert"):
            if line.is_ok:
                sends.stored(at, line.message_id, in_backlog=line.operation == b"divert")
            elif line.operation == b"send":
                sends.failed(at, line.message_id)
        elif any(other in line.process for other in others):
            continue
        elif (record := decode(line.line)) is not None and record.get("entity"):
            is_ping = line.operation == b"ping"
            answered = "ping" if line.is_ok else "ping-failed"
            state = answered if is_ping else str(record.get("state", ""))
            records.append(StateRecord(at, record["process"], record["entity"], state))
    ended = {
        process.decode(): at_ms / 1000
        for process, at_ms in last.items()
        if not any(f"-{pid}-".encode() in process for pid in running)
    }
    known_from = {process.decode(): at_ms / 1000 for process, at_ms in first.items()}
    return {
        "from": max(begins, tail.covered_from),
        "to": ends,
        "entities": entity_rows(records, known_from, ended, begins, ends),
        "sends": sends.rows(),
        "unseen": [],
        "bucket_s": sends.bucket_s,
        "truncated": tail.is_cut,
        "recorded": True,
    }


def ledger_events(directory: Path, since: float, limit: int = EVENTS_MAX) -> list[ShownEvent]:
    """Return the newest changes of state and actions in the ledger, oldest first."""
    lines = (one for one in LedgerTail(directory, since) if one.operation in SHOWN)
    found = [
        record
        for one in lines
        # What a broker found on its disk is for reports.
        if (record := decode(one.line)) is not None and record.get("state") != "recovered"
    ]
    found.sort(key=lambda record: int(record["at_ms"]))
    return [_event(record) for record in found[-limit:]]


def _event(record: dict[str, Any]) -> ShownEvent:
    pair = str(record.get("pair", "")).partition("+")[0]
    path, state, why = record.get("entity"), record.get("state", ""), record.get("error", "")
    is_action = record["operation"] == "action"
    text = f"{path}: {state}" if path else str(state)
    if is_action and state == "note":
        text, why = str(why), ""
    level = "info" if state == "healthy" or is_action else "warning"
    if record.get("unrecorded"):
        text, level = f"the ledger could not record {record['unrecorded']:,} lines", "error"
    return ShownEvent(
        t=record["at_ms"] / 1000,
        pair=pair,
        kind="action" if is_action else "state",
        path=path,
        text=f"{text} ({why})" if why else text,
        level="error" if record.get("outcome") == "failed" else level,
    )
