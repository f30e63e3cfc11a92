"""The ledger and its tables as DataFrames of the caller's own session, for notebooks and jobs.

`twinbus.pipeline` exports these functions. Columns and tables have comments (docs/tables.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from twinbus.pipeline.spark.kept_rows import pinned_lines
from twinbus.pipeline.spark.session import master_of, require_shared
from twinbus.pipeline.store import stream
from twinbus.pipeline.store.catalog import registered
from twinbus.pipeline.store.compaction import latest_of
from twinbus.pipeline.store.increment import totals
from twinbus.pipeline.store.inspection import LedgerFolder
from twinbus.pipeline.tables import bronze
from twinbus.pipeline.tables.conservation import balances
from twinbus.pipeline.tables.gold import (
    BRONZE,
    EXPECTATIONS,
    JOURNEYS,
    kept_tables,
    stored_schemas,
    with_fates,
)
from twinbus.pipeline.tables.quarantine import QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Frames = Mapping[str, "DataFrame"]
"""DataFrames by the name of their table."""


def read_ledger(spark: SparkSession, ledger: Path | str, *, shared: bool = False) -> DataFrame:
    """Return every record in the files of a ledger, without copies and rejected lines.

    Spark caches the rows, because a query of a few columns does not notice a damaged line: call
    `unpersist` when you are done. `shared`, here and below: all machines of the cluster mount a
    local path.
    """
    require_shared(master_of(spark), (ledger,), shared=shared)
    bronze.location_of(ledger)
    refused = LedgerFolder(ledger).inspect({}).refused
    return pinned_lines(bronze.records_of(bronze.read_ledger(spark, ledger, refused=refused)))


def update(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> Frames:
    """Take the files of a ledger that ended since the last update; return its tables.

    `tables` is the place of the tables, if it is not inside the ledger.
    """
    stream.update(spark, ledger, tables, shared=shared)
    return read_tables(spark, ledger, tables, shared=shared)


def read_tables(
    spark: SparkSession,
    ledger: Path | str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> Frames:
    """Return the tables of a ledger after its last update, all of one commit.

    LedgerError if there are none. The sums of a table are added up: one row for each key.
    """
    store = stream.open_store(spark, ledger, tables, shared=shared).by_given()
    snapshot = latest_of(store)
    plain = (BRONZE, QUARANTINE, JOURNEYS, EXPECTATIONS)
    frames = {table: store.read(table, snapshot) for table in plain}
    frames |= {table.name: totals(store, snapshot, table) for table in kept_tables()}
    return {
        name: frames[name].select(
            *(F.col(one.name).alias(one.name, metadata=one.metadata) for one in schema)
        )
        for name, schema in stored_schemas().items()
    }


def publish(
    spark: SparkSession,
    ledger: Path | str,
    schema: str,
    tables: Path | str | None = None,
    *,
    shared: bool = False,
) -> list[str]:
    """Register the tables of a ledger in a schema of a catalog, where they are; return their names.

    `schema` is one that exists, as in SQL: `lake`, or `main.lake` with its catalog. The session
    needs Delta. LedgerError if it has none, or if such a name has another table.
    """
    store = stream.open_store(spark, ledger, tables, shared=shared).by_given()
    return registered(store, latest_of(store), schema)


def conservation(tables: Frames) -> DataFrame:
    """Return the fates of the accepted messages of each destination, the worst first.

    Accepted is delivered and dead_lettered, expired, waiting, lost and undecided together. Without
    a peek into the backlog queues undecided messages wait there or are lost. `heard`: a consumer
    recorded receipts, so that `received_accepted` and `repeated` mean something.
    """
    return balances(tables["fates"], with_fates(tables["notable"], tables["states"]))
