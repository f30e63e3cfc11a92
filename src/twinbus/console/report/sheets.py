"""Reports of conservation and reconciliation; and any report as a sheet or as CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final

from twinbus.console.output import cell
from twinbus.console.report.availability_sheet import availability_sheet
from twinbus.console.report.charges_sheet import (
    DUPLICATE_CAUSES,
    charges_sheet,
    closing_sections,
    entity_names,
)
from twinbus.console.sheet import ROWS_SHOWN, BarRow, Bars, Sheet, Table, Tile, clock, span, table
from twinbus.pipeline.reports.documents import (
    Agreement,
    AvailabilityReport,
    Balance,
    ChargeLine,
    ChargesReport,
    ConservationReport,
    FailoverWindow,
    LedgerReport,
    ReconciliationReport,
    ReportVerdict,
)
from twinbus.pipeline.reports.values import iso
from twinbus.wording import counted, visible

FATE_WORDS: Final = {
    "delivered": "delivered",
    "waiting": "waiting",
    "dead_lettered": "dead-lettered",
    "expired": "expired",
    "lost": "lost",
    "undecided": "undecided",
}
"""The fates of an accepted message, from the best to the worst known."""

_Rows = Callable[[Any], Iterable[Sequence[Any]]]

NO_VIEW: Final = "the embedded broker writes its view with: twinbus serve ... --ledger DIR"

COLUMN_WORDS: Final = {
    **FATE_WORDS,
    "at_twin": "at a twin",
    "second_copies": "second copies",
    "redeliveries": "redelivered",
}

IDS_IN_LINE: Final = 5
"""Ids that stand in a sentence; the table has more."""


def conservation_sheet(report: ConservationReport) -> Sheet:
    peeked = (
        "no peek into the backlog queues was made"
        if report.peeked_ms is None
        else f"peeked into the backlog queues at {clock(report.peeked_ms)} UTC"
    )
    return Sheet(
        title="conservation report",
        headline=_headline(report),
        verdict=report.verdict,
        lines=tuple(_lines(report)),
        tiles=tuple(_tiles(report)),
        tables=tuple(_tables(report)),
        charts=tuple(_charts(report)),
        sections=closing_sections(report, peeked),
    )


def _headline(report: ConservationReport) -> str:
    total = report.total
    sum_of = f"{total.accepted:,} accepted = {_sum(total._replace(lost=report.lost_at_least))}"
    if report.verdict is ReportVerdict.BAD:
        least = "" if total.lost is not None else "at least "
        return f"{least}{report.lost_at_least:,} LOST: {sum_of}"
    known, none = "nothing lost", "no message was accepted"
    if report.verdict is ReportVerdict.UNKNOWN:
        known = "not known whether anything is lost"
        none = "no record of an accepted message was read"
    return f"{known}: {sum_of if total.accepted else none}"


def _sum(total: Balance) -> str:
    parts = [
        f"{number:,} {words}"
        for fate, words in FATE_WORDS.items()
        if (number := _of_fate(total, fate))
    ]
    return " + ".join(parts) or "0"


def _of_fate(balance: Balance, fate: str) -> int:
    number: int | None = getattr(balance, fate)
    if fate == "lost" and number is None:
        # All fates together are the accepted ones: the rest of them is lost for certain.
        return balance.accepted - sum(
            _of_fate(balance, other) for other in FATE_WORDS if other != fate
        )
    return number or 0


def _cell(balance: Balance, name: str) -> str:
    """A figure of a balance; of what is lost the least, where no more is known."""
    number: int | None = getattr(balance, name)
    if name == "lost" and number is None and _of_fate(balance, name) > 0:
        return f"≥ {_of_fate(balance, name):,}"
    return cell(number)


def _lines(report: ConservationReport) -> Iterator[str]:
    lost = [message for message in report.messages if message.fate == "lost"]
    if lost:
        named = ", ".join(visible(message.message_id) for message in lost[:IDS_IN_LINE])
        more = report.lost_at_least - min(len(lost), IDS_IN_LINE)
        yield f"lost: {named}{f' and {more:,} more' if more > 0 else ''}"
    if report.total.undecided:
        undecided = counted(report.total.undecided, "message")
        yield (
            f"{undecided} went to the backlog and were not seen since: they wait there, or are"
            " lost. To know, peek: set TWINBUS_SECONDARY, or say --peek"
            if report.peeked_ms is None
            else f"{undecided} moved during the peek into the backlog: run the report again to know"
        )
    if report.total.dead_lettered:
        yield (
            f"{counted(report.total.dead_lettered, 'message')} dead-lettered: twinbus backlog"
            " dead-letters list"
        )
    if report.total.at_twin:
        yield (
            f"{counted(report.total.at_twin, 'message')} of the delivered went to a twin, and no"
            " record says that they left it: consumers receive them there, or the syphon brings"
            " them home"
        )
    if report.total.second_copies:
        yield (
            f"{counted(report.total.second_copies, 'second copy', 'second copies')} of messages"
            " completed without being handed out: a send without an answer had stored them"
        )
    if report.reused:
        yield (
            f"{counted(report.reused, 'id')} accepted more than once: each counts as one message;"
            " ids must be unique to tell messages apart"
        )
    name = entity_names(report.entities)
    for aged in report.aged:
        yield (
            f"{visible(name(aged))}: {counted(aged.messages, 'message')} stayed in the backlog"
            f" for up to {span(aged.oldest_ms)}; duplicates are detected for"
            f" {span(aged.detection_ms)} only, so copies of these were not recognised"
        )


def _tiles(report: ConservationReport) -> Iterator[Tile]:
    total = report.total
    yield Tile("accepted", cell(total.accepted))
    yield Tile("delivered", cell(total.delivered))
    yield Tile("waiting", cell(total.waiting))
    yield Tile("dead-lettered", cell(total.dead_lettered), is_bad=bool(total.dead_lettered))
    lost = f"≥ {report.lost_at_least:,}" if total.lost is None and report.lost_at_least else None
    yield Tile("lost", lost or cell(total.lost), is_bad=report.verdict is ReportVerdict.BAD)
    yield Tile("duplicates", cell(total.duplicates))


def _tables(report: ConservationReport) -> Iterator[Table]:
    yield _balances(report)
    name = entity_names(report.entities)
    yield table(
        "Not delivered",
        ("fate", "entity", "message id", "accepted (UTC)"),
        report.messages,
        lambda message: (
            FATE_WORDS.get(message.fate, message.fate),
            name(message),
            message.message_id,
            clock(message.at_ms),
        ),
        is_bad=lambda message: message.fate == "lost",
        total=len(report.messages) + report.messages_left_out,
    )
    yield table(
        "Duplicates by window",
        (">messages", "why"),
        sorted(report.duplicate_windows.items()),
        lambda window: (window[1], DUPLICATE_CAUSES.get(window[0], window[0])),
    )
    yield table(
        "Duplicates",
        ("entity", "message id", ">times", "window"),
        report.duplicates,
        lambda one: (name(one), one.message_id, one.times, one.window),
        total=sum(report.duplicate_windows.values()),
    )


def _balances(report: ConservationReport) -> Table:
    rows, name = [*report.entities[:ROWS_SHOWN], report.total], entity_names(report.entities)
    optional = (
        *("at_twin", "undecided", "received", "duplicates"),
        *("second_copies", "redeliveries", "raised"),
    )
    shown = [name for name in optional if any(getattr(row, name) for row in rows)]
    columns = ("accepted", *(fate for fate in FATE_WORDS if fate != "undecided"), *shown)
    return table(
        "By entity",
        ("entity", *(f">{COLUMN_WORDS.get(name, name)}" for name in columns)),
        rows,
        lambda row: (
            "all" if row is report.total else name(row),
            *(_cell(row, name) for name in columns),
        ),
        is_bad=lambda row: _of_fate(row, "lost") > 0,
        total=len(report.entities) + 1,
        more="more entities",
        limit=len(rows),
    )


def _charts(report: ConservationReport) -> Iterator[Bars]:
    name = entity_names(report.entities)
    rows = [
        # The worst first: it is read first.
        BarRow(
            name(row),
            tuple((fate, _of_fate(row, fate)) for fate in reversed(FATE_WORDS)),
            f"{row.accepted:,}",
        )
        for row in report.entities[:ROWS_SHOWN]
        if row.accepted
    ]
    if rows:
        title = "What became of the accepted messages"
        yield Bars(title, tuple(rows), FATE_WORDS, is_share=True)


def reconciliation_sheet(report: ReconciliationReport) -> Sheet:
    return Sheet(
        title="reconciliation report",
        headline=_agreement_headline(report),
        verdict=report.verdict,
        lines=() if report.broker_records else (NO_VIEW,),
        tiles=(
            Tile("operations, by clients", cell(sum(row.clients for row in report.rows))),
            Tile("operations, by the broker", cell(sum(row.broker for row in report.rows))),
            Tile("explained differences", cell(report.explained)),
            Tile("not explained", cell(report.unexplained), is_bad=bool(report.unexplained)),
        ),
        tables=tuple(_agreement_tables(report)),
        sections=closing_sections(report),
    )


def _agreement_headline(report: ReconciliationReport) -> str:
    if not report.broker_records:
        return "not known: the ledger has no record of the broker's view"
    both = sum(row.clients for row in report.rows)
    if report.verdict is ReportVerdict.UNKNOWN:
        differ = counted(report.unexplained, "difference")
        return f"not known: {differ} in {counted(both, 'operation')}, and records are missing"
    if report.verdict is ReportVerdict.BAD:
        return (
            f"{counted(report.unexplained, 'difference')} between the clients' view and the"
            f" broker's, in {counted(both, 'operation')}"
        )
    if not any(row.explained for row in report.rows):
        return f"both views agree on {counted(both, 'operation')}, entity by entity"
    more = sum(row.explained for row in report.rows)
    of = ", ".join(sorted({row.operation for row in report.rows if row.explained}))
    return (
        f"both views agree on {counted(both, 'operation')}; the broker counts {more:,} more ({of}),"
        " explained below"
    )


def _agreement_tables(report: ReconciliationReport) -> Iterator[Table]:
    name = entity_names(report.rows)
    yield table(
        "By place and operation",
        (
            *("place", "operation", ">clients", ">broker"),
            *(">only clients", ">only broker", ">explained"),
        ),
        report.rows,
        lambda row: (name(row), *row[1:-1]),
        is_bad=lambda row: row.only_clients or row.only_broker,
    )
    yield table(
        "Differences",
        ("place", "operation", "message id", ">clients ahead by", ">unanswered", "why"),
        report.differences,
        lambda one: (
            name(one),
            one.operation,
            one.message_id,
            f"{one.ahead:+,}",
            one.unanswered,
            visible(one.explanation) or "not explained",
        ),
        total=len(report.differences) + report.differences_left_out,
    )


def sheet_of(report: LedgerReport) -> Sheet:
    return _FORMS[type(report)][0](report)


def csv_of(report: LedgerReport) -> str:
    """All rows of the report's main table; the header does not depend on the rows.

    Numbers are plain, times are ISO 8601 in UTC, and an empty cell means unknown.
    """
    _, header, rows = _FORMS[type(report)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_csv_cell(value) for value in row] for row in rows(report))
    return text.getvalue()


_WINDOW_HEADER: Final = (
    "entity pair process suspect_at failed_over_at recovered_at detect_ms lasted_ms sends_saved"
    " receive_gap_ms reason"
).split()


def _window(window: FailoverWindow) -> list[object]:
    return [
        iso(getattr(window, f"{name.removesuffix('_at')}_ms"))
        if name.endswith("_at")
        else getattr(window, name)
        for name in _WINDOW_HEADER
    ]


def _csv_cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case date():
            return value.isoformat()
        case str() if value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
            # A spreadsheet would take an id like "=1+1" for a formula.
            return "'" + value
        case _:
            return value


_FORMS: Final[Mapping[type[LedgerReport], tuple[Callable[[Any], Sheet], Sequence[str], _Rows]]] = {
    ChargesReport: (charges_sheet, ChargeLine._fields, lambda report: report.lines),
    AvailabilityReport: (
        availability_sheet,
        _WINDOW_HEADER,
        lambda report: map(_window, report.windows),
    ),
    ConservationReport: (conservation_sheet, Balance._fields, lambda report: report.entities),
    ReconciliationReport: (reconciliation_sheet, Agreement._fields, lambda report: report.rows),
}
"""Of each report: its sheet, and the header and the rows of its CSV."""
