"""The command `twinbus doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.console.options import LabelOption, QueuesOption
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command(
        epilog=epilog(
            "twinbus doctor --entity orders",
            exit_status="0 fit to be paired, also with warnings; 1 a check failed.",
            note="Put the connection strings into TWINBUS_PRIMARY and TWINBUS_SECONDARY: other"
            " users can see a command line.",
        )
    )(doctor)


def doctor(
    primary: Annotated[
        str | None,
        typer.Argument(
            metavar="PRIMARY", envvar="TWINBUS_PRIMARY", help="Connection string of the primary."
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Argument(
            metavar="SECONDARY",
            envvar="TWINBUS_SECONDARY",
            help="Connection string of the secondary.",
        ),
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(
            "--entity",
            metavar="PATH",
            help="An entity that the application sends to. The doctor checks the Send right there.",
        ),
    ] = None,
    label: LabelOption = None,
    queues: QueuesOption = 10,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check whether two namespaces are fit to be paired.

    Each check prints one line, with what to do about a problem. No message of yours is touched.
    With the Manage right the doctor creates scratch entities called twinbus-doctor-... and deletes
    them again. It says what it could not check.
    """
    from twinbus.console.doctor.commands import run
    from twinbus.console.namespaces import parse_side

    sides = parse_side(primary, "primary", label), parse_side(secondary, "secondary")
    raise typer.Exit(run(*sides, count=queues, entity=entity, as_json=output is Output.JSON))
