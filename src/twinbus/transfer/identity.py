"""What identifies a message, read from a raw delivery: for second copies and the ledger. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NamedTuple
from uuid import UUID

from twinbus.amqp.decoding import decode
from twinbus.amqp.message import decode_map, outline, sections_at, split
from twinbus.amqp.types import AmqpError, DecodeError, ULong
from twinbus.servicebus.names import ENQUEUED_TIME, SEQUENCE_NUMBER
from twinbus.servicebus.twins import DIVERTED, DivertMark, read_divert_mark
from twinbus.transfer.plain_values import UNREADABLE, WIDE, annotations_in
from twinbus.transfer.sections import entries_of, field_value, fields_of
from twinbus.transfer.unpacking import UNFORESEEN, message_id_in

DIGEST_BYTES: Final = 16

MessageNames = tuple[str | None, int | None]
"""The id of a message as text, and its sequence number; None: it has none."""

NUMBER_MAX: Final = (1 << 63) - 1
"""Sequence numbers are signed in Service Bus, and in the tables over a ledger."""

_SEQUENCE: Final = SEQUENCE_NUMBER.encode()
_ENQUEUED: Final = ENQUEUED_TIME.encode()
_SHORT_PROPERTIES: Final = b"\x00\x53\x73\xc0"
"""How properties with sizes of one byte begin; their size, count and id follow."""


class MessageIdentity(NamedTuple):
    """One message in one entity."""

    number: int
    """The sequence number."""
    enqueued_ms: int
    message_id: str | int | UUID | bytes
    digest: bytes
    """Of the body sections."""
    mark: DivertMark | None
    """Read only if asked for."""


def read_identity(
    data: bytes, *, with_mark: bool, stamps: tuple[int, int] | None = None
) -> MessageIdentity | None:
    """Return what identifies a message; None: it has no id, or cannot be read.

    `with_mark`: None also if it does not have the mark of a message that was diverted to a twin.
    `stamps` are its sequence number and its enqueued time, if the caller has read them. Only what
    is asked for is decoded: a receiver with a twin reads this of each message.
    """
    try:
        offsets = outline(data)
        if offsets is not None and stamps is not None and not with_mark:
            _, _, at, application_at, body_at = offsets
            message_id = _message_id(data[at:application_at])
            if message_id is None:
                return None
            digest = blake2b(memoryview(data)[body_at:], digest_size=DIGEST_BYTES).digest()
            return MessageIdentity(*stamps, message_id, digest, None)
        sections = sections_at(data, offsets)
        mark = None
        if with_mark:
            mark = read_divert_mark(decode_map(sections.application_properties).get(DIVERTED))
            if mark is None:
                return None
        message_id = _message_id(sections.properties)
        number, enqueued_ms = _annotations(sections.message_annotations)
    except DecodeError:
        return None
    if message_id is None or not isinstance(number, int) or not isinstance(enqueued_ms, int):
        return None
    digest = blake2b(sections.body, digest_size=DIGEST_BYTES).digest()
    return MessageIdentity(number, enqueued_ms, message_id, digest, mark)


def read_names(data: bytes) -> MessageNames:
    """Return what the ledger names a message by; never raises, for any client wrote the bytes."""
    try:
        offsets = outline(data)
        if offsets is not None:
            _, annotations_at, at, application_at, _ = offsets
            properties = data[at:application_at]
            known = _known_number(data, annotations_at, at)
            if known is not None:
                return message_id_in(properties), known
            raw = data[annotations_at:at]
        else:
            sections = split(data)
            raw, properties = sections.message_annotations, sections.properties
        message_id = message_id_in(properties)
        for key, _, value_at, _ in entries_of(raw):
            if key == _SEQUENCE:
                number = decode(raw, value_at)[0]
                is_number = isinstance(number, int) and not isinstance(number, bool)
                return message_id, number if is_number and 0 <= number <= NUMBER_MAX else None
    except (AmqpError, *UNFORESEEN):
        return None, None
    return message_id, None


def _known_number(data: bytes, start: int, end: int) -> int | None:
    """The sequence number, if the annotations are laid out as those of earlier messages."""
    if start == end:
        return None
    is_wide = data[start + 3] & WIDE
    try:
        found = annotations_in(data, start + (8 if is_wide else 5), end, is_wide)
    except UNREADABLE:
        return None
    number = found.get(_SEQUENCE)
    return number if type(number) is int and 0 <= number <= NUMBER_MAX else None


def _message_id(properties: bytes) -> str | ULong | UUID | bytes | None:
    if properties[:4] == _SHORT_PROPERTIES and properties[5:6] != b"\x00":
        found = decode(properties, 6)[0]
    else:
        found = field_value(properties, fields_of(properties), 0)
    return found if isinstance(found, (str, ULong, UUID, bytes)) else None


def _annotations(raw: bytes) -> tuple[Any, Any]:
    """The sequence number and the time of enqueueing; None where it is absent."""
    number = enqueued_ms = None
    for key, _, value_at, _ in entries_of(raw):
        if key == _SEQUENCE:
            number = decode(raw, value_at)[0]
        elif key == _ENQUEUED:
            enqueued_ms = decode(raw, value_at)[0]
    return number, enqueued_ms
