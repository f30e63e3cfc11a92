"""The port for a disk, and a store in memory.

A store is a `Journal` that can make what was noted durable, one batch at a time:

    loop thread      take_batch -----------> finish      (or discard, then recover)
    writer thread                write ----'
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from twinbus.broker.journal import EntityImage, Journal, SessionState, StoredMessage, copy_message

T = TypeVar("T")


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

    def lost(self) -> str | None:
        """Why a restart would not find what is stored, in one line; None if it would."""

    def close(self) -> None:
        """Close the disk. Uncommitted changes are lost. May be called twice."""


def flush(store: Store) -> None:
    """Commit what was noted, in this thread; no batch may be in flight."""
    batch = store.take_batch()
    if batch is not None:
        store.write(batch)
        store.finish(batch)


class MemoryStore(Store):
    """A store in memory (`--ephemeral`); it ends with the process."""

    pending_bytes = 0

    def __init__(self) -> None:
        self._images: defaultdict[int, EntityImage] = defaultdict(_nothing)
        """What is kept of each entity, its messages aside."""
        self._messages: defaultdict[int, dict[int, tuple[StoredMessage, bytes]]] = defaultdict(dict)
        """Messages and their payloads, by entity id and sequence number."""

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        image = self._images[entity_id]
        image.entity_id, image.kind, image.path = entity_id, kind, path
        image.description = copy.deepcopy(description)

    def drop_entity(self, entity_id: int) -> None:
        self._images.pop(entity_id, None)
        self._messages.pop(entity_id, None)

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        image, number = self._images[entity_id], message.sequence_number
        self._messages[entity_id][number] = (_snapshot(message), payload)
        image.last_sequence_number = max(image.last_sequence_number, number)

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        kept, _ = self._messages[entity_id][message.sequence_number]
        kept.state, kept.delivery_count = message.state, message.delivery_count
        kept.overrides = copy.copy(message.overrides)

    def remove(self, entity_id: int, message: StoredMessage) -> None:
        self._messages[entity_id].pop(message.sequence_number, None)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        _, payload = self._messages[entity_id].pop(sequence_number)
        self.put(to_entity_id, message, payload)

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        try:
            return self._messages[entity_id][sequence_number][1]
        except KeyError:
            raise LookupError(
                f"entity {entity_id} has no message {sequence_number} in the store"
            ) from None

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        _put(self._images[entity_id].session_states, session_id, state)

    def put_rule(self, entity_id: int, name: str, record: dict[str, Any] | None) -> None:
        _put(self._images[entity_id].rules, name, copy.deepcopy(record))

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        _put(self._images[entity_id].message_ids, message_id, first_seen_ms)

    def recover(self) -> list[EntityImage]:
        images = [copy.deepcopy(image) for _, image in sorted(self._images.items()) if image.kind]
        for image in images:
            kept = sorted(self._messages[image.entity_id].items())
            image.messages = [_snapshot(message) for _, (message, _) in kept]
        return images

    def take_batch(self) -> Batch | None:
        return None

    def write(self, batch: Batch) -> None:
        raise AssertionError("a store in memory has no batches")

    finish = write

    def discard(self) -> None:
        """Nothing to drop: every change is kept."""

    def low_on_space(self) -> str | None:
        return None

    def lost(self) -> str | None:
        return None

    def close(self) -> None:
        self._images.clear()
        self._messages.clear()


def _nothing() -> EntityImage:
    """What is kept of an entity before it is put."""
    return EntityImage(0, "", "", {})


def _put(table: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value


def _snapshot(message: StoredMessage) -> StoredMessage:
    """A copy as a disk would return it: unlocked, and unaffected by later changes."""
    kept = copy_message(message)
    kept.overrides = copy.copy(message.overrides)
    return kept
