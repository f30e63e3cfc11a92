"""Conservation from the lines of one host's ledger, in bounded memory and without Spark.

    1. The inspection compares the files (`store.inspection`), as it does for reports.
    2. Every line is read once. Its record goes into a part on disk, by its message id.
    3. Each part is summed up and judged, and what is counted of it is kept.
    4. The counts are judged as those of the tables are (`reports.judgement`).

It makes no peek: what only a peek can know is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from twinbus.ledger.facts import LINE_MAX, TABLES, is_readable
from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, WRITER, LedgerError
from twinbus.pipeline.core.counts import MessageCounts, RecordCounts
from twinbus.pipeline.core.known_lines import KnownLines
from twinbus.pipeline.core.lines import REASONS, reason_of, record_in
from twinbus.pipeline.core.messages import MessageFolder, RecordShapes
from twinbus.pipeline.proof.partitions import Partitions
from twinbus.pipeline.reports.documents import (
    ConservationReport,
    DuplicateMessage,
    NamedMessage,
    ReportScope,
)
from twinbus.pipeline.reports.judgement import (
    IDS_MAX,
    WORST_FIRST,
    CountedMessages,
    judged_report,
    worst_first,
)
from twinbus.pipeline.reports.scope import Lines
from twinbus.pipeline.store import RAW_REMOVED
from twinbus.pipeline.store.inspection import InspectedLedger, LedgerFolder
from twinbus.pipeline.store.local_files import LocalFiles
from twinbus.pipeline.store.writers import WAITING

REJECTED_MAX: Final = 100
"""Rejected lines that are named; all are counted."""

READING, JUDGING = "reading the ledger", "judging its messages"
SHARE_OF_READING: Final = 0.75
"""Of the time that both take, for the bar of progress."""

Progress = Callable[[str, float], None]
"""Takes the current step and the share of the work that is done."""


class RejectedLine(NamedTuple):
    """A line that is no record; `report.scope.rejected` counts all of them."""

    file: str
    number: int
    """From 1."""
    why: str


@dataclass(frozen=True)
class LedgerProof:
    """The report, as `twinbus report conservation` makes it without a peek; and the lines that
    could not be read."""

    report: ConservationReport
    rejected: tuple[RejectedLine, ...]


def proof_of(ledger: Path, progress: Progress = lambda step, share: None) -> LedgerProof:
    """Judge the messages of a ledger in a local directory; LedgerError if that is not possible."""
    place = LocalFiles(ledger)
    if not any(is_readable(one.name) for one in place.found()):
        raise LedgerError(f"there is no ledger at {ledger}: no file *{FILE_SUFFIX} is there")
    progress("comparing the files of the ledger", 0)
    is_only_copy = place.exists(f"{TABLES}/{RAW_REMOVED}")
    inspected = LedgerFolder(ledger, place).inspect({}, removed_unnoted=is_only_copy)
    sizes = {
        name: known.facts.size_bytes
        for name, known in sorted(inspected.files.items())
        if name not in inspected.refused
    }
    content_bytes = sum(sizes.values())
    with Partitions(content_bytes) as partitions:
        reading = _LineReading(place, partitions)
        done = 0
        for name, size_bytes in sizes.items():
            for share in reading.read(name):
                progress(READING, SHARE_OF_READING * (done + share) / max(content_bytes, 1))
            done += size_bytes
        counts = _judged(partitions, reading.records, inspected, progress)
    return LedgerProof(_report(str(ledger), reading, inspected, counts), tuple(reading.named))


class _LineReading:
    """Reads files line by line, and counts what is no record."""

    def __init__(self, place: LocalFiles, partitions: Partitions) -> None:
        self.records = RecordCounts()
        self.rejected = Counter[str]()
        self.named: list[RejectedLine] = []
        self.gone: list[str] = []
        """Files that were removed while this read."""
        self._place = place
        self._partitions = partitions
        self._shapes = RecordShapes()
        self._known = KnownLines()

    def read(self, name: str) -> Iterator[int]:
        """Read a file; yield the bytes of it that were read, now and then."""
        try:
            yield from self._read(name)
        except LedgerError:
            ended = name.removesuffix(OPEN_SUFFIX)
            if self._place.exists(name):
                raise
            if ended != name and self._place.exists(ended):
                # Its writer has ended it since.
                yield from self._read(ended)
            else:
                self.gone.append(name)

    def _read(self, name: str) -> Iterator[int]:
        number, read_bytes, rest, is_long = 0, 0, b"", False
        for piece in self._place.pieces(name):
            read_bytes += len(piece)
            first, *lines = piece.split(b"\n")
            rest = b"" if is_long else rest + first
            for line in lines:
                number += 1
                self._take_line(name, number, rest, is_long=is_long)
                rest, is_long = line, False
            if len(rest) > LINE_MAX:
                rest, is_long = b"", True
            yield read_bytes
        if rest or is_long:
            self._take_line(name, number + 1, rest, is_long=is_long)

    def _take_line(self, name: str, number: int, line: bytes, *, is_long: bool) -> None:
        known = self._known.find(line)
        if known is not None and len(line) <= LINE_MAX:
            self.records.add(known.shape, known.at_ms, is_named=True)
            self._partitions.add(*known)
            return
        is_long = is_long or len(line) > LINE_MAX
        record = None if is_long else record_in(line)
        if record is None:
            if is_long or line.strip():
                why = "foreign" if is_long else reason_of(line)
                self._reject(name, number, why, is_long=is_long)
        elif record["operation"] != WRITER:
            self._take_record(line, record)

    def _take_record(self, line: bytes, record: Mapping[str, Any]) -> None:
        shape, at_ms = self._shapes.of(record), record["at_ms"]
        message_id = record.get("message_id")
        is_named = message_id is not None and record.get("entity") is not None
        self.records.add(shape, at_ms, is_named=is_named)
        self.records.unrecorded += record.get("unrecorded") or 0
        if message_id is not None and is_named:
            self._partitions.add(shape, at_ms, message_id)
            self._known.learn(line, record, shape)

    def _reject(self, name: str, number: int, why: str, *, is_long: bool) -> None:
        # An incomplete line of an open file is still being written: that is normal. If its writer
        # is dead, the inspection counts it.
        if why == "torn" and name.endswith(OPEN_SUFFIX):
            return
        self.rejected[why] += 1
        if len(self.named) < REJECTED_MAX:
            text = f"longer than {LINE_MAX:,} bytes" if is_long else _WHY[why]
            self.named.append(RejectedLine(name, number, text))


_WHY: Final = {
    "torn": "torn: it begins like a record and is cut off",
    "newer": "of a later version of Twinbus",
    "foreign": "not a record of Twinbus, or damaged",
}


def _judged(
    partitions: Partitions,
    records: RecordCounts,
    inspected: InspectedLedger,
    progress: Progress,
) -> MessageCounts:
    recoveries = _recoveries(inspected)
    counts = MessageCounts(
        ranks=WORST_FIRST, named_max=IDS_MAX, standing_at=[at_ms for at_ms, _ in recoveries]
    )
    folder = MessageFolder(records.deleted_ms)
    for part in range(len(partitions)):
        share = SHARE_OF_READING + (1 - SHARE_OF_READING) * part / len(partitions)
        progress(JUDGING, share)
        for record in partitions.records(part):
            folder.add(*record)
        for messages in folder.take():
            counts.add(messages)
    return counts


def _recoveries(inspected: InspectedLedger) -> list[tuple[int, int]]:
    """Return when a broker's successor found how many messages in its backlog queues."""
    return [
        (gap.recovery.at_ms, gap.recovery.messages)
        for gap in inspected.gaps
        if gap.recovery and WAITING in gap.doubts
    ]


def _report(
    ledger: str, reading: _LineReading, inspected: InspectedLedger, counts: MessageCounts
) -> ConservationReport:
    by_entity, fates = counts.by_entity(), list(WORST_FIRST)
    is_in_doubt = any(gap.is_open and WAITING in gap.doubts for gap in inspected.gaps)
    is_short = any(counts.standing[at_ms] > found for at_ms, found in _recoveries(inspected))
    if is_in_doubt or is_short:
        # The broker that recorded this stopped without an end: the message may have ended since.
        fates[fates.index("waiting")] = "undecided"
        for row in by_entity:
            row["undecided"] += row["waiting"]
            row["waiting"] = 0
    records = reading.records
    rejected = {**reading.rejected, "torn": reading.rejected["torn"] + inspected.torn}
    scope = ReportScope(
        ledger=ledger,
        first_ms=records.first_ms,
        last_ms=records.last_ms,
        records=records.records,
        rejected={why: rejected[why] for why in REASONS if rejected.get(why)},
        missing=(*inspected.missing, *(f"{name} was removed meanwhile" for name in reading.gone)),
        gaps=inspected.gaps,
        remarks=inspected.remarks,
        unrecorded=records.unrecorded,
    )
    return judged_report(
        CountedMessages(
            by_entity=sorted(by_entity, key=worst_first),
            named=_named(counts, fates),
            left_out=max(counts.missing - IDS_MAX, 0),
            duplicates=tuple(
                DuplicateMessage(entity, message_id, times, window, label)
                for entity, message_id, label, _, times, window in counts.duplicates.rows()
            ),
            duplicate_windows=dict(sorted(counts.windows.items())),
            unsent=counts.unsent if records.broker_records else 0,
        ),
        scope,
        Lines(
            records=records.records,
            nameless=records.nameless,
            unrecorded=records.unrecorded,
            broker_records=records.broker_records,
            all_records=records.records,
        ),
        peek=None,
        of_others=lambda: records.message_operations,
    )


def _named(counts: MessageCounts, fates: Sequence[str]) -> tuple[NamedMessage, ...]:
    """Return the missing messages, the worst first; `fates` are those of their ranks."""
    # Of two ranks with one fate the earlier message comes first.
    rows = sorted((fates.index(fates[rank]), *row) for rank, *row in counts.named.rows())
    return tuple(
        NamedMessage(destination, message_id, fates[rank], at_ms, label)
        for rank, at_ms, destination, message_id, label in rows
    )
