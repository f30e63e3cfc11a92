"""The words of `twinbus backlog dead-letters`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.backlog.cli import (
    EntityOption,
    LabelOption,
    PrimaryOption,
    QueueOption,
    SecondaryOption,
    label_of,
    secondary_of,
)
from twinbus.console.terminal.output import Output, OutputOption, WrongUse

__all__ = ["app"]

app = typer.Typer(
    help="What could not be brought home, and why: list, show, replay, export.",
    rich_markup_mode=None,
)

ReasonOption = Annotated[
    str | None,
    typer.Option("--reason", metavar="REASON", help="Only with this dead-letter reason."),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only diverted since this day or time (UTC), or since so long ago: 2026-11-05,"
        " 2026-11-05T10:00, 90min, 2h.",
    ),
]
MaximumOption = Annotated[
    int, typer.Option("--max", min=1, max=100_000, metavar="N", help="Messages to show.")
]

LISTED = 20


@app.callback(invoke_without_command=True)
def dead_letters(
    context: typer.Context,
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """What could not be brought home, and why. Without a command: list."""
    if context.invoked_subcommand is None:
        list_letters(primary, secondary, output=output)


@app.command("list", epilog="Example: twinbus backlog dead-letters list --entity orders --since 2h")
def list_letters(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queue: QueueOption = None,
    entity: EntityOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    count: MaximumOption = LISTED,
    output: OutputOption = Output.TEXT,
) -> None:
    """List dead letters and their reasons; nothing is locked, changed or settled."""
    from twinbus.console.backlog import dead_letter_commands as letters

    meant = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    wanted = letters.filter_of(entity, reason, since)
    raise typer.Exit(letters.list_letters(meant, wanted, count, as_json=output is Output.JSON))


@app.command("show", epilog="Example: twinbus backlog dead-letters show 3 4711")
def show_letter(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's index, or its path.")],
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number.")],
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show all of one dead letter, its body too; nothing is locked, changed or settled."""
    from twinbus.console.backlog import dead_letter_commands as letters

    meant = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    raise typer.Exit(letters.show_letter(meant, number, as_json=output is Output.JSON))


@app.command(
    "replay",
    epilog="Exit status: 0 all that was meant is replayed, 3 some was not. "
    "Example: twinbus backlog dead-letters replay --reason DestinationNotFound",
)
def replay_letters(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queue: QueueOption = None,
    entity: EntityOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    number: Annotated[
        int | None, typer.Option("--number", min=1, metavar="N", help="One sequence number only.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Replay everything: no filter is meant.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also what was replayed three times before, and came back."),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Put dead letters back into their backlog queue, for the syphon to try again.

    At-least-once: a copy, with the same message id, is stored before the dead letter is completed.
    """
    from twinbus.console.backlog import dead_letter_commands as letters

    if not (everything or queue or entity or reason or since or number):
        raise WrongUse(
            "say which to replay: --queue, --entity, --reason, --since, --number; or --all"
        )
    meant = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    wanted = letters.filter_of(entity, reason, since, number)
    as_json = output is Output.JSON
    raise typer.Exit(letters.replay_letters(meant, wanted, force=force, as_json=as_json))


@app.command("export", epilog="Example: twinbus backlog dead-letters export --to letters.jsonl")
def export_letters(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queue: QueueOption = None,
    entity: EntityOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="A new file; else standard output.")
    ] = None,
) -> None:
    """Write dead letters as JSON Lines, bodies in base64; nothing is locked or settled."""
    from twinbus.console.backlog import dead_letter_commands as letters

    meant = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    raise typer.Exit(letters.export_letters(meant, letters.filter_of(entity, reason, since), to))
