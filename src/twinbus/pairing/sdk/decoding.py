"""Decodes a delivery to the SDK's message value, faster than the SDK's own decoder.

Nearly all messages consist of sections whose values are texts, bytes, numbers and null. Those are
read here. Whatever else a message has, malformed bytes included, the SDK's decoder reads it all: so
values and errors are always the SDK's own. Texts are bytes, as the SDK has them.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID

from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp.message import Header, Message, Properties

from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)

_U32: Final = struct.Struct(">I").unpack_from
_LIST, _MAP, _BINARY = 0xC0, 0xC1, 0xA0
"""Forms of a section's content; one with a size of four bytes has `_WIDE` set."""
_WIDE: Final = 0x10

_CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_SHORT_BYTES: Final = frozenset((0xA0, 0xA1, 0xA3))
_LONG_BYTES: Final = frozenset((0xB0, 0xB1, 0xB3))
_FIXED: Final[dict[int, tuple[Any, int]]] = {
    code: (struct.Struct(layout).unpack_from, 1 + struct.calcsize(layout))
    for layout, codes in {
        ">B": (0x50, 0x52, 0x53),
        ">b": (0x51, 0x54, 0x55),
        ">H": (0x60,),
        ">h": (0x61,),
        ">I": (0x70,),
        ">i": (0x71,),
        ">f": (0x72,),
        ">Q": (0x80,),
        ">q": (0x81, 0x83),
        ">d": (0x82,),
    }.items()
    for code in codes
}
"""How a number is read, and its bytes with its format code."""

_BOOLEAN, _UUID = 0x56, 0x98


class _Uncommon(Exception):
    """A message, or a value of it, that the SDK's decoder is to read."""


def decode_message(data: bytes) -> Message:
    """Return what the SDK's `decode_payload` returns, or raise what it raises."""
    try:
        return _decoded(data)
    except (_Uncommon, IndexError, struct.error, TypeError, ValueError):
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
        is_wide = form & _WIDE
        if is_wide:
            start = offset + 8
            offset = start + _U32(data, offset + 4)[0]
        else:
            start = offset + 5
            offset = start + data[start - 1]
        if head & 0xFFFF0000 != 0x00530000 or offset > size:
            raise _Uncommon
        code, form = head >> 8 & 0xFF, form & ~_WIDE
        if code == DATA and form == _BINARY:
            body.append(data[start:offset])
        elif code == PROPERTIES and form == _LIST:
            properties = Properties(*_values(data, start, offset, is_wide))
        elif code == HEADER and form == _LIST:
            header = Header(*_values(data, start, offset, is_wide))
        elif code in _MAPS and form == _MAP:
            values = _values(data, start, offset, is_wide)
            maps[code] = dict(zip(values[::2], values[1::2], strict=True))
        else:
            raise _Uncommon
    return Message(
        header,
        maps.get(DELIVERY_ANNOTATIONS),
        maps.get(MESSAGE_ANNOTATIONS),
        properties,
        maps.get(APPLICATION_PROPERTIES),
        body or None,
        footer=maps.get(FOOTER),
    )


_MAPS: Final = frozenset(
    (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER)
)


def _values(data: bytes, offset: int, end: int, is_wide: int) -> list[Any]:
    """The values of a list or map whose count is at `offset`."""
    if is_wide:
        count = _U32(data, offset)[0]
        offset += 4
    else:
        count = data[offset]
        offset += 1
    if count > end - offset:
        raise _Uncommon
    values = []
    for _ in range(count):
        code = data[offset]
        if code in _SHORT_BYTES:
            start = offset + 2
            offset = start + data[start - 1]
            values.append(data[start:offset])
        elif code in _CONSTANTS:
            offset += 1
            values.append(_CONSTANTS[code])
        elif code in _FIXED:
            unpack, width = _FIXED[code]
            values.append(unpack(data, offset + 1)[0])
            offset += width
        elif code in _LONG_BYTES:
            start = offset + 5
            offset = start + _U32(data, offset + 1)[0]
            values.append(data[start:offset])
        elif code == _BOOLEAN:
            values.append(data[offset + 1] == 1)
            offset += 2
        elif code == _UUID:
            values.append(UUID(bytes=data[offset + 1 : offset + 17]))
            offset += 17
        else:
            raise _Uncommon
    if offset != end:
        raise _Uncommon
    return values
