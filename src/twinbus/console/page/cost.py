"""The cost of a ledger, from its gold tables and the files that are not in them yet. No Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from twinbus.cost.arithmetic import SETTLEMENTS
from twinbus.cost.prices import PriceBook
from twinbus.extras import missing_package
from twinbus.ledger.record import LedgerError, decode
from twinbus.page.core.cost import (
    OUTAGE_CAUSES,
    ChargeSums,
    charged_units,
    cost_document,
    sums_of,
)
from twinbus.page.sources.ledger_tail import LedgerTail

TABLES: Final = "_tables"
TRIES: Final = 3
"""Times to read the tables while a report changes them."""


class PageCost:
    """Makes the document of the cost of one ledger."""

    def __init__(self, ledger: Path, book: PriceBook) -> None:
        self._ledger = ledger
        self._book = book

    def document(self, label: str, outage_since: float | None, idle_queues: int) -> dict[str, Any]:
        """Return the cost now; reads files, so it blocks for a moment.

        LedgerError if the tables cannot be read.
        """
        now = time.time()
        began = datetime.fromtimestamp(now, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        in_tables, sums = table_sums(self._ledger, began)
        tail = LedgerTail(self._ledger, began.timestamp(), without=in_tables)
        sums.update(sums_of(_records(tail)))
        return cost_document(
            sums,
            self._book,
            now,
            complete_from=tail.covered_from if tail.is_cut else None,
            outage=None if outage_since is None else self._outage(label, outage_since),
            idle_queues=idle_queues,
        )

    def _outage(self, label: str, since: float) -> tuple[float, int, bool]:
        tail = LedgerTail(self._ledger, since)
        records = _records(tail, label.encode())
        cost = sum(charged_units(one) for one in records if one.get("cause") in OUTAGE_CAUSES)
        return since, cost, not tail.is_cut


def _records(tail: LedgerTail, label: bytes | None = None) -> Iterator[Mapping[str, Any]]:
    for line in tail:
        if label is None or line.is_of(label):
            record = decode(line.line)
            if record is not None:
                yield record


def table_sums(ledger: Path, began: datetime) -> tuple[frozenset[str], ChargeSums]:
    """Return the files whose records are in the tables, and their sums from a day on."""
    place = ledger / TABLES
    if not (place / "sets").is_dir():
        return frozenset(), Counter()
    # Imported late: it takes a moment and 30 MB, and many ledgers have no tables.
    try:
        import pyarrow.compute as pc  # type: ignore[import-untyped]
        from deltalake import DeltaTable

        from twinbus.pipeline.store.lake import Lake
    except ModuleNotFoundError as error:
        raise missing_package("the cost of what is in the tables of the ledger", error) from None

    lake = Lake(str(place), {})
    for _ in range(TRIES):
        snapshot, taken = lake.latest(), lake.taken()
        if lake.latest().number == snapshot.number:
            break
    else:
        raise LedgerError(f"the tables of {ledger} change all the time: ask again")
    version = snapshot.versions.get("charges")
    if version is None:
        return frozenset(taken), Counter()
    wanted = (
        (pc.field("day") >= began.date())
        & (pc.field("view") == "client")
        & (pc.field("outcome") != "failed")
        & ~pc.field("operation").isin(sorted(SETTLEMENTS))
    )
    rows = (
        DeltaTable(f"{place}/charges", version=version)
        .to_pyarrow_dataset()
        .to_table(columns=["day", "cause", "units"], filter=wanted)
        .group_by(["day", "cause"])
        .aggregate([("units", "sum")])
    )
    sums: ChargeSums = Counter()
    for row in rows.to_pylist():
        sums[row["day"].isoformat(), row["cause"]] += row["units_sum"]
    return frozenset(taken), sums
