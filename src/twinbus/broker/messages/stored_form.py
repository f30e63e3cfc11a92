"""How a message lies in the store, for those who write it (message) and read it (rendering).

A prefix, the sender's delivery annotations and message annotations, each as raw map entries, then
every section from the properties on.
"""

from __future__ import annotations

import struct
from collections.abc import Set
from typing import Final

from twinbus.amqp.decoding import skip
from twinbus.amqp.message import section_at
from twinbus.amqp.types import DecodeError

PREFIX: Final = struct.Struct(">BBhIIII")
"""Format, durable as its AMQP format code, priority (-1: null), then items and bytes of the
delivery annotations, and of the message annotations."""

FORMAT: Final = 1

UINT_MAX: Final = 0xFFFF_FFFF
"""Longest time to live a header can tell, 49.7 days in ms; who means more sends this and an
absolute expiry time beside it."""

SEQUENCE_NUMBER: Final = b"x-opt-sequence-number"
ENQUEUED_TIME: Final = b"x-opt-enqueued-time"
ENQUEUED_SEQUENCE_NUMBER: Final = b"x-opt-enqueue-sequence-number"
MESSAGE_STATE: Final = b"x-opt-message-state"
LOCKED_UNTIL: Final = b"x-opt-locked-until"
DEAD_LETTER_SOURCE: Final = b"x-opt-deadletter-source"
SCHEDULED_FOR: Final = b"x-opt-scheduled-enqueue-time"
PARTITION_KEY: Final = b"x-opt-partition-key"
LOCK_TOKEN: Final = b"x-opt-lock-token"

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
