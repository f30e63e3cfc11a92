"""Removes old records and old settled journeys (`retain`), and the id of a message (`erase`).

Retention keeps sums and open journeys. Reports are made from sums, so their figures stay the same,
and they name the first day whose records are kept. Only reconciliation, which compares records,
calls earlier days unknown. Lost are the ways back to old records (`rebuild`, an audit of the
records themselves) and the journey of a record that arrives later than the kept time: such a record
begins a journey of its own.

Erasure replaces an id by a random name everywhere. The records, the journey and the lines of the
message stay, without other fields that could identify it. So its fate still counts: a lost message
stays lost, an undecided one unknown, and a rebuild gives the same result. Nothing leads from the
new name to the id. A text of another record is cut where it names the message (`core.mentions`),
and a rejected line that names it, or ends inside its id, loses its text in the quarantine. Names of
entities, queues and processes stay, and the reasons that people gave to `ledger close`. The files
that held the id are removed at once: a report that still reads them fails, and can be made again.
"""

from __future__ import annotations

import gzip
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from hashlib import sha256
from operator import or_
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import functions as F

from twinbus.ledger.facts import GZIP_SUFFIX, WriterNote, is_readable, note_file, stem_of
from twinbus.ledger.files import process_name
from twinbus.ledger.open_file import HOST
from twinbus.ledger.record import OPEN_SUFFIX, LedgerError
from twinbus.pipeline.core.mentions import (
    CUT_LENGTH_MIN,
    LEFT_OFF,
    TELLING,
    TEXTS,
    Mentions,
    renamed_line,
)
from twinbus.pipeline.core.rules import BY_THE_BROKER, ERASED, is_erased_id
from twinbus.pipeline.store.compaction import (
    COMMIT_TRIES,
    Announce,
    busy,
    commit_changes,
    latest_of,
    require_same,
    rows_of,
    write_journeys,
    write_records,
)
from twinbus.pipeline.store.increment import judged_by, with_key_hash
from twinbus.pipeline.store.lake import DataFile, Snapshot, TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.quarantine import Row, changed_lines
from twinbus.pipeline.store.store import TableStore, ledger_paths, paths_of
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, NOTABLE, STATES
from twinbus.pipeline.tables.journeys import MESSAGE_KEY, merged
from twinbus.pipeline.tables.quarantine import QUARANTINE
from twinbus.pipeline.tables.schemas import day_of

if TYPE_CHECKING:
    from pyspark.sql import Column

T = TypeVar("T")

DAYS_MIN: Final = 1
"""Today is always kept: its journeys are not complete."""


_ORDER: Final = {BRONZE: "at_ms", JOURNEYS: "first_ms", NOTABLE.name: "first_ms", STATES: "at_ms"}
"""The tables that name messages, and the column by which their files are ordered."""

_AT_WORK: Final = "_erasing.json"
"""Holds the id and its new name until the end: an erasure that was killed continues with the same
name, or the records of one message would become those of two."""


@dataclass(frozen=True)
class Retained:
    snapshot: Snapshot
    first_day_kept: str
    """In ISO 8601."""
    records_removed: int
    journeys_removed: int
    journeys_open: int
    """Older journeys that are kept because their outcome is not known yet."""


def retain(
    store: TableStore, days: int, *, today: date | None = None, announce: Announce | None = None
) -> Retained:
    """Remove records and settled journeys from before the last `days` days (UTC)."""
    assert days >= DAYS_MIN
    say = announce or (lambda line: None)
    first = (today or datetime.now(UTC).date()) - timedelta(days=days - 1)
    say(f"removing records of before {first}")
    records_removed = _committed(store, lambda latest: _remove_records(store, latest, first))
    say(f"removing journeys that were settled before {first}")
    journeys_removed, journeys_open = _committed(
        store, lambda latest: _remove_journeys(store, latest, first)
    )
    _committed(store, lambda latest: _remove_lines(store, latest, first))
    store.lake.sweep()
    kept_from = first.isoformat()
    return Retained(store.latest(), kept_from, records_removed, journeys_removed, journeys_open)


def _committed(store: TableStore, remove: Callable[[Snapshot], T | None]) -> T:
    """Repeat a step until it is committed: a compaction may replace its files meanwhile."""
    for _ in range(COMMIT_TRIES):
        done = remove(latest_of(store))
        if done is not None:
            return done
    raise busy(store)


def _remove_records(store: TableStore, snapshot: Snapshot, first: date) -> int | None:
    """Delete files that hold only old records; rewrite the others without them.

    None, here and below: another process has replaced the files.
    """
    files = [
        file
        for file in store.lake.files(BRONZE, snapshot)
        if "day" not in file.bounds or file.bounds["day"][0] < first
    ]
    if not files:
        return 0
    is_old = F.col("day") < F.lit(first)
    counts = (
        store.read_files(BRONZE, [file.path for file in files])
        .groupBy(F.col("_metadata.file_path").alias("file"))
        .agg(F.count_if(is_old).alias("old"), F.count_if(~is_old).alias("kept"))
        .where("old > 0")
        .collect()
    )
    if not counts:
        return 0
    paths = paths_of(row["file"] for row in counts)
    touched = tuple(file for file in files if file.path in paths)
    kept, new = sum(row["kept"] for row in counts), tuple[DataFile, ...]()
    if kept:
        mixed = paths_of(row["file"] for row in counts if row["kept"])
        records = store.read_files(BRONZE, mixed).where(~is_old)
        new = write_records(store, records, store.new_part(snapshot.batch))
        require_same(kept, rows_of(new), "records", store)
    changes = {BRONZE: TableChange(new, touched)}
    if commit_changes(store, changes, records_from=first.isoformat()) is None:
        return None
    removed: int = sum(row["old"] for row in counts)
    return removed


def _remove_journeys(store: TableStore, snapshot: Snapshot, first: date) -> tuple[int, int] | None:
    """Rewrite all journeys without the settled ones: a message can have rows in every file."""
    old = store.lake.files(JOURNEYS, snapshot)
    if not old:
        return 0, 0
    many = store.for_many(snapshot.records)
    rows = merged(many.read(JOURNEYS, snapshot).drop("key_hash"))
    is_old = day_of(F.col("last_ms")) < F.lit(first)
    # Nothing more is expected: the message has a fate, or its send raised.
    is_settled = F.col("fate").isNull() | (F.col("fate") != "undecided")
    # Messages of one id in several pairs go together: a row may not name its pair.
    messages = (
        judged_by(rows, fan_out=snapshot.fan_out)
        .groupBy(*MESSAGE_KEY)
        .agg(
            F.bool_and(is_old & is_settled).alias("settled"),
            F.bool_or(is_old & ~is_settled).alias("open"),
        )
    )
    counted = messages.agg(
        F.count_if("settled").alias("settled"),
        F.count_if("open").alias("open"),
        F.count("*").alias("all"),
    ).collect()[0]
    settled, still_open = counted["settled"], counted["open"]
    if not settled:
        return 0, still_open
    new = tuple[DataFile, ...]()
    if settled < counted["all"]:
        going = messages.where("settled").select(*MESSAGE_KEY)
        left = rows.join(going, list(MESSAGE_KEY), "left_anti")
        new = write_journeys(store, left, store.new_part(snapshot.batch))
        written = store.read_files(JOURNEYS, [file.path for file in new]).select(*MESSAGE_KEY)
        count = written.distinct().count()
        require_same(counted["all"] - settled, count, "journeys", store)
    if commit_changes(store, {JOURNEYS: TableChange(new, old)}) is None:
        return None
    return settled, still_open


def _remove_lines(store: TableStore, snapshot: Snapshot, first: date) -> bool | None:
    """Remove rejected lines, whose own time is not known, by the day on which they were taken."""

    def kept(row: Row) -> Row | None:
        taken = datetime.fromtimestamp(row["taken_ms"] / 1000, UTC).date()
        return row if taken >= first else None

    change = changed_lines(store, snapshot, kept)
    return change is None or commit_changes(store, {QUARANTINE: change}) is not None or None


@dataclass(frozen=True)
class Erased:
    snapshot: Snapshot
    records_erased: int
    """Rows of `bronze` that named the message."""
    raw_files_changed: int
    """Ledger files that were rewritten."""


def erase(
    store: TableStore, ledger: str, message_id: str, *, announce: Announce | None = None
) -> Erased:
    """Remove the id of a message; LedgerError, and no change, if an open file has it."""
    say = announce or (lambda line: None)
    say(f"looking for message {message_id} in the ledger's files")
    files, mentions = PlaceFiles(ledger), Mentions(message_id)
    names = _suspected(store, files, mentions)
    for name in names:
        if name.endswith(OPEN_SUFFIX) and _names(files, name, mentions):
            raise LedgerError(
                f"message {message_id} was not erased: {name} names it and is still being"
                " written; close its process, and erase again"
            )
    new_id = _new_id(files, message_id)
    # The files first: so tables take no more records with the id.
    ended = [name for name in names if not name.endswith(OPEN_SUFFIX)]
    changed = sum(_rewrite(files, name, mentions, new_id) for name in ended)
    # What the page keeps of reports.
    kept = {one.name for one in files.found() if one.name.startswith("_")} - {_AT_WORK}
    for name in kept:
        if mentions.are_in(files.text(name)):
            files.remove(name)
    say(f"looking for message {message_id} in the tables")
    records = _erase_from_tables(store, mentions, new_id)
    store.lake.sweep(keep_h=0)
    files.remove(_AT_WORK)
    return Erased(store.latest(), records, changed)


def _names(files: PlaceFiles, name: str, mentions: Mentions) -> bool:
    lines = _lines(files.pieces(name))
    return any(line != renamed_line(line, mentions, ERASED) for line in lines)


def _rewrite(files: PlaceFiles, name: str, mentions: Mentions, new_id: str) -> bool:
    """Replace a file that names the message; return whether it did. Only one file is in memory."""
    hash_before, after, is_changed = sha256(), bytearray(), False
    for number, line in enumerate(_lines(files.pieces(name))):
        end_before = b"\n" if number else b""
        hash_before.update(end_before + line)
        told = renamed_line(line, mentions, new_id)
        is_changed |= told != line
        after += end_before + told
    if is_changed:
        # The note first: a kill after it leaves no unexplained change.
        _sign_off(files, name, hash_before.hexdigest(), sha256(after).hexdigest())
        files.put(name, gzip.compress(after) if name.endswith(GZIP_SUFFIX) else bytes(after))
    return is_changed


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends; the last one is empty if the file ends with a whole line."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    yield rest


def _sign_off(files: PlaceFiles, name: str, hash_before: str, hash_after: str) -> None:
    """Put a file into the ledger that notes the new hash of another one."""
    at_ms = time.time_ns() // 1_000_000
    note = WriterNote(
        "erased", at_ms, stem_of(name), hash_before=hash_before, hash_after=hash_after
    )
    files.put(*note_file(process_name("erase"), HOST, at_ms, [note]))


def _new_id(files: PlaceFiles, message_id: str) -> str:
    """Return the name that replaces an id: noted first, and found again after a kill."""
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(files.text(_AT_WORK))
        if found["message_id"] == message_id and is_erased_id(found["new_id"]):
            return str(found["new_id"])
    new_id = f"{ERASED}{uuid.uuid4().hex}"
    note = json.dumps({"message_id": message_id, "new_id": new_id})
    files.put(_AT_WORK, note.encode())
    return new_id


def _erase_from_tables(store: TableStore, mentions: Mentions, new_id: str) -> int:
    """Remove a message from every table; return how many records it had."""
    counts: list[int] = []

    def forgotten(row: Row) -> Row:
        # What else the line says can tell its message too.
        return {**row, "text": ""} if mentions.are_in(row["text"]) else row

    def rename(latest: Snapshot) -> int | None:
        found = {
            table: change
            for table in _ORDER
            if (change := _without(store, latest, table, mentions, new_id)) is not None
        }
        lines = changed_lines(store, latest, forgotten)
        if lines is not None:
            found[QUARANTINE] = lines, 0
        if not found:
            return sum(counts)
        if commit_changes(store, {table: change for table, (change, _) in found.items()}):
            counts.append(found[BRONZE][1] if BRONZE in found else 0)
        # Another process may replace files meanwhile, so repeat until nothing is found.
        return None

    return _committed(store, rename)


def _without(
    store: TableStore, snapshot: Snapshot, table: str, mentions: Mentions, new_id: str
) -> tuple[TableChange, int] | None:
    """Rewrite the files that name a message, and count its rows; None if no file does."""
    files = {file.path: file for file in store.lake.files(table, snapshot)}
    if not files:
        return None
    is_it, values = _values(table, mentions, new_id)
    compared = [name for name in values if name != "sequence_number"]
    is_changed = (~F.col(name).eqNullSafe(values[name]) for name in compared)
    many = store.for_many(snapshot.records)
    found = (
        many.read(table, snapshot)
        .where(reduce(or_, is_changed))
        .groupBy(F.col("_metadata.file_path").alias("file"))
        .agg(F.count_if(is_it).alias("own"))
        .collect()
    )
    if not found:
        return None
    old = tuple(files[path] for path in paths_of(row["file"] for row in found))
    rows = many.read_files(table, [file.path for file in old])
    renamed = rows.withColumns(values)
    if table == JOURNEYS:
        renamed = with_key_hash(renamed)
    placed = renamed.select(*rows.columns).sortWithinPartitions(_ORDER[table])
    new: tuple[DataFile, ...] = store.write(placed, table, store.new_part(snapshot.batch))
    require_same(rows_of(old), rows_of(new), f"rows of {table}", store)
    return TableChange(new, old), sum(row["own"] for row in found)


def _values(table: str, mentions: Mentions, new_id: str) -> tuple[Column, dict[str, Column]]:
    """Return whether a row is the message's own, and what the columns become that can name it."""
    if table == STATES:
        # The key of a sum is never null.
        return F.lit(False), {"reason": F.coalesce(_cut("reason", mentions), F.lit(""))}
    message_id = F.col("message_id")
    is_it = message_id.eqNullSafe(F.lit(mentions.message_id))
    values = {"message_id": F.when(is_it, F.lit(new_id)).otherwise(message_id)}
    if table == BRONZE:
        values |= {name: F.when(~is_it, F.col(name)) for name in TELLING}
        values |= {name: F.when(~is_it, _cut(name, mentions)) for name in TEXTS}
        of_broker = F.nullif(F.regexp_extract("error", BY_THE_BROKER, 1), F.lit(""))
        values["error"] = F.when(is_it, of_broker).otherwise(_cut("error", mentions))
    return is_it, values


def _cut(column: str, mentions: Mentions) -> Column:
    """Return what `Mentions.cut` does; null where nothing is left."""
    text = F.col(column)
    can_name = reduce(or_, (F.contains(text, F.lit(one)) for one in mentions.beginnings))
    before_it = F.regexp_replace(text, mentions.up_to_it, "$1")
    can_be_cut = (F.length(text) >= CUT_LENGTH_MIN) | F.endswith(text, F.lit(LEFT_OFF))
    before_part = F.when(can_be_cut, F.regexp_replace(text, mentions.up_to_part, "$1"))
    cut = F.when(before_it != text, before_it).otherwise(F.coalesce(before_part, text))
    return F.when(can_name & (cut != text), F.nullif(F.rtrim(cut), F.lit(""))).otherwise(text)


def _suspected(store: TableStore, files: PlaceFiles, mentions: Mentions) -> list[str]:
    """Return the ledger's files that can name the message: no other file does."""
    names = sorted(filter(is_readable, files.ledger_files()))
    line = F.col("value")
    has_it = reduce(or_, (F.contains(line, F.lit(form)) for form in mentions.forms))
    # Few lines: those with a text, and torn ones.
    can_end_inside = F.contains(line, F.lit('"error":')) | ~F.endswith(line, F.lit("}"))
    ends_inside = F.regexp_like(line, F.lit(mentions.part_in_line))
    found = (
        store.session.read.text(ledger_paths(files.place, names))
        .where(has_it | (can_end_inside & ends_inside))
        .select(F.col("_metadata.file_path").alias("file"))
        .distinct()
        .collect()
    )
    there = {path.rpartition("/")[2] for path in paths_of(row["file"] for row in found)}
    return [name for name in names if name in there]
