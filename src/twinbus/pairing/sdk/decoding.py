"""Decodes a delivery to the SDK's message value, faster than the SDK's own decoder.

Nearly all messages consist of sections whose values are texts, bytes, numbers and null. Those are
read here. Whatever else a message has, malformed bytes included, the SDK's decoder reads it all: so
values and errors are always the SDK's own. Texts are bytes, as the SDK has them.

Most headers are the same: they are read once.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp.message import Header, Message, Properties

from twinbus.transfer.plain_values import (
    UNREADABLE,
    WIDE,
    Uncommon,
    annotations_in,
    map_in,
    values_in,
)

_HEADER, _PROPERTIES, _DATA = 0x70, 0x73, 0x75
_DELIVERY_ANNOTATIONS, _ANNOTATIONS, _APPLICATION_PROPERTIES, _FOOTER = 0x71, 0x72, 0x74, 0x78
"""Codes of a message's sections."""
_ANNOTATION_MAPS: Final = frozenset((_DELIVERY_ANNOTATIONS, _ANNOTATIONS))
_OTHER_MAPS: Final = frozenset((_APPLICATION_PROPERTIES, _FOOTER))

_U32: Final = struct.Struct(">I").unpack_from
_LIST, _MAP, _BINARY = 0xC0, 0xC1, 0xA0
"""Forms of a section's content; one with a size of four bytes has `WIDE` set."""

LEARNED_MAX: Final = 256
"""Headers that are remembered; past that all are forgotten and learned again."""

HEADER_BYTES_MAX: Final = 32
"""The longest header that is remembered."""


def decode_message(data: bytes) -> Message:
    """Return what the SDK's `decode_payload` returns, or raise what it raises."""
    try:
        return _decoded(data)
    except UNREADABLE:
        return decode_payload(memoryview(data))


def _decoded(data: bytes) -> Message:
    header: Header | None = None
    properties: Properties | None = None
    maps: dict[int, dict[Any, Any]] = {}
    body: list[bytes] = []
    offset, size = 0, len(data)
    while offset < size:
        head = _U32(data, offset)[0]
        form = head & 0xFF
        is_wide = form & WIDE
        if is_wide:
            start = offset + 8
            offset = start + _U32(data, offset + 4)[0]
        else:
            start = offset + 5
            offset = start + data[start - 1]
        if head & 0xFFFF0000 != 0x00530000 or offset > size:
            raise Uncommon
        code, form = head >> 8 & 0xFF, form & ~WIDE
        if code == _DATA and form == _BINARY:
            body.append(data[start:offset])
        elif code == _PROPERTIES and form == _LIST:
            properties = Properties(*values_in(data, start, offset, is_wide))
        elif code == _HEADER and form == _LIST:
            header = _header(data, start, offset, is_wide)
        elif code in _ANNOTATION_MAPS and form == _MAP:
            maps[code] = annotations_in(data, start, offset, is_wide)
        elif code in _OTHER_MAPS and form == _MAP:
            maps[code] = map_in(data, start, offset, is_wide)
        else:
            raise Uncommon
    return Message(
        header,
        maps.get(_DELIVERY_ANNOTATIONS),
        maps.get(_ANNOTATIONS),
        properties,
        maps.get(_APPLICATION_PROPERTIES),
        body or None,
        footer=maps.get(_FOOTER),
    )


_headers: Final[dict[bytes, Header]] = {}


def _header(data: bytes, start: int, end: int, is_wide: int) -> Header:
    raw = data[start:end]
    header = None if is_wide else _headers.get(raw)
    if header is None:
        header = Header(*values_in(data, start, end, is_wide))
        if not is_wide and len(raw) <= HEADER_BYTES_MAX:
            if len(_headers) >= LEARNED_MAX:
                _headers.clear()
            _headers[raw] = header
    return header
