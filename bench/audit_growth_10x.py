"""The conservation audit of a hundred million records over that of ten million, in time.

Less is better: both sides are milliseconds, and 10 would be growth in proportion. The note has the
peak memory of JVM and Python at both sizes. One round: the large ledger takes minutes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.audit_vs_duckdb import timed_ms
from bench.audit_world import PeakMemory, audit_session, make, plan_of, scratch, spark_audit
from bench.harness import Progress, Sides

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = "ms, less is better"
ROUNDS = 1
SMALL, LARGE = 10_000_000, 100_000_000


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """Two made ledgers, the second of ten times as many records."""
    plans = {"small": plan_of(SMALL), "large": plan_of(LARGE)}
    with scratch() as place, audit_session(progress) as spark:
        memory = PeakMemory(spark)
        peaks: dict[str, float] = {}
        for name, plan in plans.items():
            make(spark, plan, place / name, progress)

        def audit(name: str) -> float:
            # The warm-up of the large one is that of the small one: its code is compiled then.
            shown = name if peaks or name == "small" else "small"
            plan = plans[shown]
            progress(f"auditing {plan.records:,} records")
            memory.reset()
            took_ms = timed_ms(plan, lambda: spark_audit(spark, place / shown, plan))
            peaks[shown] = memory.gigabytes()
            return took_ms

        yield Sides(
            ours=lambda: audit("large"),
            peer=lambda: audit("small"),
            note=lambda: (
                f"{plans['large'].records:,} over {plans['small'].records:,} records; peak memory "
                f"of JVM and Python {peaks['large']:.2f} and {peaks['small']:.2f} GB; both gave "
                "the planted truth"
            ),
        )
