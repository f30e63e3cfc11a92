"""Raw AMQP sections into the form of the backlog and back, body and all else untouched.

    header              ttl                                  cleared, kept as x-ms-timetolive
    message annotations x-opt-scheduled-enqueue-time         cleared, kept as x-ms-scheduled...
                        x-opt-partition-key = the session    leaves and returns with the session
    properties          group-id                             cleared, kept as x-ms-sessionid
                        absolute-expiry, creation time       derived from the time to live, cleared
    application properties                                   gain the aliases and x-ms-path

A section in which nothing of this stands comes out as the very bytes that went in.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from twinbus.amqp.encoding import string, symbol, uint
from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
)
from twinbus.amqp.types import Timestamp, decode, encode
from twinbus.errors import ReservedPropertyError
from twinbus.transfer.aliases import RESERVED_NAMES, Aliases
from twinbus.transfer.splice import (
    NULL,
    Entry,
    Field,
    field_value,
    list_fields,
    map_entries,
    with_entries,
    with_fields,
)

__all__ = [
    "aliases_of",
    "from_backlog_sections",
    "to_backlog_sections",
    "without_delivery_marks",
]

TTL, FIRST_ACQUIRER, DELIVERY_COUNT = 2, 3, 4
"""Places in the header."""
ABSOLUTE_EXPIRY, CREATION, GROUP_ID = 8, 9, 10
"""Places in the properties."""

SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
PARTITION_KEY_ANNOTATION: Final = "x-opt-partition-key"

DELIVERY_MARKS: Final = frozenset(
    {
        "x-opt-deadletter-source",
        "x-opt-enqueue-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-lock-token",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-sequence-number",
    }
)
"""Annotations that a broker writes on what it delivers."""

UINT_MAX: Final = 0xFFFF_FFFF
"""The longest ttl of a header, 49 days. A longer one is told by the two times in the properties."""
TIMESTAMP_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, past which neither .NET nor Python knows a date."""


def to_backlog_sections(sections: Sections, path: str) -> Sections:
    """The message as a backlog queue keeps it; ReservedPropertyError if a name is taken."""
    custom = map_entries(sections.application_properties)
    for entry in custom:
        if entry.key in RESERVED_NAMES:
            raise ReservedPropertyError(str(entry.key))
    header, ttl = _header(sections.header)
    properties, session_id, expiry, creation = _properties(sections.properties)
    annotations, scheduled, partition_key = _annotations(sections.message_annotations)
    ttl_ms = _time_to_live_ms(ttl, expiry, creation)
    # `type`, because a symbol is a str too and would come back as a string.
    key_leaves = type(partition_key) is str and partition_key == session_id
    aliases = Aliases(
        path=path,
        session_id=session_id,
        time_to_live_ms=ttl_ms,
        scheduled_ms=scheduled,
        partition_key_is_session=key_leaves,
    )

    result = copy(sections)
    if ttl_ms is not None and ttl is not None:
        result.header = with_fields(sections.header, HEADER, header, {TTL: NULL})
    cleared = [GROUP_ID] if session_id is not None else []
    if ttl_ms is not None and expiry is not None:
        # Only an expiry makes the creation time a derived one; alone it is the application's.
        cleared += [ABSOLUTE_EXPIRY] if creation is None else [ABSOLUTE_EXPIRY, CREATION]
    result.properties = with_fields(
        sections.properties, PROPERTIES, properties, dict.fromkeys(cleared, NULL)
    )
    leaving = [SCHEDULED_ANNOTATION] if scheduled is not None else []
    leaving += [PARTITION_KEY_ANNOTATION] if key_leaves else []
    if leaving:
        result.message_annotations = with_entries(
            sections.message_annotations, MESSAGE_ANNOTATIONS, annotations, without=leaving
        )
    added = {string(name): encode(value) for name, value in aliases.as_properties().items()}
    result.application_properties = with_entries(
        sections.application_properties, APPLICATION_PROPERTIES, custom, added=added
    )
    return result


def aliases_of(sections: Sections) -> Aliases:
    """What a backlog message says it was; TransferError if it is none, or cannot be read."""
    raw = sections.application_properties
    return Aliases.read(
        {
            entry.key: decode(raw, entry.value_at)[0]
            for entry in map_entries(raw)
            if entry.key in RESERVED_NAMES
        }
    )


def from_backlog_sections(
    sections: Sections, *, now_ms: int, aliases: Aliases | None = None
) -> tuple[Sections, Aliases]:
    """The message as it was sent to the primary, and the aliases it had.

    `aliases` in place of the message's own restore something else, such as a shorter time to live.
    """
    aliases = aliases or aliases_of(sections)
    result = copy(sections)
    result.application_properties = with_entries(
        sections.application_properties,
        APPLICATION_PROPERTIES,
        map_entries(sections.application_properties),
        without=RESERVED_NAMES,
    )
    if aliases.time_to_live_ms is not None:
        ttl = uint(min(aliases.time_to_live_ms, UINT_MAX))
        fields = list_fields(sections.header)
        result.header = with_fields(sections.header, HEADER, fields, {TTL: ttl})
    changes = _restored_properties(aliases, now_ms)
    if changes:
        fields = list_fields(sections.properties)
        result.properties = with_fields(sections.properties, PROPERTIES, fields, changes)
    annotations = _restored_annotations(aliases)
    if annotations:
        result.message_annotations = with_entries(
            sections.message_annotations,
            MESSAGE_ANNOTATIONS,
            map_entries(sections.message_annotations),
            without=annotations,
            added={symbol(name): encode(value) for name, value in annotations.items()},
        )
    return result, aliases


def without_delivery_marks(sections: Sections) -> Sections:
    """A delivered message as it was sent: without what the delivering broker wrote on it."""
    result = copy(sections)
    fields = list_fields(sections.header)
    counts = [place for place in (FIRST_ACQUIRER, DELIVERY_COUNT) if place < len(fields)]
    result.header = with_fields(sections.header, HEADER, fields, dict.fromkeys(counts, NULL))
    result.delivery_annotations = b""
    entries = map_entries(sections.message_annotations)
    if any(entry.key in DELIVERY_MARKS for entry in entries):
        result.message_annotations = with_entries(
            sections.message_annotations, MESSAGE_ANNOTATIONS, entries, without=DELIVERY_MARKS
        )
    return result


def _header(raw: bytes) -> tuple[list[Field], int | None]:
    """The header's fields, and its ttl."""
    fields = list_fields(raw)
    return fields, _number(field_value(raw, fields, TTL))


def _properties(raw: bytes) -> tuple[list[Field], str | None, int | None, int | None]:
    """The fields of the properties, the session id, the absolute expiry and the creation time."""
    fields = list_fields(raw)
    session_id = field_value(raw, fields, GROUP_ID)
    return (
        fields,
        # The specification makes it a string. Anything else is no session, and stays what it is.
        session_id if isinstance(session_id, str) else None,
        _number(field_value(raw, fields, ABSOLUTE_EXPIRY)),
        _number(field_value(raw, fields, CREATION)),
    )


def _annotations(raw: bytes) -> tuple[list[Entry], int | None, object]:
    """The entries of the annotations, the scheduled time, and the partition key."""
    scheduled: int | None = None
    partition_key: object = None
    entries = map_entries(raw)
    for entry in entries:
        if entry.key == SCHEDULED_ANNOTATION:
            scheduled = _number(decode(raw, entry.value_at)[0])
        elif entry.key == PARTITION_KEY_ANNOTATION:
            partition_key = decode(raw, entry.value_at)[0]
    return entries, scheduled, partition_key


def _time_to_live_ms(ttl: int | None, expiry: int | None, creation: int | None) -> int | None:
    lifetime = None if expiry is None or creation is None else max(expiry - creation, 0)
    if ttl is None:
        return lifetime
    return max(ttl, lifetime) if ttl == UINT_MAX and lifetime is not None else ttl


def _restored_properties(aliases: Aliases, now_ms: int) -> dict[int, bytes]:
    changes = {}
    if aliases.session_id is not None:
        changes[GROUP_ID] = string(aliases.session_id)
    if aliases.time_to_live_ms is not None and aliases.time_to_live_ms > UINT_MAX:
        expiry = min(now_ms + aliases.time_to_live_ms, TIMESTAMP_MAX)
        changes[ABSOLUTE_EXPIRY] = encode(Timestamp(expiry))
        changes[CREATION] = encode(Timestamp(now_ms))
    return changes


def _restored_annotations(aliases: Aliases) -> dict[str, object]:
    annotations: dict[str, object] = {}
    if aliases.scheduled_ms is not None:
        annotations[SCHEDULED_ANNOTATION] = Timestamp(aliases.scheduled_ms)
    if aliases.partition_key_is_session and aliases.session_id is not None:
        annotations[PARTITION_KEY_ANNOTATION] = aliases.session_id
    return annotations


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value)
