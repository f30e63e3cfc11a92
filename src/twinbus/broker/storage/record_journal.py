"""Journal calls turned into the records of the next commit, and records into entities. Pure.

A change waits in `_pending`, one entry for each key; the last one wins, None means delete. The
shell takes all of it as one batch and keeps that batch in `_in_flight` until it is on disk, while
changes gather for the next. A payload is looked for in that order: pending, in flight, disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twinbus.broker.journal import EntityImage, SessionState, StoredMessage
from twinbus.broker.storage import records
from twinbus.broker.storage.records import Data, amendment_key, entity_key, message_key, named_key

Records = dict[bytes, bytes | None]

Scan = Callable[[int], Iterator[tuple[Data, Data]]]
"""All keys of one kind with their records, in order of key."""


class RecordJournal(ABC):
    """A `Journal` whose changes come out as records; who extends it reads and writes them."""

    def __init__(self) -> None:
        self._pending: Records = {}
        self._pending_size_bytes = 0
        self._in_flight: Records = {}
        self._in_flight_size_bytes = 0
        self._last_numbers: dict[int, int] = {}
        self._raised: set[int] = set()
        """Entities whose last sequence number is higher than in the last batch."""
        self._amended: dict[int, set[int]] = {}
        """Messages with an amendment on disk or on its way there: only these need it removed."""
        self._dropped: set[int] = set()
        """Entities whose leftovers are still to be swept from the disk."""

    @abstractmethod
    def _read(self, key: bytes) -> Data | None:
        """The committed record, valid until the next call of any method."""

    @abstractmethod
    def _read_many(self, keys: list[bytes]) -> Sequence[Data]:
        """The committed records of those keys that have one, valid as long as of `_read`."""

    @property
    def pending_bytes(self) -> int:
        """Bytes noted and not on disk yet; a key noted twice in one batch may count twice."""
        return self._pending_size_bytes + self._in_flight_size_bytes

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        assert entity_id not in self._dropped, f"entity id {entity_id} is used again"
        self._note(
            entity_key(records.ENTITY, entity_id), records.pack_entity(kind, path, description)
        )

    def drop_entity(self, entity_id: int) -> None:
        # What was committed is swept a bounded slice at a time: a queue of millions must not hold
        # up every send behind it. Its entity record goes now, so a crash cannot bring it back.
        held = entity_key(records.MESSAGE, entity_id)[1:]
        for key in [key for key in self._pending if key[1:9] == held]:
            self._forget(key)
        self._last_numbers.pop(entity_id, None)
        self._raised.discard(entity_id)
        self._amended.pop(entity_id, None)
        self._dropped.add(entity_id)
        self._note(entity_key(records.ENTITY, entity_id), None)
        self._note(entity_key(records.DROPPED, entity_id), b"")

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        record = records.pack_message(message, payload)
        sequence_number = message.sequence_number
        self._pending[message_key(entity_id, sequence_number)] = record
        self._pending_size_bytes += len(record)
        if sequence_number > self._last_numbers.get(entity_id, 0):
            self._last_numbers[entity_id] = sequence_number
            self._raised.add(entity_id)

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        number = message.sequence_number
        self._amended.setdefault(entity_id, set()).add(number)
        self._note(amendment_key(entity_id, number), records.pack_amendment(message))

    def remove(self, entity_id: int, message: StoredMessage) -> None:
        self._remove(entity_id, message.sequence_number)

    def _remove(self, entity_id: int, number: int) -> None:
        key = message_key(entity_id, number)
        # Numbers are never used twice, so what is pending here was never committed: it cancels out.
        never_committed = key in self._pending
        if never_committed:
            self._forget(key)
        else:
            self._note(key, None)
        amended = self._amended.get(entity_id)
        if amended and number in amended:
            amended.discard(number)
            if never_committed:
                self._forget(amendment_key(entity_id, number))
            else:
                self._note(amendment_key(entity_id, number), None)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        assert (entity_id, sequence_number) != (to_entity_id, message.sequence_number)
        payload = self.payload(entity_id, sequence_number)
        self._remove(entity_id, sequence_number)
        self.put(to_entity_id, message, payload)

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        key = message_key(entity_id, sequence_number)
        record: Data | None
        for uncommitted in (self._pending, self._in_flight):
            if key in uncommitted:
                record = uncommitted[key]
                break
        else:
            record = self._read(key)
        if record is None:
            raise LookupError(f"entity {entity_id} has no message {sequence_number} in the store")
        return records.payload_of(record)

    def payloads(self, entity_id: int, sequence_numbers: list[int]) -> list[bytes]:
        keys = [message_key(entity_id, number) for number in sequence_numbers]
        # Nearly always: all are on disk, or at least nothing of them waits to get there.
        if self._pending.keys().isdisjoint(keys) and self._in_flight.keys().isdisjoint(keys):
            found = self._read_many(keys)
            if len(found) == len(keys):
                return [records.payload_of(record) for record in found]
        return [self.payload(entity_id, number) for number in sequence_numbers]

    def put_rule(self, entity_id: int, name: str, record: dict[str, Any] | None) -> None:
        key = named_key(records.RULE, entity_id, name)
        self._note(key, None if record is None else records.pack_rule(name, record))

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        key = named_key(records.SESSION, entity_id, session_id)
        self._note(key, None if state is None else records.pack_session_state(session_id, state))

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        key = named_key(records.DUPLICATE, entity_id, message_id)
        self._note(
            key,
            None if first_seen_ms is None else records.pack_duplicate(message_id, first_seen_ms),
        )

    def _note(self, key: bytes, record: bytes | None) -> None:
        self._pending[key] = record
        self._pending_size_bytes += len(key) if record is None else len(record)

    def _forget(self, key: bytes) -> None:
        record = self._pending.pop(key, None)
        self._pending_size_bytes -= len(key) if record is None else len(record)

    def _take_pending(self) -> Records:
        """What is pending, from now on in flight; empty if nothing changed."""
        assert not self._in_flight, "a batch is still in flight"
        for entity_id in self._raised:
            key = entity_key(records.COUNTER, entity_id)
            self._pending[key] = records.pack_number(self._last_numbers[entity_id])
        self._raised.clear()
        self._in_flight, self._pending = self._pending, {}
        self._in_flight_size_bytes, self._pending_size_bytes = self._pending_size_bytes, 0
        return self._in_flight

    def _landed(self) -> None:
        self._in_flight = {}
        self._in_flight_size_bytes = 0

    def _forget_all(self) -> None:
        """Forget every change that is not on disk, and all that was known of the disk."""
        self._landed()
        self._pending = {}
        self._pending_size_bytes = 0
        self._last_numbers.clear()
        self._raised.clear()
        self._amended.clear()
        self._dropped.clear()

    def _restore(self, scan: Scan) -> list[EntityImage]:
        """Forget everything but what `scan` finds; return it as entities, in order of id."""
        self._forget_all()
        images: dict[int, EntityImage] = {}
        for key, record in scan(records.ENTITY):
            entity_id = records.key_entity(key)
            images[entity_id] = EntityImage(entity_id, *records.unpack_entity(record))
        for key, record in scan(records.COUNTER):
            if image := images.get(records.key_entity(key)):
                image.last_sequence_number = records.unpack_number(record)
        self._amended = _read_messages(scan, images)
        for key, record in scan(records.SESSION):
            if image := images.get(records.key_entity(key)):
                session_id, state = records.unpack_session_state(record)
                image.session_states[session_id] = state
        for key, record in scan(records.RULE):
            if image := images.get(records.key_entity(key)):
                name, rule = records.unpack_rule(record)
                image.rules[name] = rule
        for key, record in scan(records.DUPLICATE):
            if image := images.get(records.key_entity(key)):
                message_id, first_seen_ms = records.unpack_duplicate(record)
                image.message_ids[message_id] = first_seen_ms
        for image in images.values():
            self._last_numbers[image.entity_id] = image.last_sequence_number
        return list(images.values())


def _read_messages(scan: Scan, images: dict[int, EntityImage]) -> dict[int, set[int]]:
    """Add the messages to their entities; return which of each entity are amended."""
    amendments = {
        records.key_numbers(key): bytes(record) for key, record in scan(records.AMENDMENT)
    }
    key_numbers, unpack = records.key_numbers, records.unpack_message
    for key, record in scan(records.MESSAGE):
        entity_id, sequence_number = key_numbers(key)
        image = images.get(entity_id)
        if image is None:
            continue
        message = unpack(sequence_number, record)
        if amendments and (entity_id, sequence_number) in amendments:
            records.apply_amendment(message, amendments[entity_id, sequence_number])
        image.messages.append(message)
    amended: dict[int, set[int]] = {}
    for entity_id, sequence_number in amendments:
        amended.setdefault(entity_id, set()).add(sequence_number)
    return amended
