"""What a store writes: the layout of its records, and the journal calls that become records. Pure.

Each fact has one key and one value, as bytes. A key is one byte of kind, eight of entity id and,
for all but one-per-entity kinds, what tells the facts of an entity apart: a message's sequence
number, or a digest of a session or message id (ids may be longer than a key can be; the value holds
the id itself). Numbers in keys are big-endian, so that the order of keys is the order of entities
and, within one, of sequence numbers.

    E entity          json: kind, path, description
    C counter         the entity's last sequence number
    M message         fixed head, message id, session id, dead-letter source, overrides, payload
    A amendment       what changed since the message was put: state, delivery count, overrides
    S session state   session id, state
    D duplicate       time first seen, message id
    R rule            json: name in lower case, the rule
    X dropped         the entity is gone, what it held is being swept away
    F format          the version of this layout, once per store
    I inventory       what all other records add up to, once per store (`inventory`)

Each record is stored with a checksum at its end (`checksums`). The functions that pack and unpack
do not see it; the journal seals what it notes, and checks what it reads.

Ids and paths are valid UTF-8, as everything read from the wire is.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from twinbus.amqp.decoding import decode
from twinbus.amqp.encoding import encode
from twinbus.broker.journal import (
    Damage,
    DamagedMessage,
    EntityImage,
    MessageState,
    SessionState,
    StoredMessage,
)
from twinbus.broker.storage.checksums import Data, is_sound, seal, spoiled, unsealed
from twinbus.errors import StoreDamaged

FORMAT_VERSION = 3
"""Incremented when older code could not read a store that is written now."""

UNCHECKED_VERSION = 2
"""The same layout without checksums and inventory."""

FORMAT_KEY = b"F"
INVENTORY_KEY = b"I"
"""Between the small records and the oldest messages: on pages that commits change anyway."""

ENTITY, COUNTER, MESSAGE, AMENDMENT, SESSION, DUPLICATE, RULE, DROPPED = b"ECMASDRX"
HELD_KINDS = (MESSAGE, AMENDMENT, SESSION, DUPLICATE, RULE, COUNTER)
"""What an entity holds, and what goes with it."""

_DIGEST_BYTES = 16
"""A collision would join two ids; at 128 bits that needs some 10^19 ids in one entity."""

_STATES = (MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED)
_NUMBERED_KEY = struct.Struct(">BQQ")
_ENTITY_KEY = struct.Struct(">BQ")
_NUMBER = struct.Struct("<Q")
_TIME = struct.Struct("<q")
_FORMAT = struct.Struct("<I")
FORMAT_BYTES = _FORMAT.size
"""Of the format's record without a checksum."""

_MESSAGE_HEAD = struct.Struct("<qQqqqQBIIIII")
_LENGTHS = struct.Struct("<IIII")
_HEAD_BYTES = _MESSAGE_HEAD.size
_LENGTHS_AT = _MESSAGE_HEAD.size - _LENGTHS.size
_AMENDMENT_HEAD = struct.Struct("<BI")


def message_key(entity_id: int, sequence_number: int) -> bytes:
    return _NUMBERED_KEY.pack(MESSAGE, entity_id, sequence_number)


def amendment_key(entity_id: int, sequence_number: int) -> bytes:
    return _NUMBERED_KEY.pack(AMENDMENT, entity_id, sequence_number)


def entity_key(kind: int, entity_id: int) -> bytes:
    """The key of a one-per-entity fact, and the prefix of all keys of a kind within an entity."""
    return _ENTITY_KEY.pack(kind, entity_id)


def named_key(kind: int, entity_id: int, name: str) -> bytes:
    """The key of a session's state or of a message id."""
    return (
        _ENTITY_KEY.pack(kind, entity_id)
        + blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
    )


def key_numbers(key: Data) -> tuple[int, int]:
    """Entity id and sequence number of a message's or an amendment's key."""
    _, entity_id, sequence_number = _NUMBERED_KEY.unpack(key)
    return entity_id, sequence_number


def key_entity(key: Data) -> int:
    return int(_ENTITY_KEY.unpack_from(key)[1])


def pack_message(message: StoredMessage, payload: bytes) -> bytes:
    """The whole record of a message. A length of 0 is None, else the length is one too high."""
    texts = b""
    id_length = session_length = source_length = overrides_length = 0
    if message.message_id is not None:
        texts = message.message_id.encode()
        id_length = len(texts) + 1
    if message.session_id is not None:
        text = message.session_id.encode()
        session_length = len(text) + 1
        texts += text
    if message.dead_letter_source is not None:
        text = message.dead_letter_source.encode()
        source_length = len(text) + 1
        texts += text
    if message.overrides is not None:
        text = encode(message.overrides)
        overrides_length = len(text) + 1
        texts += text
    head = _MESSAGE_HEAD.pack(
        message.enqueued_at_ms,
        message.size_bytes,
        message.ttl_ms,
        message.expires_at_ms,
        message.scheduled_for_ms,
        message.enqueued_sequence_number,
        message.state,
        message.delivery_count,
        id_length,
        session_length,
        source_length,
        overrides_length,
    )
    return head + texts + payload


def pack_run(
    messages: list[StoredMessage], ids: list[bytes], prefix: bytes, rests: list[bytes]
) -> list[bytes]:
    """What `pack_message` returns for each of them, the payload being the prefix and its rest.

    The messages differ in number, size and message id; no other text, no state.
    """
    packed, join = [], b"".join
    head, head_for = b"", (-1, -1)
    for message, raw_id, rest in zip(messages, ids, rests, strict=True):
        sizes = message.size_bytes, len(raw_id)
        if sizes != head_for:
            head, head_for = pack_message(message, b"")[:_HEAD_BYTES], sizes
        packed.append(join((head, raw_id, prefix, rest)))
    return packed


def unpack_message(sequence_number: int, record: Data) -> StoredMessage:
    """The message as it was put; its payload is left where it is."""
    (
        enqueued_at_ms,
        size_bytes,
        ttl_ms,
        expires_at_ms,
        scheduled_for_ms,
        enqueued_sequence_number,
        state,
        delivery_count,
        id_length,
        session_length,
        source_length,
        overrides_length,
    ) = _MESSAGE_HEAD.unpack_from(record)
    message_id = session_id = source = overrides = None
    start = _HEAD_BYTES
    if id_length:
        end = start + id_length - 1
        message_id = str(record[start:end], "utf-8")
        start = end
    if session_length:
        end = start + session_length - 1
        session_id = str(record[start:end], "utf-8")
        start = end
    if source_length:
        end = start + source_length - 1
        source = str(record[start:end], "utf-8")
        start = end
    if overrides_length:
        overrides = _overrides(record[start : start + overrides_length - 1])
    # By position: a start makes millions of these, and keywords would double the time of each.
    return StoredMessage(
        sequence_number,
        enqueued_at_ms,
        size_bytes,
        message_id,
        session_id,
        ttl_ms,
        expires_at_ms,
        scheduled_for_ms,
        _STATES[state],
        delivery_count,
        enqueued_sequence_number,
        source,
        overrides,
    )


def payload_of(record: Data) -> bytes:
    of_id, of_session, of_source, of_overrides = _LENGTHS.unpack_from(record, _LENGTHS_AT)
    at = _HEAD_BYTES
    if of_id:
        at += of_id - 1
    if of_session:
        at += of_session - 1
    if of_source:
        at += of_source - 1
    if of_overrides:
        at += of_overrides - 1
    return bytes(record[at:])


def pack_amendment(message: StoredMessage) -> bytes:
    head = _AMENDMENT_HEAD.pack(message.state, message.delivery_count)
    return head if message.overrides is None else head + encode(message.overrides)


def apply_amendment(message: StoredMessage, record: Data) -> None:
    state, message.delivery_count = _AMENDMENT_HEAD.unpack_from(record)
    message.state = _STATES[state]
    rest = record[_AMENDMENT_HEAD.size :]
    message.overrides = _overrides(rest) if len(rest) else None


def _overrides(data: Data) -> dict[str, object]:
    value, _ = decode(bytes(data))
    assert isinstance(value, dict)
    return value


def pack_json(*parts: object) -> bytes:
    """The record of an entity (kind, path, description) or of a rule (name, rule)."""
    return json.dumps(parts, separators=(",", ":")).encode()


def unpack_json(record: Data) -> list[Any]:
    parts: list[Any] = json.loads(bytes(record))
    return parts


def pack_session_state(session_id: str, state: SessionState) -> bytes:
    name = session_id.encode()
    return _FORMAT.pack(len(name)) + name + _TIME.pack(state.updated_at_ms) + state.content


def unpack_session_state(record: Data) -> tuple[str, SessionState]:
    end = _FORMAT.size + _FORMAT.unpack_from(record)[0]
    (updated_at_ms,) = _TIME.unpack_from(record, end)
    state = SessionState(bytes(record[end + _TIME.size :]), updated_at_ms)
    return str(record[_FORMAT.size : end], "utf-8"), state


def pack_duplicate(message_id: str, first_seen_ms: int) -> bytes:
    return _TIME.pack(first_seen_ms) + message_id.encode()


def unpack_duplicate(record: Data) -> tuple[str, int]:
    return str(record[_TIME.size :], "utf-8"), _TIME.unpack_from(record)[0]


def pack_format() -> bytes:
    return _FORMAT.pack(FORMAT_VERSION)


def unpack_format(record: Data) -> int:
    return int(_FORMAT.unpack_from(record)[0])


Records = dict[bytes, bytes | None]

Scan = Callable[[int], Iterator[tuple[Data, Data]]]
"""All keys of one kind with their records, in order of key."""


class RecordJournal(ABC):
    """A `Journal` whose changes become records; a subclass reads and writes them.

    A change waits in `_pending`, one entry for each key; the last one wins, None means delete. The
    shell takes all of it as one batch, which stays in `_in_flight` until it is on disk. A payload
    is searched in that order: pending, in flight, disk.
    """

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
        self.damaged: dict[bytes, Damage] = {}
        """What was read from the disk and is damaged, by key."""

    @abstractmethod
    def _read(self, keys: list[bytes]) -> Sequence[Data]:
        """The committed records of those keys that have one, valid until the next call."""

    @property
    def pending_bytes(self) -> int:
        """Bytes noted and not on disk yet; a key noted twice in one batch may count twice."""
        return self._pending_size_bytes + self._in_flight_size_bytes

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
            self._forget(key)
        self._last_numbers.pop(entity_id, None)
        self._raised.discard(entity_id)
        self._amended.pop(entity_id, None)
        self._dropped.add(entity_id)
        self._note(entity_key(ENTITY, entity_id), None)
        self._note(entity_key(DROPPED, entity_id), b"")

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        sequence_number = message.sequence_number
        key = message_key(entity_id, sequence_number)
        record = seal(key, pack_message(message, payload))
        self._pending[key] = record
        self._pending_size_bytes += len(record)
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
        pack_key = _NUMBERED_KEY.pack
        keys = [pack_key(MESSAGE, entity_id, message.sequence_number) for message in messages]
        sealed = list(map(seal, keys, pack_run(messages, ids, prefix, rests)))
        self._pending.update(zip(keys, sealed, strict=True))
        self._pending_size_bytes += sum(map(len, sealed))
        last = messages[-1].sequence_number
        if last > self._last_numbers.get(entity_id, 0):
            self._last_numbers[entity_id] = last
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
            self._forget(key)
        else:
            self._note(key, None)
        amended = self._amended.get(entity_id)
        if amended and sequence_number in amended:
            amended.discard(sequence_number)
            if never_committed:
                self._forget(amendment_key(entity_id, sequence_number))
            else:
                self._note(amendment_key(entity_id, sequence_number), None)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        assert (entity_id, sequence_number) != (to_entity_id, message.sequence_number)
        try:
            payload, is_damaged = self.payload(entity_id, sequence_number), False
        except DamagedMessage as damaged:
            # It moves as it is, and whoever reads it there is told.
            payload, is_damaged = damaged.salvage, True
            self.damaged.pop(message_key(entity_id, sequence_number), None)
        self.remove(entity_id, sequence_number)
        self.put(to_entity_id, message, payload)
        if is_damaged:
            key = message_key(to_entity_id, message.sequence_number)
            self._pending[key] = spoiled(self._pending[key] or b"")

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

    def payloads(self, entity_id: int, sequence_numbers: list[int]) -> list[bytes]:
        keys = [message_key(entity_id, number) for number in sequence_numbers]
        # Nearly always: all are on disk, or at least nothing of them waits to get there.
        if self._pending.keys().isdisjoint(keys) and self._in_flight.keys().isdisjoint(keys):
            found = self._read(keys)
            if len(found) == len(keys) and all(map(is_sound, keys, found)):
                return [payload_of(unsealed(record)) for record in found]
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
        if record is not None:
            record = seal(key, record)
        self._pending[key] = record
        self._pending_size_bytes += len(key) if record is None else len(record)

    def _note_damage(self, key: bytes, record: Data | None) -> Damage:
        damage = self.damaged.get(key)
        if damage is None:
            number = key_numbers(key)[1] if key[0] in (MESSAGE, AMENDMENT) else 0
            why = "its record is missing" if record is None else "its checksum is wrong"
            if key[0] == AMENDMENT:
                why = "the checksum of its state is wrong"
            damage = self.damaged[key] = Damage(key_entity(key), number, why)
        return damage

    def _forget(self, key: bytes) -> None:
        record = self._pending.pop(key, None)
        self._pending_size_bytes -= len(key) if record is None else len(record)

    def _take_pending(self) -> Records:
        """What is pending, from now on in flight; empty if nothing changed."""
        assert not self._in_flight, "a batch is still in flight"
        for entity_id in self._raised:
            key = entity_key(COUNTER, entity_id)
            self._pending[key] = seal(key, _NUMBER.pack(self._last_numbers[entity_id]))
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
                image.last_sequence_number = _NUMBER.unpack(record)[0]
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
            sound = is_sound(key, sealed)
            if not sound:
                self._note_damage(bytes(key), sealed)
            amendments[key_numbers(key)] = bytes(unsealed(sealed)) if sound else None
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


def _salvage(record: Data | None) -> bytes:
    """What can be read of a damaged message's payload."""
    try:
        return b"" if record is None else payload_of(unsealed(record))
    except struct.error:
        return b""
