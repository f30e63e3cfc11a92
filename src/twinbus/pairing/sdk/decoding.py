"""Decodes a delivery to the SDK's message value, faster than the SDK's own decoder.

Nearly all messages have one data section, and before it sections whose values are texts, bytes,
numbers and null. Those are read here. Whatever else a message has, malformed bytes included, the
SDK's decoder reads it all: so values and errors are always the SDK's own. Texts are bytes, as the
SDK has them.

Most headers are the same: they are read once.
"""

from __future__ import annotations

from typing import Final

from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp.message import Header, Message, Properties

from twinbus.transfer.identity import Head, read_head
from twinbus.transfer.plain_values import (
    UNREADABLE,
    WIDE,
    Uncommon,
    annotations_in,
    map_in,
    values_in,
)

LEARNED_MAX: Final = 256
"""Headers that are remembered; past that all are forgotten and learned again."""

HEADER_BYTES_MAX: Final = 32
"""The longest header that is remembered."""


def decode_message(data: bytes, head: Head | None = None) -> Message:
    """Return what the SDK's `decode_payload` returns, or raise what it raises.

    `head` is what was read of it already; its annotations become those of the message.
    """
    try:
        return _decoded(data, head or read_head(data))
    except UNREADABLE:
        return decode_payload(memoryview(data))


def _decoded(data: bytes, head: Head | None) -> Message:
    if head is None:
        raise Uncommon
    (delivery_at, annotations_at, properties_at, application_at, body_at), annotations = head
    delivery = properties = application = None
    if delivery_at < annotations_at:
        delivery = annotations_in(data, delivery_at + 5, annotations_at, 0)
    if properties_at < application_at:
        start, is_wide = _content(data, properties_at)
        properties = Properties(*values_in(data, start, application_at, is_wide))
    if application_at < body_at:
        start, is_wide = _content(data, application_at)
        application = map_in(data, start, body_at, is_wide)
    start, _ = _content(data, body_at)
    header = _header(data[:delivery_at]) if delivery_at else None
    return Message(header, delivery, annotations, properties, application, [data[start:]])


def _content(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of a section begins, and whether its sizes have four bytes."""
    is_wide = data[at + 3] & WIDE
    return at + (8 if is_wide else 5), is_wide


_headers: Final[dict[bytes, Header]] = {}


def _header(section: bytes) -> Header:
    header = _headers.get(section)
    if header is None:
        start, is_wide = _content(section, 0)
        header = Header(*values_in(section, start, len(section), is_wide))
        if len(section) <= HEADER_BYTES_MAX:
            if len(_headers) >= LEARNED_MAX:
                _headers.clear()
            _headers[section] = header
    return header
