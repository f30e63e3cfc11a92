"""Dead letters of backlog queues: how to select them, and the form in which one is replayed.

A replay sends a copy to the message's own backlog queue and then completes the dead letter: at
least once; the syphon restores the same message id. In the backlog the copy has an id of its own: a
queue that detects duplicates has seen the old one. The copy carries a count of its replays, so that
a message that is dead-lettered again and again is refused after a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinbus.amqp.encoding import encode, string
from twinbus.amqp.message import APPLICATION_PROPERTIES, join, split
from twinbus.amqp.types import Int
from twinbus.client.peeked_message import DESCRIPTION, REASON, PeekedMessage, read_peeked
from twinbus.transfer import without_delivery_marks
from twinbus.transfer.aliases import REPLAYS
from twinbus.transfer.sections import with_own_id
from twinbus.transfer.splice import entries_of, with_entries

REPLAYS_MAX: Final = 3
"""After so many replays a message is refused: it would only be dead-lettered again."""

COUNT_MAX: Final = 2**31 - 1
"""Largest count that is written: the one that a dead letter comes with is foreign input."""

_REMOVED: Final = frozenset(name.encode() for name in (REASON, DESCRIPTION, REPLAYS))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters; every field that is set must match."""

    path: str | None = None
    """The destination entity; case is ignored."""
    reason: str | None = None
    """The dead-letter reason; case is ignored."""
    since_ms: int | None = None
    """Messages enqueued at or after this time (unix milliseconds)."""
    sequence_number: int | None = None
    sequence_numbers: frozenset[int] | None = None
    """One of these."""

    def matches(self, letter: PeekedMessage) -> bool:
        """Return whether this dead letter is selected."""
        if self.sequence_number is not None and letter.sequence_number != self.sequence_number:
            return False
        if (
            self.sequence_numbers is not None
            and letter.sequence_number not in self.sequence_numbers
        ):
            return False
        if self.path is not None and _folded(letter.path) != _folded(self.path):
            return False
        if self.reason is not None and _folded(letter.reason) != _folded(self.reason):
            return False
        return self.since_ms is None or (letter.enqueued_ms or 0) >= self.since_ms


def for_replay(wire: bytes, own_id: str | None = None) -> bytes:
    """Return a dead letter as it is sent again: without reason and marks, and counted.

    `own_id` is its new id in the backlog, if it has one. Every other byte is unchanged. Raise
    DecodeError if it is not a message.
    """
    sections = without_delivery_marks(split(wire))
    custom = sections.application_properties
    replays = min(read_peeked("", wire).replays + 1, COUNT_MAX)
    counted = string(REPLAYS) + encode(Int(replays))
    entries = entries_of(custom)
    # In front, so that the destination stays last, where the syphon finds it fastest.
    kept = [custom[start:end] for key, start, _, end in entries if key not in _REMOVED]
    sections.application_properties = with_entries(
        b"", APPLICATION_PROPERTIES, [], added=[counted, *kept]
    )
    return join(sections if own_id is None else with_own_id(sections, own_id))


def _folded(text: str | None) -> str | None:
    return None if text is None else text.strip("/").lower()
