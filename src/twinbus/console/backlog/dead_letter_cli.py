"""The commands of `twinbus backlog dead-letters`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.options import (
    EntityOption,
    LabelOption,
    PrimaryOption,
    QueueOption,
    SecondaryOption,
    SinceOption,
    label_of,
    secondary_of,
)
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption, WrongUse

app = typer.Typer(help="List, show, replay and export dead letters.", rich_markup_mode=None)

ReasonOption = Annotated[
    str | None,
    typer.Option("--reason", metavar="REASON", help="Only with this dead-letter reason."),
]
MaximumOption = Annotated[
    int, typer.Option("--max", min=1, max=100_000, metavar="N", help="Messages to show.")
]

LISTED = 20


@app.callback(
    invoke_without_command=True, epilog=epilog("twinbus backlog dead-letters --output json")
)
def dead_letters(
    context: typer.Context,
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List, show, replay and export dead letters.

    Dead letters are messages that the syphon could not deliver. Without a command: list.
    """
    if context.invoked_subcommand is None:
        list_letters(primary, secondary, output=output)


@app.command("list", epilog=epilog("twinbus backlog dead-letters list --entity orders --since 2h"))
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
    """List dead letters with their reasons; nothing is locked."""
    from twinbus.console.backlog import dead_letter_commands as letters

    selection = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    wanted = letters.filter_of(entity, reason, since)
    raise typer.Exit(letters.list_letters(selection, wanted, count, as_json=output is Output.JSON))


@app.command("show", epilog=epilog("twinbus backlog dead-letters show 3 4711"))
def show_letter(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's index or path.")],
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number.")],
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show one dead letter with its body; nothing is locked."""
    from twinbus.console.backlog import dead_letter_commands as letters

    selection = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    raise typer.Exit(letters.show_letter(selection, number, as_json=output is Output.JSON))


@app.command(
    "replay",
    epilog=epilog(
        "twinbus backlog dead-letters replay --reason DestinationNotFound",
        exit_status="0 all selected dead letters are replayed, 3 some are not.",
    ),
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
        bool, typer.Option("--all", help="Replay everything, without a filter.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also replay what came back after three replays."),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Return dead letters to their backlog queue for another try.

    At-least-once: a copy with the same message id is stored before the dead letter is completed.
    """
    from twinbus.console.backlog import dead_letter_commands as letters

    if not (everything or queue or entity or reason or since or number):
        raise WrongUse(
            "which dead letters? Give --queue, --entity, --reason, --since, --number, or --all"
        )
    selection = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    wanted = letters.filter_of(entity, reason, since, number)
    as_json = output is Output.JSON
    raise typer.Exit(letters.replay_letters(selection, wanted, force=force, as_json=as_json))


@app.command("export", epilog=epilog("twinbus backlog dead-letters export --to letters.jsonl"))
def export_letters(
    primary: PrimaryOption = None,
    secondary: SecondaryOption = None,
    label: LabelOption = None,
    queue: QueueOption = None,
    entity: EntityOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="A new file. Unset: stdout.")
    ] = None,
) -> None:
    """Write dead letters as JSON Lines, with bodies in base64."""
    from twinbus.console.backlog import dead_letter_commands as letters

    selection = letters.QueueSelection(secondary_of(secondary), label_of(primary, label), queue)
    wanted = letters.filter_of(entity, reason, since)
    raise typer.Exit(letters.export_letters(selection, wanted, to))
