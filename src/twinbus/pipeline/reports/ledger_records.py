"""The records of a whole ledger, as what the gold tables are counted from.

A small ledger is read and summed in this process (`core.few_records`), a larger one by Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from twinbus.ledger.facts import LINE_MAX
from twinbus.ledger.record import OPEN_SUFFIX, WRITER, LedgerError
from twinbus.pipeline.core.few_records import Journeys, tallied
from twinbus.pipeline.core.lines import reason_of, record_in
from twinbus.pipeline.spark.few_rows import few_rows
from twinbus.pipeline.spark.kept_rows import persisted, pinned_lines, release
from twinbus.pipeline.tables import bronze, records
from twinbus.pipeline.tables.gold import Sources
from twinbus.pipeline.tables.journeys import judged, partial_journeys
from twinbus.pipeline.tables.schemas import CORRUPT, FATES, JOURNEYS, LEDGER, TALLIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.store.inspection import InspectedLedger
    from twinbus.pipeline.store.place_files import PlaceFiles

_SURROGATE: Final = b"\\u"
_IS_OPEN: Final = "is_open"
_WHY: Final = "why"


class FewRecords:
    """The records of a small ledger."""

    def __init__(
        self, session: SparkSession, place: PlaceFiles, inspected: InspectedLedger, bucket_s: int
    ) -> None:
        self.rejected = Counter[str]()
        """Count of rejected lines by reason."""
        self._session = session
        names = sorted(inspected.files.keys() - inspected.refused.keys())
        found = [record for name in names for record in self._records(place, name)]
        self._journeys = Journeys(found)
        fates = few_rows(session, FATES, [*self._journeys.judged()]).frame
        self.sources = Sources(
            few_rows(session, LEDGER, [_whole(one) for one in found]).frame,
            few_rows(session, TALLIES, tallied(found, bucket_s=bucket_s)).frame,
            fates,
            fates,
        )

    def journeys(self) -> DataFrame:
        """Return the facts about all messages, as `schemas.JOURNEYS`."""
        return few_rows(self._session, JOURNEYS, [*self._journeys.rows()]).frame

    def close(self) -> None:
        """Nothing is kept by Spark."""

    def _records(self, place: PlaceFiles, name: str) -> Iterator[Mapping[str, Any]]:
        for line in _content(place, name).split(b"\n"):
            is_long = len(line) > LINE_MAX
            record = None if is_long else record_in(line)
            if record is None:
                why = "foreign" if is_long else reason_of(line)
                # An incomplete line of an open file is still being written: that is normal.
                if line.strip() and not (why == "torn" and name.endswith(OPEN_SUFFIX)):
                    self.rejected[why] += 1
            elif record["operation"] != WRITER:
                yield _encodable(record) if _SURROGATE in line else record


def _content(place: PlaceFiles, name: str) -> bytes:
    try:
        return b"".join(place.pieces(name))
    except LedgerError:
        ended = name.removesuffix(OPEN_SUFFIX)
        if ended == name or not place.exists(ended):
            raise
        # Its writer has ended it since.
        return b"".join(place.pieces(ended))


def _encodable(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record without halves of characters, which Spark replaces too."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in record.items()
    }


def _whole(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in LEDGER.fieldNames()}


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
