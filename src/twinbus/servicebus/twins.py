"""Twins: the facts that senders, receivers, the syphon and administrators share (docs/twins.md).

A twin is the namesake of an entity in the secondary namespace. An administrator makes it and marks
it in its UserMetadata; a message that was diverted to it has one application property more, which
says where it belongs and whether the primary may have a copy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

TWIN_MARK: Final = "twinbus-twin-of:"

UNFINISHED_MARK: Final = "twinbus-unfinished-twin-of:"
"""Marks a topic or subscription whose rules are still being copied: it takes no message yet."""

USER_METADATA_MAX: Final = 1_024
"""Characters of UserMetadata that the service keeps."""

DIVERTED: Final = "x-twinbus-diverted"
"""The application property of a message that was diverted to a twin."""

UNANSWERED: Final = ";unanswered="

DIVERT_MARK_MAX: Final = 512
"""Longest value of DIVERTED that is read, in characters."""

ATTEMPTS_MAX: Final = 999
"""The largest number of attempts without an answer that a mark says."""

SECONDARY_BIT: Final = 1 << 62
"""Set in the sequence numbers of the secondary that a paired receiver hands out."""


def twin_mark(label: str) -> str:
    """Return the UserMetadata of a twin of an entity of the primary with this label."""
    return f"{TWIN_MARK}{label}"


def unfinished_mark(label: str) -> str:
    return f"{UNFINISHED_MARK}{label}"


def is_twin_of(metadata: str | None, label: str) -> bool:
    """Whether the UserMetadata of an entity marks it; a person may have added words after it."""
    return _first_word(metadata) == twin_mark(label)


def is_unfinished_twin_of(metadata: str | None, label: str) -> bool:
    return _first_word(metadata) == unfinished_mark(label)


def marked_label(metadata: str | None) -> str | None:
    """Return the label in the mark of a twin, finished or not; None: it has no mark."""
    word = _first_word(metadata)
    for mark in (TWIN_MARK, UNFINISHED_MARK):
        if word.startswith(mark):
            return word.removeprefix(mark)
    return None


def _first_word(metadata: str | None) -> str:
    return next(iter((metadata or "").split(maxsplit=1)), "")


PATTERN_CHARACTERS: Final = frozenset("*?[")
"""No name of an entity has one of them."""


def is_listed(twins: Collection[str] | None, path: str) -> bool:
    """Whether the option `twins` lists an entity, by its name or by a shell pattern."""
    name = path.strip("/").lower()
    return any(fnmatchcase(name, listed.strip("/").lower()) for listed in twins or ())


def is_named(twins: Collection[str] | None, path: str) -> bool:
    """Whether the option `twins` has the very name of an entity, not only a pattern."""
    name = path.strip("/").lower()
    return any(
        listed.strip("/").lower() == name
        for listed in twins or ()
        if PATTERN_CHARACTERS.isdisjoint(listed)
    )


@dataclass(frozen=True, slots=True)
class DivertMark:
    """What the property DIVERTED of a message says."""

    label: str
    """The label of the primary that the message was sent to."""
    unanswered_since_ms: int | None = None
    """When the first attempt on the primary began that ended without an answer, in milliseconds
    since 1970; None: the primary has no copy."""
    attempts: int = 1
    """How many attempts ended so: the primary may have a copy of each."""

    def text(self) -> str:
        if self.unanswered_since_ms is None:
            return self.label
        several = f"/{self.attempts}" if self.attempts > 1 else ""
        return f"{self.label}{UNANSWERED}{self.unanswered_since_ms}{several}"


def read_divert_mark(value: object) -> DivertMark | None:
    """Return what a message's property says; None: it is no mark of ours."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str) or not 0 < len(value) <= DIVERT_MARK_MAX:
        return None
    label, found, since = value.rpartition(UNANSWERED)
    if not found:
        return DivertMark(value)
    since, has_count, count = since.partition("/")
    attempts = _number(count, len(str(ATTEMPTS_MAX))) if has_count else 1
    since_ms = _number(since, 15)
    if not label or since_ms is None or not attempts:
        return None
    return DivertMark(label, since_ms, attempts)


def _number(text: str, digits_max: int) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= digits_max
    return int(text) if is_number else None


def secondary_number(number: int) -> int:
    """Return the number by which an application knows a message of the secondary."""
    return number | SECONDARY_BIT


def is_of_secondary(number: int) -> bool:
    return bool(number & SECONDARY_BIT)


def own_number(number: int) -> int:
    """Return the sequence number in the namespace that has the message."""
    return number & ~SECONDARY_BIT


@dataclass(frozen=True, slots=True)
class FoundTwin:
    """A twin of a queue, or a subscription of the twin of a topic, and what it holds."""

    path: str
    topic: str = ""
    """The topic of a subscription; empty: it is a queue."""
    requires_session: bool = False
    active: int = 0
    """Messages that can be received, and those that are locked."""
    waiting: int | None = 0
    """All messages: active, scheduled and deferred; None: they were not counted."""
    scheduled: int = 0

    @property
    def deferred(self) -> int | None:
        """The service counts none: the rest of all messages; None: they were not counted."""
        return None if self.waiting is None else self.waiting - self.active - self.scheduled
