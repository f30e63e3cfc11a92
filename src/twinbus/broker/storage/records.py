"""What a store writes: the layout of its records. Pure.

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
do not see it; a record gets it where it begins to wait for the disk (`pending`).

Ids and paths are valid UTF-8, as everything read from the wire is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from twinbus.amqp.decoding import decode
from twinbus.amqp.encoding import encode
from twinbus.broker.journal import MessageState, SessionState, StoredMessage
from twinbus.broker.storage.checksums import CHECKSUM_BYTES, Data

FORMAT_VERSION = 3
"""Incremented when older code could not read a store that is written now."""

UNCHECKED_VERSION = 2
"""The same layout without checksums and inventory."""

FORMAT_KEY = b"F"
INVENTORY_KEY = b"I"
"""Between the small records and the oldest messages: on pages that commits change anyway."""

ENTITY, COUNTER, MESSAGE, AMENDMENT, SESSION, DUPLICATE, RULE, DROPPED = b"ECMASDRX"
NUMBERED_KINDS = (MESSAGE, AMENDMENT)
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


def message_head(message: StoredMessage) -> bytes:
    """The record of a message but for its payload, which follows.

    A length of 0 is None, else the length is one too high.
    """
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
    return head + texts


def message_keys(entity_id: int, sequence_numbers: Iterable[int]) -> list[bytes]:
    pack = _NUMBERED_KEY.pack
    return [pack(MESSAGE, entity_id, number) for number in sequence_numbers]


def run_heads(messages: list[StoredMessage], ids: list[bytes], prefix: bytes) -> list[bytes]:
    """What `message_head` returns for each of them, and the prefix of the payloads.

    The messages differ in number, size and message id; no other text, no state.
    """
    heads = []
    head, head_for = b"", (-1, -1)
    for message, raw_id in zip(messages, ids, strict=True):
        sizes = message.size_bytes, len(raw_id)
        if sizes != head_for:
            head, head_for = message_head(message)[:_HEAD_BYTES], sizes
        heads.append(head + raw_id + prefix)
    return heads


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


def sealed_payloads(sealed: Sequence[Data]) -> list[Data]:
    """The payloads of these records, which still have their checksums; nothing is copied.

    No call for each: the receivers of all clients wait for it.
    """
    lengths, payloads = _LENGTHS.unpack_from, list[Data]()
    for record in sealed:
        of_id, of_session, of_source, of_overrides = lengths(record, _LENGTHS_AT)
        at = _HEAD_BYTES + of_id + of_session + of_source + of_overrides
        # A length that is not 0 is one too high.
        at -= (of_id > 0) + (of_session > 0) + (of_source > 0) + (of_overrides > 0)
        payloads.append(record[at:-CHECKSUM_BYTES])
    return payloads


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


def pack_number(number: int) -> bytes:
    """The record of a counter."""
    return _NUMBER.pack(number)


def unpack_number(record: Data) -> int:
    return int(_NUMBER.unpack(record)[0])


def pack_format() -> bytes:
    return _FORMAT.pack(FORMAT_VERSION)


def unpack_format(record: Data) -> int:
    return int(_FORMAT.unpack_from(record)[0])
