"""Messages of the SDK as the bytes of one delivery, as the SDK's own senders write them.

Nearly all messages consist of sections whose values are texts, bytes, numbers and null. Those are
written here, in a small part of the SDK's time. Whatever else a message has, also what cannot be
written, is left to the SDK's encoder: so bytes and errors are always the SDK's own
(tests/property/test_sdk_encoding.py).
"""

from __future__ import annotations

import calendar
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.tracing import is_tracing_enabled, trace_message
from azure.servicebus._common.utils import transform_outbound_messages
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message, Properties
from azure.servicebus._servicebus_sender import SenderMixin
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.pairing.sdk.guards import annotated
from twinbus.transfer.plain_values import Uncommon

_is_tracing_enabled: Final[Callable[[], bool]] = is_tracing_enabled
_trace_message: Final[Callable[..., Message]] = trace_message
_scheduling: Final[Callable[..., tuple[Any, Any]]] = SenderMixin._build_schedule_request

SINGLE_FORMAT: Final = 0
BATCH_FORMAT: Final = 0x8001_3700

TTL_MAX_MS: Final = 922_337_203_685_477
EXPIRY_MAX_MS: Final = 253_402_243_199_000
"""A time to live that means none, and the latest expiry that the SDK writes."""

PARTITION_KEY: Final = b"x-opt-partition-key"
AS_LONG: Final = frozenset((b"x-opt-enqueued-time", b"x-opt-locked-until"))
"""Annotations of a received message that the SDK writes in another form than any other number."""


UNWRITABLE: Final = (
    Uncommon, KeyError, AttributeError, TypeError, ValueError, OverflowError, struct.error,
)  # fmt: skip
"""Raised by a writer for a value that is not as nearly all are."""


def encoded(payload: Any) -> tuple[bytes, int]:
    """Return the bytes and the message format of a message, a list of messages or a batch.

    Raises what the SDK raises for a message that it cannot encode.
    """
    if isinstance(payload, ServiceBusMessageBatch):
        if type(payload._message) is list:
            return _batch_bytes(payload._message), BATCH_FORMAT
        payload = list(payload._messages)  # made for the transport of a former SDK
    if isinstance(payload, list):
        envelope, body = list_bytes(payload)
        return envelope + body, BATCH_FORMAT
    return message_bytes(payload), SINGLE_FORMAT


def message_bytes(message: Any) -> bytes:
    """Return the bytes of one message."""
    return message_writer()(message)


def message_writer() -> Callable[[Any], bytes]:
    """Return what makes the bytes of messages, as the SDK's settings are now.

    To ask for them costs a third as much as to write a message.
    """
    # The SDK makes a span for each message, if the application wants its spans.
    return _bytes_with_trace if _is_tracing_enabled() else _bytes


def list_bytes(messages: list[Any]) -> tuple[bytes, bytes]:
    """Return the envelope of a batch of these messages, and the messages as its body.

    The size of a batch, as the SDK counts it, is that of the body.
    """
    return _envelope(annotated(messages[0])), _joined(map(message_writer(), messages))


def schedule_request(payload: Any, schedule_time_utc: datetime) -> list[dict[str, Any]]:
    """Return what a request to schedule says of each message: its bytes, and its ids by name.

    The messages get the time, as the SDK's sender gives it to them.
    """
    made = transform_outbound_messages(
        payload, ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message
    )
    every = made if isinstance(made, list) else [made]
    body, _ = _scheduling(schedule_time_utc, PyamqpTransport, {}, *every)
    messages: list[dict[str, Any]] = body["messages"]
    return messages


def too_large(path: str, size_bytes: int, limit_bytes: int) -> MessageSizeExceededError:
    """The SDK's error for a delivery above the limit of its entity."""
    return MessageSizeExceededError(
        message=f"{path} takes {limit_bytes} bytes in one send, and this one has {size_bytes}"
    )


def _bytes(message: Any) -> bytes:
    raw = annotated(message)
    try:
        return _plain_bytes(raw)
    except UNWRITABLE:
        made = PyamqpTransport.to_outgoing_amqp_message(raw)
        return bytes(encode_payload(bytearray(), made))


def _bytes_with_trace(message: Any) -> bytes:
    made = PyamqpTransport.to_outgoing_amqp_message(annotated(message))
    made = _trace_message(made, amqp_transport=PyamqpTransport)
    return bytes(encode_payload(bytearray(), made))


# Values

Write = Callable[[Any], bytes]

_NULL: Final = b"\x40"


def _variable(code: int) -> Write:
    """The writer of texts and bytes; a code with a size of one byte, and 0x10 more with four."""
    heads = tuple(bytes((code, size)) for size in range(256))
    wide = bytes((code + 0x10,))

    def write(value: Any) -> bytes:
        data: bytes = value if type(value) is bytes else value.encode()
        size = len(data)
        return (heads[size] if size < 256 else wide + size.to_bytes(4)) + data

    return write


_string, _symbol, _text_or_bytes = _variable(0xA1), _variable(0xA3), (str, bytes)
_INTS: Final = tuple(bytes((0x54, number & 0xFF)) for number in range(-128, 128))
_UINTS: Final = (b"\x43", *(bytes((0x52, number)) for number in range(1, 256)))
_ULONGS: Final = (b"\x44", *(bytes((0x53, number)) for number in range(1, 256)))
_pack_double: Final = struct.Struct(">Bd").pack
_pack_timestamp: Final = struct.Struct(">Bq").pack


def _binary(value: Any) -> bytes:
    if type(value) is not bytes:
        raise Uncommon
    return _write_binary(value)


_write_binary = _variable(0xA0)


def _int(value: int) -> bytes:
    if -128 <= value <= 127:
        return _INTS[value + 128]
    return b"\x71" + value.to_bytes(4, signed=True)


def _unsigned(small: tuple[bytes, ...], wide: bytes, size: int) -> Write:
    def write(value: Any) -> bytes:
        if type(value) is not int:
            raise Uncommon
        return small[value] if 0 <= value < 256 else wide + value.to_bytes(size)

    return write


_uint, _ulong = _unsigned(_UINTS, b"\x70", 4), _unsigned(_ULONGS, b"\x80", 8)


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise Uncommon
    return b"\x56\x01" if value else b"\x56\x00"


def _ubyte(value: Any) -> bytes:
    if type(value) is not int:
        raise Uncommon
    return b"\x50" + value.to_bytes(1)


def _timestamp(value: Any) -> bytes:
    if type(value) is not int:
        raise Uncommon
    return _pack_timestamp(0x83, value)


def _datetime(value: datetime) -> bytes:
    whole_ms = calendar.timegm(value.utctimetuple()) * 1_000
    return _pack_timestamp(0x83, int(whole_ms + value.microsecond / 1_000))


def _typed(value: dict[str, Any]) -> bytes:
    """A value that states its AMQP type; the schedule of a message may be one."""
    if len(value) != 2 or value["TYPE"] != "TIMESTAMP":
        raise Uncommon
    return _timestamp(value["VALUE"])


_VALUES: Final[dict[type, Write]] = {
    type(None): lambda value: _NULL,
    bool: _boolean,
    str: _string,
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: _write_binary,
    float: lambda value: _pack_double(0x82, value),
    int: _int,
    datetime: _datetime,
    dict: _typed,
}

_CUSTOM_VALUES: Final[dict[type, Write]] = {
    **_VALUES,
    # The SDK makes a text of bytes, and refuses those that are none.
    bytes: lambda value: _string(value.decode()),
}


def _text(value: Any) -> bytes:
    if type(value) not in _text_or_bytes:
        raise Uncommon
    return _string(value)


def _name(value: Any) -> bytes:
    if type(value) not in _text_or_bytes:
        raise Uncommon
    return _symbol(value)


_IDS: Final[dict[type, Write]] = {
    str: _string,
    UUID: _VALUES[UUID],
    bytes: _write_binary,
    int: _ulong,
}


def _id(value: Any) -> bytes:
    return _IDS[type(value)](value)


# Sections

_HEADER_FIELDS: Final[dict[str, Write]] = {
    "durable": _boolean,
    "priority": _ubyte,
    "time_to_live": _uint,
    "first_acquirer": _boolean,
    "delivery_count": _uint,
}
_PROPERTY_FIELDS: Final[dict[str, Write]] = {
    "message_id": _id,
    "user_id": _binary,
    "to": _text,
    "subject": _text,
    "reply_to": _text,
    "correlation_id": _id,
    "content_type": _name,
    "content_encoding": _name,
    "absolute_expiry_time": _timestamp,
    "creation_time": _timestamp,
    "group_id": _text,
    "group_sequence": _uint,
    "reply_to_group_id": _text,
}
"""Fields of a list, in the order of the specification, with the names of the SDK's attributes."""

_PROPERTY_WRITERS: Final = tuple(_PROPERTY_FIELDS.items())
_NO_HEADER: Final[dict[str, Any]] = dict.fromkeys(_HEADER_FIELDS)
_NO_PROPERTIES: Final[dict[str, Any]] = dict.fromkeys(_PROPERTY_FIELDS)
_AFTER_ID: Final = _NULL * (len(_PROPERTY_FIELDS) - 1)

_HEADER, _ANNOTATIONS, _PROPERTIES, _CUSTOM = 0x70, 0x72, 0x73, 0x74
_ID_HEADS: Final = tuple(
    bytes((0x00, 0x53, _PROPERTIES, 0xC0, size + 15, len(_PROPERTY_FIELDS), 0xA1, size))
    for size in range(129)
)
"""What stands before a message id that is the only property, by its size."""
_DATA_HEADS: Final = tuple(bytes((0x00, 0x53, 0x75, 0xA0, size)) for size in range(256))
_WIDE_DATA: Final = b"\x00\x53\x75\xb0"


def _compound(section: int, form: int, count: int, content: bytes) -> bytes:
    """A section with a list or a map, by the form that has a size of one byte."""
    size = len(content)
    if size < 255 and count < 256:
        return bytes((0x00, 0x53, section, form, size + 1, count)) + content
    return bytes((0x00, 0x53, section, form + 0x10)) + struct.pack(">II", size + 4, count) + content


def _list(section: int, fields: Mapping[str, Any], writers: Iterable[tuple[str, Write]]) -> bytes:
    items = [_NULL if (value := fields[name]) is None else write(value) for name, write in writers]
    return _compound(section, 0xC0, len(items), b"".join(items))


def _custom(entries: dict[Any, Any]) -> bytes:
    """The application properties."""
    items = []
    for key, value in entries.items():
        items.append(_text(key))
        items.append(_CUSTOM_VALUES[type(value)](value))
    return _compound(_CUSTOM, 0xC1, len(items), b"".join(items))


def _annotations(entries: dict[Any, Any]) -> bytes:
    items = []
    for key, value in entries.items():
        if key in AS_LONG:
            raise Uncommon
        items.append(_name(key))
        items.append(_VALUES[type(value)](value))
    return _compound(_ANNOTATIONS, 0xC1, len(items), b"".join(items))


def _data(content: bytes) -> bytes:
    size = len(content)
    return (_DATA_HEADS[size] if size < 256 else _WIDE_DATA + size.to_bytes(4)) + content


def _plain_bytes(raw: Any) -> bytes:
    """The bytes of a message whose values are as nearly all are; else it raises."""
    if raw._footer or raw._delivery_annotations or raw._sequence_body or raw._value_body:
        raise Uncommon
    parts = []
    dates: dict[str, int | None] | None = None
    if raw._header is not None:
        header = raw._header.__dict__
        if header != _NO_HEADER:
            if len(header) != len(_HEADER_FIELDS):
                raise Uncommon
            parts.append(_list(_HEADER, header, _HEADER_FIELDS.items()))
            dates = _dates(header["time_to_live"])
    if raw._annotations:
        parts.append(_annotations(raw._annotations))
    if raw._properties is not None:
        parts.append(_properties(raw._properties.__dict__, dates))
    elif dates is not None:
        parts.append(_list(_PROPERTIES, {**_NO_PROPERTIES, **dates}, _PROPERTY_WRITERS))
    if raw._application_properties:
        parts.append(_custom(raw._application_properties))
    body = raw._data_body
    if type(body) is list:
        for content in body:
            if type(content) is not bytes:
                raise Uncommon
            size = len(content)
            parts += (_DATA_HEADS[size] if size < 256 else _WIDE_DATA + size.to_bytes(4), content)
    elif body is not None:
        raise Uncommon
    return b"".join(parts)


def _properties(fields: dict[str, Any], dates: dict[str, int | None] | None) -> bytes:
    if len(fields) != len(_PROPERTY_FIELDS):
        raise Uncommon
    message_id = fields["message_id"]
    nulls = tuple(fields.values()).count(None)
    if dates is None and nulls == len(fields) - (message_id is not None):
        if message_id is None:
            return b""
        if type(message_id) is str:
            data = message_id.encode()
            if len(data) < len(_ID_HEADS):
                return _ID_HEADS[len(data)] + data + _AFTER_ID
        content = _id(message_id) + _AFTER_ID
        return _compound(_PROPERTIES, 0xC0, len(_PROPERTY_FIELDS), content)
    if dates is None:
        # The SDK takes 0 for none.
        dates = {name: fields[name] or None for name in ("absolute_expiry_time", "creation_time")}
    return _list(_PROPERTIES, {**fields, **dates}, _PROPERTY_WRITERS)


def _dates(ttl_ms: Any) -> dict[str, int | None] | None:
    """Creation and expiry that the SDK gives a message with a time to live; None: it gives none."""
    if not ttl_ms or ttl_ms == TTL_MAX_MS:
        return None
    created_ms = int(time.mktime(datetime.now(UTC).timetuple()) * 1_000)
    expires_ms = min(EXPIRY_MAX_MS, created_ms + ttl_ms)
    return {"creation_time": created_ms, "absolute_expiry_time": expires_ms}


# Batches


def _joined(messages: Iterable[bytes]) -> bytes:
    return b"".join([_data(message) for message in messages])


def _envelope(first: Any) -> bytes:
    """The sections of a batch before its messages: ids of the first one."""
    properties, annotations = first.properties, first.annotations
    key = None if annotations is None else _decoded(annotations.get(PARTITION_KEY))
    message_id = None if not properties else _decoded(properties.message_id)
    session_id = None if not properties else _decoded(properties.group_id)
    named = message_id or session_id
    fields = {**_NO_PROPERTIES, "message_id": message_id, "group_id": session_id}
    try:
        return (_annotations({PARTITION_KEY: key}) if key else b"") + (
            _list(_PROPERTIES, fields, _PROPERTY_WRITERS) if named else b""
        )
    except UNWRITABLE:
        made = Message(
            message_annotations={PARTITION_KEY: key} if key else None,
            properties=Properties(message_id=message_id, group_id=session_id) if named else None,
        )
        return bytes(encode_payload(bytearray(), made))


def _decoded(value: Any) -> Any:
    """As the SDK reads a property: a text where it can be one."""
    try:
        return value.decode("UTF-8")
    except (AttributeError, UnicodeDecodeError):
        return value


def _batch_bytes(fields: list[Any]) -> bytes:
    """The bytes of a batch of the SDK, whose messages are encoded already."""
    envelope = list(fields)
    messages, envelope[5] = envelope[5], None
    return bytes(encode_payload(bytearray(), Message(*envelope))) + _joined(messages)
