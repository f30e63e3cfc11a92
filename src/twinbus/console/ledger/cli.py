"""The commands of `twinbus ledger`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from twinbus.console.ledger.text import (
    Document,
    compact_lines,
    retain_lines,
    status_lines,
    table_lines,
)
from twinbus.console.options import (
    LedgerArgument,
    MasterOption,
    SharedOption,
    require_shared_places,
)
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption

app = typer.Typer(
    help="Maintain the tables of a ledger: update, compact, retain.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TablesOption = Annotated[
    str | None,
    typer.Option("--tables", metavar="PLACE", help="Place of its tables. Unset: LEDGER/_tables."),
]


@app.command(epilog=epilog("twinbus ledger status ./ledger --output json"))
def status(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show records, rejected lines, parts, files and bytes."""
    _run("status", ledger, tables, master, output, status_lines, shared=shared)


@app.command(epilog=epilog("twinbus ledger update ./ledger"))
def update(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Add the ledger's newly closed files to the tables.

    Every report does this too.
    """
    _run("update", ledger, tables, master, output, table_lines, shared=shared)


@app.command(epilog=epilog("twinbus ledger rebuild ./ledger"))
def rebuild(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove the tables and build them again from the ledger.

    The command refuses once files of the ledger were removed (compact --remove-raw).
    """
    _run("rebuild", ledger, tables, master, output, table_lines, shared=shared)


@app.command(epilog=epilog("twinbus ledger compact ./ledger --remove-raw"))
def compact(
    ledger: LedgerArgument,
    tables: TablesOption = None,
    remove_raw: Annotated[
        bool,
        typer.Option(
            "--remove-raw",
            help="Remove the ledger files whose records the tables hold, except those of the last"
            " batch. The tables are then the only copy and cannot be rebuilt.",
        ),
    ] = False,
    master: MasterOption = None,
    shared: SharedOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Merge the small parts of the tables into large ones.

    Reports stay the same.
    """
    _run(
        "compact", ledger, tables, master, output, compact_lines,
        shared=shared, remove_raw=remove_raw,
    )  # fmt: skip


@app.command(epilog=epilog("twinbus ledger retain ./ledger --days 90"))
def retain(
    ledger: LedgerArgument,
    days: Annotated[
        int,
        typer.Option(
            "--days", min=1, max=36_500, metavar="N", help="Days to keep, including today (UTC)."
        ),
    ],
    tables: TablesOption = None,
    master: MasterOption = None,
    shared: SharedOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove old records and old settled journeys.

    Sums stay, so reports say the same. Journeys of messages that are still awaited stay too.
    """
    _run("retain", ledger, tables, master, output, retain_lines, shared=shared, days=days)


def _run(
    verb: str,
    ledger: str,
    tables: str | None,
    master: str | None,
    output: Output,
    lines: Callable[[Document], list[str]],
    *,
    shared: bool,
    **more: Any,
) -> None:
    from twinbus.console.ledger.commands import run
    from twinbus.pipeline.store.upkeep import TablesTask

    require_shared_places(master, ledger, tables, shared=shared)
    task = TablesTask(verb=verb, ledger=ledger, tables=tables, shared=shared, **more)
    raise typer.Exit(run(task, master, lines, as_json=output is Output.JSON))
