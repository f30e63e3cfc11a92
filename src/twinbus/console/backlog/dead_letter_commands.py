"""`twinbus backlog dead-letters`: list, show, replay and export dead letters."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from twinbus.console.backlog.commands import selected_queues
from twinbus.console.namespaces import run_to_its_end
from twinbus.console.terminal.output import ATTENTION, print_json
from twinbus.console.terminal.table import aligned, visible
from twinbus.console.terminal.time_window import window_of
from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint, endpoint_of
from twinbus.syphon.core.dead_letters import REPLAYS_MAX, DeadLetterFilter
from twinbus.syphon.replaying import Replayed, dead_letters, replay

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from twinbus.namespace.namespace import Namespace
    from twinbus.syphon.connection.peeked_message import PeekedMessage


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """The backlog queues that a command is about."""

    secondary: Namespace
    label: str | None
    """None: every pair."""
    queue: str | None
    """An index or a path; None: all queues."""

    @property
    def endpoint(self) -> Endpoint:
        return endpoint_of(self.secondary)

    async def queues(self) -> list[str]:
        return await selected_queues(self.secondary, self.label, self.queue)

    @asynccontextmanager
    async def letters(
        self, wanted: DeadLetterFilter
    ) -> AsyncIterator[AsyncGenerator[PeekedMessage, None]]:
        """Yield the dead letters of these queues that match."""
        found = dead_letters(self.endpoint, await self.queues(), wanted)
        async with aclosing(found):
            yield found


def list_letters(
    selection: QueueSelection, wanted: DeadLetterFilter, count: int, *, as_json: bool
) -> int:
    """Print up to `count` dead letters; return the exit status."""

    async def work() -> int:
        found: list[PeekedMessage] = []
        more = False
        async with selection.letters(wanted) as letters:
            async for letter in letters:
                if len(found) == count:
                    more = True
                    break
                found.append(letter)
        if as_json:
            messages = [letter.summary() for letter in found]
            print_json({"secondary": selection.secondary.endpoint, "messages": messages})
        else:
            print("\n".join(_lines(found, count, more=more)))
        return 0

    return run_to_its_end(work)


def show_letter(selection: QueueSelection, number: int, *, as_json: bool) -> int:
    """Print one dead letter with all its properties; return the exit status."""

    async def work() -> int:
        async with selection.letters(DeadLetterFilter(sequence_number=number)) as letters:
            letter = await anext(letters, None)
        if letter is None:
            raise SyphonError(
                f"there is no dead letter {number} in {selection.queue}; "
                "`twinbus backlog dead-letters list` shows them all"
            )
        document = letter.document()
        if as_json:
            print_json(document)
            return 0
        del document["wire_base64"]
        rows = [[name, visible(value)] for name, value in document.items() if value is not None]
        print("\n".join(aligned(rows)))
        return 0

    return run_to_its_end(work)


def replay_letters(
    selection: QueueSelection, wanted: DeadLetterFilter, *, force: bool, as_json: bool
) -> int:
    """Replay dead letters; return 0 if all of them went, else ATTENTION."""

    async def work() -> int:
        result = await replay(selection.endpoint, await selection.queues(), wanted, force=force)
        if as_json:
            print_json(_replay_document(result))
        else:
            print("\n".join(_replay_lines(result)))
        return ATTENTION if result.refused or result.missed else 0

    return run_to_its_end(work)


def export_letters(selection: QueueSelection, wanted: DeadLetterFilter, to: Path | None) -> int:
    """Write dead letters as JSON Lines; return the exit status."""

    async def work() -> int:
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

    return run_to_its_end(work)


def filter_of(
    entity: str | None, reason: str | None, since: str | None, number: int | None = None
) -> DeadLetterFilter:
    """Return the filter of these options; WrongUse if `since` is no time."""
    return DeadLetterFilter(
        path=entity,
        reason=reason,
        since_ms=window_of(since, None, datetime.now(UTC)).since_ms,
        sequence_number=number,
    )


async def _write(selection: QueueSelection, wanted: DeadLetterFilter, lines: IO[str]) -> int:
    count = 0
    async with selection.letters(wanted) as letters:
        async for letter in letters:
            lines.write(json.dumps(letter.document()) + "\n")
            count += 1
    return count


def _lines(found: list[PeekedMessage], count: int, *, more: bool) -> list[str]:
    if not found:
        return ["no such dead letters"]
    rows = [["QUEUE", "NUMBER", "FOR", "MESSAGE ID", "DIVERTED AT", "REPLAYS", "REASON"]]
    rows += [
        [
            visible(letter.queue),
            str(letter.sequence_number),
            visible(letter.path or "?"),
            visible(letter.message_id or "?"),
            str(letter.summary()["enqueued_at"] or "?"),
            str(letter.replays),
            visible(": ".join(filter(None, (letter.reason, letter.description))) or "?"),
        ]
        for letter in found
    ]
    limit = f"; --max {count} was reached, there are more" if more else ""
    return [*aligned(rows, right={1, 5}), "", f"{len(found):,} dead letters{limit}"]


def _replay_document(result: Replayed) -> dict[str, Any]:
    return {
        "replayed": [letter.summary() for letter in result.replayed],
        "refused": [letter.summary() for letter in result.refused],
        "missed": [{**letter.summary(), "why": why} for letter, why in result.missed],
    }


def _replay_lines(result: Replayed) -> list[str]:
    replayed = (
        f"replayed {len(result.replayed):,} dead letters: each is back in its backlog queue with"
        " its message id, and the syphon will try it again (at-least-once)"
    )
    lines = [replayed]
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
