"""The lines of few files of a ledger, read by this process, and what its tables are counted from.

For some ten thousand records Spark takes seconds to plan and to compute, without compiled code,
what the rules of `core.few_records` give in a fraction of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from twinbus.ledger.facts import LINE_MAX
from twinbus.ledger.record import OPEN_SUFFIX, WRITER, LedgerError
from twinbus.pipeline.core.few_records import Journeys, tallied
from twinbus.pipeline.core.lines import reason_of, record_in
from twinbus.pipeline.functions import NeedsSpark
from twinbus.pipeline.spark.few_rows import few_rows
from twinbus.pipeline.tables.gold import Sources
from twinbus.pipeline.tables.schemas import FATES, LEDGER, TALLIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.store.place_files import PlaceFiles

Record = Mapping[str, Any]

_SURROGATE: Final = b"\\u"


class FewLines:
    """The records among the lines of few files, and their messages."""

    def __init__(self, place: PlaceFiles, names: Iterable[str]) -> None:
        self.rejected = Counter[str]()
        """Count of rejected lines by reason."""
        self.of_file = {name: [*self._records(place, name)] for name in names}
        """The records of each file."""
        self.records = [record for found in self.of_file.values() for record in found]
        self.journeys = Journeys(self.records)

    def sources(self, session: SparkSession | None, bucket_s: int) -> Sources:
        fates = few_rows(session, FATES, [*self.journeys.judged()]).frame
        return Sources(
            self.frame(session),
            few_rows(session, TALLIES, tallied(self.records, bucket_s=bucket_s)).frame,
            fates,
            fates,
        )

    def frame(self, session: SparkSession | None) -> DataFrame:
        """Return the records, as `LEDGER`."""
        return few_rows(session, LEDGER, [_whole(one) for one in self.records]).frame

    def _records(self, place: PlaceFiles, name: str) -> Iterator[Record]:
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


def require_small(files: Mapping[str, int], most: int) -> None:
    """Raise NeedsSpark if files, with their sizes, are more than this process reads."""
    if sum(files.values()) > most:
        raise NeedsSpark


def may_share(row: Record) -> bool:
    """Return whether a row of journeys may share its message with others."""
    return bool(row["receiver"]) or not row["labelled"]


def _content(place: PlaceFiles, name: str) -> bytes:
    try:
        return b"".join(place.pieces(name))
    except LedgerError:
        ended = name.removesuffix(OPEN_SUFFIX)
        if ended == name or not place.exists(ended):
            raise
        # Its writer has ended it since.
        return b"".join(place.pieces(ended))


def _encodable(record: Record) -> Record:
    """Return a record without halves of characters, which Spark replaces too."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in record.items()
    }


def _whole(record: Record) -> dict[str, Any]:
    return {name: record.get(name) for name in LEDGER.fieldNames()}
