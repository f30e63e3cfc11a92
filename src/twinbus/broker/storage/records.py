"""The layout of what a store writes: one key and one value for each fact, as bytes. Pure.

A key is one byte of kind, eight of entity id and, for all but one-per-entity kinds, what tells the
facts of an entity apart: a message's sequence number, or a digest of a session or message id (ids
may be longer than a key can be; the value holds the id itself). Numbers in keys are big-endian, so
that the order of keys is the order of entities and, within one, of sequence numbers.

    E entity          json: kind, path, description
    C counter         the entity's last sequence number
    M message         fixed head, message id, session id, dead-letter source, overrides, payload
    A amendment       what changed since the message was put: state, delivery count, overrides
    S session state   session id, state
    D duplicate       time first seen, message id
    R rule            json: name in lower case, the rule
    X dropped         the entity is gone, what it held is being swept away
    F format          the version of this layout, once per store

Ids and paths are valid UTF-8, as everything read from the wire is.
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from typing import Any

from twinbus.amqp.decoding import decode
from twinbus.amqp.encoding import encode
from twinbus.broker.journal import MessageState, SessionState, StoredMessage

FORMAT_VERSION = 2
"""Raised when a store written today could not be read by yesterday's code.

1: a subscription's record holds its rules, which is still read. 2: each rule has its own record."""

FORMAT_KEY = b"F"
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
_MESSAGE_HEAD = struct.Struct("<qQqqqQBIIIII")
_LENGTHS = struct.Struct("<IIII")
_HEAD_BYTES = _MESSAGE_HEAD.size
_LENGTHS_AT = _MESSAGE_HEAD.size - _LENGTHS.size
_AMENDMENT_HEAD = struct.Struct("<BI")

Data = bytes | memoryview


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
    """A copy of the payload alone."""
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


def pack_entity(kind: str, path: str, description: dict[str, object]) -> bytes:
    return json.dumps([kind, path, description], separators=(",", ":")).encode()


def unpack_entity(record: Data) -> tuple[str, str, dict[str, object]]:
    kind, path, description = json.loads(bytes(record))
    return kind, path, description


def pack_rule(name: str, record: dict[str, Any]) -> bytes:
    return json.dumps([name, record], separators=(",", ":")).encode()


def unpack_rule(record: Data) -> tuple[str, dict[str, Any]]:
    name, rule = json.loads(bytes(record))
    return name, rule


def pack_number(number: int) -> bytes:
    return _NUMBER.pack(number)


def unpack_number(record: Data) -> int:
    return int(_NUMBER.unpack(record)[0])


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
    return int(_FORMAT.unpack(record)[0])
