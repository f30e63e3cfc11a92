"""The conservation audit of ten million records by Spark, over DuckDB on the same files and cores.

Less is better: both sides are milliseconds. DuckDB is what one machine can do; Spark is here for
ledgers and clusters that one machine is too small for, and must not be worlds apart. Spark has
started before, and both have read the files once.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.audit_world import (
    CORES,
    audit_session,
    duckdb_audit,
    duckdb_connection,
    make,
    plan_of,
    scratch,
    spark_audit,
)
from bench.harness import Progress, Sides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.audit_world import Findings
    from bench.ledger_maker import Plan

UNIT = "ms, less is better"
RECORDS = 10_000_000


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """Spark, DuckDB, and a made ledger between them."""
    connection = duckdb_connection()
    plan = plan_of(RECORDS)
    with scratch() as place, audit_session(progress) as spark:
        make(spark, plan, place / "bronze", progress)
        version = connection.execute("select version()").fetchone()[0]
        yield Sides(
            ours=lambda: timed_ms(plan, lambda: spark_audit(spark, place / "bronze", plan)),
            peer=lambda: timed_ms(plan, lambda: duckdb_audit(connection, place / "bronze")),
            note=f"{plan.records:,} records; Spark {spark.version}, DuckDB {version}, {CORES} cores"
            " each; both gave the planted truth",
        )


def timed_ms(plan: Plan, audit: Callable[[], Findings]) -> float:
    """How long an audit takes that gives the right answer."""
    began = time.perf_counter()
    found = audit()
    took_ms = (time.perf_counter() - began) * 1000
    found.require(plan)
    return took_ms
