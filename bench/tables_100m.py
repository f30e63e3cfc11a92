"""The tables of a hundred million records: seconds, peak memory of JVM and Python, and storage.

From the records in Parquet to journeys and sums, committed. A report then gives the planted truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.audit_world import CORES, PeakMemory, audit_session, plan_of, scratch
from bench.incremental_vs_batch import RECORDS, GrowingLedger

if TYPE_CHECKING:
    from bench.harness import Progress

NAMED_MB = 0.01
"""Tables that take less for a million records are in the sum only."""


def tables(progress: Progress) -> str:
    """Measure it once: it takes minutes."""
    plan = plan_of(RECORDS)
    with scratch() as place, audit_session(progress) as spark:
        ledger = GrowingLedger(spark, place, plan, progress)
        ledger.make_records()
        memory = PeakMemory(spark)
        memory.reset()
        took_ms = ledger.make_tables_ms()
        peak = memory.gigabytes()
        ledger.same_report_ms()
        sizes = ledger.megabytes_per_million()
        named = ", ".join(f"{name} {size:.2f}" for name, size in sizes.items() if size >= NAMED_MB)
        return (
            f"tables_100m: the tables of {plan.records:,} records in {took_ms / 1000:,.1f} s, peak"
            f" memory {peak:.2f} GB; Spark {spark.version}, {CORES} cores; the planted truth\n"
            f"storage per million records: {sum(sizes.values()):.1f} MB ({named})"
        )
