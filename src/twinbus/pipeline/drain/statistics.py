"""What a drain on Spark did, counted in the ledger that its tasks wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from twinbus.ledger.record import FILE_SUFFIX, LedgerError
from twinbus.pipeline.tables.bronze import read_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainStatistics:
    """Messages by what became of them; attempts that died are in it, as far as they wrote."""

    forwarded: int = 0
    """Accepted by the primary. More than completed: sent, and the attempt died before the rest."""
    completed: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class DrainRun:
    """A drain that has ended."""

    spark: SparkSession
    name: str
    """The names of its ledger files begin with it."""
    ledger: str | None

    def statistics(self) -> DrainStatistics | None:
        """What it did, by the ledger; None where it wrote none. Runs a Spark job."""
        if self.ledger is None:
            return None
        place = self.ledger.removeprefix("file://")
        try:
            lines = read_ledger(self.spark, place, files=f"{self.name}-*{FILE_SUFFIX}*")
        except LedgerError:
            # Its tasks had nothing to write.
            return DrainStatistics()
        done = lines.where(F.col("outcome") == "ok").groupBy("operation").count()
        counts = {row["operation"]: row["count"] for row in done.collect()}
        return DrainStatistics(
            forwarded=counts.get("forward", 0),
            completed=counts.get("complete", 0),
            dead_lettered=counts.get("dead_letter", 0),
        )
