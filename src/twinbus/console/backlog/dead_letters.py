"""`twinbus backlog dead-letters`: list, show, replay and export dead letters."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from twinbus.console import ATTENTION
from twinbus.console.declaration import argument, command, command_group, flag, option
from twinbus.console.options import EntityOption, QueueOption, SidesOptions, SinceOption
from twinbus.console.output import Output, OutputOption, WrongUse, aligned, show, table_lines
from twinbus.console.times import window_of
from twinbus.errors import SyphonError
from twinbus.namespace.access import endpoint_of
from twinbus.servicebus.names import parse_backlog_path
from twinbus.wording import counted, plain, visible

if TYPE_CHECKING:
    from twinbus.client.peeked_message import PeekedMessage
    from twinbus.console.backlog.queue_contents import QueueSelection
    from twinbus.syphon.replaying import DeadLetterFilter, Replayed

app = command_group(
    "List, show, replay and export dead letters.\n\nDead letters are messages that the syphon could"
    " not deliver. Without a command: list.",
    default="list",
)


@dataclass(frozen=True, kw_only=True)
class LettersOptions(SidesOptions):
    queue: QueueOption = None
    entity: EntityOption = None
    reason: Annotated[str | None, option("REASON", "Only with this dead-letter reason.")] = None
    since: SinceOption = None

    def selected(self, number: int | None = None) -> tuple[QueueSelection, DeadLetterFilter]:
        """Return the queues and the filter; WrongUse if an option is not valid."""
        from twinbus.syphon.replaying import DeadLetterFilter

        wanted = DeadLetterFilter(
            path=self.entity,
            reason=self.reason,
            since_ms=window_of(self.since, None, datetime.now(UTC))[0],
            sequence_numbers=None if number is None else frozenset({number}),
        )
        return self.selection(self.queue), wanted


@command(app, "twinbus backlog dead-letters list --entity orders --since 2h", name="list")
async def list_letters(
    given: LettersOptions,
    count: Annotated[int, option("N", "Messages to show.", "--max", min=1, max=100_000)] = 20,
    output: OutputOption = Output.TEXT,
) -> int:
    """List dead letters with their reasons; nothing is locked.

    Without --queue those of all backlog queues. --queue takes the path of a twin too.
    """
    selection, wanted = given.selected()
    found: list[PeekedMessage] = []
    more = False
    async with _letters(selection, wanted) as letters:
        async for letter in letters:
            if len(found) == count:
                more = True
                break
            found.append(letter)
    messages = [letter.summary() for letter in found]
    document = {"secondary": selection.secondary.endpoint, "messages": messages}
    return show(output, document, _lines(found, count, more=more))


@command(app, "twinbus backlog dead-letters show 3 4711", name="show")
async def show_letter(
    queue: Annotated[str, argument("QUEUE", "The queue's index or path.")],
    number: Annotated[int, argument("NUMBER", "Sequence number.", min=1)],
    sides: SidesOptions,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show one dead letter with its body; nothing is locked."""
    from twinbus.syphon.replaying import DeadLetterFilter

    selection = sides.selection(queue)
    wanted = DeadLetterFilter(sequence_numbers=frozenset({number}))
    async with _letters(selection, wanted) as letters:
        letter = await anext(letters, None)
    if letter is None:
        raise SyphonError(
            f"there is no dead letter {number} in {selection.queue}; "
            "`twinbus backlog dead-letters list` shows them all"
        )
    text = text_of_body(letter.body)
    document = {**letter.document(), "body_text": text}
    left_out = {"wire_base64", "body_text"} | ({"body_base64"} if text is not None else set())
    rows = [
        [name, visible(value)]
        for name, value in document.items()
        if value is not None and name not in left_out
    ]
    body = [] if text is None else ["", *map(_printable, text.splitlines())]
    return show(output, document, [*aligned(rows), *body])


@command(
    app,
    "twinbus backlog dead-letters replay --reason DestinationNotFound",
    name="replay",
    exit_status="0 all selected dead letters are replayed, 3 some are not or none matches.",
)
async def replay_letters(
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
    from twinbus.syphon.replaying import DeadLetterFilter, replay

    if not (everything or given.queue or given.entity or given.reason or given.since or number):
        raise WrongUse(
            "which dead letters? Give --queue, --entity, --reason, --since, --number, or --all"
        )
    selection, wanted = given.selected(number)
    endpoint, paths = endpoint_of(selection.secondary), await selection.paths()
    if any(parse_backlog_path(path) is None for path in paths):
        raise WrongUse(
            f"{selection.queue} is a twin, and its own consumers may have dead-lettered messages"
            " there; replay is for backlog queues: receive from its dead-letter queue instead"
        )
    result = await replay(endpoint, paths, wanted, force=force)
    document = {
        "replayed": [letter.summary() for letter in result.replayed],
        "refused": [letter.summary() for letter in result.refused],
        "missed": [{**letter.summary(), "why": why} for letter, why in result.missed],
    }
    show(output, document, _replay_lines(result))
    is_everything = wanted == DeadLetterFilter() and selection.queue is None
    is_none = not result.replayed and not is_everything
    return ATTENTION if result.refused or result.missed or is_none else 0


@command(app, "twinbus backlog dead-letters export --to letters.jsonl", name="export")
async def export_letters(
    given: LettersOptions,
    to: Annotated[Path | None, option("FILE", "A new file. Unset: stdout.")] = None,
) -> int:
    """Write dead letters as JSON Lines, with bodies in base64."""
    selection, wanted = given.selected()
    if to is None:
        await _write(selection, wanted, sys.stdout)
        return 0
    try:
        # Never overwrite: the file may be the only copy of letters that were replayed since.
        with to.open("x", encoding="utf-8") as lines:
            count = await _write(selection, wanted, lines)
    except OSError as error:
        raise SyphonError(f"{to} cannot be written: {error.strerror or error}") from error
    print(f"{count:,} dead letters written to {to}; they are still in their queues")
    return 0


@asynccontextmanager
async def _letters(
    selection: QueueSelection, wanted: DeadLetterFilter
) -> AsyncIterator[AsyncGenerator[PeekedMessage, None]]:
    from twinbus.syphon.replaying import dead_letters

    found = dead_letters(endpoint_of(selection.secondary), await selection.paths(), wanted)
    async with aclosing(found):
        yield found


def text_of_body(body: bytes | None) -> str | None:
    """Return a body that is UTF-8 text; None: it is not, or there is none."""
    try:
        text = None if body is None else body.decode()
    except UnicodeDecodeError:
        return None
    return None if text is None or "\0" in text else text


def _printable(line: str) -> str:
    """Return a line of foreign text with its spaces, but nothing that steers a terminal."""
    return "".join(char if char.isprintable() else "�" for char in line.expandtabs(4))


async def _write(selection: QueueSelection, wanted: DeadLetterFilter, lines: IO[str]) -> int:
    count = 0
    async with _letters(selection, wanted) as letters:
        async for letter in letters:
            lines.write(json.dumps(letter.document()) + "\n")
            count += 1
    return count


def _lines(found: list[PeekedMessage], count: int, *, more: bool) -> list[str]:
    if not found:
        return ["no dead letters"]
    rows = [
        [
            letter.queue,
            str(letter.sequence_number),
            letter.path or "?",
            letter.message_id or "?",
            letter.summary()["enqueued_at"] or "?",
            str(letter.replays),
            plain(": ".join(filter(None, (letter.reason, letter.description)))) or "?",
        ]
        for letter in found
    ]
    limit = f"; --max {count} was reached, there are more" if more else ""
    columns = ("QUEUE", ">NUMBER", "FOR", "MESSAGE ID", "DIVERTED AT", ">REPLAYS", "REASON")
    return [*table_lines(columns, rows), "", f"{counted(len(found), 'dead letter')}{limit}"]


def _replay_lines(result: Replayed) -> list[str]:
    from twinbus.syphon.replaying import REPLAYS_MAX

    if not (result.replayed or result.refused or result.missed):
        return ["no dead letter matches, nothing was replayed; `dead-letters list` shows them all"]
    lines = []
    if result.replayed:
        lines.append(
            f"replayed {counted(len(result.replayed), 'dead letter')}: each is back in its backlog"
            " queue with its message id, and the syphon will try it again (at-least-once)"
        )
    if result.refused:
        lines.append(
            f"refused {len(result.refused):,} that came back after {REPLAYS_MAX} replays: find out"
            " why with `show`, or give --force"
        )
    lines += [
        f"not replayed: {letter.sequence_number} in {visible(letter.queue)}: {visible(why)}"
        for letter, why in result.missed
    ]
    return lines
