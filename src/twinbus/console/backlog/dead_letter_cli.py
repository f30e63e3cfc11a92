"""The commands of `twinbus backlog dead-letters`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.console.options import (
    EntityOption,
    PrimaryOption,
    QueueOption,
    SecondaryOption,
    SidesOptions,
    SinceOption,
)
from twinbus.console.terminal.command import command, command_group, epilog, flag, option
from twinbus.console.terminal.output import Output, OutputOption, WrongUse

if TYPE_CHECKING:
    from twinbus.console.backlog.commands import QueueSelection
    from twinbus.syphon.core.dead_letters import DeadLetterFilter

app = command_group("List, show, replay and export dead letters.", is_run_without_command=True)


@dataclass(frozen=True, kw_only=True)
class LettersOptions(SidesOptions):
    """The options that select dead letters."""

    queue: QueueOption = None
    entity: EntityOption = None
    reason: Annotated[str | None, option("REASON", "Only with this dead-letter reason.")] = None
    since: SinceOption = None

    def selected(self, number: int | None = None) -> tuple[QueueSelection, DeadLetterFilter]:
        """Return the queues and the filter; WrongUse if an option is not valid."""
        from twinbus.console.backlog.dead_letter_commands import filter_of

        wanted = filter_of(self.entity, self.reason, self.since, number)
        return self.selection(self.queue), wanted


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
        given = LettersOptions(primary=primary, secondary=secondary)
        raise typer.Exit(list_letters(given, output=output))


@command(app, "twinbus backlog dead-letters list --entity orders --since 2h", name="list")
def list_letters(
    given: LettersOptions,
    count: Annotated[int, option("N", "Messages to show.", "--max", min=1, max=100_000)] = 20,
    output: OutputOption = Output.TEXT,
) -> int:
    """List dead letters with their reasons; nothing is locked."""
    from twinbus.console.backlog import dead_letter_commands as letters

    return letters.list_letters(*given.selected(), count, output)


@command(app, "twinbus backlog dead-letters show 3 4711", name="show")
def show_letter(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's index or path.")],
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number.")],
    sides: SidesOptions,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show one dead letter with its body; nothing is locked."""
    from twinbus.console.backlog import dead_letter_commands as letters

    return letters.show_letter(sides.selection(queue), number, output)


@command(
    app,
    "twinbus backlog dead-letters replay --reason DestinationNotFound",
    name="replay",
    exit_status="0 all selected dead letters are replayed, 3 some are not.",
)
def replay_letters(
    given: LettersOptions,
    number: Annotated[int | None, option("N", "One sequence number only.", min=1)] = None,
    everything: Annotated[bool, flag("--all", "Replay everything, without a filter.")] = False,
    force: Annotated[
        bool, flag("--force", "Also replay what came back after three replays.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Return dead letters to their backlog queue for another try.

    At-least-once: a copy with the same message id is stored before the dead letter is completed.
    """
    from twinbus.console.backlog import dead_letter_commands as letters

    if not (everything or given.queue or given.entity or given.reason or given.since or number):
        raise WrongUse(
            "which dead letters? Give --queue, --entity, --reason, --since, --number, or --all"
        )
    return letters.replay_letters(*given.selected(number), output, force=force)


@command(app, "twinbus backlog dead-letters export --to letters.jsonl", name="export")
def export_letters(
    given: LettersOptions,
    to: Annotated[Path | None, option("FILE", "A new file. Unset: stdout.")] = None,
) -> int:
    """Write dead letters as JSON Lines, with bodies in base64."""
    from twinbus.console.backlog import dead_letter_commands as letters

    return letters.export_letters(*given.selected(), to)
