"""The tables of `twinbus status` about receiving: receivers, processors, twins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from twinbus.console.output import dim_headed
from twinbus.status.document import HostStatus, PairStatus
from twinbus.status.receiving import ProcessorStatus, ReceiverStatus, ReceivingSideStatus
from twinbus.status.twins import TwinRow, twin_rows
from twinbus.wording import NOT_KNOWN, counted, short

ROWS_MAX: Final = 20
"""Rows of one table; `--output json` has them all."""


def receiving_lines(status: PairStatus) -> list[str]:
    """Return the tables of a pair; one that has nothing to show is left out."""
    tables = (
        receiver_table([*status.receivers.values()]),
        processor_table([*status.processors.values()]),
        twin_table(status),
    )
    return [line for table in tables if table for line in ("", *table)]


def receiver_table(receivers: Sequence[ReceiverStatus]) -> list[str]:
    if not receivers:
        return []
    columns = (
        "RECEIVED FROM", ">RECEIVERS", "PRIMARY", "TWIN", ">HANDED OUT", ">SECOND COPIES",
        ">REOPENED", ">OF THEM SILENT", "REASON",
    )  # fmt: skip
    return _bounded(columns, [_receiver_row(one) for one in receivers])


def _receiver_row(one: ReceiverStatus) -> list[object]:
    sides = [one.sides.get(name) for name in ("primary", "secondary")]
    known = [side for side in sides if side is not None]
    return [
        one.path,
        one.receivers,
        *("" if side is None else str(side) for side in sides),
        one.handed_out,
        one.second_copies,
        sum(side.reopened for side in known),
        sum(side.silent for side in known),
        "; ".join(dict.fromkeys(_errors(known))),
    ]


def _errors(sides: Iterable[ReceivingSideStatus]) -> Iterable[str]:
    return (short(side.error) for side in sides if side.error)


def processor_table(processors: Sequence[ProcessorStatus]) -> list[str]:
    if not processors:
        return []
    columns = (
        "PROCESSOR", ">RUNNING", ">HANDLING", ">OF", ">HANDLED", ">FAILED", ">DEAD-LETTERED",
        "REASON",
    )  # fmt: skip
    rows = [
        [
            *(one.path, one.running, one.handling, one.concurrency, one.handled, one.failed),
            one.dead_lettered,
            short(one.error),
        ]
        for one in processors
    ]
    return _bounded(columns, rows)


def twin_table(status: HostStatus) -> list[str]:
    rows = twin_rows(status)
    if not rows:
        return []
    columns = ("TWIN", ">ACTIVE", ">SCHEDULED", ">DEFERRED", "EMPTIED BY", "STATE")
    return _bounded(columns, [_twin_row(row) for row in rows])


def _twin_row(row: TwinRow) -> list[object]:
    counts = (row.active, row.scheduled, row.deferred)
    emptied_by = "its consumers" if row.consumers_only else "consumers, the syphon"
    return [
        row.path,
        *(NOT_KNOWN if count is None else count for count in counts),
        "" if row.waiting is None else emptied_by,
        row.words,
    ]


def _bounded(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [line.rstrip() for line in dim_headed(columns, rows[:ROWS_MAX])]
    more = len(rows) - ROWS_MAX
    return [*lines, f"and {counted(more, 'more row')}"] if more > 0 else lines
