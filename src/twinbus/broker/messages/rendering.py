"""How a message lies in the store, and how its receiver gets it.

Stored are a prefix, the sender's delivery annotations and message annotations, each as raw map
entries, then every section from the properties on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from operator import attrgetter
from typing import Final

from twinbus.amqp import encoding
from twinbus.amqp.decoding import skip
from twinbus.amqp.message import APPLICATION_PROPERTIES, Header, encode_header, section_at
from twinbus.amqp.types import DecodeError
from twinbus.broker.journal import MessageState, Payload, StoredMessage
from twinbus.servicebus import names

PREFIX: Final = struct.Struct(">BBhIIII")
"""Format, flags (`flags_of`), priority (-1: null), then items and bytes of the delivery
annotations, and of the message annotations."""

FORMAT: Final = 1

UINT_MAX: Final = 0xFFFF_FFFF
"""Longest time to live a header can tell, 49.7 days in ms; who means more sends this and an
absolute expiry time beside it."""

_FLAGS: Final = {None: 0, True: 1, False: 2}
_VALUES: Final = {code: value for value, code in _FLAGS.items()}

SEQUENCE_NUMBER: Final = names.SEQUENCE_NUMBER.encode()
ENQUEUED_TIME: Final = names.ENQUEUED_TIME.encode()
ENQUEUED_SEQUENCE_NUMBER: Final = names.ENQUEUED_SEQUENCE_NUMBER.encode()
MESSAGE_STATE: Final = names.MESSAGE_STATE.encode()
LOCKED_UNTIL: Final = names.LOCKED_UNTIL.encode()
DEAD_LETTER_SOURCE: Final = names.DEAD_LETTER_SOURCE.encode()
SCHEDULED_FOR: Final = names.SCHEDULED_TIME.encode()
PARTITION_KEY: Final = names.PARTITION_KEY.encode()
LOCK_TOKEN: Final = names.LOCK_TOKEN.encode()

ABSOLUTE_EXPIRY_TIME, CREATION_TIME = 8, 9
"""Places of two of the properties."""

SCHEDULED: Final = MessageState.SCHEDULED

BROKER_ANNOTATIONS: Final = frozenset(
    (
        SEQUENCE_NUMBER,
        ENQUEUED_TIME,
        ENQUEUED_SEQUENCE_NUMBER,
        MESSAGE_STATE,
        LOCKED_UNTIL,
        DEAD_LETTER_SOURCE,
    )
)
"""Annotations the broker sets. Who forwards a message it received sends the old ones along."""

_U32 = struct.Struct(">I").unpack_from


def flags_of(durable: bool | None, first_acquirer: bool | None) -> int:
    """Both fields of the header in one byte: what older versions wrote has durable only."""
    return 0x40 | _FLAGS[durable] | _FLAGS[first_acquirer] << 2


def content_at(raw: bytes) -> int:
    """Offset of the content of a raw section, behind its descriptor."""
    return 3 if raw[1] == 0x53 else section_at(raw, 0)[1]


def entries_at(raw: bytes) -> tuple[int, int]:
    """Item count (keys and values) and offset of the first entry of a section that is a map."""
    content = content_at(raw)
    if raw[content] == 0xC1:
        count, start = raw[content + 2], content + 3
    else:
        count, start = _U32(raw, content + 5)[0], content + 9
    if count % 2:
        raise DecodeError("a map has a key without a value")
    return count, start


def key_text(raw: bytes, start: int, end: int) -> bytes:
    """The text of the key at `start`, a symbol or a string; of any other key nothing useful."""
    return raw[start + (2 if raw[start] in (0xA3, 0xA1) else 5) : end]


def entries_without(raw: bytes, names: Set[bytes]) -> list[bytes]:
    """The entries of a section that is a map, each as its raw bytes, but for those named."""
    count, offset = entries_at(raw)
    kept = []
    for _ in range(count // 2):
        start = offset
        value_at = skip(raw, start)
        offset = skip(raw, value_at)
        if key_text(raw, start, value_at) not in names:
            kept.append(raw[start:offset])
    if offset != len(raw):
        raise DecodeError(f"a map's entries end at byte {offset}, the map at {len(raw)}")
    return kept


def _key(name: bytes, value_code: int) -> bytes:
    return bytes((0xA3, len(name))) + name + bytes((value_code,))


_KEYS: Final = (_key(SEQUENCE_NUMBER, 0x81), _key(ENQUEUED_TIME, 0x83))
_ANNOTATIONS: Final = struct.Struct(">3sBII" + "".join(f"{len(key)}sq" for key in _KEYS))
_OUR_BYTES: Final = _ANNOTATIONS.size - 8
"""Of the annotations section, what its size field counts when nothing follows ours."""

_ENQUEUED_NUMBER: Final = _key(ENQUEUED_SEQUENCE_NUMBER, 0x81)
_STATE: Final = _key(MESSAGE_STATE, 0x54)
_LOCKED_UNTIL: Final = _key(LOCKED_UNTIL, 0x83)
_DEAD_LETTER_SOURCE: Final = _key(DEAD_LETTER_SOURCE, 0xB1)
_I64: Final = struct.Struct(">q").pack
_i64: Final = struct.Struct(">q").unpack_from


def render(
    payload: Payload,
    message: StoredMessage,
    *,
    locked_until_ms: int = 0,
    lock_token: bytes | None = None,
) -> bytes:
    """The message as a receiver gets it, in its delivery or in a management response."""
    return b"".join(render_parts(payload, message, locked_until_ms, lock_token))


def render_run(
    payloads: Sequence[Payload], locked: Sequence[tuple[StoredMessage, bytes, int, object]]
) -> tuple[list[bytes], list[Payload]]:
    """What `render_parts` returns for each of these messages: all first parts, all second parts.

    A message is given with its token, the end of its lock, and what rendering does not use.
    """
    heads, rests = list[bytes](), list[Payload]()
    guids = _guids([token for _, token, _, _ in locked])
    starts = range(0, len(guids), _GUID_BYTES)
    second_key, prefix_of, facts_of = _KEYS[1], _PREFIX_BYTES.unpack_from, _FACTS
    known = plain = None
    for payload, (message, token, until_ms, _), at in zip(payloads, locked, starts, strict=True):
        shape = prefix_of(payload), facts_of(message)
        if shape != known:
            known, plain = shape, _plain_run_head(payload, message)
        if plain is None:
            head, rest = render_parts(payload, message, until_ms, token)
        else:
            pack, start = plain
            head, rest = (
                pack(
                    start, guids[at : at + _GUID_BYTES], _PLAIN_MARKS, message.sequence_number,
                    second_key, message.enqueued_at_ms, _LOCKED_UNTIL, until_ms,
                ),
                payload[PREFIX.size :],
            )  # fmt: skip
        heads.append(head)
        rests.append(rest)
    return heads, rests


_PREFIX_BYTES: Final = struct.Struct(f"{PREFIX.size}s")
_FACTS: Final = attrgetter(
    "ttl_ms",
    "delivery_count",
    "state",
    "scheduled_for_ms",
    "enqueued_sequence_number",
    "dead_letter_source",
    "overrides",
)
"""What rendering depends on beside the prefix, but for what is different in each message."""


def _plain_run_head(
    payload: Payload, message: StoredMessage
) -> tuple[Callable[..., bytes], bytes] | None:
    """How to write the first part of all messages with this prefix and these facts, if plain."""
    _, flags, priority, _, mark_size, _, size = PREFIX.unpack_from(payload)
    if mark_size or size or message.enqueued_sequence_number or _is_changed(message):
        return None
    return _plain_head(flags, priority, message.ttl_ms, message.delivery_count)


def _is_changed(message: StoredMessage) -> bool:
    """Whether the broker adds more to it than its number, its time and its lock."""
    return bool(
        message.state
        or message.scheduled_for_ms
        or message.dead_letter_source is not None
        or message.overrides
        or message.ttl_ms > UINT_MAX
    )


def render_parts(
    payload: Payload, message: StoredMessage, locked_until_ms: int, lock_token: bytes | None
) -> tuple[bytes, Payload]:
    """What `render` joins: the sections that the broker writes, and those of the sender.

    A locked message has its token among the delivery annotations too, where SDKs look for it.
    """
    form, flags, priority, mark_count, mark_size, item_count, size = PREFIX.unpack_from(payload)
    assert form == FORMAT, f"stored payload of format {form}"
    is_plain = not (mark_size or size or _is_changed(message))
    if lock_token is not None and locked_until_ms and is_plain:
        number = message.enqueued_sequence_number
        pack, start = _plain_head(flags, priority, message.ttl_ms, message.delivery_count)
        head = pack(
            start, _guids((lock_token,)), _NUMBERED_MARKS if number else _PLAIN_MARKS,
            message.sequence_number, _KEYS[1], message.enqueued_at_ms, _LOCKED_UNTIL,
            locked_until_ms,
        )  # fmt: skip
        head += _NUMBERED.pack(_ENQUEUED_NUMBER, number) if number else b""
        return head, payload[PREFIX.size :]
    payload = bytes(payload)
    header = _header(flags, priority, message.ttl_ms, message.delivery_count)
    # The state that a receiver sees stays "scheduled" after the time has come, as in Azure.
    state = message.state or (SCHEDULED if message.scheduled_for_ms else 0)
    start = PREFIX.size + mark_size
    extra = payload[start : start + size]
    if locked_until_ms:
        item_count += 2
        extra = _LOCKED_UNTIL + _I64(locked_until_ms) + extra
    if state:
        item_count += 2
        extra = _STATE + bytes((state,)) + extra
    if message.enqueued_sequence_number:
        item_count += 2
        extra = _ENQUEUED_NUMBER + _I64(message.enqueued_sequence_number) + extra
    if message.dead_letter_source is not None:
        item_count += 2
        source = message.dead_letter_source.encode()
        extra = _DEAD_LETTER_SOURCE + len(source).to_bytes(4, "big") + source + extra
    first, second = _KEYS
    annotations = _ANNOTATIONS.pack(
        b"\x00\x53\x72",
        0xD1,
        _OUR_BYTES + len(extra),
        2 * len(_KEYS) + item_count,
        first,
        message.sequence_number,
        second,
        message.enqueued_at_ms,
    )
    marks = _delivery_annotations(payload[PREFIX.size : start], mark_count, lock_token)
    rest = payload[start + size :]
    if message.ttl_ms > UINT_MAX:
        rest = _with_lifetime(rest, message.enqueued_at_ms, message.ttl_ms)
    rest = _overridden(rest, message.overrides) if message.overrides else rest
    return b"".join((header, marks, annotations, extra)), rest


@lru_cache(maxsize=1024)
def _header(flags: int, priority: int, ttl_ms: int, delivery_count: int) -> bytes:
    return encode_header(
        Header(
            durable=_VALUES[flags & 3],
            priority=None if priority < 0 else priority,
            ttl=min(ttl_ms, UINT_MAX) or None,
            first_acquirer=_VALUES[flags >> 2 & 3],
            delivery_count=delivery_count,
        )
    )


_LOCK_TOKEN: Final = _key(LOCK_TOKEN, 0x98)
_TOKEN_ALONE: Final = b"\x00\x53\x71" + bytes((0xC1, 1 + len(_LOCK_TOKEN) + 16, 2)) + _LOCK_TOKEN

_NUMBERED: Final = struct.Struct(f">{len(_ENQUEUED_NUMBER)}sq")
_GUID_BYTES: Final = 16


def _plain_marks(size_bytes: int, count: int) -> bytes:
    sizes = struct.pack(">II", _OUR_BYTES + size_bytes, 2 * (len(_KEYS) + count))
    return b"\x00\x53\x72\xd1" + sizes + _KEYS[0]


_LOCK_BYTES: Final = len(_LOCKED_UNTIL) + 8
_PLAIN_MARKS: Final = _plain_marks(_LOCK_BYTES, 1)
_NUMBERED_MARKS: Final = _plain_marks(_LOCK_BYTES + _NUMBERED.size, 2)


@lru_cache(maxsize=1024)
def _plain_head(
    flags: int, priority: int, ttl_ms: int, delivery_count: int
) -> tuple[Callable[..., bytes], bytes]:
    """Packs the sections before the sender's own of a locked message that has no annotations.

    Nearly all are such. It takes the bytes that come with it, the token as a GUID, the marks, the
    sequence number, the second key, the time of enqueuing, the key and the time of the lock's end.
    """
    start = _header(flags, priority, ttl_ms, delivery_count) + _TOKEN_ALONE
    form = f">{len(start)}s{_GUID_BYTES}s{len(_PLAIN_MARKS)}sq{len(_KEYS[1])}sq"
    return struct.Struct(f"{form}{len(_LOCKED_UNTIL)}sq").pack, start


def _guids(lock_tokens: Iterable[bytes]) -> bytearray:
    """These tokens, GUIDs in little-endian form, as AMQP uuids: the same in network order."""
    raw = bytearray(b"".join(lock_tokens))
    for one, other in ((0, 3), (1, 2), (4, 5), (6, 7)):
        first = raw[one::_GUID_BYTES]
        raw[one::_GUID_BYTES] = raw[other::_GUID_BYTES]
        raw[other::_GUID_BYTES] = first
    return raw


def _delivery_annotations(marks: bytes, mark_count: int, lock_token: bytes | None) -> bytes:
    if lock_token is None:
        if not marks:
            return b""
        return b"\x00\x53\x71" + encoding.compound(0xC1, 0xD1, mark_count, marks)
    guid = bytes(_guids((lock_token,)))
    if not marks:
        return _TOKEN_ALONE + guid
    return b"\x00\x53\x71" + encoding.compound(
        0xC1, 0xD1, mark_count + 2, _LOCK_TOKEN + guid + marks
    )


def _with_lifetime(rest: bytes, created_ms: int, ttl_ms: int) -> bytes:
    """The sections from the properties on, with a time to live that is too long for the header.

    The SDKs reckon it from creation-time and absolute-expiry-time, which end with the year 9999.
    """
    end = skip(rest, 0)
    content = content_at(rest)
    wide = rest[content] == 0xD0
    count = _U32(rest, content + 5)[0] if wide else rest[content + 2]
    offset = content + (9 if wide else 3)
    fields = []
    for _ in range(count):
        start, offset = offset, skip(rest, offset)
        fields.append(rest[start:offset])
    fields += [b"\x40"] * (CREATION_TIME + 1 - count)
    expiry, creation = fields[ABSOLUTE_EXPIRY_TIME], fields[CREATION_TIME]
    if expiry[0] == creation[0] == 0x83 and _i64(expiry, 1)[0] - _i64(creation, 1)[0] == ttl_ms:
        return rest  # The sender has said it so.
    fields[CREATION_TIME] = b"\x83" + _I64(created_ms)
    fields[ABSOLUTE_EXPIRY_TIME] = b"\x83" + _I64(min(created_ms + ttl_ms, names.DATE_MAX_MS))
    properties = encoding.compound(0xC0, 0xD0, len(fields), b"".join(fields))
    return b"".join((rest[:content], properties, rest[end:]))


def _overridden(rest: bytes, overrides: dict[str, object]) -> bytes:
    """The sections from the properties on, with application properties added or replaced."""
    start = skip(rest, 0)
    entries: list[bytes] = []
    end = start
    if start < len(rest) and section_at(rest, start)[0] == APPLICATION_PROPERTIES:
        end = skip(rest, start)
        entries = entries_without(rest[start:end], {name.encode() for name in overrides})
    for name, value in overrides.items():
        entries.append(encoding.string(name) + encoding.encode(value))
    section = encoding.compound(0xC1, 0xD1, 2 * len(entries), b"".join(entries))
    return b"".join((rest[:start], b"\x00\x53\x74", section, rest[end:]))
