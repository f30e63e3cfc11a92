"""Made ledgers on disk, their conservation audited by Spark and by DuckDB, and the memory it takes.

Both read the same Parquet files (`bench.ledger_maker`) and answer the same question: the balance of
all messages, and the ids of those lost, received twice, or otherwise not delivered. Both must find
what was planted.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import ledger_maker as maker
from bench.harness import NotMeasured, Progress
from twinbus.pipeline.spark.session import SparkStartError, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

CORES = 2
MEMORY = "4g"
"""Of Spark's driver and of DuckDB."""


@dataclass(frozen=True)
class Findings:
    """What an audit found, to be held to the truth of the plan."""

    truth: maker.Truth
    lost_ids: list[str]
    duplicate_ids: list[str]

    def require(self, plan: maker.Plan) -> None:
        found = (self.lost_ids, self.duplicate_ids)
        assert self.truth == plan.truth(), f"{self.truth} is not {plan.truth()}"
        assert found == (plan.lost_ids(), plan.duplicate_ids()), "other ids than planted"


def plan_of(records: int, seed: int = 1) -> maker.Plan:
    """About so many records times $TWINBUS_BENCH_SCALE, in whole shards."""
    wanted = int(records * float(os.environ.get("TWINBUS_BENCH_SCALE", "1")))
    step = maker.SHARD_RECORDS if wanted >= 2 * maker.SHARD_RECORDS else 2 * maker.STEP
    return maker.Plan(max(2 * maker.STEP, wanted // step * step), seed=seed)


@contextmanager
def audit_session(progress: Progress) -> Iterator[SparkSession]:
    """Spark on the cores and memory that its peer gets too."""
    progress("starting Spark")
    try:
        session = spark_session(master=f"local[{CORES}]", settings={"spark.driver.memory": MEMORY})
        spark = session.__enter__()
    except SparkStartError as error:
        raise NotMeasured(str(error)) from error
    try:
        yield spark
    finally:
        session.__exit__(None, None, None)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for a made ledger, removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="twinbus-audit-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def make(spark: SparkSession, plan: maker.Plan, place: Path, progress: Progress) -> None:
    """Make the planned ledger as bronze at a place."""
    progress(f"making {plan.records:,} records")
    maker.write_bronze(maker.made(spark, plan), str(place))


def spark_audit(spark: SparkSession, place: Path, plan: maker.Plan) -> Findings:
    """The audit by the tables' own transformations, in one pass."""
    from twinbus.pipeline.spark.session import session_for_many
    from twinbus.pipeline.tables.bronze import STORED_RECORDS
    from twinbus.pipeline.tables.journeys import judged, partial_journeys

    session = session_for_many(spark, plan.records)
    records = session.read.schema(STORED_RECORDS).parquet(str(place))
    # Every made record names its pair, as those of pairs and syphons do.
    rows = _balance(judged(partial_journeys(records), all_labelled=True)).collect()
    return _findings([row.asDict() for row in rows])


def _balance(messages: DataFrame) -> DataFrame:
    """Counts by destination and fate; a message that is to be named has a row of its own."""
    from pyspark.sql import functions as F

    accepted, fate = F.col("accepted"), F.col("fate")
    named = (accepted & (fate != "delivered")) | (F.col("repeats") > 0)
    return messages.groupBy(
        "primary_label",
        "destination",
        "fate",
        F.when(named, F.col("message_id")).alias("message_id"),
    ).agg(
        F.count_if(accepted).alias("accepted"),
        F.count_if(accepted & F.col("received")).alias("received"),
        F.count_if("diverted").alias("diverted"),
        F.count_if("ambiguous").alias("ambiguous"),
        F.count_if(F.col("tried") & ~accepted).alias("raised"),
        F.count_if(F.col("repeats") > 0).alias("repeated"),
    )


def duckdb_connection() -> Any:
    """DuckDB on the same cores and memory; NotMeasured where it is not installed."""
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError as error:
        raise NotMeasured("DuckDB is not installed: pip install 'twinbus[dev]'") from error
    connection = duckdb.connect()
    connection.execute(f"SET threads = {CORES}; SET memory_limit = '{MEMORY}B'")
    return connection


def duckdb_audit(connection: Any, place: Path) -> Findings:
    """The same audit in DuckDB's SQL."""
    told = connection.execute(_AUDIT_SQL.format(files=f"{place}/*/*/*.parquet"))
    names = [column[0] for column in told.description]
    return _findings([dict(zip(names, row, strict=True)) for row in told.fetchall()])


def _findings(rows: list[dict[str, Any]]) -> Findings:
    def total(name: str) -> int:
        return sum(int(row[name]) for row in rows)

    def fated(fate: str) -> int:
        return sum(int(row["accepted"]) for row in rows if row["fate"] == fate)

    return Findings(
        maker.Truth(
            accepted=total("accepted"),
            delivered=fated("delivered"),
            received=total("received"),
            diverted=total("diverted"),
            dead_lettered=fated("dead_lettered"),
            lost=fated("lost"),
            undecided=fated("undecided"),
            duplicates=total("repeated"),
            ambiguous=total("ambiguous"),
            raised=total("raised"),
        ),
        sorted(row["message_id"] for row in rows if row["fate"] == "lost"),
        sorted(row["message_id"] for row in rows if row["repeated"]),
    )


_AUDIT_SQL = r"""
with told as (
  select lower(split_part(pair, '+', 1)) as primary_label, message_id, operation, at_ms,
    coalesce(outcome, 'ok') as outcome,
    coalesce(cause, '') <> 'consumer' as mine, lower(entity) as entity,
    lower(case when contains(entity, '/')
      then regexp_replace(entity, '/subscriptions/[^/]+(/\$deadletterqueue)?$', '', 'i')
      else entity end) as destination
  from read_parquet('{files}', hive_partitioning = true)
  where message_id is not null and entity is not null and coalesce(view, 'client') = 'client'
),
journeys as (
  select primary_label, destination, message_id,
    case when operation = 'receive' and entity <> destination then entity else '' end as receiver,
    bool_or(operation in ('send', 'divert')) as tried,
    bool_or(operation = 'send' and outcome = 'ok') as sent,
    bool_or(operation = 'divert' and outcome = 'ok') as diverted,
    bool_or(operation in ('send', 'divert') and outcome = 'unknown') as ambiguous,
    bool_or(operation = 'dead_letter' and outcome = 'ok' and mine) as set_aside,
    bool_or(operation = 'complete' and outcome = 'ok' and mine) as completed,
    bool_or(operation = 'forward' and outcome = 'ok') as forwarded,
    count(*) filter (operation = 'receive' and outcome = 'ok') as receipts
  from told group by all
),
messages as (
  select primary_label, destination, message_id, bool_or(tried) as tried,
    bool_or(sent or diverted) as accepted,
    bool_or(diverted) as diverted, bool_or(ambiguous) as ambiguous,
    bool_or(receipts > 0) as received, max(receipts) > 1 as repeated,
    case when not bool_or(sent or diverted) then null
      when bool_or(sent or forwarded or receipts > 0) then 'delivered'
      when bool_or(set_aside) then 'dead_lettered'
      when bool_or(completed) then 'lost' else 'undecided' end as fate
  from journeys group by all
)
select primary_label, destination, fate,
  case when (accepted and fate <> 'delivered') or repeated then message_id end as message_id,
  count(*) filter (accepted) as accepted, count(*) filter (accepted and received) as received,
  count(*) filter (diverted) as diverted, count(*) filter (ambiguous) as ambiguous,
  count(*) filter (tried and not accepted) as raised, count(*) filter (repeated) as repeated
from messages group by all
"""


class PeakMemory:
    """The most that Spark's JVM and this process held since `reset`, as the kernel counted it."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._pids = (int(jvm.java.lang.ProcessHandle.current().pid()), os.getpid())

    def reset(self) -> None:
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def gigabytes(self) -> float:
        return sum(map(_peak_kb, self._pids)) / 1_048_576


def _peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
