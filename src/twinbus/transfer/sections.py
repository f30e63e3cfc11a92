"""Converts raw AMQP sections to the backlog form and back; the body stays untouched.

    header              ttl                                  cleared, kept as x-ms-timetolive
    message annotations x-opt-scheduled-enqueue-time         cleared, kept as x-ms-scheduled...
                        x-opt-partition-key = the session    cleared and restored with the session
    properties          group-id                             cleared, kept as x-ms-sessionid
                        absolute-expiry, creation time       cleared, kept as x-ms-timetolive
                        message-id, if an id is given        kept as x-twinbus-messageid, replaced
    application properties                                   gain the aliases and x-ms-path

A section without any of these keeps its exact bytes.

In a section that changes, every other byte is kept: decoding and encoding again would change
equivalent encodings, and is slower. The entries of a map and the fields of a list are found by
skipping, and the bytes between changes are copied. Every message of a drained backlog comes through
here twice, so the loops are written for speed: plain tuples, and a table of widths instead of a
call for each value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from twinbus.amqp.decoding import SIZE_OF_1, WIDTHS, decode, skip
from twinbus.amqp.encoding import compound, encode, string, symbol, uint
from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    section_at,
)
from twinbus.amqp.types import DecodeError, Timestamp
from twinbus.errors import ReservedPropertyError
from twinbus.servicebus import names
from twinbus.servicebus.names import DATE_MAX_MS
from twinbus.transfer.aliases import (
    MESSAGE_ID,
    RESERVED_NAMES,
    Aliases,
    MessageId,
    lifetime_ms,
    replaceable_id,
)

TTL, FIRST_ACQUIRER, DELIVERY_COUNT = 2, 3, 4
"""Indexes of header fields."""
MESSAGE_ID_FIELD, ABSOLUTE_EXPIRY, CREATION, GROUP_ID = 0, 8, 9, 10
"""Indexes of properties fields."""

DELIVERY_MARKS: Final = frozenset(
    {
        names.DEAD_LETTER_SOURCE,
        names.ENQUEUED_SEQUENCE_NUMBER,
        names.ENQUEUED_TIME,
        names.LOCK_TOKEN,
        names.LOCKED_UNTIL,
        names.MESSAGE_STATE,
        names.SEQUENCE_NUMBER,
    }
)
"""Annotations that a broker adds to a delivery."""

_RESERVED: Final = {name.encode(): name for name in RESERVED_NAMES}
_MESSAGE_ID: Final = MESSAGE_ID.encode()
_SCHEDULED: Final = names.SCHEDULED_TIME.encode()
_PARTITION_KEY: Final = names.PARTITION_KEY.encode()
_MARKS: Final = frozenset(name.encode() for name in DELIVERY_MARKS)
_SCHEDULED_KEY: Final = symbol(names.SCHEDULED_TIME)
_PARTITION_KEY_KEY: Final = symbol(names.PARTITION_KEY)
_MESSAGE_ID_KEY: Final = string(MESSAGE_ID)

UINT_MAX: Final = 0xFFFF_FFFF
"""The longest ttl of a header, 49 days. The two times in the properties give a longer one."""


def to_backlog_sections(
    sections: Sections, path: str, *, now_ms: int, own_id: str | None = None
) -> Sections:
    """Return the message in backlog form.

    Raise ReservedPropertyError if it has an alias name, BacklogGuardError if the syphon could not
    restore it. `own_id` replaces the id of a message that has one.
    """
    custom = entries_of(sections.application_properties)
    for entry in custom:
        if entry[0] in _RESERVED:
            raise ReservedPropertyError(_RESERVED[entry[0]])
    header = fields_of(sections.header)
    properties = fields_of(sections.properties)
    annotations, scheduled, partition_key = _annotations(sections.message_annotations)
    ttl = _number(field_value(sections.header, header, TTL))
    expiry = _number(field_value(sections.properties, properties, ABSOLUTE_EXPIRY))
    creation = _number(field_value(sections.properties, properties, CREATION))
    session_id = field_value(sections.properties, properties, GROUP_ID)
    # AMQP makes it a string. Anything else is no session, and is not changed.
    session_id = session_id if isinstance(session_id, str) else None
    # `type`, because a symbol is a str too and would come back as a string.
    key_leaves = type(partition_key) is str and partition_key == session_id
    replaced = None
    if own_id is not None:
        replaced = replaceable_id(field_value(sections.properties, properties, MESSAGE_ID_FIELD))
    aliases = Aliases(
        path=path,
        session_id=session_id,
        time_to_live_ms=_time_to_live_ms(ttl, expiry, now_ms if creation is None else creation),
        scheduled_ms=scheduled,
        partition_key_is_session=key_leaves,
        message_id=replaced,
    )
    aliases.require_restorable()

    result = _copied(sections)
    cleared = {} if session_id is None else {GROUP_ID: NULL}
    if replaced is not None and own_id is not None:
        cleared[MESSAGE_ID_FIELD] = string(own_id)
    if aliases.time_to_live_ms is not None:
        if ttl is not None:
            result.header = with_fields(sections.header, HEADER, header, {TTL: NULL})
        if expiry is not None:
            cleared[ABSOLUTE_EXPIRY] = NULL
            # Only an expiry makes a creation time a derived one; alone it is the application's.
            if creation is not None:
                cleared[CREATION] = NULL
    result.properties = with_fields(sections.properties, PROPERTIES, properties, cleared)
    leaving = [_SCHEDULED] if scheduled is not None else []
    if key_leaves:
        leaving.append(_PARTITION_KEY)
    if leaving:
        result.message_annotations = with_entries(
            sections.message_annotations, MESSAGE_ANNOTATIONS, annotations, without=leaving
        )
    result.application_properties = with_entries(
        sections.application_properties, APPLICATION_PROPERTIES, custom, added=aliases.as_entries()
    )
    return result


def with_property(sections: Sections, name: str, value: str) -> Sections:
    """Return a copy with this application property; it replaces one of the same name."""
    raw = sections.application_properties
    result = _copied(sections)
    result.application_properties = with_entries(
        raw,
        APPLICATION_PROPERTIES,
        entries_of(raw),
        without=(name.encode(),),
        added=(string(name) + string(value),),
    )
    return result


def aliases_of(sections: Sections) -> Aliases:
    """Return the aliases of a backlog message; raise TransferError if they cannot be read."""
    return _aliases_among(
        sections.application_properties, entries_of(sections.application_properties)
    )


def original_id(sections: Sections) -> MessageId | None:
    """Return the id that the copy's own id replaced; None if it was not replaced, or is invalid."""
    raw = sections.application_properties
    if _MESSAGE_ID not in raw:
        return None
    found = [decode(raw, entry[2])[0] for entry in entries_of(raw) if entry[0] == _MESSAGE_ID]
    return replaceable_id(found[-1]) if found else None


def with_own_id(sections: Sections, own_id: str) -> Sections:
    """Return a backlog message with another id of its own; its original id stays in the alias."""
    bounds = fields_of(sections.properties)
    custom = entries_of(sections.application_properties)
    original = replaceable_id(field_value(sections.properties, bounds, MESSAGE_ID_FIELD))
    if original is None:
        return sections
    result = _copied(sections)
    result.properties = with_fields(
        sections.properties, PROPERTIES, bounds, {MESSAGE_ID_FIELD: string(own_id)}
    )
    if all(entry[0] != _MESSAGE_ID for entry in custom):
        raw = sections.application_properties
        kept = [raw[entry[1] : entry[3]] for entry in custom]
        # In front, so that the destination stays last, where the syphon finds it fastest.
        result.application_properties = with_entries(
            b"", APPLICATION_PROPERTIES, [], added=[_MESSAGE_ID_KEY + encode(original), *kept]
        )
    return result


def from_backlog_sections(
    sections: Sections, *, now_ms: int, aliases: Aliases | None = None
) -> tuple[Sections, Aliases]:
    """Return the original message and the aliases it had.

    `aliases` replace those of the message, to restore for example a shorter time to live.
    """
    custom = entries_of(sections.application_properties)
    aliases = aliases or _aliases_among(sections.application_properties, custom)
    result = _copied(sections)
    result.application_properties = with_entries(
        sections.application_properties, APPLICATION_PROPERTIES, custom, without=_RESERVED
    )
    if aliases.time_to_live_ms is not None:
        ttl = uint(min(aliases.time_to_live_ms, UINT_MAX))
        bounds = fields_of(sections.header)
        result.header = with_fields(sections.header, HEADER, bounds, {TTL: ttl})
    changes: dict[int, bytes] = {}
    if aliases.message_id is not None:
        changes[MESSAGE_ID_FIELD] = encode(aliases.message_id)
    if aliases.session_id is not None:
        changes[GROUP_ID] = string(aliases.session_id)
    if aliases.time_to_live_ms is not None and aliases.time_to_live_ms > UINT_MAX:
        expiry = min(now_ms + aliases.time_to_live_ms, DATE_MAX_MS)
        changes[ABSOLUTE_EXPIRY] = encode(Timestamp(expiry))
        changes[CREATION] = encode(Timestamp(now_ms))
    if changes:
        bounds = fields_of(sections.properties)
        result.properties = with_fields(sections.properties, PROPERTIES, bounds, changes)
    annotations: dict[bytes, bytes] = {}
    if aliases.scheduled_ms is not None:
        annotations[_SCHEDULED] = _SCHEDULED_KEY + encode(Timestamp(aliases.scheduled_ms))
    if aliases.partition_key_is_session and aliases.session_id is not None:
        annotations[_PARTITION_KEY] = _PARTITION_KEY_KEY + string(aliases.session_id)
    if annotations:
        result.message_annotations = with_entries(
            sections.message_annotations,
            MESSAGE_ANNOTATIONS,
            entries_of(sections.message_annotations),
            without=annotations,
            added=annotations.values(),
        )
    return result, aliases


def time_to_live_ms(
    sections: Sections, header: list[int], properties: list[int], enqueued_ms: int
) -> tuple[int | None, bool]:
    """Return the time to live of a delivered message, and whether dates in its properties say it.

    `header` and `properties` are the `fields_of` these sections. An expiry without a creation time
    counts from `enqueued_ms`.
    """
    ttl = _number(field_value(sections.header, header, TTL))
    expiry = _number(field_value(sections.properties, properties, ABSOLUTE_EXPIRY))
    creation = _number(field_value(sections.properties, properties, CREATION))
    began = enqueued_ms if creation is None else creation
    return _time_to_live_ms(ttl, expiry, began), expiry is not None


def without_delivery_marks(sections: Sections) -> Sections:
    """Return a delivered message without what the delivering broker added."""
    result = _copied(sections)
    if sections.delivery_annotations:
        # Nearly always the lock token alone; anything else is the sender's.
        result.delivery_annotations = with_entries(
            sections.delivery_annotations,
            DELIVERY_ANNOTATIONS,
            entries_of(sections.delivery_annotations),
            without=_MARKS,
        )
    bounds = fields_of(sections.header)
    counts = {place: NULL for place in (FIRST_ACQUIRER, DELIVERY_COUNT) if place + 1 < len(bounds)}
    result.header = with_fields(sections.header, HEADER, bounds, counts)
    entries = entries_of(sections.message_annotations)
    if any(entry[0] in _MARKS for entry in entries):
        result.message_annotations = with_entries(
            sections.message_annotations, MESSAGE_ANNOTATIONS, entries, without=_MARKS
        )
    return result


def _copied(sections: Sections) -> Sections:
    return Sections(
        sections.header,
        sections.delivery_annotations,
        sections.message_annotations,
        sections.properties,
        sections.application_properties,
        sections.body,
        sections.footer,
    )


def _annotations(raw: bytes) -> tuple[list[Entry], int | None, object]:
    """Return the entries of the annotations, the scheduled time, and the partition key."""
    scheduled: int | None = None
    partition_key: object = None
    entries = entries_of(raw)
    for key, _, value_at, _ in entries:
        if key == _SCHEDULED:
            scheduled = _number(decode(raw, value_at)[0])
        elif key == _PARTITION_KEY:
            partition_key = decode(raw, value_at)[0]
    return entries, scheduled, partition_key


def _aliases_among(raw: bytes, entries: list[Entry]) -> Aliases:
    return Aliases.read(
        {
            _RESERVED[key]: decode(raw, value_at)[0]
            for key, _, value_at, _ in entries
            if key in _RESERVED
        }
    )


def _time_to_live_ms(ttl: int | None, expiry: int | None, creation: int) -> int | None:
    lifetime = None if expiry is None else lifetime_ms(expiry, creation)
    if ttl is None:
        return lifetime
    return max(ttl, lifetime) if ttl == UINT_MAX and lifetime is not None else ttl


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value)


NULL: Final = b"\x40"

Entry = tuple[bytes, int, int, int]
"""One entry of a map: the text of its key, its start, the start of its value, its end. The text is
b"" if the key is not a string or symbol."""

_SHORT_TEXT: Final = frozenset((0xA1, 0xA3))
_LONG_TEXT: Final = frozenset((0xB1, 0xB3))
_LIST_EMPTY: Final = 0x45
_COMPACT: Final = frozenset((0xC0, 0xC1))


def entries_of(raw: bytes) -> list[Entry]:
    """Return the entries of a raw map section; none for b""."""
    if not raw:
        return []
    at, end, count = _head(raw)
    if count & 1:
        raise DecodeError(f"the map has {count} items: a key without its value")
    entries = []
    try:
        for _ in range(count >> 1):
            start = at
            at, key = _key(raw, at)
            value_at = at
            width = WIDTHS[raw[at]]
            if width > 0:
                at += width
            elif width == SIZE_OF_1:
                at += 2 + raw[at + 1]
            else:
                at = skip(raw, at)
            entries.append((key, start, value_at, at))
    except IndexError:
        at = len(raw) + 1
    _require_end(at, end)
    return entries


def fields_of(raw: bytes) -> list[int]:
    """Return the start of each field of a raw list section, and the last end; none for b""."""
    if not raw:
        return []
    at, end, count = _head(raw)
    bounds = [at]
    try:
        for _ in range(count):
            width = WIDTHS[raw[at]]
            if width > 0:
                at += width
            elif width == SIZE_OF_1:
                at += 2 + raw[at + 1]
            else:
                at = skip(raw, at)
            bounds.append(at)
    except IndexError:
        at = len(raw) + 1
    _require_end(at, end)
    return bounds


def field_value(raw: bytes, bounds: list[int], index: int) -> Any:
    """Return the decoded field at `index`; None if it is null or the list is shorter."""
    if index + 1 >= len(bounds) or raw[bounds[index]] == 0x40:
        return None
    return decode(raw, bounds[index])[0]


def with_entries(
    raw: bytes,
    section: int,
    entries: list[Entry],
    *,
    without: Collection[bytes] = (),
    added: Collection[bytes] = (),
) -> bytes:
    """Return the map section without some keys, and with encoded entries added at its end.

    An empty map is left out: b"".
    """
    kept = [raw[entry[1] : entry[3]] for entry in entries if entry[0] not in without]
    count = 2 * (len(kept) + len(added))
    if not count:
        return b""
    return bytes((0x00, 0x53, section)) + compound(0xC1, 0xD1, count, b"".join((*kept, *added)))


def with_fields(raw: bytes, section: int, bounds: list[int], changes: Mapping[int, bytes]) -> bytes:
    """Return the list section with the fields at some indexes replaced by encoded ones.

    It becomes longer if an index is beyond its end.
    """
    if not changes:
        return raw
    count = max(len(bounds) - 1, 0)
    items = [raw[bounds[i] : bounds[i + 1]] for i in range(count)]
    items += [NULL] * (max(changes) + 1 - count)
    for index, item in changes.items():
        items[index] = item
    return bytes((0x00, 0x53, section)) + compound(0xC0, 0xD0, len(items), b"".join(items))


def _key(raw: bytes, at: int) -> tuple[int, bytes]:
    """Return where the key at `at` ends, and its text."""
    code = raw[at]
    if code in _SHORT_TEXT:
        end = at + 2 + raw[at + 1]
        return end, raw[at + 2 : end]
    end = skip(raw, at)
    return end, raw[at + 5 : end] if code in _LONG_TEXT else b""


def _head(raw: bytes) -> tuple[int, int, int]:
    """Return where the items of a list or map section begin and end, and their number."""
    _, content = section_at(raw, 0)
    code = raw[content]
    end = skip(raw, content)
    _require_end(end, len(raw))
    if code == _LIST_EMPTY:
        return end, end, 0
    # A code, then the size and the count, each of one byte or of four.
    count_at, at = (content + 2, content + 3) if code in _COMPACT else (content + 5, content + 9)
    if at > end:
        raise DecodeError(f"the section of {len(raw)} bytes has no room for the count of its items")
    return at, end, int.from_bytes(raw[count_at:at], "big")


def _require_end(at: int, end: int) -> None:
    if at != end:
        raise DecodeError(f"the section's items end at byte {at}, the section at byte {end}")
