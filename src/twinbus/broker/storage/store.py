"""The port for a disk, and a store in memory.

A store is a `Journal` that can make what was noted durable, one batch at a time:

    loop thread      take_batch -----------> finish      (or discard, then recover)
    writer thread                write ----'
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Protocol

from twinbus.broker.journal import EntityImage, Journal, SessionState, StoredMessage, copy_message
from twinbus.errors import StoreError, StoreFull

__all__ = ["Batch", "MemoryStore", "Store", "StoreError", "StoreFull", "flush"]


@dataclass(slots=True)
class Batch:
    """The changes of one commit: the record of each key, None where it is to be deleted."""

    records: dict[bytes, bytes | None]
    sweep: tuple[int, ...] = ()
    """Dropped entities; this batch deletes some of their remaining records."""
    swept: list[int] = field(default_factory=list)
    """Those of them without remaining records; known once the batch is written."""


class Store(Journal, Protocol):
    """A journal with a disk behind it. All but `write` belongs to the loop's thread."""

    @property
    def pending_bytes(self) -> int:
        """Approximate bytes that were noted and are not durable yet."""

    def recover(self) -> list[EntityImage]:
        """Everything that is durable, in order of entity id; other changes are dropped."""

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
        """Note that the batch is durable and free its memory."""

    def discard(self) -> None:
        """Drop all that is not durable, after a failed batch. `recover` must be called next."""

    def low_on_space(self) -> str | None:
        """Why no more should be stored, in one line; None while there is space."""

    def close(self) -> None:
        """Close the disk. Uncommitted changes are lost. May be called twice."""


def flush(store: Store) -> None:
    """Commit what was noted, in this thread; no batch may be in flight."""
    batch = store.take_batch()
    if batch is not None:
        store.write(batch)
        store.finish(batch)


@dataclass(slots=True)
class _EntityRecords:
    """Everything stored for one entity."""

    entity: tuple[str, str, dict[str, object]] | None = None
    last_sequence_number: int = 0
    messages: dict[int, tuple[StoredMessage, bytes]] = field(default_factory=dict)
    session_states: dict[str, SessionState] = field(default_factory=dict)
    message_ids: dict[str, int] = field(default_factory=dict)


class MemoryStore(Store):
    """A store in memory (`--ephemeral`); it ends with the process."""

    pending_bytes = 0

    def __init__(self) -> None:
        self._records: dict[int, _EntityRecords] = {}

    def _records_of(self, entity_id: int) -> _EntityRecords:
        records = self._records.get(entity_id)
        if records is None:
            records = self._records[entity_id] = _EntityRecords()
        return records

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        self._records_of(entity_id).entity = (kind, path, copy.deepcopy(description))

    def drop_entity(self, entity_id: int) -> None:
        self._records.pop(entity_id, None)

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        records = self._records_of(entity_id)
        number = message.sequence_number
        records.messages[number] = (_snapshot(message), payload)
        records.last_sequence_number = max(records.last_sequence_number, number)

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        kept, _ = self._records_of(entity_id).messages[message.sequence_number]
        kept.state, kept.delivery_count = message.state, message.delivery_count
        kept.overrides = copy.copy(message.overrides)

    def remove(self, entity_id: int, message: StoredMessage) -> None:
        self._records_of(entity_id).messages.pop(message.sequence_number, None)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        payload = self.payload(entity_id, sequence_number)
        del self._records_of(entity_id).messages[sequence_number]
        self.put(to_entity_id, message, payload)

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        try:
            return self._records[entity_id].messages[sequence_number][1]
        except KeyError:
            raise LookupError(
                f"entity {entity_id} has no message {sequence_number} in the store"
            ) from None

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        if state is None:
            self._records_of(entity_id).session_states.pop(session_id, None)
        else:
            self._records_of(entity_id).session_states[session_id] = state

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        if first_seen_ms is None:
            self._records_of(entity_id).message_ids.pop(message_id, None)
        else:
            self._records_of(entity_id).message_ids[message_id] = first_seen_ms

    def recover(self) -> list[EntityImage]:
        images = []
        for entity_id, records in sorted(self._records.items()):
            if records.entity is None:
                continue
            kind, path, description = records.entity
            images.append(
                EntityImage(
                    entity_id,
                    kind,
                    path,
                    copy.deepcopy(description),
                    records.last_sequence_number,
                    [_snapshot(records.messages[number][0]) for number in sorted(records.messages)],
                    dict(records.session_states),
                    dict(records.message_ids),
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
        """Nothing to drop: every change is kept."""

    def low_on_space(self) -> str | None:
        return None

    def close(self) -> None:
        self._records.clear()


def _snapshot(message: StoredMessage) -> StoredMessage:
    """A copy as a disk would return it: unlocked, and unaffected by later changes."""
    kept = copy_message(message)
    kept.overrides = copy.copy(message.overrides)
    return kept
