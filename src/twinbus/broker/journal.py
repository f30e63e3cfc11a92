"""The port between engine and disk: it collects changes and reads payloads back.

The engine changes its memory at once and notes each durable change here. The shell commits the
changes as one group and sends nothing (no acknowledgement, no delivery) before that commit is done,
so no client sees a change that is not on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple, Protocol


class MessageState(IntEnum):
    """The states of a message; the numbers are those of `x-opt-message-state`."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class StoredMessage:
    """One message without its payload, which stays in the store."""

    __slots__ = (
        "dead_letter_source",
        "delivery_count",
        "enqueued_at_ms",
        "enqueued_sequence_number",
        "expires_at_ms",
        "lock_token",
        "message_id",
        "overrides",
        "scheduled_for_ms",
        "sequence_number",
        "session_id",
        "size_bytes",
        "state",
        "ttl_ms",
    )

    def __init__(
        self,
        sequence_number: int,
        enqueued_at_ms: int,
        size_bytes: int,
        message_id: str | None = None,
        session_id: str | None = None,
        ttl_ms: int = 0,
        expires_at_ms: int = 0,
        scheduled_for_ms: int = 0,
        state: MessageState = MessageState.ACTIVE,
        delivery_count: int = 0,
        enqueued_sequence_number: int = 0,
        dead_letter_source: str | None = None,
        overrides: dict[str, object] | None = None,
    ) -> None:
        self.sequence_number = sequence_number
        self.enqueued_at_ms = enqueued_at_ms
        self.size_bytes = size_bytes
        self.message_id = message_id
        self.session_id = session_id
        self.ttl_ms = ttl_ms
        """Time to live the message was enqueued with; 0: none."""
        self.expires_at_ms = expires_at_ms
        """0: never."""
        self.scheduled_for_ms = scheduled_for_ms
        """0: not scheduled."""
        self.state = state
        self.delivery_count = delivery_count
        self.enqueued_sequence_number = enqueued_sequence_number
        self.dead_letter_source = dead_letter_source
        self.overrides = overrides
        """Application properties that settlement added or changed (DeadLetterReason, …)."""
        self.lock_token: bytes | None = None
        """Set while a receiver holds the message. Never stored: a restart frees all locks."""

    def __repr__(self) -> str:
        state = self.state.name.lower()
        return f"<{state} message {self.sequence_number}, delivered {self.delivery_count} times>"


_FIELDS = attrgetter(
    "sequence_number", "enqueued_at_ms", "size_bytes", "message_id", "session_id", "ttl_ms",
    "expires_at_ms", "scheduled_for_ms", "state", "delivery_count", "enqueued_sequence_number",
    "dead_letter_source", "overrides",
)  # fmt: skip


def copy_message(message: StoredMessage) -> StoredMessage:
    """A copy of the message that is not locked."""
    return StoredMessage(*_FIELDS(message))


class SessionState(NamedTuple):
    """An application's state of a session, and when it was set."""

    content: bytes
    updated_at_ms: int


@dataclass(slots=True)
class EntityImage:
    """One entity as the store holds it, handed to the engine at start."""

    entity_id: int
    kind: str
    """queue, topic, subscription, or dead-letter (the sub-queue of the entity before it)."""
    path: str
    description: dict[str, object]
    last_sequence_number: int = 0
    messages: list[StoredMessage] = field(default_factory=list)
    """In order of sequence number."""
    session_states: dict[str, SessionState] = field(default_factory=dict)
    message_ids: dict[str, int] = field(default_factory=dict)
    """Duplicate detection: message id to the time (ms) it was first accepted."""


class Journal(Protocol):
    """Collects the changes of one loop tick; the shell commits them together."""

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        """Create or replace the entity's own record. `description` is JSON-ready."""

    def drop_entity(self, entity_id: int) -> None:
        """Remove the entity's record and everything stored under its id."""

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        """Store a new message; also raises the entity's last sequence number to the message's."""

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        """Store the message's changed state, delivery count and overrides; the payload stays."""

    def remove(self, entity_id: int, message: StoredMessage) -> None:
        """Forget a message."""

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        """Re-key a message: the old (entity, number) goes, the same payload is put as `message`."""

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        """The stored payload of a message that was put (committed or not)."""

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        """Store a session's state; None removes it."""

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        """Remember an id for duplicate detection; None forgets it."""
