"""The words of `twinbus doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.console.terminal.output import Output, OutputOption

__all__ = ["doctor"]


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
            help="An entity that the application sends to: its Send right is asked for there.",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            metavar="LABEL",
            help="The `name` the application gave its primary, if any.",
        ),
    ] = None,
    queues: Annotated[
        int,
        typer.Option(
            "--queues", min=1, max=100, metavar="N", help="The application's backlog_queue_count."
        ),
    ] = 10,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check whether two namespaces are fit to be paired: one line each, with what to do.

    No message of yours is touched. With the Manage right it makes scratch entities called
    twinbus-doctor-... for a moment and deletes them; what it cannot check it says.
    """
    from twinbus.console.doctor.commands import run
    from twinbus.console.namespaces import side

    sides = side(primary, "primary", label), side(secondary, "secondary")
    raise typer.Exit(run(*sides, count=queues, entity=entity, as_json=output is Output.JSON))
