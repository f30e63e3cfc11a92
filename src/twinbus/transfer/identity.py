"""What identifies a message, read from a raw delivery: for second copies and the ledger. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NamedTuple
from uuid import UUID

from twinbus.amqp.decoding import decode
from twinbus.amqp.message import Outline, decode_map, outline, sections_at, split
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
_SHORT_TEXT: Final = b"\xa1"
_SHORT_PROPERTIES: Final = b"\x00\x53\x73\xc0"
"""How properties with sizes of one byte begin; their size, count and id follow."""


class Head(NamedTuple):
    """What is read of a message once, for the ledger, the application and second copies."""

    outline: Outline
    annotations: dict[Any, Any] | None
    """The message annotations, with keys as bytes; None: there are none."""


def read_head(data: bytes) -> Head | None:
    """Return the head of a message; None: only the general decoders can read it."""
    found = outline(data)
    if found is None:
        return None
    _, start, end, _, _ = found
    if start == end:
        return Head(found, None)
    is_wide = data[start + 3] & WIDE
    try:
        annotations = annotations_in(data, start + (8 if is_wide else 5), end, is_wide)
    except UNREADABLE:
        return None
    return Head(found, annotations)


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
    data: bytes,
    *,
    with_mark: bool,
    stamps: tuple[int, int] | None = None,
    head: Head | None = None,
) -> MessageIdentity | None:
    """Return what identifies a message; None: it has no id, or cannot be read.

    `with_mark`: None also if it does not have the mark of a message that was diverted to a twin.
    `stamps` are its sequence number and its enqueued time, and `head` its head, if the caller has
    read them. Only what is asked for is decoded: a receiver with a twin reads this of each message.
    """
    try:
        offsets = outline(data) if head is None else head.outline
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


def read_names(data: bytes, head: Head | None) -> MessageNames:
    """Return what the ledger names a message by; never raises, for any client wrote the bytes."""
    try:
        if head is not None:
            (_, _, at, application_at, _), annotations = head
            number = None if annotations is None else annotations.get(_SEQUENCE)
            is_number = type(number) is int and 0 <= number <= NUMBER_MAX
            return message_id_in(data[at:application_at]), number if is_number else None
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


def _message_id(properties: bytes) -> str | ULong | UUID | bytes | None:
    if properties[:4] == _SHORT_PROPERTIES and properties[5:6] != b"\x00":
        if properties[6:7] == _SHORT_TEXT and 8 < len(properties) >= 8 + properties[7]:
            try:
                return properties[8 : 8 + properties[7]].decode()
            except UnicodeDecodeError:
                pass  # The general decoder reports it.
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
