"""What the broker needs of a disk, and the store that needs none.

A store is a `Journal` that can make what was noted durable, one batch at a time:

    loop thread      take_batch -----------> finish      (or discard, then recover)
    writer thread                write ----'
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Protocol

from twinbus.broker.journal import EntityImage, Journal, SessionState, StoredMessage
from twinbus.errors import StoreError, StoreFull

__all__ = ["Batch", "MemoryStore", "Store", "StoreError", "StoreFull", "flush"]


@dataclass(slots=True)
class Batch:
    """The changes of one commit: the record of each key, None where it is to be deleted."""

    records: dict[bytes, bytes | None]
    sweep: tuple[int, ...] = ()
    """Dropped entities of whose leftovers a slice goes with this batch."""
    swept: list[int] = field(default_factory=list)
    """Those of them that have nothing left; known once the batch is written."""


class Store(Journal, Protocol):
    """A journal with a disk behind it. All but `write` belongs to the loop's thread."""

    @property
    def pending_bytes(self) -> int:
        """About how many bytes were noted and are not durable yet."""

    def recover(self) -> list[EntityImage]:
        """Everything that is durable, in order of entity id; what was noted since is forgotten."""

    def payloads(self, entity_id: int, sequence_numbers: list[int]) -> list[bytes]:
        """The payloads of these messages, in that order."""
        return [self.payload(entity_id, number) for number in sequence_numbers]

    def take_batch(self) -> Batch | None:
        """Everything noted since the last batch, to be committed; None if there is nothing to do.

        One batch at a time: the last one must have been finished or discarded.
        """

    def write(self, batch: Batch) -> None:
        """Return when the batch is durable. Raises StoreError; then none of it is visible."""

    def finish(self, batch: Batch) -> None:
        """Note that the batch is durable: what was kept of it in memory may go."""

    def discard(self) -> None:
        """Forget all that is not durable, after a failed batch. `recover` must be called next."""

    def low_on_space(self) -> str | None:
        """Why no more should be stored, in a line for a person; None while there is room."""

    def close(self) -> None:
        """Let go of the disk. What was noted and not committed is lost. May be called twice."""


def flush(store: Store) -> None:
    """Commit here and now, in this thread, what was noted; nothing may be in flight."""
    batch = store.take_batch()
    if batch is not None:
        store.write(batch)
        store.finish(batch)


@dataclass(slots=True)
class _EntityRecords:
    """All that is kept of one entity."""

    entity: tuple[str, str, dict[str, object]] | None = None
    last_sequence_number: int = 0
    messages: dict[int, tuple[StoredMessage, bytes]] = field(default_factory=dict)
    session_states: dict[str, SessionState] = field(default_factory=dict)
    message_ids: dict[str, int] = field(default_factory=dict)


class MemoryStore(Store):
    """A store that lives and dies with the process (`--ephemeral`); nothing waits for a disk."""

    pending_bytes = 0

    def __init__(self) -> None:
        self._shelves: dict[int, _EntityRecords] = {}

    def _shelf(self, entity_id: int) -> _EntityRecords:
        shelf = self._shelves.get(entity_id)
        if shelf is None:
            shelf = self._shelves[entity_id] = _EntityRecords()
        return shelf

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        self._shelf(entity_id).entity = (kind, path, copy.deepcopy(description))

    def drop_entity(self, entity_id: int) -> None:
        self._shelves.pop(entity_id, None)

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        shelf = self._shelf(entity_id)
        number = message.sequence_number
        shelf.messages[number] = (_snapshot(message), payload)
        shelf.last_sequence_number = max(shelf.last_sequence_number, number)

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        kept, _ = self._shelf(entity_id).messages[message.sequence_number]
        kept.state, kept.delivery_count = message.state, message.delivery_count
        kept.overrides = copy.copy(message.overrides)

    def remove(self, entity_id: int, message: StoredMessage) -> None:
        self._shelf(entity_id).messages.pop(message.sequence_number, None)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        payload = self.payload(entity_id, sequence_number)
        del self._shelf(entity_id).messages[sequence_number]
        self.put(to_entity_id, message, payload)

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        try:
            return self._shelves[entity_id].messages[sequence_number][1]
        except KeyError:
            raise LookupError(
                f"entity {entity_id} has no message {sequence_number} in the store"
            ) from None

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        if state is None:
            self._shelf(entity_id).session_states.pop(session_id, None)
        else:
            self._shelf(entity_id).session_states[session_id] = state

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        if first_seen_ms is None:
            self._shelf(entity_id).message_ids.pop(message_id, None)
        else:
            self._shelf(entity_id).message_ids[message_id] = first_seen_ms

    def recover(self) -> list[EntityImage]:
        images = []
        for entity_id, shelf in sorted(self._shelves.items()):
            if shelf.entity is None:
                continue
            kind, path, description = shelf.entity
            images.append(
                EntityImage(
                    entity_id,
                    kind,
                    path,
                    copy.deepcopy(description),
                    shelf.last_sequence_number,
                    [_snapshot(shelf.messages[number][0]) for number in sorted(shelf.messages)],
                    dict(shelf.session_states),
                    dict(shelf.message_ids),
                )
            )
        return images

    def take_batch(self) -> Batch | None:
        return None

    def write(self, batch: Batch) -> None:
        raise AssertionError("a store in memory has no batches")

    def finish(self, batch: Batch) -> None:
        raise AssertionError("a store in memory has no batches")

    def discard(self) -> None:
        """Nothing to forget: all that was noted is kept."""

    def low_on_space(self) -> str | None:
        return None

    def close(self) -> None:
        self._shelves.clear()


def _snapshot(message: StoredMessage) -> StoredMessage:
    """A copy as a disk would give it back: later changes do not reach it, and it is not locked."""
    return StoredMessage(
        message.sequence_number,
        enqueued_at_ms=message.enqueued_at_ms,
        size_bytes=message.size_bytes,
        message_id=message.message_id,
        session_id=message.session_id,
        ttl_ms=message.ttl_ms,
        expires_at_ms=message.expires_at_ms,
        scheduled_for_ms=message.scheduled_for_ms,
        state=message.state,
        delivery_count=message.delivery_count,
        enqueued_sequence_number=message.enqueued_sequence_number,
        dead_letter_source=message.dead_letter_source,
        overrides=copy.copy(message.overrides),
    )
