"""What must hold of the tables of one set: a table that was lost, mixed up or damaged breaks it.

    records     the set counts as many records as bronze has
    sums        the sums of all days count as many, or more if retention removed records
    versions    each table has the version that the set names, and no part of a later batch

An update checks them before its commit, and adds the result to the table `expectations`; a report
checks the set that it reads. Both read a few rows of sums and the logs, without Spark. Neither
corrects anything: a broken expectation makes the answers of reports unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Final

from twinbus.pipeline.store.lake import DataFile, Snapshot, TableChange
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.tables.gold import (
    BRONZE,
    EXPECTATIONS,
    JOURNEYS,
    kept_tables,
    stored_schemas,
)

FilesOf = Callable[[str], Sequence[DataFile]]

BROKEN_MAX: Final = 100
"""Rows of broken expectations that stay in the table, the last ones."""


@dataclass(frozen=True)
class Expectation:
    """One expectation, and whether it holds."""

    expectation: str
    holds: bool
    expected: int
    found: int

    def sentence(self) -> str:
        return f"{_WORDS[self.expectation]} {self.expected:,}, and {self.found:,} were found"


_WORDS: Final = {
    "records": "records of bronze (expectation records): the set counts",
    "sums": "records in the sums of all days (expectation sums): bronze has",
    "versions": "tables that belong to the set (expectation versions): it has",
}


def checked(
    store: TableStore, snapshot: Snapshot, files_of: FilesOf, *, lacking: Collection[str] = ()
) -> Iterator[Expectation]:
    """Yield the expectations of a set whose tables have these files.

    `lacking` are tables of which the set names no version.
    """
    bronze = sum(file.rows for file in files_of(BRONZE))
    yield Expectation("records", bronze == snapshot.records, snapshot.records, bronze)
    first = date.fromisoformat(snapshot.records_from) if snapshot.records_from else date.min
    days = [row for file in files_of("lines") for row in store.lake.rows("lines", file)]
    every = sum(row["records"] for row in days)
    # A record that arrives late is of a day whose other records retention removed.
    least = sum(row["records"] for row in days if row["day"] >= first)
    yield Expectation("sums", least <= bronze <= every, bronze, every if every < bronze else least)
    tables = (BRONZE, JOURNEYS, *(table.name for table in kept_tables()))
    own = [
        table
        for table in tables
        if table not in lacking and all(_is_of(file, snapshot.batch) for file in files_of(table))
    ]
    yield Expectation("versions", len(own) == len(tables), len(tables), len(own))


def _is_of(file: DataFile, batch: int) -> bool:
    """Return whether a batch wrote a file, or one before it did."""
    written_by = file.path.partition("-")[0]
    return written_by.isdigit() and int(written_by) <= batch


def broken(store: TableStore, snapshot: Snapshot) -> list[str]:
    """Return a sentence for each broken expectation of a set that is read."""
    if snapshot.number < 0:
        return []

    def files_of(table: str) -> Sequence[DataFile]:
        return store.lake.files(table, snapshot)

    lacking = stored_schemas().keys() - snapshot.versions.keys()
    now = [one for one in checked(store, snapshot, files_of, lacking=lacking) if not one.holds]
    kept = [
        Expectation(**{name: row[name] for name in _NAMES})
        for row in _kept(store, snapshot)
        if not row["holds"]
    ]
    return [
        f"the tables at {store.place} contradict themselves: {one.sentence()}{store.way_out}"
        for one in dict.fromkeys((*now, *kept))
    ]


def noted(
    store: TableStore,
    before: Snapshot,
    after: Snapshot,
    changes: Mapping[str, TableChange],
    part: str,
) -> TableChange:
    """Check what is about to be committed; return the change of the table `expectations`."""

    def files_of(table: str) -> Sequence[DataFile]:
        change = changes.get(table, TableChange())
        gone = {file.path for file in change.removed}
        old = (file for file in store.lake.files(table, before) if file.path not in gone)
        return [*old, *change.added]

    told = {"batch": after.batch, "checked_ms": time.time_ns() // 1_000_000}
    rows = [{**asdict(one), **told} for one in checked(store, after, files_of)]
    earlier = [row for row in _kept(store, before) if not row["holds"]][-BROKEN_MAX:]
    file = store.lake.write_rows(EXPECTATIONS, f"{part}/0.parquet", [*earlier, *rows])
    return TableChange([file], store.lake.files(EXPECTATIONS, before))


_NAMES: Final = ("expectation", "holds", "expected", "found")


def _kept(store: TableStore, snapshot: Snapshot) -> list[dict[str, Any]]:
    return [
        row
        for file in store.lake.files(EXPECTATIONS, snapshot)
        for row in store.lake.rows(EXPECTATIONS, file)
    ]
