"""The first batch of a small ledger: its rows are made by this process, and by one job of Spark.

They are those that Spark would make (`stream`, `increment`), to which other batches are left: later
ones, larger ones, and those with rejected lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from twinbus.pipeline.spark.few_rows import collected, few_rows
from twinbus.pipeline.spark.session import reads_local_files
from twinbus.pipeline.store.few_lines import FewLines
from twinbus.pipeline.store.increment import ONE_TASK_MAX, with_key_hash
from twinbus.pipeline.store.lake import TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.tables.gold import BRONZE, BUCKET_S, JOURNEYS, kept_tables
from twinbus.pipeline.tables.schemas import JOURNEYS as JOURNEY_COLUMNS

if TYPE_CHECKING:
    from twinbus.pipeline.store.lake import Snapshot
    from twinbus.pipeline.store.store import TableStore
    from twinbus.pipeline.store.writers import KnownFile

Row = Mapping[str, Any]


class FirstBatch:
    """The records of a first batch."""

    def __init__(self, store: TableStore, lines: FewLines) -> None:
        self._store, self._lines = store, lines
        self.records = len(lines.records)
        self._journeys = [*lines.journeys.rows()]
        self.fan_out = any(row["receiver"] or not row["labelled"] for row in self._journeys)

    def changes(self, told: Row, part: str) -> dict[str, TableChange]:
        """Write the tables; `told` are the columns that all records share."""
        store, write = self._store.for_few(), self._store.write_here
        journeys = with_key_hash(few_rows(store.session, JOURNEY_COLUMNS, self._journeys).frame)
        sources, tables = self._lines.sources(store.session, BUCKET_S), kept_tables()
        found = collected(
            {JOURNEYS: journeys, **{table.name: table.rows(sources) for table in tables}}
        )
        rows: dict[str, list[Row]] = {name: [row.asDict() for row in found[name]] for name in found}
        rows[JOURNEYS].sort(key=lambda row: row["first_ms"])
        rows[BRONZE] = [*self._bronze(told)]
        return {name: TableChange(write(of, name, part)) for name, of in rows.items()}

    def _bronze(self, told: Row) -> Iterator[Row]:
        for name, records in self._lines.of_file.items():
            for record in records:
                day = datetime.fromtimestamp(record["at_ms"] // 1000, UTC).date()
                yield {**record, "day": day, "file": name, **told}


def first_batch(
    store: TableStore, before: Snapshot, ledger: str, files: Mapping[str, KnownFile], most: int
) -> FirstBatch | None:
    """Return files of a ledger as a first batch, if they are one.

    `most` are the bytes of lines that this process reads.
    """
    size_bytes = sum(file.facts.size_bytes for file in files.values())
    # On a cluster a task writes, which tells whether all machines share the place.
    if size_bytes > most or before.number >= 0 or not reads_local_files(store.session):
        return None
    lines = FewLines(PlaceFiles(ledger), files)
    if lines.rejected or not 0 < len(lines.records) <= ONE_TASK_MAX:
        return None
    return FirstBatch(store, lines)
