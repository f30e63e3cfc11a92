"""Marks the sequence numbers of messages that come from a twin (servicebus/twins.py). Pure."""

from __future__ import annotations

from typing import Final

from twinbus.amqp.decoding import decode
from twinbus.amqp.encoding import encode, symbol
from twinbus.amqp.message import MESSAGE_ANNOTATIONS, join, split
from twinbus.amqp.types import DecodeError
from twinbus.servicebus.names import SEQUENCE_NUMBER
from twinbus.servicebus.twins import secondary_number
from twinbus.transfer.sections import entries_of, with_entries

_SEQUENCE: Final = SEQUENCE_NUMBER.encode()
_SEQUENCE_KEY: Final = symbol(SEQUENCE_NUMBER)


def with_secondary_number(data: bytes) -> bytes:
    """Return a delivered message with bit 62 in its sequence number.

    A message without a number that can be read stays as it is.
    """
    try:
        sections = split(data)
        raw = sections.message_annotations
        entries = entries_of(raw)
        found = [decode(raw, value_at)[0] for key, _, value_at, _ in entries if key == _SEQUENCE]
    except DecodeError:
        return data
    if len(found) != 1 or not isinstance(found[0], int) or isinstance(found[0], bool):
        return data
    sections.message_annotations = with_entries(
        raw,
        MESSAGE_ANNOTATIONS,
        entries,
        without=(_SEQUENCE,),
        added=(_SEQUENCE_KEY + encode(secondary_number(int(found[0]))),),
    )
    return join(sections)
