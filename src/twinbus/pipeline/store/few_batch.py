"""A batch of few records, whose rows this process makes and writes without Spark.

They are those that Spark would make (`stream`, `increment`), to which other batches are left:
larger ones, those with rejected lines, and later ones if there is a Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from twinbus.pipeline.functions import NeedsSpark, in_this_process
from twinbus.pipeline.spark.few_rows import collected, few_rows
from twinbus.pipeline.spark.session import reads_local_files
from twinbus.pipeline.store import increment
from twinbus.pipeline.store.few_lines import FewLines, may_share
from twinbus.pipeline.store.increment import (
    ONE_TASK_MAX,
    Increment,
    with_key_hash,
)
from twinbus.pipeline.store.lake import TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.tables.gold import BRONZE, BUCKET_S, JOURNEYS, kept_tables
from twinbus.pipeline.tables.schemas import JOURNEYS as JOURNEY_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from twinbus.pipeline.store.lake import Snapshot
    from twinbus.pipeline.store.store import TableStore
    from twinbus.pipeline.store.writers import KnownFile

Row = Mapping[str, Any]


class FewBatch:
    """The records of a batch."""

    def __init__(self, store: TableStore, before: Snapshot, lines: FewLines) -> None:
        self._store, self._before, self._lines = store, before, lines
        self.records = len(lines.records)
        self._journeys = [*lines.journeys.rows()]
        self.fan_out = any(map(may_share, self._journeys))

    def changes(self, told: Row, part: str) -> dict[str, TableChange]:
        """Write the tables; `told` are the columns that all records share."""
        write = self._store.write_here
        with in_this_process():
            journeys = with_key_hash(few_rows(None, JOURNEY_COLUMNS, self._journeys).frame)
            found = collected({JOURNEYS: journeys, **self._sums(journeys)})
        rows: dict[str, list[Row]] = {name: [row.asDict() for row in found[name]] for name in found}
        rows[JOURNEYS].sort(key=lambda row: row["first_ms"])
        rows[BRONZE] = [*self._bronze(told)]
        return {name: TableChange(write(of, name, part)) for name, of in rows.items()}

    def _sums(self, journeys: DataFrame) -> dict[str, DataFrame]:
        """Return the change of each gold table."""
        if not self._store.lake.files(JOURNEYS, self._before):
            sources = self._lines.sources(None, BUCKET_S)
            return {table.name: table.rows(sources) for table in kept_tables()}
        step = Increment(
            self._store,
            self._before,
            self._lines.frame(None),
            journeys,
            messages=len(self._journeys),
            fan_out=self.fan_out,
        )
        return {table.name: step.change_of(table) for table in kept_tables()}

    def _bronze(self, told: Row) -> Iterator[Row]:
        for name, records in self._lines.of_file.items():
            for record in records:
                day = datetime.fromtimestamp(record["at_ms"] // 1000, UTC).date()
                yield {**record, "day": day, "file": name, **told}


def few_batch(
    store: TableStore, before: Snapshot, ledger: str, files: Mapping[str, KnownFile], most: int
) -> FewBatch | None:
    """Return files of a ledger as a batch that this process takes; None: Spark takes it.

    `most` are the bytes of lines that this process reads. NeedsSpark if there is no Spark.
    """
    size_bytes = sum(file.facts.size_bytes for file in files.values())
    session = store.session_if_any
    # On a cluster a task writes, which tells whether all machines share the place.
    if session is None:
        is_ours = before.sum_parts < increment.SUM_PARTS_MAX
    else:
        is_ours = before.number < 0 and reads_local_files(session)
    if is_ours and size_bytes <= most:
        lines = FewLines(PlaceFiles(ledger), files)
        if not lines.rejected and 0 < len(lines.records) <= ONE_TASK_MAX:
            return FewBatch(store, before, lines)
    if session is None:
        raise NeedsSpark
    return None
