"""The port between engine and disk: it collects changes and reads payloads back.

The engine changes its memory at once and notes each durable change here. The shell commits the
changes as one group and sends nothing (no acknowledgement, no delivery) before that commit is done,
so no client sees a change that is not on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple, NewType, Protocol


class MessageState(IntEnum):
    """The states of a message; the numbers are those of `x-opt-message-state`."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True, eq=False, repr=False)
class StoredMessage:
    """One message without its payload, which stays in the store."""

    sequence_number: int
    enqueued_at_ms: int
    size_bytes: int
    message_id: str | None = None
    session_id: str | None = None
    ttl_ms: int = 0
    """Time to live the message was enqueued with; 0: none."""
    expires_at_ms: int = 0
    """0: never."""
    scheduled_for_ms: int = 0
    """0: not scheduled."""
    state: MessageState = MessageState.ACTIVE
    delivery_count: int = 0
    enqueued_sequence_number: int = 0
    dead_letter_source: str | None = None
    overrides: dict[str, object] | None = None
    """Application properties that settlement added or changed (DeadLetterReason, …)."""
    lock_token: bytes | None = None
    """Set while a receiver holds the message. Never stored: a restart frees all locks."""

    def __repr__(self) -> str:
        state = self.state.name.lower()
        return f"<{state} message {self.sequence_number}, delivered {self.delivery_count} times>"


_FIELDS = attrgetter(*(each.name for each in fields(StoredMessage) if each.name != "lock_token"))


def copy_message(message: StoredMessage) -> StoredMessage:
    """A copy of the message that is not locked."""
    return StoredMessage(*_FIELDS(message))


class SessionState(NamedTuple):
    """An application's state of a session, and when it was set."""

    content: bytes
    updated_at_ms: int


class Damage(NamedTuple):
    """A stored record that cannot be trusted, and is set aside."""

    entity_id: int
    sequence_number: int
    """Of the message; 0: it is an id for duplicate detection."""
    why: str


class DamagedMessage(Exception):
    """A message cannot be read from the disk as it was stored."""

    def __init__(self, damage: Damage, salvage: bytes = b"") -> None:
        super().__init__(
            f"entity {damage.entity_id}: message {damage.sequence_number} is damaged: {damage.why}"
        )
        self.salvage = salvage
        """What can be read of the payload."""


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
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of a subscription: the record of each rule by its name in lower case."""


Payload = bytes | memoryview
"""What is stored of a message beside its `StoredMessage`."""

EncodedRun = NewType("EncodedRun", dict[Any, Any])
"""New messages as the journal that made it keeps them (`Journal.encode_run`)."""


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

    def put_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> None:
        """Store new messages with consecutive numbers; if this raises, none of them is stored.

        They were enqueued at one time, with one time to live, and have a message id (`ids`, UTF-8)
        and no other text. The payload of each is the prefix and its rest.
        """

    def encode_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> EncodedRun:
        """What `put_encoded` stores for such messages; nothing changes yet."""

    def put_encoded(self, entity_id: int, runs: list[EncodedRun], last_number: int) -> None:
        """Store what was encoded; `last_number` is the highest of its sequence numbers."""

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        """Store the message's changed state, delivery count and overrides; the payload stays."""

    def remove(self, entity_id: int, sequence_number: int) -> None:
        """Forget a message."""

    def remove_all(self, entity_id: int, sequence_numbers: list[int]) -> None:
        """Forget these messages, of which none is named twice."""

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        """Re-key a message: the old (entity, number) goes, the same payload is put as `message`.

        A damaged payload stays damaged.
        """

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        """The stored payload of a message that was put (committed or not).

        Raises `DamagedMessage` if it is not what was put.
        """

    def put_rule(self, entity_id: int, name: str, record: dict[str, Any] | None) -> None:
        """Store a subscription's rule, JSON-ready; None removes it."""

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        """Store a session's state; None removes it."""

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        """Remember an id for duplicate detection; None forgets it."""
