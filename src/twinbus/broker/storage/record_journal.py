"""A journal whose calls become records (`records`), and what a start reads of them. Pure."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twinbus.broker.journal import (
    Damage,
    DamagedMessage,
    EncodedRun,
    EntityImage,
    SessionState,
    StoredMessage,
)
from twinbus.broker.storage.checksums import Data, are_sound, is_sound, own_key, unsealed
from twinbus.broker.storage.pending import PendingRecords, Records, seal_run
from twinbus.broker.storage.records import (
    AMENDMENT,
    COUNTER,
    DROPPED,
    DUPLICATE,
    ENTITY,
    MESSAGE,
    RULE,
    SESSION,
    amendment_key,
    apply_amendment,
    entity_key,
    key_entity,
    key_numbers,
    message_head,
    message_key,
    message_keys,
    named_key,
    pack_amendment,
    pack_duplicate,
    pack_json,
    pack_number,
    pack_session_state,
    payload_of,
    run_heads,
    sealed_payloads,
    unpack_duplicate,
    unpack_json,
    unpack_message,
    unpack_number,
    unpack_session_state,
)
from twinbus.errors import StoreDamaged

Scan = Callable[[int], Iterator[tuple[Data, Data]]]
"""All keys of one kind with their records, in order of key."""


class RecordJournal(ABC):
    """A `Journal` whose changes become records; a subclass reads and writes them.

    A change waits in `_pending`, one entry for each key; the last one wins, None means delete. The
    shell takes all of it as one batch, which stays in `_in_flight` until it is on disk. A payload
    is searched in that order: pending, in flight, disk.
    """

    def __init__(self) -> None:
        self._pending = PendingRecords()
        self._in_flight: Records = {}
        self._in_flight_size_bytes = 0
        self._last_numbers: dict[int, int] = {}
        self._raised: set[int] = set()
        """Entities whose last sequence number is higher than in the last batch."""
        self._amended: dict[int, set[int]] = {}
        """Messages with an amendment on disk or on its way there: only these need it removed."""
        self._dropped: set[int] = set()
        """Entities whose leftovers are still to be swept from the disk."""
        self.damaged: dict[bytes, Damage] = {}
        """What was read from the disk and is damaged, by key."""

    @abstractmethod
    def _read(self, keys: list[bytes]) -> Sequence[Data]:
        """The committed records of those keys that have one, valid until the next call."""

    @abstractmethod
    def _read_row(self, first: bytes, count: int) -> Sequence[Data]:
        """Up to `count` committed records in the order of their keys, from the key `first` on.

        Valid until the next call; none if nothing is stored under that key.
        """

    @property
    def pending_bytes(self) -> int:
        """Bytes noted and not on disk yet; a key noted twice in one batch may count twice."""
        return self._pending.size_bytes + self._in_flight_size_bytes

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        assert entity_id not in self._dropped, f"entity id {entity_id} is used again"
        self._note(entity_key(ENTITY, entity_id), pack_json(kind, path, description))

    def drop_entity(self, entity_id: int) -> None:
        # What was committed is swept a bounded slice at a time: a queue of millions must not hold
        # up every send behind it. Its entity record goes now, so a crash cannot bring it back.
        held = entity_key(MESSAGE, entity_id)[1:]
        for key in [key for key in self._pending if key[1:9] == held]:
            self._pending.forget(key)
        self._last_numbers.pop(entity_id, None)
        self._raised.discard(entity_id)
        self._amended.pop(entity_id, None)
        self._dropped.add(entity_id)
        self._note(entity_key(ENTITY, entity_id), None)
        self._note(entity_key(DROPPED, entity_id), b"")

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        sequence_number = message.sequence_number
        self._pending.put(message_key(entity_id, sequence_number), message_head(message), payload)
        if sequence_number > self._last_numbers.get(entity_id, 0):
            self._last_numbers[entity_id] = sequence_number
            self._raised.add(entity_id)

    def put_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> None:
        # Not by way of `encode_run`: most runs are one message, which needs no table of its own.
        heads = run_heads(messages, ids, prefix)
        self._pending.put_each(message_keys(entity_id, _numbers(messages)), heads, rests)
        self._raise(entity_id, messages[-1].sequence_number)

    def encode_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> EncodedRun:
        heads = run_heads(messages, ids, prefix)
        return EncodedRun(seal_run(message_keys(entity_id, _numbers(messages)), heads, rests))

    def put_encoded(self, entity_id: int, runs: list[EncodedRun], last_number: int) -> None:
        for run in runs:
            self._pending.put_sealed(run)
        self._raise(entity_id, last_number)

    def _raise(self, entity_id: int, last_number: int) -> None:
        if last_number > self._last_numbers.get(entity_id, 0):
            self._last_numbers[entity_id] = last_number
            self._raised.add(entity_id)

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        number = message.sequence_number
        self._amended.setdefault(entity_id, set()).add(number)
        self._note(amendment_key(entity_id, number), pack_amendment(message))

    def remove(self, entity_id: int, sequence_number: int) -> None:
        key = message_key(entity_id, sequence_number)
        # Numbers are never used twice, so what is pending here was never committed: it cancels out.
        never_committed = key in self._pending
        if never_committed:
            self._pending.forget(key)
        else:
            self._note(key, None)
        amended = self._amended.get(entity_id)
        if amended and sequence_number in amended:
            amended.discard(sequence_number)
            if never_committed:
                self._pending.forget(amendment_key(entity_id, sequence_number))
            else:
                self._note(amendment_key(entity_id, sequence_number), None)

    def remove_all(self, entity_id: int, sequence_numbers: list[int]) -> None:
        keys = message_keys(entity_id, sequence_numbers)
        if self._amended.get(entity_id) or not self._pending.keys().isdisjoint(keys):
            for number in sequence_numbers:
                self.remove(entity_id, number)
            return
        self._pending.delete_all(keys)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        assert (entity_id, sequence_number) != (to_entity_id, message.sequence_number)
        try:
            payload, is_damaged = self.payload(entity_id, sequence_number), False
        except DamagedMessage as damaged:
            # It moves as it is; its reader there gets the error.
            payload, is_damaged = damaged.salvage, True
            self.damaged.pop(message_key(entity_id, sequence_number), None)
        self.remove(entity_id, sequence_number)
        self.put(to_entity_id, message, payload)
        if is_damaged:
            self._pending.spoil(message_key(to_entity_id, message.sequence_number))

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        key = message_key(entity_id, sequence_number)
        record: Data | None
        for uncommitted in (self._pending, self._in_flight):
            if key in uncommitted:
                record = uncommitted[key]
                break
        else:
            record = next(iter(self._read([key])), None)
            if record is None or not is_sound(key, record):
                raise DamagedMessage(self._note_damage(key, record), _salvage(record))
        if record is None:
            raise LookupError(f"entity {entity_id} has no message {sequence_number} in the store")
        return payload_of(unsealed(record))

    def payloads(self, entity_id: int, sequence_numbers: list[int]) -> Sequence[Data]:
        keys = message_keys(entity_id, sequence_numbers)
        # Nearly always: all are on disk, or at least nothing of them waits to get there.
        if self._pending.keys().isdisjoint(keys) and self._in_flight.keys().isdisjoint(keys):
            is_row = keys and sequence_numbers[-1] - sequence_numbers[0] == len(keys) - 1
            found = self._read_row(keys[0], len(keys)) if is_row else self._read(keys)
            # A record in a row that is not of the key expected there is not sound.
            if are_sound(keys, found):
                return sealed_payloads(found)
        return [self.payload(entity_id, number) for number in sequence_numbers]

    def put_rule(self, entity_id: int, name: str, record: dict[str, Any] | None) -> None:
        key = named_key(RULE, entity_id, name)
        self._note(key, None if record is None else pack_json(name, record))

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        key = named_key(SESSION, entity_id, session_id)
        self._note(key, None if state is None else pack_session_state(session_id, state))

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        key = named_key(DUPLICATE, entity_id, message_id)
        self._note(
            key,
            None if first_seen_ms is None else pack_duplicate(message_id, first_seen_ms),
        )

    def _note(self, key: bytes, record: bytes | None) -> None:
        if record is None:
            self._pending.delete(key)
        else:
            self._pending.put(key, record)

    def _note_damage(self, key: bytes, record: Data | None) -> Damage:
        damage = self.damaged.get(key)
        if damage is None:
            own = key if record is None else own_key(key, record, lambda one: self._read([one]))
            number = key_numbers(own)[1] if own[0] in (MESSAGE, AMENDMENT) else 0
            why = "its record is missing" if record is None else "its checksum is wrong"
            if own[0] == AMENDMENT:
                why = "the checksum of its state is wrong"
            damage = self.damaged[key] = Damage(key_entity(own), number, why)
        return damage

    def _take_pending(self) -> Records:
        """What is pending, from now on in flight; empty if nothing changed."""
        assert not self._in_flight, "a batch is still in flight"
        self._in_flight_size_bytes = self._pending.size_bytes
        for entity_id in self._raised:
            number = self._last_numbers[entity_id]
            self._pending.put(entity_key(COUNTER, entity_id), pack_number(number))
        self._raised.clear()
        self._in_flight = self._pending.take()
        return self._in_flight

    def _landed(self) -> None:
        self._in_flight = {}
        self._in_flight_size_bytes = 0

    def _forget_all(self) -> None:
        """Forget every change that is not on disk, and all that was known of the disk."""
        self._landed()
        self._pending.take()
        self._last_numbers.clear()
        self._raised.clear()
        self._amended.clear()
        self._dropped.clear()

    def _restore(self, scan: Scan) -> list[EntityImage]:
        """Forget everything but what `scan` finds; return it as entities, in order of id.

        Damaged messages and remembered ids are left out and noted; of other records that are
        damaged, raises `StoreDamaged`.
        """
        self._forget_all()
        self.damaged.clear()
        images: dict[int, EntityImage] = {}
        for key, record in _sound(scan, ENTITY, "a queue, topic or subscription"):
            entity_id = key_entity(key)
            images[entity_id] = EntityImage(entity_id, *unpack_json(record))
        paths = {image.entity_id: image.path for image in images.values()}
        for key, record in _sound(scan, COUNTER, "the last sequence number", paths):
            if image := images.get(key_entity(key)):
                image.last_sequence_number = unpack_number(record)
        self._amended = self._read_messages(scan, images)
        for kind, what, table, unpack in (
            (SESSION, "a session's state", "session_states", unpack_session_state),
            (RULE, "a rule", "rules", unpack_json),
        ):
            for key, record in _sound(scan, kind, what, paths):
                if image := images.get(key_entity(key)):
                    name, value = unpack(record)
                    getattr(image, table)[name] = value
        for key, sealed in scan(DUPLICATE):
            if not is_sound(key, sealed):
                self._note_damage(bytes(key), sealed)
            elif image := images.get(key_entity(key)):
                message_id, first_seen_ms = unpack_duplicate(unsealed(sealed))
                image.message_ids[message_id] = first_seen_ms
        for image in images.values():
            self._last_numbers[image.entity_id] = image.last_sequence_number
        return list(images.values())

    def _read_messages(self, scan: Scan, images: dict[int, EntityImage]) -> dict[int, set[int]]:
        """Add the messages to their entities; return which of each entity are amended."""
        amendments: dict[tuple[int, int], Data | None] = {}
        for key, sealed in scan(AMENDMENT):
            if is_sound(key, sealed):
                amendments[key_numbers(key)] = bytes(unsealed(sealed))
            else:
                damage = self._note_damage(bytes(key), sealed)
                amendments[damage.entity_id, damage.sequence_number] = None
        for key, sealed in scan(MESSAGE):
            entity_id, sequence_number = numbers = key_numbers(key)
            if not is_sound(key, sealed):
                self._note_damage(bytes(key), sealed)
                continue
            image = images.get(entity_id)
            if image is None:
                continue
            message = unpack_message(sequence_number, sealed)
            if amendments and numbers in amendments:
                amendment = amendments[numbers]
                if amendment is None:
                    continue
                apply_amendment(message, amendment)
            image.messages.append(message)
        amended: dict[int, set[int]] = {}
        for entity_id, sequence_number in amendments:
            amended.setdefault(entity_id, set()).add(sequence_number)
        return amended


def _sound(
    scan: Scan, kind: int, what: str, paths: dict[int, str] | None = None
) -> Iterator[tuple[Data, Data]]:
    """The keys of a kind with their records; raises `StoreDamaged` at one that is damaged."""
    for key, sealed in scan(kind):
        if not is_sound(key, sealed):
            owner = (paths or {}).get(key_entity(key), f"entity {key_entity(key)}")
            raise StoreDamaged(f"the record of {what} ({owner}) is damaged")
        yield key, unsealed(sealed)


def _numbers(run: list[StoredMessage]) -> range:
    """The numbers of messages that were put together."""
    return range(run[0].sequence_number, run[-1].sequence_number + 1)


def _salvage(record: Data | None) -> bytes:
    """What can be read of a damaged message's payload."""
    try:
        return b"" if record is None else payload_of(unsealed(record))
    except struct.error:
        return b""
