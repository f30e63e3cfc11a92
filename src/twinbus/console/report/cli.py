"""The commands of `twinbus report`."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.console.options import (
    EntityOption,
    LedgerArgument,
    MasterOption,
    PricesOption,
    SettlementOption,
    SharedOption,
    SinceOption,
    counting_rule,
    require_shared_places,
)
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import WrongUse

if TYPE_CHECKING:
    from twinbus.console.report.commands import ReportPlan

app = typer.Typer(
    help="Report a ledger's charges, availability and conservation.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class ReportOutput(StrEnum):
    """The value of `--output`."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    HTML = "html"


TablesOption = Annotated[
    str | None,
    typer.Option(
        "--tables",
        metavar="DIR",
        help="Location of its tables; unset: _tables inside the ledger. `none`: keep no tables and"
        " read all records.",
        show_default=False,
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="End, exclusive; a day counts whole.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    ReportOutput,
    typer.Option("--output", help="Text to read, JSON, one table as CSV, or a page with charts."),
]
ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="Write the report into this file; its answer, one line, is printed as well.",
        show_default=False,
    ),
]


@app.command(
    epilog=epilog(
        "twinbus report charges ./ledger --since 2026-11-01 \\\n  --settlement counted",
        exit_status="0 done, 1 failed, 2 usage error.",
    )
)
def charges(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    entity: EntityOption = None,
    prices: PricesOption = None,
    settlement: SettlementOption = "free",
    output: OutputOption = ReportOutput.TEXT,
    to: ToOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
) -> None:
    """Show billed operations and their cost by the price book.

    The documented arithmetic stands beside the facts, the assumptions below them.
    """
    from twinbus.console.cost.price_books import book_of
    from twinbus.console.report import commands as report_run

    book = book_of(prices)
    plan = _plan(ledger, tables, since, until, entity, output, to, master, shared)
    raise typer.Exit(report_run.charges(plan, book, counting_rule(settlement)))


@app.command(
    epilog=epilog(
        "twinbus report availability ./ledger --since 24h \\\n  --output html --to outage.html",
        exit_status="0 done, 1 failed, 2 usage error, 3 an entity is still failed over.",
    )
)
def availability(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    entity: EntityOption = None,
    output: OutputOption = ReportOutput.TEXT,
    to: ToOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
) -> None:
    """Show failovers, saved and raised sends, and the backlog."""
    from twinbus.console.report import commands as report_run

    plan = _plan(ledger, tables, since, until, entity, output, to, master, shared)
    raise typer.Exit(report_run.availability(plan))


@app.command(
    epilog=epilog(
        "twinbus report conservation ./ledger --since 7d",
        exit_status="0 nothing is lost, 1 something is lost or the report failed (one line says"
        " why), 2 usage error, 3 unknown.",
        note="Put the connection string into TWINBUS_SECONDARY: other users can see a command"
        " line.",
    )
)
def conservation(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    entity: EntityOption = None,
    peek: Annotated[
        str | None,
        typer.Option(
            "--peek",
            envvar="TWINBUS_SECONDARY",
            metavar="STRING",
            help="Connection string of the secondary: peek into its backlog queues, which changes"
            " nothing. `none`: do not peek.",
            show_default=False,
        ),
    ] = None,
    detection_window: Annotated[
        str,
        typer.Option(
            "--detection-window",
            metavar="TIME",
            help="Duplicate detection window of the destinations.",
        ),
    ] = "10min",
    output: OutputOption = ReportOutput.TEXT,
    to: ToOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
) -> None:
    """Prove that no message is lost, or name those that are.

    accepted = delivered + waiting + dead-lettered + expired. What cannot be known is called
    unknown: without a peek into the backlog queues, a diverted message that was not seen since may
    wait there or be lost.
    """
    from twinbus.console.report import commands as report_run

    plan = _plan(ledger, tables, since, until, entity, output, to, master, shared)
    secondary = None if peek in {None, "", "none"} else peek
    detection_s = report_run.detection_s(detection_window)
    raise typer.Exit(report_run.conservation(plan, secondary, detection_s))


@app.command(
    epilog=epilog(
        "twinbus report reconciliation ./ledger",
        exit_status="0 both views agree, 1 they differ or the report failed, 2 usage error, 3"
        " unknown: the broker kept no view, or records are missing.",
    )
)
def reconciliation(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    entity: EntityOption = None,
    output: OutputOption = ReportOutput.TEXT,
    to: ToOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
) -> None:
    """Compare the records of clients with the broker's own."""
    from twinbus.console.report import commands as report_run

    plan = _plan(ledger, tables, since, until, entity, output, to, master, shared)
    raise typer.Exit(report_run.reconciliation(plan))


def _plan(
    ledger: str,
    tables: str | None,
    since: str | None,
    until: str | None,
    entity: str | None,
    output: ReportOutput,
    to: Path | None,
    master: str | None,
    shared: bool,
) -> ReportPlan:
    """The checked request. WrongUse, in one line and before Spark starts, if it is invalid."""
    from twinbus.console.report.commands import NO_TABLES, ReportPlan
    from twinbus.console.terminal.time_window import window_of

    if entity is not None and not entity.strip("/ "):
        raise WrongUse("--entity is empty: name a queue or a topic, or leave it out")
    require_shared_places(master, ledger, None if tables == NO_TABLES else tables, shared=shared)
    window = window_of(since, until, datetime.now(UTC))
    return ReportPlan(
        ledger=ledger,
        tables=tables,
        since_ms=window.since_ms,
        until_ms=window.until_ms,
        entity=None if entity is None else entity.strip("/ "),
        output=output.value,
        to=to,
        master=master,
        shared=shared,
    )
