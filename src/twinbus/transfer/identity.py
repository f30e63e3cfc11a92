"""What identifies a message, read from a raw delivery: for second copies and the ledger. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple
from uuid import UUID

from twinbus.amqp.decoding import decode
from twinbus.amqp.message import decode_map, decode_properties, split
from twinbus.amqp.types import AmqpError, DecodeError
from twinbus.servicebus.names import ENQUEUED_TIME, SEQUENCE_NUMBER
from twinbus.servicebus.twins import DIVERTED, DivertMark, read_divert_mark
from twinbus.transfer.sections import entries_of
from twinbus.transfer.unpacking import UNFORESEEN, message_id_in

DIGEST_BYTES: Final = 16

MessageNames = tuple[str | None, int | None]
"""The id of a message as text, and its sequence number; None: it has none."""

NUMBER_MAX: Final = (1 << 63) - 1
"""Sequence numbers are signed in Service Bus, and in the tables over a ledger."""

_SEQUENCE: Final = SEQUENCE_NUMBER.encode()


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


def read_identity(data: bytes, *, with_mark: bool) -> MessageIdentity | None:
    """Return what identifies a message; None: it has no id, or cannot be read.

    `with_mark`: None also if it does not have the mark of a message that was diverted to a twin.
    """
    try:
        sections = split(data)
        mark = None
        if with_mark:
            mark = read_divert_mark(decode_map(sections.application_properties).get(DIVERTED))
            if mark is None:
                return None
        message_id = decode_properties(sections.properties).message_id
        annotations = decode_map(sections.message_annotations)
    except DecodeError:
        return None
    number, enqueued_ms = annotations.get(SEQUENCE_NUMBER), annotations.get(ENQUEUED_TIME)
    if message_id is None or not isinstance(number, int) or not isinstance(enqueued_ms, int):
        return None
    digest = blake2b(sections.body, digest_size=DIGEST_BYTES).digest()
    return MessageIdentity(number, enqueued_ms, message_id, digest, mark)


def read_names(data: bytes) -> MessageNames:
    """Return what the ledger names a message by; never raises, for any client wrote the bytes."""
    try:
        sections = split(data)
        message_id = message_id_in(sections.properties)
        raw = sections.message_annotations
        for key, _, value_at, _ in entries_of(raw):
            if key == _SEQUENCE:
                number = decode(raw, value_at)[0]
                is_number = isinstance(number, int) and not isinstance(number, bool)
                return message_id, number if is_number and 0 <= number <= NUMBER_MAX else None
    except (AmqpError, *UNFORESEEN):
        return None, None
    return message_id, None
