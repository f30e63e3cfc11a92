"""A delivery of a backlog queue into a parcel: where it belongs, and as what it is sent there.

Pure. Only the sections that change are looked into, the body never (SPEC 4). `unpack` does it step
by step with `twinbus.transfer`. An `Unpacker` gives the same parcels faster: a backlog holds many
messages of one shape, so it learns from each message that took the slow way how such a message
looks, and takes the short way for every later one that looks so, byte for byte.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from twinbus.amqp.encoding import compound
from twinbus.amqp.message import APPLICATION_PROPERTIES, Sections, join, split
from twinbus.amqp.skipping import skip_many
from twinbus.amqp.types import DecodeError, decode
from twinbus.errors import TransferError
from twinbus.syphon.parcel import LOCK_SHORTEST_S, Parcel
from twinbus.transfer import Aliases, aliases_of, from_backlog_sections, without_delivery_marks
from twinbus.transfer.splice import entries_of, field_value, fields_of

__all__ = ["EXPIRED", "MALFORMED", "Unpacker", "unpack"]

MALFORMED: Final = "MalformedMessage"
EXPIRED: Final = "TimeToLiveExpired"

LEARNED_MAX: Final = 256
"""Shapes of each kind that are remembered; past that all are forgotten and learned anew."""

_SEQUENCE: Final = b"x-opt-sequence-number"
_ENQUEUED: Final = b"x-opt-enqueued-time"
_LOCKED: Final = b"x-opt-locked-until"
_PATH_ENTRY: Final = b"\xa1\x09x-ms-path"
_MAP_HEAD: Final = bytes((0x00, 0x53, APPLICATION_PROPERTIES))
_WIDE_COUNT: Final = struct.Struct(">I").unpack_from
_INT_FORMATS: Final = {0x81: "q", 0x83: "q", 0x55: "b", 0x54: "b", 0x71: "i", 0x70: "I", 0x80: "Q"}
"""Struct formats of the codes that broker marks are written with."""


def unpack(
    payload: bytes, lock_token: bytes, now_ms: int, *, remaining_ttl: bool = False
) -> Parcel:
    """The parcel in a delivery; what cannot be brought anywhere has a `fault`."""
    parcel = Parcel(lock_token, len(payload))
    _fill(parcel, payload, now_ms, remaining_ttl)
    return parcel


def _fill(parcel: Parcel, payload: bytes, now_ms: int, remaining_ttl: bool) -> Sections | None:
    """Unpack step by step; the delivery's sections, if they could be brought somewhere."""
    try:
        sections = split(payload)
        _read_marks(parcel, sections.message_annotations, now_ms)
        parcel.message_id = _message_id(sections.properties)
        shortened = _shortened(parcel, aliases_of(sections), now_ms) if remaining_ttl else None
        restored, aliases = from_backlog_sections(
            without_delivery_marks(sections), now_ms=now_ms, aliases=shortened
        )
        parcel.wire = join(restored)
    except TransferError as error:
        parcel.fault = (error.reason, str(error))
        return None
    except DecodeError as error:
        parcel.fault = (MALFORMED, f"the message cannot be read: {error}")
        return None
    parcel.path = aliases.path.strip("/")
    parcel.destination = parcel.path.lower()
    return sections


class Unpacker:
    """Unpacks the deliveries of one queue; what it has learned changes nothing but the time."""

    def __init__(self, *, remaining_ttl: bool = False) -> None:
        self._remaining_ttl = remaining_ttl
        self._headers: dict[bytes, bytes] = {}
        """A header as it is delivered, and as it was sent."""
        self._marks: dict[int, _Marks] = {}
        """Annotations that are a broker's marks alone, by their length."""
        self._paths: dict[bytes, tuple[str, str]] = {}
        """An alias `x-ms-path` as a map's last entry: the path, and in lower case."""

    def unpack(self, payload: bytes, lock_token: bytes, now_ms: int) -> Parcel:
        """The parcel in a delivery; what cannot be brought anywhere has a `fault`."""
        parcel = Parcel(lock_token, len(payload))
        if not self._take_short_way(parcel, payload, now_ms):
            sections = _fill(parcel, payload, now_ms, self._remaining_ttl)
            if sections is not None:
                self._learn(sections)
        return parcel

    def _take_short_way(self, parcel: Parcel, payload: bytes, now_ms: int) -> bool:
        """Unpack a message that looks like one before; false, and nothing done, if it does not."""
        try:
            sections = split(payload)
            header = self._headers.get(sections.header)
            marks = self._marks.get(len(sections.message_annotations))
            custom = sections.application_properties
            at = custom.rfind(_PATH_ENTRY)
            path = self._paths.get(custom[at:])
            if header is None or marks is None or path is None:
                return False
            found = marks.read(sections.message_annotations)
            kept = _entries_before(custom, at)
            if found is None or kept is None:
                return False
            message_id = _message_id(sections.properties)
        except (DecodeError, struct.error, IndexError):
            return False
        parcel.sequence_number, parcel.enqueued_ms, locked_ms = found
        if locked_ms:
            parcel.lock_s = max((locked_ms - now_ms) / 1000, LOCK_SHORTEST_S)
        parcel.message_id = message_id
        parcel.path, parcel.destination = path
        parcel.wire = b"".join((header, sections.properties, kept, sections.body, sections.footer))
        return True

    def _learn(self, sections: Sections) -> None:
        """Remember how this message looks, where it is as nearly all are."""
        for learned in (self._headers, self._marks, self._paths):
            if len(learned) >= LEARNED_MAX:
                learned.clear()
        self._headers[sections.header] = without_delivery_marks(
            Sections(header=sections.header)
        ).header
        marks = _Marks.of(sections.message_annotations)
        if marks is not None:
            self._marks[len(sections.message_annotations)] = marks
        custom = sections.application_properties
        key, start, value_at, end = entries_of(custom)[-1]
        if key == b"x-ms-path" and end == len(custom) and custom[start:].startswith(_PATH_ENTRY):
            path = str(decode(custom, value_at)[0]).strip("/")
            self._paths[custom[start:]] = (path, path.lower())


def _entries_before(custom: bytes, at: int) -> bytes | None:
    """The application properties without their last entry, which begins at `at`.

    None if other aliases are there too, or if no entry begins at `at` after all.
    """
    if custom.find(b"x-ms-", 0, at) >= 0 or custom.find(b"x-twinbus-", 0, at) >= 0:
        return None
    if not custom.startswith(_MAP_HEAD):
        return None
    code = custom[3]
    if code == 0xC1:
        count, start = custom[5], 6
    elif code == 0xD1:
        count, start = _WIDE_COUNT(custom, 8)[0], 12
    else:
        return None
    # Walked, not guessed: the text of the alias may stand inside a value of somebody else.
    if skip_many(custom, start, count - 2) != at:
        return None
    if count == 2:
        return b""
    return _MAP_HEAD + compound(0xC1, 0xD1, count - 2, custom[start:at])


class _Marks:
    """Annotations that are a broker's marks of fixed width and nothing else: where the values are.

    One struct reads values and the bytes between them; those must be the same in each message.
    """

    __slots__ = ("_between", "_enqueued", "_locked", "_sequence", "_struct")

    def __init__(
        self, layout: struct.Struct, between: tuple[bytes, ...], places: dict[bytes, int]
    ) -> None:
        self._struct = layout
        self._between = between
        self._sequence = places[_SEQUENCE]
        self._enqueued = places[_ENQUEUED]
        self._locked = places.get(_LOCKED, -1)

    @classmethod
    def of(cls, raw: bytes) -> _Marks | None:
        """How this section is laid out; None if it holds more, or less, than such marks."""
        if without_delivery_marks(Sections(message_annotations=raw)).message_annotations:
            return None
        form, at = ">", 0
        places: dict[bytes, int] = {}
        for number, (key, _, value_at, end) in enumerate(entries_of(raw)):
            kind = _INT_FORMATS.get(raw[value_at])
            if kind is None:
                return None
            form += f"{value_at + 1 - at}s{kind}"
            places[key] = 2 * number + 1
            at = end
        if at != len(raw) or _SEQUENCE not in places or _ENQUEUED not in places:
            return None
        layout = struct.Struct(form)
        if layout.size != len(raw):
            return None
        return cls(layout, layout.unpack(raw)[0::2], places)

    def read(self, raw: bytes) -> tuple[int, int, int] | None:
        """Sequence number, enqueued time and the end of the lock (0: it does not say)."""
        values = self._struct.unpack(raw)
        if values[0::2] != self._between:
            return None
        locked = values[self._locked] if self._locked > 0 else 0
        return values[self._sequence], values[self._enqueued], locked


def _message_id(properties: bytes) -> str | None:
    # Nearly always: a list with sizes of one byte, or of four, whose first field is a short string.
    if properties[:3] == b"\x00\x53\x73":
        at = 6 if properties[3] == 0xC0 else 12
        if len(properties) > at + 1 and properties[at] == 0xA1 and properties[3] in (0xC0, 0xD0):
            end = at + 2 + properties[at + 1]
            return properties[at + 2 : end].decode("utf-8", "replace")
    found = field_value(properties, fields_of(properties), 0)
    return None if found is None else str(found)


def _read_marks(parcel: Parcel, raw: bytes, now_ms: int) -> None:
    """What the broker wrote on the delivery: its number, its age, and how long it is locked."""
    for key, _, value_at, _ in entries_of(raw):
        if key == _SEQUENCE:
            parcel.sequence_number = _number(decode(raw, value_at)[0])
        elif key == _ENQUEUED:
            parcel.enqueued_ms = _number(decode(raw, value_at)[0])
        elif key == _LOCKED:
            locked_ms = _number(decode(raw, value_at)[0])
            if locked_ms:
                parcel.lock_s = max((locked_ms - now_ms) / 1000, LOCK_SHORTEST_S)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class _Expired(TransferError):
    reason = EXPIRED


def _shortened(parcel: Parcel, aliases: Aliases, now_ms: int) -> Aliases:
    """The aliases with what is left of the time to live (SPEC 6)."""
    if aliases.time_to_live_ms is None or not parcel.enqueued_ms:
        return aliases
    left_ms = aliases.time_to_live_ms - max(0, now_ms - parcel.enqueued_ms)
    if left_ms <= 0:
        raise _Expired(
            f"its time to live of {aliases.time_to_live_ms / 1000:g} s ended in the backlog, "
            f"{-left_ms / 1000:.0f} s before the syphon came to it"
        )
    return replace(aliases, time_to_live_ms=left_ms)
