"""The commands of `twinbus backlog`, with those of `dead-letters`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from twinbus.console.declaration import argument, command, command_group, flag, option, setting
from twinbus.console.options import (
    SECRETS,
    EntityOption,
    QueueOption,
    QueuesOption,
    SidesOptions,
    SinceOption,
)
from twinbus.console.output import Output, OutputOption, WrongUse

if TYPE_CHECKING:
    from twinbus.console.backlog.commands import QueueSelection
    from twinbus.syphon.replaying import DeadLetterFilter

app = command_group("Inspect, create and prune backlog queues.")
letters_app = command_group(
    "List, show, replay and export dead letters.\n\nDead letters are messages that the syphon could"
    " not deliver. Without a command: list.",
    default="list",
)
app.add_typer(letters_app, name="dead-letters")


@command(app, "twinbus backlog list --output json", name="list", note=SECRETS)
def list_queues(sides: SidesOptions, output: OutputOption = Output.TEXT) -> int:
    """Show each backlog queue: message counts, oldest age, drift.

    Without a primary or a label it shows the backlog queues of every pair in the secondary. The
    count of deferred messages is the total minus all other counts: Service Bus reports none.
    """
    from twinbus.console.backlog import commands

    return commands.list_queues(sides.secondary_side, sides.given_label, output)


@command(app, "twinbus backlog peek --queue 3 --entity orders --max 5")
def peek(
    sides: SidesOptions,
    queue: QueueOption = None,
    entity: EntityOption = None,
    count: Annotated[int, option("N", "Messages to show.", "--max", min=1, max=10_000)] = 20,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show backlog messages; nothing is locked or settled."""
    from twinbus.console.backlog import commands

    return commands.peek_messages(sides.selection(queue), entity, count, output)


@command(
    app,
    "twinbus backlog create --queues 10",
    exit_status="0 all queues exist, 1 some could not be created, 3 some exist but are unsafe to"
    " use.",
)
def create(
    sides: SidesOptions,
    queues: QueuesOption = 10,
    strict: Annotated[
        bool,
        setting(
            "strict", "--strict/--no-strict", help="Also create the lease queue of strict order."
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Create missing backlog queues.

    Applications with create_backlog_queues=False need this once. It never changes a queue that
    exists.
    """
    from twinbus.console.backlog import commands

    return commands.create(*sides.both, queues, output, strict=strict)


@command(app, "twinbus backlog prune --queues 4 --dry-run")
def prune(
    sides: SidesOptions,
    queues: QueuesOption = 10,
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would be deleted.")] = False,
    yes: Annotated[bool, flag("--yes", "Delete without asking.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete empty backlog queues past the count, after asking.

    A queue that holds any message or dead letter is kept. Sends to a queue are disabled before its
    last check, so no message can arrive between the check and the deletion. If the command is
    killed in between, the queue accepts no sends and `list` shows unsafe drift: set it to Active.
    """
    from twinbus.console.backlog import commands

    label = sides.given_label
    if label is None:
        raise WrongUse("whose backlog queues? Give --primary, TWINBUS_PRIMARY or --label")
    if dry_run and yes:
        raise WrongUse("--dry-run and --yes exclude each other: give one of them")
    return commands.prune(sides.secondary_side, label, queues, output, dry_run=dry_run, yes=yes)


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


@command(letters_app, "twinbus backlog dead-letters list --entity orders --since 2h", name="list")
def list_letters(
    given: LettersOptions,
    count: Annotated[int, option("N", "Messages to show.", "--max", min=1, max=100_000)] = 20,
    output: OutputOption = Output.TEXT,
) -> int:
    """List dead letters with their reasons; nothing is locked."""
    from twinbus.console.backlog import dead_letter_commands as letters

    return letters.list_letters(*given.selected(), count, output)


@command(letters_app, "twinbus backlog dead-letters show 3 4711", name="show")
def show_letter(
    queue: Annotated[str, argument("QUEUE", "The queue's index or path.")],
    number: Annotated[int, argument("NUMBER", "Sequence number.", min=1)],
    sides: SidesOptions,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show one dead letter with its body; nothing is locked."""
    from twinbus.console.backlog import dead_letter_commands as letters

    return letters.show_letter(sides.selection(queue), number, output)


@command(
    letters_app,
    "twinbus backlog dead-letters replay --reason DestinationNotFound",
    name="replay",
    exit_status="0 all selected dead letters are replayed, 3 some are not or none matches.",
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


@command(letters_app, "twinbus backlog dead-letters export --to letters.jsonl", name="export")
def export_letters(
    given: LettersOptions,
    to: Annotated[Path | None, option("FILE", "A new file. Unset: stdout.")] = None,
) -> int:
    """Write dead letters as JSON Lines, with bodies in base64."""
    from twinbus.console.backlog import dead_letter_commands as letters

    return letters.export_letters(*given.selected(), to)
