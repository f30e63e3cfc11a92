"""Twins: the facts that senders, receivers, the syphon and administrators share (docs/twins.md).

A twin is the namesake of an entity in the secondary namespace. An administrator makes it and marks
it in its UserMetadata; a message that was diverted to it has one application property more, which
says where it belongs and whether the primary may have a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TWIN_MARK: Final = "twinbus-twin-of:"

DIVERTED: Final = "x-twinbus-diverted"
"""The application property of a message that was diverted to a twin."""

UNANSWERED: Final = ";unanswered="

DIVERT_MARK_MAX: Final = 512
"""Longest value of DIVERTED that is read, in characters."""

SECONDARY_BIT: Final = 1 << 62
"""Set in the sequence numbers of the secondary that a paired receiver hands out."""


def twin_mark(label: str) -> str:
    """Return the UserMetadata of a twin of an entity of the primary with this label."""
    return f"{TWIN_MARK}{label}"


def is_twin_of(metadata: str | None, label: str) -> bool:
    """Whether the UserMetadata of an entity marks it; a person may have added words after it."""
    words = (metadata or "").split(maxsplit=1)
    return bool(words) and words[0] == twin_mark(label)


@dataclass(frozen=True, slots=True)
class DivertMark:
    """What the property DIVERTED of a message says."""

    label: str
    """The label of the primary that the message was sent to."""
    unanswered_since_ms: int | None = None
    """When the first attempt on the primary began that ended without an answer, in milliseconds
    since 1970; None: the primary has no copy."""

    def text(self) -> str:
        if self.unanswered_since_ms is None:
            return self.label
        return f"{self.label}{UNANSWERED}{self.unanswered_since_ms}"


def read_divert_mark(value: object) -> DivertMark | None:
    """Return what a message's property says; None: it is no mark of ours."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str) or not 0 < len(value) <= DIVERT_MARK_MAX:
        return None
    label, found, since = value.rpartition(UNANSWERED)
    if not found:
        return DivertMark(value)
    if not label or not (since.isascii() and since.isdigit()) or len(since) > 15:
        return None
    return DivertMark(label, int(since))


def secondary_number(number: int) -> int:
    """Return the number by which an application knows a message of the secondary."""
    return number | SECONDARY_BIT


def is_of_secondary(number: int) -> bool:
    return bool(number & SECONDARY_BIT)


def own_number(number: int) -> int:
    """Return the sequence number in the namespace that has the message."""
    return number & ~SECONDARY_BIT
