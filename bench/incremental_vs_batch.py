"""A report after a hundred thousand new records, over making the tables of all records at once.

Less is better: both sides are milliseconds. The tables hold a hundred million made records; the
batch is what wrote their journeys and sums. Then a hundred thousand records come as files of the
ledger, some of them about messages of every age, and the report takes them in (`stream.update`) and
is made: the balance of each entity, and the messages that it names.
"""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from bench import ledger_maker as maker
from bench.audit_world import audit_session, plan_of, scratch
from bench.harness import Progress, Sides
from twinbus.ledger.facts import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

UNIT = "ms, less is better"
ROUNDS = 3
RECORDS = 100_000_000
NEW = 100_000
LINE_BYTES = 250


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """A ledger whose tables hold everything, and new files for each round."""
    base = plan_of(RECORDS)
    with scratch() as place, audit_session(progress) as spark:
        world = GrowingLedger(spark, place, base, progress)
        world.make_records()
        batch_ms = world.make_tables_ms()
        yield Sides(
            ours=world.report_ms,
            # It takes minutes, and was measured once, when the tables were filled.
            peer=lambda: batch_ms,
            note=f"{world.new_records:,} new records on {base.records:,}; every report gave the"
            " planted truth; the batch was run once, from Parquet to journeys and sums",
        )


class GrowingLedger:
    """A ledger and its tables, which grow by a round's records at a time."""

    def __init__(
        self, spark: SparkSession, place: Path, base: maker.Plan, progress: Progress
    ) -> None:
        self._spark = spark
        self._ledger = place / "ledger"
        self._plans = [base]
        self._late: maker.Plan | None = base
        self._progress = progress
        self.new_records = min(NEW, base.records // 10)

    def make_records(self) -> None:
        """Write the records of the first plan as a batch whose tables are yet to be made."""
        from twinbus.pipeline.store.lake import TableChange
        from twinbus.pipeline.store.stream import _Batch, open_store, update
        from twinbus.pipeline.tables.gold import BRONZE

        self._write(self._next_plan())
        update(self._spark, self._ledger)
        base = self._plans[0]
        store = open_store(self._spark, self._ledger)
        self._batch = _Batch(store, store.latest(), {})
        self._progress(f"making {base.records:,} records")
        files = store.write(maker.made(self._spark, base), BRONZE, self._batch._part)
        self._batch._changes[BRONZE] = TableChange(files)

    def make_tables_ms(self) -> float:
        """Make the tables of that batch; how long that took, from its records in Parquet."""
        batch, records = self._batch, self._plans[0].records
        before = batch._before
        self._progress(f"making the tables of {records:,} records")
        began = time.perf_counter()
        told = replace(before, batch=before.batch + 1, records=before.records + records)
        batch._store.lake.publish(before, batch._take_records(told, records), batch._changes)
        return (time.perf_counter() - began) * 1000

    def report_ms(self) -> float:
        """New files come, and a report is made; how long the report takes."""
        self._write(self._next_plan())
        return self.same_report_ms()

    def same_report_ms(self) -> float:
        """A report is made, which must give the planted truth; how long it takes."""
        from twinbus.pipeline.store.current import current_tables

        began = time.perf_counter()
        with current_tables(self._spark, self._ledger) as tables:
            balances = [row.asDict() for row in tables.table("fates").collect()]
            named = _by_fate(tables.notable())
        took_ms = (time.perf_counter() - began) * 1000
        self._require_truth(balances, named)
        return took_ms

    def megabytes_per_million(self) -> dict[str, float]:
        """What each table takes on disk for a million records, the largest first."""
        sizes = {
            table.name: sum(one.stat().st_size for one in table.rglob("*") if one.is_file())
            for table in (self._ledger / TABLES).iterdir()
            if table.is_dir()
        }
        millions = self._plans[0].records / 1e6
        largest_first = sorted(sizes.items(), key=lambda one: -one[1])
        return {name: size / 1e6 / millions for name, size in largest_first}

    def _next_plan(self) -> maker.Plan:
        """Another hundred thousand records, of the days after all that there are."""
        first = sum(plan.shards for plan in self._plans)
        plan = maker.Plan(self.new_records, seed=self._plans[0].seed, first_shard=first)
        self._plans.append(plan)
        return plan

    def _write(self, plan: maker.Plan) -> None:
        """Put a plan's records into the ledger as files; with the first, what others left open."""
        self._ledger.mkdir(exist_ok=True)
        rows = maker.made(self._spark, plan, tasks=2)
        if len(self._plans) > 2 and self._late is not None:
            rows = rows.unionByName(maker.late_records(self._spark, self._late))
            self._late = None
        draft = self._ledger.parent / "draft"
        rows.drop(maker.DAY).write.json(str(draft), ignoreNullFields=True)
        for number, file in enumerate(sorted(draft.glob("part-*.json"))):
            file.rename(self._ledger / f"made-{plan.first_shard}-{number}.jsonl")
        shutil.rmtree(draft)

    def _require_truth(self, balances: list[dict[str, int]], named: dict[str, int]) -> None:
        truths = [plan.truth() for plan in self._plans]
        late = 0 if self._late is not None else truths[0].undecided
        undecided = sum(truth.undecided for truth in truths) - late
        found = {
            "accepted": sum(row["accepted"] for row in balances),
            "delivered": sum(row["delivered"] for row in balances),
            "lost": named.get("lost", 0),
            "undecided": named.get("undecided", 0),
        }
        assert found == {
            "accepted": sum(truth.accepted for truth in truths),
            "delivered": sum(truth.delivered for truth in truths) + late,
            "lost": sum(truth.lost for truth in truths),
            "undecided": undecided,
        }, found


def _by_fate(notable: DataFrame) -> dict[str, int]:
    return {row["fate"]: row["count"] for row in notable.groupBy("fate").count().collect()}
