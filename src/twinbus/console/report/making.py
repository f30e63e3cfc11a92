"""Makes the reports of a ledger, by Spark if it is large; prints them as text, JSON, CSV or a page.

For conservation it peeks into every backlog queue of the secondary, which changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus import __version__
from twinbus.client.administration import list_backlog_queues
from twinbus.client.peeking import open_connection, peek
from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.options import NO_TABLES, ReportOptions, require_ledger
from twinbus.console.output import LiveLine, WrongUse
from twinbus.console.report.sheets import csv_of, sheet_of
from twinbus.console.sheet import page_of, text_of
from twinbus.console.spark_thread import SparkThread, require_spark, settings_for
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import PriceBook
from twinbus.errors import TwinbusError
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.pipeline.functions import NeedsSpark
from twinbus.pipeline.reports.documents import (
    LedgerReport,
    ReconciliationReport,
    ReportRequest,
    ReportVerdict,
    Sighting,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.pipeline.reports.conservation import BacklogSnapshot
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

SETTLE_S: Final = 1.0
"""Writers flush five times a second: after this pause what preceded the peek is on disk."""

READING: Final = "reading the ledger"

_STATUS: Final = {
    ReportVerdict.BAD: COULD_NOT,
    ReportVerdict.UNKNOWN: ATTENTION,
    ReportVerdict.GOOD: 0,
}
"""The exit status of each verdict, the worst first."""


@dataclass(frozen=True, kw_only=True)
class NeededFacts:
    secondary: Namespace | None = None
    """Whose backlog queues are peeked at, for conservation; None: no peek."""
    detection_s: int = 0
    book: PriceBook | None = None
    rule: CountingRule | None = None


def run(given: ReportOptions, kinds: Sequence[str], facts: NeededFacts) -> int:
    """Check what needs no Spark, make and show the reports; return the exit status."""
    request = given.request()
    _require_writable(given, is_one=len(kinds) == 1)
    require_spark()
    _require_ledger(given)
    with ExitStack() as stack:
        scan = None
        if facts.secondary is not None:
            scan = stack.enter_context(closing(BacklogScan(facts.secondary)))
        return _make_and_show(given, request, kinds, facts, scan)


@runs_to_its_end
async def _make_and_show(
    given: ReportOptions,
    request: ReportRequest,
    kinds: Sequence[str],
    facts: NeededFacts,
    scan: BacklogScan | None,
) -> int:
    with LiveLine() as line:
        settings = settings_for(given.ledger)
        with SparkThread(master=given.master, settings=settings, at_once=False) as spark:
            if scan is not None:
                scan.awaited = await spark.do(
                    lambda session: _awaited(session, given), READING, line.say
                )
                line.say("peeking into the backlog queues")
                await scan.peek()
                await asyncio.sleep(SETTLE_S)
            reports = await spark.do(
                lambda session: _make(session, given, request, kinds, facts, scan, line),
                READING,
                line.say,
            )
    _show(given, reports)
    return _status(reports)


def _status(reports: Sequence[LedgerReport]) -> int:
    """The exit status of the worst report; a view that no broker kept is no fault of several."""
    verdicts = {
        report.verdict
        for report in reports
        if len(reports) == 1
        or not isinstance(report, ReconciliationReport)
        or report.broker_records
    }
    return next(status for verdict, status in _STATUS.items() if verdict in verdicts)


def _awaited(spark: SparkSession | None, given: ReportOptions) -> DataFrame:
    from twinbus.pipeline.reports.conservation import awaited_messages

    with _tables(spark, given) as tables:
        return awaited_messages(tables)


def _tables(
    spark: SparkSession | None, given: ReportOptions
) -> AbstractContextManager[LedgerTables]:
    """The tables of the ledger: kept ones, or computed from all records."""
    if spark is None and any("://" in place for place in (given.ledger, given.tables or "")):
        raise NeedsSpark
    from twinbus.pipeline.reports.ledger_tables import batch_tables
    from twinbus.pipeline.store.current import current_tables

    if given.tables == NO_TABLES:
        return batch_tables(spark, given.ledger, shared=given.shared)
    return current_tables(spark, given.ledger, given.tables, shared=given.shared)


def _make(
    spark: SparkSession | None,
    given: ReportOptions,
    request: ReportRequest,
    kinds: Sequence[str],
    facts: NeededFacts,
    scan: BacklogScan | None,
    line: LiveLine,
) -> list[LedgerReport]:
    from twinbus.pipeline.reports import ledger_tables as reporting

    try:
        with _tables(spark, given) as tables:
            reporting.require_entity(tables, request)
            reports = []
            for number, kind in enumerate(kinds, 1):
                which = "the report" if len(kinds) == 1 else f"report {number} of {len(kinds)}"
                line.say(f"making {which}")
                peeked = None if scan is None else scan.snapshot(spark)
                reports.append(_report(kind, tables, request, facts, peeked))
            return reports
    except reporting.UnknownEntityError as error:
        raise WrongUse(str(error)) from None


def _report(
    kind: str,
    tables: LedgerTables,
    request: ReportRequest,
    facts: NeededFacts,
    peeked: BacklogSnapshot | None,
) -> LedgerReport:
    from twinbus.pipeline.reports.availability import availability_report
    from twinbus.pipeline.reports.charges import charges_report
    from twinbus.pipeline.reports.conservation import conservation_report
    from twinbus.pipeline.reports.reconciliation import reconciliation_report

    match kind:
        case "availability":
            return availability_report(tables, request)
        case "reconciliation":
            return reconciliation_report(tables, request)
        case "conservation":
            return conservation_report(tables, request, peeked, detection_s=facts.detection_s)
    assert facts.book is not None
    assert facts.rule is not None
    report = charges_report(tables, request, facts.book, facts.rule)
    old = facts.book.warnings(datetime.now(UTC).date())
    return replace(report, assumed=(*report.assumed, *old))


class ReportFailed(TwinbusError):
    """The report was made and its file cannot be written."""


def _require_writable(given: ReportOptions, *, is_one: bool) -> None:
    """Raise WrongUse if the report could not be written: before the work, not after it."""
    if not is_one and given.output in {"csv", "html"}:
        if given.to is None or not given.to.is_dir() or not os.access(given.to, os.W_OK):
            raise WrongUse(
                f"--output {given.output} makes one file for each report: name an existing"
                " directory with --to DIR"
            )
        return
    if given.to is None:
        if given.output == "html" and sys.stdout.isatty():
            raise WrongUse("--output html makes a file: name it with --to report.html")
        return
    directory = given.to.absolute().parent
    if given.to.is_dir() or not directory.is_dir() or not os.access(directory, os.W_OK):
        raise WrongUse(f"--to {given.to} cannot be written: name a file in a directory of yours")


def _require_ledger(given: ReportOptions) -> None:
    """Raise WrongUse if there is no ledger, or no place for its tables."""
    ledger = given.ledger
    require_ledger(ledger)
    if "://" not in ledger and given.tables is None and not os.access(ledger, os.W_OK):
        raise WrongUse(
            f"{ledger} is not writable, so its tables cannot be stored there. Use --tables DIR, or"
            " --tables none to recompute everything."
        )


def _show(given: ReportOptions, reports: Sequence[LedgerReport]) -> None:
    if len(reports) > 1 and given.output in {"csv", "html"}:
        assert given.to is not None
        for report in reports:
            place = given.to / f"{report.kind}.{given.output}"
            _write(place, _rendered(given.output, report))
            print(f"{sheet_of(report).headline}\nwritten to {place}", flush=True)
        return
    text = _rendered(given.output, reports[0]) if len(reports) == 1 else _joined(given, reports)
    if given.to is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    _write(given.to, text)
    headlines = "\n".join(sheet_of(report).headline for report in reports)
    print(f"{headlines}\nwritten to {given.to}", flush=True)


def _write(place: Path, text: str) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportFailed(f"{place} could not be written: {error.strerror}") from error


def _joined(given: ReportOptions, reports: Sequence[LedgerReport]) -> str:
    """Several reports as one text, or as one JSON document by kind."""
    if given.output == "json":
        document = {report.kind: report.as_json() for report in reports}
        return json.dumps(document, indent=2 if sys.stdout.isatty() else None) + "\n"
    return "\n".join(
        f"{report.kind.upper()}\n{_rendered(given.output, report)}" for report in reports
    )


def _rendered(output: str, report: LedgerReport) -> str:
    match output:
        case "json":
            return json.dumps(report.as_json(), indent=2 if sys.stdout.isatty() else None) + "\n"
        case "csv":
            return csv_of(report)
        case "html":
            now = datetime.now(UTC)
            made = f"made by Twinbus {__version__} at {now:%Y-%m-%d %H:%M:%S} UTC"
            return page_of(sheet_of(report), made)
        case _:
            return text_of(sheet_of(report))


PLACES: Final = {False: "waiting", True: "dead_lettered"}
"""`Sighting.place` by whether the message is a dead letter."""


class BacklogScan:
    """The messages that were found, in a file until Spark reads it: they may not fit in memory.

    The ledger is read before the peek and after it. What was in the backlog by the first reading,
    was not found, and is not accounted for by the second, is lost: no clock has a part in it.
    """

    def __init__(self, secondary: str | Namespace) -> None:
        self._endpoint = endpoint_of(secondary)
        self._directory = tempfile.TemporaryDirectory(prefix="twinbus-look-")
        self._file = Path(self._directory.name) / "sightings.json"
        self._began_ms = 0
        self._labels: frozenset[str] = frozenset()
        self.awaited: DataFrame | None = None
        """What the ledger said was in the backlog before the peek."""

    async def peek(self) -> None:
        """Peek into every backlog queue and its dead letters; SyphonError if that fails."""
        self._began_ms = int(time.time() * 1000)
        queues = await list_backlog_queues(self._endpoint, None)
        self._labels = frozenset(map(_label_of, queues))
        with self._file.open("w") as file:
            async with open_connection(self._endpoint) as line:
                for queue in queues:
                    for dead_letters, place in PLACES.items():
                        found = peek(line, queue, dead_letters=dead_letters)
                        async with aclosing(found) as messages:
                            async for message in messages:
                                if message.message_id is not None:
                                    row = Sighting(
                                        *(message.path or "", message.message_id, place),
                                        primary_label=_label_of(queue),
                                    )
                                    file.write(json.dumps(row._asdict()) + "\n")

    def sightings(self) -> Iterator[Sighting]:
        with self._file.open() as file:
            for line in file:
                yield Sighting(**json.loads(line))

    def snapshot(self, spark: SparkSession | None) -> BacklogSnapshot:
        from twinbus.pipeline.here.rows import Rows
        from twinbus.pipeline.reports.conservation import BacklogSnapshot
        from twinbus.pipeline.spark.few_rows import few_rows
        from twinbus.pipeline.spark.session import reads_local_files
        from twinbus.pipeline.tables.schemas import MESSAGES, SIGHTINGS

        if spark is None:
            found = few_rows(None, SIGHTINGS, [one._asdict() for one in self.sightings()]).frame
        elif reads_local_files(spark):
            found = spark.read.json(f"file:{self._file}", schema=SIGHTINGS)
        else:
            # Executors on other machines do not see the file.
            found = spark.createDataFrame(list(self.sightings()), SIGHTINGS)
        awaited: Any = self.awaited
        if spark is not None and isinstance(awaited, Rows):
            # The ledger has grown since.
            awaited = few_rows(spark, MESSAGES, [row.asDict() for row in awaited.collect()]).frame
        return BacklogSnapshot(found, self._began_ms, self._labels, awaited)

    def close(self) -> None:
        self._directory.cleanup()


def _label_of(queue: str) -> str:
    """Return the label of the primary, with which the path of a backlog queue begins."""
    return queue.lower().partition("/")[0]
