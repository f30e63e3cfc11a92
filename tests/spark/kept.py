"""The kept tables as plain rows, by the stream's way and by the batch's: to be compared."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from tests.spark.ledgers import Line, ledger
from twinbus.pipeline.store.increment import totals
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.tables.gold import BUCKET_S, Sources, kept_tables, merged
from twinbus.pipeline.tables.journeys import judged, partial_journeys
from twinbus.pipeline.tables.records import tallied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.reports.documents import ConservationReport

Tables = dict[str, list[str]]


def write_lines(directory: Path, name: str, lines: list[Line]) -> None:
    """A file of a ledger; it appears whole, as one that a writer renames."""
    directory.mkdir(exist_ok=True)
    draft = directory / f"_{name}"
    draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
    draft.rename(directory / name)


def batch_tables(spark: SparkSession, lines: list[Line]) -> Tables:
    """Every kept table of these records at once: no store, no stream."""
    records = ledger(spark, *lines)
    # Kept by Spark as rows: or it would be planned again for each table.
    fates = judged(partial_journeys(records, one_task=True)).localCheckpoint()
    sources = Sources(records, tallied(records, bucket_s=BUCKET_S), fates, fates)
    return as_rows({table.name: merged(table, [table.rows(sources)]) for table in kept_tables()})


def stored_tables(store: TableStore, snapshot: Snapshot) -> Tables:
    """Every kept table as a snapshot has it."""
    few = store.for_few()
    return as_rows({table.name: totals(few, snapshot, table) for table in kept_tables()})


def as_rows(frames: dict[str, DataFrame]) -> Tables:
    """Rows as JSON in order, of all tables by one job."""
    named = [
        frame.select(
            F.lit(name).alias("table"),
            F.to_json(F.struct(*frame.columns), {"ignoreNullFields": "false"}).alias("row"),
        )
        for name, frame in frames.items()
    ]
    found: dict[str, Any] = defaultdict(list)
    for table, row in reduce(lambda left, right: left.unionAll(right), named).collect():
        found[table].append(row)
    return {table: sorted(lines) for table, lines in found.items()}


@contextmanager
def jobs_at_most(spark: SparkSession, most: int) -> Iterator[None]:
    """Fail if the block starts more jobs of Spark, those of broadcasts among them."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    yield
    started = scheduler.numTotalJobs() - before
    assert started <= most, f"{started} jobs were started, and {most} should do"


def assert_same(report: ConservationReport, other: ConservationReport) -> None:
    """Both say the same; the tables have times by the minute, and reports may be brief."""
    left, right = (
        replace(one, aged=(), assumed=(), scope=replace(one.scope, first_ms=None, last_ms=None))
        for one in (report, other)
    )
    assert left == right
