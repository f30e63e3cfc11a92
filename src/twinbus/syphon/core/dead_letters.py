"""Dead letters of backlog queues: which are meant, and in what form one goes back. Pure.

A replay puts a copy on the active side of the message's own backlog queue and then completes the
dead letter: at-least-once, the id kept. The copy carries a count of its replays, so that a message
which is dead-lettered again and again is refused after a few, and nothing goes round for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinbus.amqp.encoding import encode, string
from twinbus.amqp.message import APPLICATION_PROPERTIES, join, split
from twinbus.amqp.types import Int
from twinbus.syphon.connection.peeked_message import DESCRIPTION, REASON, PeekedMessage, read_peeked
from twinbus.transfer import without_delivery_marks
from twinbus.transfer.aliases import REPLAYS
from twinbus.transfer.splice import entries_of, with_entries

__all__ = ["REPLAYS_MAX", "DeadLetterFilter", "for_replay"]

REPLAYS_MAX: Final = 3
"""A message that came back so often will come back again; a person must look at it first."""

COUNT_MAX: Final = 2**31 - 1
"""Largest count that is written: the one that a dead letter comes with is foreign input."""

_REMOVED: Final = frozenset(name.encode() for name in (REASON, DESCRIPTION, REPLAYS))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant; each part that is given must hold."""

    path: str | None = None
    """The entity where they belong, in any case."""
    reason: str | None = None
    """In any case."""
    since_ms: int | None = None
    """They were diverted at or after this time (unix milliseconds)."""
    sequence_number: int | None = None

    def matches(self, letter: PeekedMessage) -> bool:
        """Whether this one is meant."""
        if self.sequence_number is not None and letter.sequence_number != self.sequence_number:
            return False
        if self.path is not None and _folded(letter.path) != _folded(self.path):
            return False
        if self.reason is not None and _folded(letter.reason) != _folded(self.reason):
            return False
        return self.since_ms is None or (letter.enqueued_ms or 0) >= self.since_ms


def for_replay(wire: bytes) -> bytes:
    """A dead letter as it goes back: without its reason and marks, and counted.

    Every other byte is as it was. DecodeError if it is no message.
    """
    sections = without_delivery_marks(split(wire))
    custom = sections.application_properties
    replays = min(read_peeked("", wire).replays + 1, COUNT_MAX)
    counted = string(REPLAYS) + encode(Int(replays))
    entries = entries_of(custom)
    # In front, so that the destination stays last, where the syphon looks for it first.
    kept = [custom[start:end] for key, start, _, end in entries if key not in _REMOVED]
    sections.application_properties = with_entries(
        b"", APPLICATION_PROPERTIES, [], added=[counted, *kept]
    )
    return join(sections)


def _folded(text: str | None) -> str | None:
    return None if text is None else text.strip("/").lower()
