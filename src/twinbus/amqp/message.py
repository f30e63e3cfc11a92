"""A message as its sections, each left as the bytes it came in.

The broker moves messages whose bodies it never decodes, so splitting and joining copy bytes and
decode nothing. What must be known is decoded section by section, by who asks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from twinbus.amqp import composites as kinds
from twinbus.amqp import encoding
from twinbus.amqp.composites import define, read_composite, write_composite
from twinbus.amqp.decoding import MALFORMED, Wire, decode, malformed, skip
from twinbus.amqp.types import DecodeError, Described, Symbol, ULong

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

BATCH_FORMAT: Final = 0x80013700
"""Message format of a transfer whose data sections are whole messages."""

_U32 = struct.Struct(">I").unpack_from
_HEAD_AND_SIZE = struct.Struct(">IB").unpack_from


@dataclass(slots=True)
class Sections:
    """The raw, whole encoding of each section, b"" where absent; `body` is all body sections."""

    header: bytes = b""
    delivery_annotations: bytes = b""
    message_annotations: bytes = b""
    properties: bytes = b""
    application_properties: bytes = b""
    body: bytes = b""
    footer: bytes = b""

    def __repr__(self) -> str:
        present = (f"{name}: {len(getattr(self, name))} B" for name in self.__slots__)
        return f"<sections {', '.join(present)}>"


_AROUND_BODY: Final = {
    HEADER: "header",
    DELIVERY_ANNOTATIONS: "delivery_annotations",
    MESSAGE_ANNOTATIONS: "message_annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application_properties",
    FOOTER: "footer",
}
_LISTS: Final = frozenset((0x45, 0xC0, 0xD0))
_MAPS: Final = frozenset((0xC1, 0xD1))
_BINARIES: Final = frozenset((0xA0, 0xB0))
_CONTENT: Final = {
    HEADER: _LISTS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: _BINARIES,
    SEQUENCE: _LISTS,
    VALUE: frozenset(range(256)),
    FOOTER: _MAPS,
}
"""Format codes a section's content may have."""

_LONG_HEAD_BYTES: Final = 8
_SHORT_HEADS: Final = frozenset(
    0x00530000 | code << 8 | form
    for code, forms in _CONTENT.items()
    for form in forms & {0xA0, 0xC0, 0xC1}
)
_LONG_HEADS: Final = frozenset(head + 0x10 for head in _SHORT_HEADS)
"""How nearly every section begins: 00 53, its code, a content with a size of one byte or four."""

_SYMBOLIC: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


Outline = tuple[int, int, int, int, int]
"""Where a message's sections begin, as `outline` returns it."""


def outline(data: bytes, offset: int = 0) -> Outline | None:
    """Offsets of delivery annotations, annotations, both kinds of properties, and of the body.

    What nearly every client sends from `offset` on: sections in order, recognised by their first
    four bytes, and one data section at the end. An absent section begins where the next does. None
    for any other message, and for a malformed one: `split` reads it, or reports what is wrong.
    """
    try:
        head, size = _HEAD_AND_SIZE(data, offset)
        if head == 0x005370C0:
            offset += 5 + size
            head, size = _HEAD_AND_SIZE(data, offset)
        elif head == 0x005370D0:
            offset += 8 + _U32(data, offset + 4)[0]
            head, size = _HEAD_AND_SIZE(data, offset)
        delivery_at = annotations_at = offset
        if head < 0x00537300:
            if head == 0x005371C1:
                annotations_at = offset = offset + 5 + size
                head, size = _HEAD_AND_SIZE(data, offset)
            if head == 0x005372C1:
                offset += 5 + size
                head, size = _HEAD_AND_SIZE(data, offset)
            elif head == 0x005372D1:
                offset += 8 + _U32(data, offset + 4)[0]
                head, size = _HEAD_AND_SIZE(data, offset)
        properties_at = offset
        if head == 0x005373C0:
            offset += 5 + size
            head, size = _HEAD_AND_SIZE(data, offset)
        elif head == 0x005373D0:
            offset += 8 + _U32(data, offset + 4)[0]
            head, size = _HEAD_AND_SIZE(data, offset)
        application_at = offset
        if head == 0x005374C1:
            offset += 5 + size
            head, size = _HEAD_AND_SIZE(data, offset)
        elif head == 0x005374D1:
            offset += 8 + _U32(data, offset + 4)[0]
            head, size = _HEAD_AND_SIZE(data, offset)
        if head == 0x005375B0:
            end = offset + 8 + _U32(data, offset + 4)[0]
        else:
            end = offset + 5 + size if head == 0x005375A0 else 0
    except struct.error:
        return None
    if end != len(data):
        return None
    return delivery_at, annotations_at, properties_at, application_at, offset


def split(data: bytes) -> Sections:
    return sections_at(data, outline(data))


def sections_at(data: bytes, offsets: Outline | None) -> Sections:
    """The sections of a message by its outline; found by skipping where it has none."""
    if offsets is not None:
        first, second, third, fourth, last = offsets
        return Sections(
            data[:first],
            data[first:second],
            data[second:third],
            data[third:fourth],
            data[fourth:last],
            data[last:],
        )
    raw = [b""] * 9
    body_start = body_end = previous = offset = 0
    size = len(data)
    while offset < size:
        code, end = _extent(data, offset, size)
        if code < DATA or code == FOOTER:
            # The Python SDK writes delivery annotations last, rhea the footer before the body.
            if raw[code - HEADER] or (code < previous and code not in _ANYWHERE):
                raise _out_of_order(code, offset)
            raw[code - HEADER] = data[offset:end]
        elif previous < DATA:
            body_start, body_end = offset, end
        elif code == previous and code != VALUE and offset == body_end:
            body_end = end
        else:
            raise _out_of_order(code, offset)
        if code not in _ANYWHERE:
            previous = code
        offset = end
    return Sections(raw[0], raw[1], raw[2], raw[3], raw[4], data[body_start:body_end], raw[8])


_ANYWHERE: Final = frozenset((DELIVERY_ANNOTATIONS, FOOTER))
"""Sections that clients write at other places than the specification says."""


def _extent(data: bytes, offset: int, size: int) -> tuple[int, int]:
    """Which section begins at `offset`, and the offset behind it."""
    if offset + _LONG_HEAD_BYTES < size:
        (head,) = _U32(data, offset)
        end = 0
        if head in _SHORT_HEADS:
            end = offset + 5 + data[offset + 4]
        elif head in _LONG_HEADS:
            end = offset + _LONG_HEAD_BYTES + _U32(data, offset + 4)[0]
        if 0 < end <= size:
            return head >> 8 & 0xFF, end
    code, content = section_at(data, offset)
    return code, skip(data, content)


def join(sections: Sections) -> bytes:
    """The encoded message, its sections in the order of the specification."""
    return b"".join(
        (
            sections.header,
            sections.delivery_annotations,
            sections.message_annotations,
            sections.properties,
            sections.application_properties,
            sections.body,
            sections.footer,
        )
    )


def section_at(data: Wire, offset: int) -> tuple[int, int]:
    """Which section begins at `offset`, and where its content does; DecodeError if none does."""
    try:
        if data[offset] == 0 and data[offset + 1] == 0x53:
            code, content = data[offset + 2], offset + 3
        elif data[offset] == 0:
            descriptor, content = decode(data, offset + 1)
            known = isinstance(descriptor, (ULong, str))
            code = _SYMBOLIC.get(descriptor, descriptor) if known else -1
        else:
            raise DecodeError(
                f"byte {offset} is 0x{data[offset]:02x}, where a section should begin"
            )
        if code in _CONTENT and data[content] in _CONTENT[code]:
            return code, content
    except IndexError:
        raise DecodeError(f"the section at byte {offset} has no content") from None
    if code not in _CONTENT:
        raise DecodeError(f"the section at byte {offset} is none of a message's sections")
    raise DecodeError(
        f"the {_section_name(code)} at byte {offset} has content of type 0x{data[content]:02x}"
    )


def _section_name(code: int) -> str:
    return next(name for name, known in _SYMBOLIC.items() if known == code).split(":")[1]


def _out_of_order(code: int, offset: int) -> DecodeError:
    return DecodeError(f"the {_section_name(code)} section at byte {offset} is out of order")


@dataclass(slots=True)
class Header:
    """How a message is to be carried; null fields read as None."""

    durable: bool | None = None
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool | None = None
    delivery_count: int | None = None


@dataclass(slots=True)
class Properties:
    """What a message is and where it belongs. Message ids are str, ulong (int), uuid or bytes."""

    message_id: str | int | UUID | bytes | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: str | int | UUID | bytes | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


_ID = kinds.FieldType(
    "message id",
    lambda value: isinstance(value, (str, bytes, UUID)) or type(value) is ULong,
    lambda value: encoding.ulong(value) if isinstance(value, int) else encoding.write(value),
)
_TIMESTAMP = kinds.FieldType(
    "timestamp",
    lambda value: isinstance(value, int) and not isinstance(value, bool),
    lambda value: struct.pack(">Bq", 0x83, value),
)
_BOOL, _STR, _SYM, _UINT = kinds.BOOLEAN, kinds.STRING, kinds.SYMBOL, kinds.UINT

# fmt: off
define(Header, "header", HEADER,
       _BOOL, kinds.UBYTE, _UINT, _BOOL, _UINT)
define(Properties, "properties", PROPERTIES,
       _ID, kinds.BINARY, _STR, _STR, _STR, _ID, _SYM, _SYM, _TIMESTAMP, _TIMESTAMP,
       _STR, _UINT, _STR)
# fmt: on


def decode_header(raw: bytes) -> Header:
    """The header of a raw section; an empty one for b""."""
    return _read_section(raw, Header) if raw else Header()


def decode_properties(raw: bytes) -> Properties:
    """The properties of a raw section; empty ones for b""."""
    return _read_section(raw, Properties) if raw else Properties()


def _read_section(raw: bytes, cls: type) -> Any:
    try:
        value, _ = read_composite(raw, 0)
    except MALFORMED as error:
        raise malformed(error, raw) from None
    if not isinstance(value, cls):
        raise DecodeError(f"{value!r:.80} is not a {cls.__name__.lower()} section")
    return value


def decode_map(raw: bytes) -> dict[Any, Any]:
    """The map of a raw annotations, application-properties or footer section; {} for b""."""
    if not raw:
        return {}
    _, content = section_at(raw, 0)
    value, _ = decode(raw, content)
    if not isinstance(value, dict):
        raise DecodeError(f"{value!r:.80} is not a map")
    return value


def encode_header(header: Header) -> bytes:
    return write_composite(header)


def encode_properties(properties: Properties) -> bytes:
    return write_composite(properties)


def encode_map_section(code: int, entries: dict[Any, Any]) -> bytes:
    """A raw section around a map; keys of annotations are written as symbols, of application
    properties as strings."""
    key_type = str if code == APPLICATION_PROPERTIES else Symbol
    keyed = {key_type(key) if isinstance(key, str) else key: entries[key] for key in entries}
    return bytes((0x00, 0x53, code)) + encoding.encode(keyed)


def data_sections(body: bytes) -> Iterator[bytes]:
    """The content of each data section of a body: the messages of a batch."""
    offset = 0
    while offset < len(body):
        code, content = section_at(body, offset)
        if code != DATA:
            raise DecodeError(
                f"the body has an {_section_name(code)} section among its data sections"
            )
        offset = skip(body, content)
        yield body[content + (2 if body[content] == 0xA0 else 5) : offset]


def batch_parts(data: bytes, envelope: Sections | None = None) -> Iterator[bytes]:
    """The messages of a batch, found one after the other: the content of its data sections.

    An `envelope` gets its other sections.
    """
    previous = offset = body_end = 0
    size, seen = len(data), set[int]()
    while offset < size:
        code, end = _extent(data, offset, size)
        if code == DATA:
            if body_end not in (0, offset):
                raise _out_of_order(code, offset)
            body_end = end
            content = section_at(data, offset)[1]
            yield data[content + (2 if data[content] == 0xA0 else 5) : end]
        elif DATA < code < FOOTER:
            raise DecodeError(
                f"the body has an {_section_name(code)} section among its data sections"
            )
        elif code in seen or (code < previous and code not in _ANYWHERE):
            raise _out_of_order(code, offset)
        else:
            seen.add(code)
            if envelope is not None:
                setattr(envelope, _AROUND_BODY[code], data[offset:end])
        if code not in _ANYWHERE:
            previous = code
        offset = end


def decode_value(body: bytes) -> Any:
    """The value of a body that is one amqp-value section."""
    code, content = section_at(body, 0)
    if code != VALUE:
        raise DecodeError(f"the body is an {_section_name(code)} section, not an amqp-value")
    value, _ = decode(body, content)
    return value


_ABSENT: Final = object()


def encode_message(
    *,
    header: Header | None = None,
    delivery_annotations: dict[Any, Any] | None = None,
    message_annotations: dict[Any, Any] | None = None,
    properties: Properties | None = None,
    application_properties: dict[Any, Any] | None = None,
    value: object = _ABSENT,
    data: bytes | None = None,
) -> bytes:
    """A whole message from its parts; the body is `value`, or `data`, or absent."""
    parts = [encode_header(header)] if header is not None else []
    for code, entries in (
        (DELIVERY_ANNOTATIONS, delivery_annotations),
        (MESSAGE_ANNOTATIONS, message_annotations),
    ):
        if entries:
            parts.append(encode_map_section(code, entries))
    if properties is not None:
        parts.append(encode_properties(properties))
    if application_properties:
        parts.append(encode_map_section(APPLICATION_PROPERTIES, application_properties))
    if data is not None:
        parts.append(encoding.encode(Described(ULong(DATA), data)))
    elif value is not _ABSENT:
        parts.append(encoding.encode(Described(ULong(VALUE), value)))
    return b"".join(parts)
