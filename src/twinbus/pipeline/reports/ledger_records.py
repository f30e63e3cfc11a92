"""The records of a whole ledger, as what the gold tables are counted from.

A small ledger is read and summed in this process (`few_lines`), a larger one by Spark.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from twinbus.ledger.record import OPEN_SUFFIX
from twinbus.pipeline.spark.few_rows import few_rows
from twinbus.pipeline.spark.kept_rows import persisted, pinned_lines, release
from twinbus.pipeline.store.few_lines import FewLines
from twinbus.pipeline.tables import bronze, records
from twinbus.pipeline.tables.gold import Sources
from twinbus.pipeline.tables.journeys import judged, partial_journeys
from twinbus.pipeline.tables.schemas import CORRUPT, JOURNEYS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.store.inspection import InspectedLedger
    from twinbus.pipeline.store.place_files import PlaceFiles

_IS_OPEN: Final = "is_open"
_WHY: Final = "why"


class FewRecords:
    """The records of a small ledger."""

    def __init__(
        self,
        session: SparkSession | None,
        place: PlaceFiles,
        inspected: InspectedLedger,
        bucket_s: int,
    ) -> None:
        """`session` is None where this process makes the tables."""
        self._session = session
        self._lines = FewLines(place, sorted(inspected.files.keys() - inspected.refused.keys()))
        self.rejected = self._lines.rejected
        """Count of rejected lines by reason."""
        self.sources = self._lines.sources(session, bucket_s)

    def journeys(self) -> DataFrame:
        """Return the facts about all messages, as `schemas.JOURNEYS`."""
        return few_rows(self._session, JOURNEYS, [*self._lines.journeys.rows()]).frame

    def close(self) -> None:
        """Nothing is kept by Spark."""


class ManyRecords:
    """The records of a larger ledger, which Spark keeps."""

    def __init__(
        self, session: SparkSession, ledger: str, inspected: InspectedLedger, bucket_s: int
    ) -> None:
        lines = bronze.read_ledger(session, ledger, refused=inspected.refused)
        is_open = F.endswith(F.col("_metadata.file_name"), F.lit(OPEN_SUFFIX))
        # Kept before counting: a query of a few columns does not see a damaged line.
        self._lines = pinned_lines(lines.withColumns({_IS_OPEN: is_open, _WHY: bronze.reason()}))
        why = F.col(_WHY)
        self._records = self._lines.where(why.isNull()).drop(_IS_OPEN, _WHY, CORRUPT)
        tallies = persisted(records.tallied(self._records, bucket_s=bucket_s))
        all_labelled = not records.may_share_messages(tallies)
        fates = persisted(judged(self.journeys(), all_labelled=all_labelled))
        self.sources = Sources(self._records, tallies, fates, fates)
        # An incomplete line of an open file is still being written: that is normal.
        counted = F.when(~F.col(_IS_OPEN) | (why != "torn"), why)
        [row] = self._lines.agg(*bronze.line_counts(counted)).collect()
        self.rejected = Counter(bronze.rejected(row.asDict()))
        """Count of rejected lines by reason."""

    def journeys(self) -> DataFrame:
        """Return the facts about all messages, as `schemas.JOURNEYS`."""
        return partial_journeys(self._records)

    def close(self) -> None:
        """Let Spark drop the kept rows."""
        release((self.sources.tallies, self.sources.messages, self._lines))
