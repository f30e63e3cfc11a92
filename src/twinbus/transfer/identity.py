"""What tells two copies of one message apart from two messages: read from a raw delivery. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple
from uuid import UUID

from twinbus.amqp.message import decode_map, decode_properties, split
from twinbus.amqp.types import DecodeError
from twinbus.servicebus.names import ENQUEUED_TIME, SEQUENCE_NUMBER
from twinbus.servicebus.twins import DIVERTED, DivertMark, read_divert_mark

DIGEST_BYTES: Final = 16


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
