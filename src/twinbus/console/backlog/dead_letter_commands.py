"""`twinbus backlog dead-letters`: list, show, replay and export dead letters."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from twinbus.client.peeked_message import PeekedMessage
from twinbus.console import ATTENTION
from twinbus.console.backlog.commands import QueueSelection
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.output import Output, aligned, show, table_lines
from twinbus.console.times import window_of
from twinbus.errors import SyphonError
from twinbus.namespace.access import endpoint_of
from twinbus.syphon.replaying import REPLAYS_MAX, DeadLetterFilter, Replayed, dead_letters, replay
from twinbus.wording import counted, plain, visible


@asynccontextmanager
async def _letters(
    selection: QueueSelection, wanted: DeadLetterFilter
) -> AsyncIterator[AsyncGenerator[PeekedMessage, None]]:
    """Yield the dead letters of the queues that match."""
    found = dead_letters(endpoint_of(selection.secondary), await selection.paths(), wanted)
    async with aclosing(found):
        yield found


@runs_to_its_end
async def list_letters(
    selection: QueueSelection, wanted: DeadLetterFilter, count: int, output: Output
) -> int:
    """Print up to `count` dead letters; return the exit status."""
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


@runs_to_its_end
async def show_letter(selection: QueueSelection, number: int, output: Output) -> int:
    """Print one dead letter with all its properties; return the exit status."""
    async with _letters(
        selection, DeadLetterFilter(sequence_numbers=frozenset({number}))
    ) as letters:
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


@runs_to_its_end
async def replay_letters(
    selection: QueueSelection, wanted: DeadLetterFilter, output: Output, *, force: bool
) -> int:
    """Replay dead letters; return ATTENTION if some remain or the filter matched none, else 0."""
    endpoint = endpoint_of(selection.secondary)
    result = await replay(endpoint, await selection.paths(), wanted, force=force)
    document = {
        "replayed": [letter.summary() for letter in result.replayed],
        "refused": [letter.summary() for letter in result.refused],
        "missed": [{**letter.summary(), "why": why} for letter, why in result.missed],
    }
    show(output, document, _replay_lines(result))
    is_everything = wanted == DeadLetterFilter() and selection.queue is None
    is_none = not result.replayed and not is_everything
    return ATTENTION if result.refused or result.missed or is_none else 0


@runs_to_its_end
async def export_letters(
    selection: QueueSelection, wanted: DeadLetterFilter, to: Path | None
) -> int:
    """Write dead letters as JSON Lines; return the exit status."""
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


def filter_of(
    entity: str | None, reason: str | None, since: str | None, number: int | None = None
) -> DeadLetterFilter:
    """Return the filter of these options; WrongUse if `since` is no time."""
    return DeadLetterFilter(
        path=entity,
        reason=reason,
        since_ms=window_of(since, None, datetime.now(UTC))[0],
        sequence_numbers=None if number is None else frozenset({number}),
    )


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
