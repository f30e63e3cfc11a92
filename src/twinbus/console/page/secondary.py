"""What the page asks of the secondary, with the code of `twinbus backlog`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

from twinbus.client.peeked_message import PeekedMessage
from twinbus.console.backlog.dead_letter_commands import text_of_body
from twinbus.console.backlog.queue_contents import (
    prunable,
    queue_contents,
    remove_if_empty,
    with_ages,
)
from twinbus.console.namespaces import administration
from twinbus.errors import MissingRightError
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.syphon.replaying import REPLAYS_MAX, DeadLetterFilter, dead_letters, replay
from twinbus.wording import counted, plain

LETTERS_MAX: Final = 200
"""Dead letters in one answer."""

PEEKED_MAX: Final = 5_000
"""Dead letters that one search peeks at: each peek is billed."""

PREVIEW_LENGTH: Final = 200

COUNT_AGAIN_S: Final = 30.0
"""Azure bills counts."""

COUNT_EMULATOR_AGAIN_S: Final = 2.0
"""Nobody bills those of an embedded broker, and a drill lasts a minute."""


class PageSecondary:
    """The secondary that `twinbus page` was started with."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    @property
    def count_again_s(self) -> float:
        """Time between two counts of the same queues."""
        return COUNT_EMULATOR_AGAIN_S if self._namespace.emulator else COUNT_AGAIN_S

    def holds(self, secondary: str) -> bool:
        """Return whether this is the secondary of that endpoint."""
        return secondary == self._namespace.endpoint

    async def queues(self, label: str) -> list[dict[str, Any]]:
        """Return what each backlog queue of a label holds, as `twinbus backlog list` does."""
        async with administration(self._namespace, "listing queues") as client:
            found = [queue for queue in await queue_contents(client) if queue.is_of(label)]
        # Without the Listen right the ages stay unknown.
        with suppress(MissingRightError):
            found = await with_ages(self._namespace, found)
        return [
            {
                "path": queue.path,
                "waiting": queue.waiting,
                "oldest_age_s": queue.oldest_age_s,
                "dead_letters": queue.dead_lettered,
            }
            for queue in found
        ]

    async def prunable(self, label: str, keep: int) -> list[str]:
        """Return the empty backlog queues of a label with an index from `keep` on."""
        async with administration(self._namespace, "listing queues") as client:
            return [queue.path for queue in await prunable(client, label, keep) if queue.is_empty]

    async def prune(self, label: str, keep: int, queues: list[str]) -> str:
        """Delete those of the queues that are prunable; return what was done."""
        kept, deleted = [], 0
        async with administration(self._namespace, "deleting queues") as client:
            for queue in await prunable(client, label, keep):
                if queue.path not in queues or not queue.is_empty:
                    continue
                if why := await remove_if_empty(client, self._namespace, queue.path):
                    kept.append(f"{queue.path} is kept: {why}")
                else:
                    deleted += 1
        return "; ".join([f"deleted {counted(deleted, 'empty backlog queue')}", *kept])

    async def letters(
        self, label: str, search: Mapping[str, str], *, with_bodies: bool
    ) -> dict[str, Any]:
        """Return the dead letters that match, and whether there are more."""
        paths = [queue["path"] for queue in await self.queues(label) if queue["dead_letters"]]
        found: list[dict[str, Any]] = []
        peeked, is_cut = 0, False
        letters = dead_letters(endpoint_of(self._namespace), paths, DeadLetterFilter())
        async with aclosing(letters):
            async for letter in letters:
                if len(found) >= LETTERS_MAX or peeked >= PEEKED_MAX:
                    is_cut = True
                    break
                peeked += 1
                if matches(letter, search):
                    found.append(_summary(letter, with_body=with_bodies))
        return {"truncated": is_cut, "letters": found}

    async def letter(self, queue: str, number: int) -> dict[str, Any] | None:
        """Return one dead letter with its body; None: it is not there."""
        wanted = DeadLetterFilter(sequence_number=number)
        letters = dead_letters(endpoint_of(self._namespace), [queue], wanted)
        async with aclosing(letters):
            letter = await anext(letters, None)
        if letter is None:
            return None
        document = letter.document()
        text = text_of_body(letter.body)
        body = {"body_text": text} if text is not None else {"body_base64": document["body_base64"]}
        names = ("properties", "application_properties", "body_value")
        more = {name: document[name] for name in names}
        return {**_summary(letter, with_body=False), **body, **more}

    async def replay(self, queue: str, numbers: list[int]) -> str:
        """Replay dead letters of a backlog queue; return what was done."""
        wanted = DeadLetterFilter(sequence_numbers=frozenset(numbers))
        result = await replay(endpoint_of(self._namespace), [queue], wanted, force=False)
        done, refused = len(result.replayed), len(result.refused)
        parts = [f"replayed {counted(done, 'dead letter')}: the syphon will try them again"]
        if refused:
            parts.append(f"refused {refused:,} that came back after {REPLAYS_MAX} replays")
        if left := len(set(numbers)) - done - refused:
            parts.append(f"{left:,} are not there or could not be replayed")
        return "; ".join(parts)


def matches(letter: PeekedMessage, search: Mapping[str, str]) -> bool:
    """Return whether a dead letter has each text that is searched for; case is ignored."""
    values = {
        "reason": f"{letter.reason or ''} {letter.description or ''}",
        "entity": letter.path or "",
        "id": letter.message_id or "",
    }
    if search.get("body"):
        values["body"] = text_of_body(letter.body) or letter.body_json or ""
    return all(
        wanted.lower() in values.get(name, "").lower() for name, wanted in search.items() if wanted
    )


def _summary(letter: PeekedMessage, *, with_body: bool) -> dict[str, Any]:
    preview = {}
    if with_body:
        text = text_of_body(letter.body) or letter.body_json
        if text is None and letter.body is not None:
            text = base64.b64encode(letter.body[:PREVIEW_LENGTH]).decode()
        preview = {"preview": (text or "")[:PREVIEW_LENGTH]}
    return {
        "queue": letter.queue,
        "sequence": letter.sequence_number,
        "id": letter.message_id,
        "entity": letter.path,
        "reason": letter.reason,
        "description": plain(letter.description or ""),
        "enqueued_at": None if letter.enqueued_ms is None else letter.enqueued_ms / 1000,
        "size": len(letter.wire),
        **preview,
    }
