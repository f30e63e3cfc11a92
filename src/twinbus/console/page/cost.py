"""The cost of a ledger on the page, from its gold tables and the files not in them yet. No Spark.

The sums count what `twinbus report charges` counts: calls of clients that did not fail, in units of
64 KB, without settlements. Receives that the report assumes are not among them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from twinbus.cost.arithmetic import SETTLEMENTS, UNCHARGED, idle_operations, is_charged, units
from twinbus.cost.prices import PriceBook
from twinbus.extras import missing_package
from twinbus.ledger.facts import TABLES
from twinbus.ledger.record import LedgerError, decode
from twinbus.page.ledger_tail import LedgerTail

TRIES: Final = 3
"""Times to read the tables while a report changes them."""

OUTAGE_CAUSES: Final = frozenset({"failover", "ping", "syphon"})
"""What would not have been done without an outage."""

WITH_MESSAGE: Final = frozenset({"send", "divert", "forward", "ping", "receive"})
"""Operations that carry a message; a receive from the backlog does unless it found nothing."""

NOT_CHARGED: Final = frozenset({*SETTLEMENTS, *UNCHARGED, "expire"})
POLL_S: Final = 900.0
"""Length of an idle poll, as documented."""

DAY_S: Final = 86_400.0

ChargeSums = Counter[tuple[str, str]]
"""Billed units by day (ISO 8601, UTC) and cause."""


class PageCost:
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


def day_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def charged_units(record: Mapping[str, Any]) -> int:
    """Return the billed units of a record of the ledger; 0: it costs nothing."""
    operation = record["operation"]
    if operation in NOT_CHARGED or record.get("view", "client") != "client":
        return 0
    if not is_charged(operation, str(record.get("outcome"))):
        return 0
    is_poll = record.get("cause") == "poll"
    has_message = operation in WITH_MESSAGE or (operation == "backlog_receive" and not is_poll)
    return units(record.get("size_bytes")) if has_message else 1


def sums_of(records: Iterable[Mapping[str, Any]]) -> ChargeSums:
    sums: ChargeSums = Counter()
    for record in records:
        if count := charged_units(record):
            sums[day_of(record["at_ms"] / 1000), str(record.get("cause", ""))] += count
    return sums


def cost_document(
    sums: ChargeSums,
    book: PriceBook,
    now: float,
    *,
    complete_from: float | None,
    outage: tuple[float, int, bool] | None,
    idle_queues: int,
) -> dict[str, Any]:
    """Return the document of the cost at time `now`.

    `sums` are those of this month, all of them if `complete_from` is None. `outage` is when it
    began, what it cost in units, and whether that is all. `idle_queues` have a syphon.
    """
    today = day_of(now)
    idle = 0
    if idle_queues:
        idle = idle_operations(queue_count=idle_queues, poll_s=POLL_S, period_s=DAY_S)
    return {
        "as_of": now,
        "currency": book.currency,
        "prices": f"{book.region}, {book.retrieved}",
        "free": book.meter("operations").free,
        "complete_from": complete_from,
        "today": _period({key: count for key, count in sums.items() if key[0] == today}, book),
        "month": _period(sums, book),
        "outage": None
        if outage is None
        else {"since": outage[0], "is_all": outage[2], **_priced(outage[1], book)},
        "idle_per_day": {"queues": idle_queues, **_priced(idle, book)},
    }


def _period(sums: Mapping[tuple[str, str], int], book: PriceBook) -> dict[str, Any]:
    by_cause: Counter[str] = Counter()
    for (_, cause), count in sums.items():
        by_cause[cause] += count
    total = by_cause.total()
    return {
        **_priced(total, book),
        "money_with_free": _number(book.meter("operations").cost(total)),
        "by_cause": [
            {"cause": cause or "unknown", **_priced(count, book)}
            for cause, count in by_cause.most_common()
        ],
    }


def _priced(count: int, book: PriceBook) -> dict[str, Any]:
    """Return operations and their price once the free ones of the month are used up."""
    return {
        "operations": count,
        "money": _number(book.meter("operations").cost_past_free(count)),
    }


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)
