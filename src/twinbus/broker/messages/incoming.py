"""A message on its way into and out of the broker.

    wire from a sender --parse--> Incoming: what the engine decides by, and the stored payload
    stored payload + index entry --render--> wire to a receiver

Stored are the header's durable and priority, the sender's annotations without those that are the
broker's to set, and every byte from the properties on. None of these bytes is ever decoded and
encoded again, so a receiver gets what the sender sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from twinbus.amqp import encoding
from twinbus.amqp.decoding import MALFORMED, READERS, WIDTHS, malformed, skip, skip_many
from twinbus.amqp.message import Sections, decode_header, outline, sections_at, split
from twinbus.amqp.types import DecodeError
from twinbus.broker.messages.rendering import (
    BROKER_ANNOTATIONS,
    FORMAT,
    LOCK_TOKEN,
    PARTITION_KEY,
    PREFIX,
    SCHEDULED_FOR,
    UINT_MAX,
    content_at,
    entries_at,
    entries_without,
    flags_of,
    key_text,
)
from twinbus.broker.refusals import ArgumentOutOfRange, MalformedMessage
from twinbus.servicebus import names
from twinbus.servicebus.names import DATE_MAX_MS, DATE_MIN_MS, FOREVER_MS, PING_CONTENT_TYPE

_U32 = struct.Struct(">I").unpack_from


class Incoming:
    """A message that was sent to us: what the engine decides by, and what is stored."""

    __slots__ = (
        "_sections",
        "ahead",
        "content_type",
        "is_ping",
        "message_id",
        "partition_key",
        "payload",
        "properties",
        "scheduled_for_ms",
        "session_id",
        "size_bytes",
        "ttl_ms",
        "wire",
    )

    def __init__(
        self,
        message_id: str | None = None,
        session_id: str | None = None,
        ttl_ms: int = 0,
        scheduled_for_ms: int = 0,
        partition_key: str | None = None,
        content_type: str | None = None,
        size_bytes: int = 0,
        payload: bytes = b"",
        wire: bytes = b"",
        properties: bytes = b"",
    ) -> None:
        self.message_id = message_id
        """The id as text, whatever its type on the wire: what duplicate detection compares."""
        self.session_id = session_id
        self.ttl_ms = ttl_ms
        """0: none."""
        self.scheduled_for_ms = scheduled_for_ms
        """0: not scheduled."""
        self.partition_key = partition_key
        self.content_type = content_type
        self.is_ping = content_type == PING_CONTENT_TYPE
        self.size_bytes = size_bytes
        """As sent, which is what quotas and limits count."""
        self.payload = payload
        self.wire = wire
        self.properties = properties
        self._sections: Sections | None = None
        self.ahead: object = None
        """What the rules of a topic make of it, where that was worked out ahead."""

    @property
    def sections(self) -> Sections:
        """The raw sections, for subscription filters; the properties with the id given here."""
        if self._sections is None:
            self._sections = split(self.wire)
            self._sections.properties = self.properties
        return self._sections

    def __repr__(self) -> str:
        return f"<incoming message {self.message_id!r}, {self.size_bytes} B>"


def parse(wire: bytes, new_message_id: Callable[[], str]) -> Incoming:
    """Parse a sender's message; MalformedMessage if it is not one.

    A message without an id gets a new one: the JavaScript SDK cannot settle one that has none.
    Raises ArgumentOutOfRange for a scheduled enqueue time outside the calendar.
    """
    try:
        offsets = outline(wire)
        if offsets is not None:
            delivery_at, _, at, application_at, body_at = offsets
            if delivery_at == at < application_at and body_at - application_at <= _SHORT_MAP_BYTES:
                # Nearly every message: properties, no annotations. What senders repeat is cached.
                prefix, ttl_ms = _plain_header(wire[:at])
                properties = wire[at:application_at]
                message_id, content_type, ttl_ms, session_id = _read_properties(properties, ttl_ms)
                if message_id is not None:
                    if application_at < body_at:
                        _check_short_entries(wire[application_at:body_at])
                    return Incoming(
                        message_id,
                        session_id,
                        ttl_ms,
                        0,
                        None,
                        content_type,
                        len(wire),
                        prefix + wire[at:],
                        wire,
                        properties,
                    )
        return _parse_sections(wire, sections_at(wire, offsets), new_message_id)
    except (DecodeError, *MALFORMED) as error:
        reason = error if isinstance(error, DecodeError) else malformed(error, wire)
        raise MalformedMessage(f"the message is not valid AMQP: {reason}") from error


def _parse_sections(wire: bytes, sections: Sections, new_message_id: Callable[[], str]) -> Incoming:
    flags, priority, ttl_ms = _read_header(sections.header)
    scheduled_for_ms, partition_key, item_count, kept = (
        _read_annotations(sections.message_annotations)
        if sections.message_annotations
        else _NO_ANNOTATIONS
    )
    message_id = content_type = session_id = None
    properties = sections.properties
    if properties:
        message_id, content_type, ttl_ms, session_id = _read_properties(properties, ttl_ms)
    if message_id is None:
        message_id = new_message_id()
        properties = _with_message_id(properties, message_id)
    application_properties = sections.application_properties
    if application_properties:
        _check_entries(application_properties)
    marks: list[bytes] = []
    if sections.delivery_annotations:
        # Passed on as Azure does. A forwarded message may bring a lock token along, which is the
        # broker's to set.
        entries = entries_without(sections.delivery_annotations, {LOCK_TOKEN})
        marks = [_symbol_keyed(entry) for entry in entries]
    marks_bytes = b"".join(marks)
    if scheduled_for_ms and not DATE_MIN_MS <= scheduled_for_ms <= DATE_MAX_MS:
        raise ArgumentOutOfRange(
            f"x-opt-scheduled-enqueue-time is {scheduled_for_ms}; it must be from {DATE_MIN_MS} to "
            f"{DATE_MAX_MS}, milliseconds since 1970 within the years 1 to 9999"
        )
    sizes = 2 * len(marks), len(marks_bytes), item_count, len(kept)
    prefix = PREFIX.pack(FORMAT, flags, priority, *sizes)
    footer = _with_symbol_keys(sections.footer) if sections.footer else b""
    rest = (properties, application_properties, sections.body, footer)
    return Incoming(
        message_id,
        session_id,
        ttl_ms,
        scheduled_for_ms,
        partition_key,
        content_type,
        len(wire),
        b"".join((prefix, marks_bytes, kept, *rest)),
        wire,
        properties,
    )


_NO_ANNOTATIONS: Final = (0, None, 0, b"")


@lru_cache(maxsize=1024)
def _read_header(raw: bytes) -> tuple[int, int, int]:
    """Durable and first-acquirer as `PREFIX` has them, priority (-1: null), ttl in ms (0: none).

    Remembered, because senders repeat themselves.
    """
    header = decode_header(raw)
    flags = flags_of(header.durable, header.first_acquirer)
    return flags, -1 if header.priority is None else header.priority, header.ttl or 0


@lru_cache(maxsize=1024)
def _plain_header(raw: bytes) -> tuple[bytes, int]:
    """The stored prefix of a message with that header and no annotations, and its ttl in ms."""
    flags, priority, ttl_ms = _read_header(raw)
    return PREFIX.pack(FORMAT, flags, priority, 0, 0, 0, 0), ttl_ms


def _read_annotations(raw: bytes) -> tuple[int, str | None, int, bytes]:
    """Scheduled time, partition key, and the entries to keep: their item count and bytes."""
    scheduled_for_ms, partition_key = 0, None
    count, offset = entries_at(raw)
    kept: list[bytes] = []
    for _ in range(count // 2):
        start = offset
        if raw[start] == 0xA3:
            value_at = start + 2 + raw[start + 1]
            name = raw[start + 2 : value_at]
        else:
            value_at = skip(raw, start)
            name = key_text(raw, start, value_at)
        offset = skip(raw, value_at)
        if name in BROKER_ANNOTATIONS:
            continue
        kept.append(_symbol_keyed(raw[start:offset]))
        if name == SCHEDULED_FOR:
            at_ms = _value(raw, value_at)
            scheduled_for_ms = 0 if at_ms is None else _integer(SCHEDULED_FOR.decode(), at_ms)
        elif name == PARTITION_KEY:
            partition_key = _partition_key(_value(raw, value_at))
    if offset != len(raw):
        raise DecodeError(f"the annotations end at byte {offset}, their map at {len(raw)}")
    return scheduled_for_ms, partition_key, 2 * len(kept), b"".join(kept)


def _symbol_keyed(entry: bytes) -> bytes:
    """An entry of annotations or a footer, its key as the symbol that AMQP asks for.

    The Java SDK writes strings there, and its receiver takes symbols only, which Azure gives back.
    """
    code = entry[0]
    # A symbol has ASCII characters only.
    if code not in (0xA1, 0xB1) or not key_text(entry, 0, skip(entry, 0)).isascii():
        return entry
    return bytes((code + 2,)) + entry[1:]


def _with_symbol_keys(footer: bytes) -> bytes:
    start = entries_at(footer)[1]
    entries = entries_without(footer, frozenset())
    return footer[:start] + b"".join(map(_symbol_keyed, entries))


def _value(raw: bytes, offset: int) -> Any:
    return READERS[raw[offset]](raw, offset + 1, 0)[0]


_TEXT: Final = frozenset((0xA1, 0xB1, 0xA3, 0xB3))
_BINARY: Final = frozenset((0xA0, 0xB0))
_STRING: Final = ("a string", _TEXT)
_ID: Final = ("a string, ulong, uuid or binary", _TEXT | _BINARY | {0x98, 0x80, 0x53, 0x44})
_TIME: Final = ("a timestamp", frozenset((0x83,)))
_FIELDS: Final = (
    ("message-id", *_ID),
    ("user-id", "binary", _BINARY),
    ("to", *_STRING),
    ("subject", *_STRING),
    ("reply-to", *_STRING),
    ("correlation-id", *_ID),
    ("content-type", *_STRING),
    ("content-encoding", *_STRING),
    ("absolute-expiry-time", *_TIME),
    ("creation-time", *_TIME),
    ("group-id", *_STRING),
    ("group-sequence", "a uint", frozenset((0x70, 0x52, 0x43))),
    ("reply-to-group-id", *_STRING),
)
"""Name, kind and format codes of each field of the properties. All are checked: a receiver that
decodes into types would lose its connection to one bad field, again with each delivery."""

_FIELD_COUNT_MAX: Final = len(_FIELDS)
_SHORT_TEXTS: Final = frozenset((0xA1, 0xA3))
_WANTED: Final = frozenset((0, 6, 10))
_WANTED_FOR_TTL: Final = frozenset((0, 6, 8, 9, 10))
"""Fields of the properties that are decoded: message id, content type and group id; absolute expiry
and creation time only where the header leaves the time to live open."""


def _read_properties(raw: bytes, ttl_ms: int) -> tuple[str | None, str | None, int, str | None]:
    """Message id as text, content type, time to live (ms), group id."""
    count, offset = _list_at(raw)
    if count and raw[offset] == 0xA1:
        start, end = offset + 2, offset + 2 + raw[offset + 1]
        # Senders change the id and repeat the rest: the parsed rest is cached.
        if end <= len(raw) <= end + _REST_BYTES_MAX:
            _, content_type, ttl_ms, session_id = _read_rest(raw[end:], count, ttl_ms)
            return raw[start:end].decode(), content_type, ttl_ms, session_id
    return _read_fields(raw, offset, 0, count, ttl_ms)


_REST_BYTES_MAX: Final = 128
"""Longest remembered rest of the properties; 1024 of them are kept."""


@lru_cache(maxsize=1024)
def _read_rest(
    rest: bytes, count: int, ttl_ms: int
) -> tuple[str | None, str | None, int, str | None]:
    return _read_fields(rest, 0, 1, count, ttl_ms)


def _read_fields(
    raw: bytes, offset: int, first: int, count: int, ttl_ms: int
) -> tuple[str | None, str | None, int, str | None]:
    """The properties from the field `first` on, which begins at `offset`."""
    wanted = _WANTED_FOR_TTL if ttl_ms in (0, UINT_MAX) else _WANTED
    values: list[Any] = [None] * _FIELD_COUNT_MAX
    for index in range(first, count):
        code = raw[offset]
        if code == 0x40:
            offset += 1
        elif code not in _FIELDS[index][2]:
            name, kind, _ = _FIELDS[index]
            value, _ = READERS[code](raw, offset + 1, 0)
            raise DecodeError(f"the {name} is {value!r:.80}, not {kind}")
        elif code in _SHORT_TEXTS:
            start = offset + 2
            offset = start + raw[offset + 1]
            if index in wanted:
                values[index] = raw[start:offset].decode()
        elif index in wanted:
            values[index], offset = READERS[code](raw, offset + 1, 0)
        elif WIDTHS[code] > 0:
            offset += WIDTHS[code]
        else:
            offset = skip(raw, offset)
    if offset != len(raw):
        raise DecodeError(f"the properties end at byte {offset}, their list at {len(raw)}")
    message_id, content_type, group_id = values[0], values[6], values[10]
    if values[8] is not None and values[9] is not None:
        # Two times can lie further apart than any time to live: that is unlimited.
        ttl_ms = min(max(1, values[8] - values[9]), FOREVER_MS)
    return _id_text(message_id), content_type, ttl_ms, group_id


def _list_at(raw: bytes) -> tuple[int, int]:
    """Field count of the properties, and the offset of the first."""
    # Nearly always 00 53 73 c0.
    content = 3 if raw[1] == 0x53 else content_at(raw)
    code = raw[content]
    if code == 0xC0:
        count, first = raw[content + 2], content + 3
    elif code == 0x45:
        return 0, content + 1
    else:
        count, first = _U32(raw, content + 5)[0], content + 9
    if count > _FIELD_COUNT_MAX:
        raise DecodeError(
            f"the properties have {count} fields, at most {_FIELD_COUNT_MAX} are known"
        )
    return count, first


def _id_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _partition_key(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    # The Python SDK passes on what the application gave it, and that may be bytes.
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise DecodeError(f"the {names.PARTITION_KEY} is {value!r:.80}, not a string")


def _integer(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise DecodeError(f"the {name} is {value!r:.80}, not a timestamp")


def _with_message_id(raw: bytes, message_id: str) -> bytes:
    """The properties section with the id put in the first place, which was null or absent."""
    encoded = encoding.string(message_id)
    if not raw:
        return b"\x00\x53\x73" + encoding.compound(0xC0, 0xD0, 1, encoded)
    content = content_at(raw)
    count, first = _list_at(raw)
    rest = raw[first + 1 :] if count else b""
    return raw[:content] + encoding.compound(0xC0, 0xD0, max(count, 1), encoded + rest)


def _check_entries(raw: bytes) -> None:
    """DecodeError unless a map is made of whole entries: `render` may have to walk it later."""
    count, offset = entries_at(raw)
    offset = skip_many(raw, offset, count)
    if offset != len(raw):
        raise DecodeError(
            f"the application properties end at byte {offset}, their map at {len(raw)}"
        )


_SHORT_MAP_BYTES: Final = 260
_check_short_entries = lru_cache(maxsize=1024)(_check_entries)
"""For maps up to that size: once for those that are all the same."""
