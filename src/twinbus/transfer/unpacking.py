"""Restores a backlog message from a raw delivery: its destination, and the bytes to send there.

Pure. Only the sections that change are read, the body never. `unpack` does it step by step with
`transfer.sections`. An `Unpacker` gives the same messages faster: a backlog holds many messages of
one shape, so it learns the shape of each message that took the general path, and reads every later
one of that shape by known offsets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from twinbus.amqp.decoding import decode, skip_many
from twinbus.amqp.encoding import compound
from twinbus.amqp.message import APPLICATION_PROPERTIES, Sections, join, outline, split
from twinbus.amqp.types import AmqpError, DecodeError
from twinbus.errors import TransferError
from twinbus.servicebus import names
from twinbus.servicebus.names import MESSAGE_ID_MAX
from twinbus.transfer.aliases import Aliases
from twinbus.transfer.sections import (
    aliases_of,
    entries_of,
    field_value,
    fields_of,
    from_backlog_sections,
    original_id,
    without_delivery_marks,
)

LOCK_UNKNOWN_S: Final = 30.0
"""Assumed lock duration if the delivery does not state the end of its lock."""

LOCK_SHORTEST_S: Final = 5.0
"""The shortest lock that Service Bus grants. A lock that is shorter by our clock is not: our clock
is ahead of the service's."""

LOCK_LONGEST_S: Final = 60.0
"""The lock of the backlog queues that Twinbus creates, and the longest that is relied on. One that
is longer by our clock may be so, or our clock is behind the service's."""


@dataclass(slots=True, eq=False, repr=False)
class BacklogMessage:
    """One delivery of a backlog queue, with the state that pump and relay keep for it."""

    lock_token: bytes
    size_bytes: int
    """Size of the delivery as received; the limits count this size."""
    sequence_number: int = 0
    enqueued_ms: int = 0
    message_id: str | None = None
    path: str = ""
    destination: str = ""
    """The path in lower case, because entity paths are case-insensitive."""
    session: str | None = None
    """The session id of the original message."""
    wire: bytes = b""
    """The restored message, encoded; emptied once the primary has it."""
    fault: tuple[str, str] | None = None
    """Dead-letter reason and description if the message cannot be restored."""
    is_left: bool = False
    """It must not be forwarded and not be dead-lettered: the consumers of its twin have it."""
    lock_s: float = LOCK_UNKNOWN_S
    is_deferred: bool = False
    """It was received by sequence number; if released, it is deferred again."""
    epoch: int = 0
    delivery_id: int = -1
    """On the source link of that epoch; -1: it can only be settled by its lock token."""
    received_at: float = 0.0
    renew_at: float = 0.0
    sent_at: float = 0.0
    was_sent: bool = False
    """The primary may have it."""
    settling_at: float = 0.0
    accepted: bool = False
    """The primary has it."""
    outcome: object = None
    """How the delivery is settled: an action, or the class `Complete`; set once."""

    def __repr__(self) -> str:
        return f"<message {self.sequence_number} to {self.path or 'nowhere'}>"

    @property
    def identity(self) -> tuple[int, int]:
        """Sequence number and enqueued time: the same for each delivery of a message.

        The number alone is not enough: a queue that was deleted and created again starts at 1.
        """
        return self.sequence_number, self.enqueued_ms


MALFORMED: Final = "MalformedMessage"
NOT_RESTORED: Final = "RestoreFailed"
EXPIRED: Final = "TimeToLiveExpired"

UNFORESEEN: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""What code that does no I/O raises on input that its author did not expect. MemoryError is not
among them: it says nothing about the message."""

LEARNED_MAX: Final = 256
"""Shapes of each kind that are remembered; past that all are forgotten and learned again."""

APPLICATION_BYTES_MAX: Final = 1024
"""Longest application properties that are remembered whole."""

UUID_CODE: Final = 0x98
UUID_BYTES: Final = 16

_SEQUENCE: Final = names.SEQUENCE_NUMBER.encode()
_ENQUEUED: Final = names.ENQUEUED_TIME.encode()
_LOCKED: Final = names.LOCKED_UNTIL.encode()
_TOKEN: Final = names.LOCK_TOKEN.encode()
_PATH_ENTRY: Final = b"\xa1\x09x-ms-path"
_ID_ENTRY: Final = b"\xa1\x13x-twinbus-messageid\xa1"
"""The key of the alias, and the code of a short string."""
_HEADER_HEAD: Final = b"\x00\x53\x70\xc0"
_SHORT_PROPERTIES: Final = b"\x00\x53\x73\xc0"
_WIDE_PROPERTIES: Final = b"\x00\x53\x73\xd0"
"""How properties begin: with a size of one byte, or of four."""
_WIDE_DATA: Final = b"\x00\x53\x75\xb0"
_MAP_HEAD: Final = bytes((0x00, 0x53, APPLICATION_PROPERTIES))
_WIDE_COUNT: Final = struct.Struct(">I").unpack_from
_INT_FORMATS: Final = {0x81: "q", 0x83: "q", 0x55: "b", 0x54: "b", 0x71: "i", 0x70: "I", 0x80: "Q"}
"""Struct formats of the codes that a broker writes its annotations with."""


def unpack(
    payload: bytes, lock_token: bytes, now_ms: int, *, remaining_ttl: bool = False
) -> BacklogMessage:
    """Return the message in a delivery; its `fault` says why it cannot be forwarded."""
    message = BacklogMessage(lock_token, len(payload))
    _fill(message, payload, now_ms, remaining_ttl)
    return message


def _fill(
    message: BacklogMessage, payload: bytes, now_ms: int, remaining_ttl: bool
) -> Sections | None:
    """Unpack step by step; return the delivery's sections, or None if it cannot be forwarded."""
    try:
        sections = split(payload)
        read_broker_annotations(message, sections.message_annotations, now_ms)
        message.message_id = _id_before(sections)
        shortened = _shortened(message, aliases_of(sections), now_ms) if remaining_ttl else None
        restored, aliases = from_backlog_sections(
            without_delivery_marks(sections), now_ms=now_ms, aliases=shortened
        )
        message.wire = join(restored)
    except TransferError as error:
        message.fault = (error.reason, str(error))
    except AmqpError as error:
        message.fault = (MALFORMED, f"the message cannot be read: {error}")
    except UNFORESEEN as error:
        # Raised further it would end the connection at each delivery, and the messages beside
        # this one would never arrive.
        message.fault = (NOT_RESTORED, f"restoring the message failed: {error!r:.400}")
    else:
        message.path = aliases.path
        message.destination = message.path.lower()
        message.session = aliases.session_id
        return sections
    return None


class Unpacker:
    """Unpacks the deliveries of one queue; what it has learned changes only the speed."""

    def __init__(self, *, remaining_ttl: bool = False) -> None:
        self._remaining_ttl = remaining_ttl
        self._headers: dict[bytes, tuple[bytes, _KnownHeader]] = {}
        """A header as delivered: the header as sent, and how the broker's annotations follow it."""
        self._paths: dict[bytes, tuple[str, str]] = {}
        """An alias `x-ms-path` as a map's last entry: the path, and in lower case."""
        self.restored: dict[bytes, tuple[bytes, str, str]] = {}
        """Application properties as they came: as they were sent, and the path."""

    def unpack(self, payload: bytes, lock_token: bytes, now_ms: int) -> BacklogMessage:
        """Return the message in a delivery; its `fault` says why it cannot be forwarded."""
        message = BacklogMessage(lock_token, len(payload))
        try:
            if not self.unpack_known_shape(message, payload, now_ms):
                sections = _fill(message, payload, now_ms, self._remaining_ttl)
                if sections is not None:
                    self._learn(sections)
        except UNFORESEEN:
            # Only the general path decides what a message is, and what is wrong with it.
            return unpack(payload, lock_token, now_ms, remaining_ttl=self._remaining_ttl)
        return message

    def unpack_known_shape(self, message: BacklogMessage, payload: bytes, now_ms: int) -> bool:
        """Unpack a message of a known shape; false, with nothing done, for any other.

        It is header, annotations, properties, application properties and one data section, each
        known by its first bytes; any other message takes the general path.
        """
        try:
            known = self._headers.get(payload[: 5 + payload[4]])
            if known is None:
                return False
            header, layout = known
            found = layout.read(payload)
            if found is None:
                return False
            start = layout.end
            # First as nearly all are: short properties, application properties that came before,
            # and a body of more than 255 bytes. To skip section by section takes longer.
            application_at = start + 5 + payload[start + 4]
            body_at = application_at + 5 + payload[application_at + 4]
            application_properties = payload[application_at:body_at]
            restored = self.restored.get(application_properties)
            if (
                restored is None
                or payload[start : start + 4] != _SHORT_PROPERTIES
                or payload[body_at : body_at + 4] != _WIDE_DATA
                or body_at + 8 + _WIDE_COUNT(payload, body_at + 4)[0] != len(payload)
            ):
                offsets = outline(payload, start)
                if offsets is None:
                    return False
                _, _, at, application_at, body_at = offsets
                if at != start:
                    return False  # More annotations than the layout knows.
                application_properties = payload[application_at:body_at]
                restored = self.restored.get(application_properties) or self._restore(
                    application_properties
                )
            properties = payload[start:application_at]
            if restored is None:
                with_id = self._restore_id(application_properties, properties)
                if with_id is not None:
                    restored, properties = with_id
            if restored is None:
                sections = Sections(
                    header, b"", b"", properties, application_properties, payload[body_at:], b""
                )
                return self._unpack_known_header(message, sections, found, now_ms)
            message_id: str | None
            if properties[6] == 0xA1 and properties[3] == 0xC0:
                message_id = properties[8 : 8 + properties[7]].decode("utf-8", "replace")
            else:
                message_id = message_id_in(properties)
        except (DecodeError, struct.error, IndexError):
            return False
        message.sequence_number, message.enqueued_ms, locked_ms = found
        if locked_ms:
            message.lock_s = max((locked_ms - now_ms) / 1000, LOCK_SHORTEST_S)
        message.message_id = message_id
        kept, message.path, message.destination = restored
        message.wire = b"".join((header, properties, kept, payload[body_at:]))
        return True

    def _unpack_known_header(
        self, message: BacklogMessage, sections: Sections, found: tuple[int, int, int], now_ms: int
    ) -> bool:
        """Unpack a message with more aliases than a path, whose annotations are read already."""
        try:
            message.sequence_number, message.enqueued_ms, locked_ms = found
            message.message_id = _id_before(sections)
            known = aliases_of(sections) if self._remaining_ttl else None
            shortened = None if known is None else _shortened(message, known, now_ms)
            restored, aliases = from_backlog_sections(sections, now_ms=now_ms, aliases=shortened)
        except (TransferError, AmqpError):
            return False  # The general path reports the error.
        if locked_ms:
            message.lock_s = max((locked_ms - now_ms) / 1000, LOCK_SHORTEST_S)
        message.wire = join(restored)
        message.path = aliases.path
        message.destination = message.path.lower()
        message.session = aliases.session_id
        return True

    def _restore(self, application_properties: bytes) -> tuple[bytes, str, str] | None:
        """Application properties without their last entry, a known path; None if not.

        The path, and the path in lower case, come with them. Senders repeat themselves.
        """
        at = application_properties.rfind(_PATH_ENTRY)
        path = self._paths.get(application_properties[at:])
        if path is None:
            return None
        kept = _entries_before(application_properties, at, 1)
        if kept is None:
            return None
        if len(application_properties) <= APPLICATION_BYTES_MAX:
            if len(self.restored) >= LEARNED_MAX:
                self.restored.clear()
            self.restored[application_properties] = (kept, *path)
        return (kept, *path)

    def _restore_id(
        self, application_properties: bytes, properties: bytes
    ) -> tuple[tuple[bytes, str, str], bytes] | None:
        """The same for a copy with an id of its own; and the properties with the original id.

        None unless the aliases are that id, as a short string, and a known path, and nothing else.
        """
        at = application_properties.rfind(_PATH_ENTRY)
        path = self._paths.get(application_properties[at:])
        start = application_properties.rfind(_ID_ENTRY, 0, at) if path is not None else -1
        value = start + len(_ID_ENTRY)
        if path is None or start < 0 or value + 1 + application_properties[value] != at:
            return None
        if properties[:4] != _SHORT_PROPERTIES or properties[6] != 0xA1:
            return None
        try:
            is_valid = len(application_properties[value + 1 : at].decode()) <= MESSAGE_ID_MAX
        except UnicodeDecodeError:
            return None
        kept = _entries_before(application_properties, start, 2)
        rest = properties[8 + properties[7] :]
        size = 2 + at - value + len(rest)
        if kept is None or not is_valid or size > 0xFF:
            return None
        restored = b"".join(
            (
                _SHORT_PROPERTIES,
                bytes((size, properties[5], 0xA1)),
                application_properties[value:at],
                rest,
            )
        )
        return (kept, *path), restored

    def _learn(self, sections: Sections) -> None:
        """Learn the shape of this message, if it is a usual one."""
        for learned in (self._headers, self._paths):
            if len(learned) >= LEARNED_MAX:
                learned.clear()
        layout = _KnownHeader.of(sections)
        if layout is not None:
            restored = without_delivery_marks(Sections(header=sections.header)).header
            self._headers[sections.header] = (restored, layout)
        application_properties = sections.application_properties
        key, start, value_at, end = entries_of(application_properties)[-1]
        if (
            key == b"x-ms-path"
            and end == len(application_properties)
            and application_properties[start:].startswith(_PATH_ENTRY)
        ):
            path = str(decode(application_properties, value_at)[0])
            self._paths[application_properties[start:]] = (path, path.lower())


def _is_token_alone(raw: bytes) -> bool:
    entries = entries_of(raw)
    if len(entries) != 1:
        return False
    key, _, value_at, end = entries[0]
    return key == _TOKEN and raw[value_at] == UUID_CODE and end == len(raw)


def _entries_before(application_properties: bytes, at: int, removed: int) -> bytes | None:
    """The application properties without their last `removed` entries, which begin at `at`.

    None if other aliases are there too, or if no entry begins at `at` after all.
    """
    if (
        application_properties.find(b"x-ms-", 0, at) >= 0
        or application_properties.find(b"x-twinbus-", 0, at) >= 0
    ):
        return None
    if not application_properties.startswith(_MAP_HEAD):
        return None
    code = application_properties[3]
    if code == 0xC1:
        count, start = application_properties[5], 6
    elif code == 0xD1:
        count, start = _WIDE_COUNT(application_properties, 8)[0], 12
    else:
        return None
    # Walked, not guessed: a value of another entry may contain the text of the alias.
    left = count - 2 * removed
    if left < 0 or skip_many(application_properties, start, left) != at:
        return None
    if not left:
        return b""
    return _MAP_HEAD + compound(0xC1, 0xD1, left, application_properties[start:at])


class _KnownHeader:
    """Where the broker's annotations stand between a header and the properties that follow it.

    One struct reads values and the bytes between them; those must be the same in each message.
    """

    __slots__ = ("_at", "_between", "_enqueued", "_locked", "_sequence", "_unpack", "end")

    def __init__(
        self, at: int, layout: struct.Struct, between: tuple[bytes, ...], places: dict[bytes, int]
    ) -> None:
        self._at = at
        self.end = at + layout.size
        """Where the properties begin."""
        self._unpack = layout.unpack_from
        self._between = between
        self._sequence = places[_SEQUENCE]
        self._enqueued = places[_ENQUEUED]
        self._locked = places.get(_LOCKED, -1)

    @classmethod
    def of(cls, sections: Sections) -> _KnownHeader | None:
        """How this message begins; None unless it has a short header and only fixed annotations."""
        header, hop = sections.header, sections.delivery_annotations
        raw = sections.message_annotations
        if header[:4] != _HEADER_HEAD or (hop and not _is_token_alone(hop)):
            return None
        if without_delivery_marks(Sections(message_annotations=raw)).message_annotations:
            return None
        # The lock token is a value too, of which nothing is made: the delivery's tag says it.
        form, at = (f">{len(hop) - UUID_BYTES}s{UUID_BYTES}s" if hop else ">"), 0
        places: dict[bytes, int] = {}
        for number, (key, _, value_at, end) in enumerate(entries_of(raw)):
            kind = _INT_FORMATS.get(raw[value_at])
            if kind is None:
                return None
            form += f"{value_at + 1 - at}s{kind}"
            places[key] = 2 * number + (3 if hop else 1)
            at = end
        if at != len(raw) or _SEQUENCE not in places or _ENQUEUED not in places:
            return None
        layout = struct.Struct(form)
        if layout.size != len(hop) + len(raw):
            return None
        return cls(len(header), layout, layout.unpack(hop + raw)[0::2], places)

    def read(self, payload: bytes) -> tuple[int, int, int] | None:
        """Sequence number, enqueued time and the end of the lock (0: it does not say)."""
        values = self._unpack(payload, self._at)
        if values[0::2] != self._between:
            return None
        locked = values[self._locked] if self._locked > 0 else 0
        return values[self._sequence], values[self._enqueued], locked


def _id_before(sections: Sections) -> str | None:
    """The id of the message before it was diverted, which an id of the copy may have replaced."""
    original = original_id(sections)
    return message_id_in(sections.properties) if original is None else str(original)


def message_id_in(properties: bytes) -> str | None:
    """Return the message id in a raw properties section as text; None: there is none."""
    # Nearly always: a list with sizes of one byte, whose first field is a short string.
    if properties[:4] == _SHORT_PROPERTIES and properties[6:7] == b"\xa1" and properties[7:]:
        return properties[8 : 8 + properties[7]].decode("utf-8", "replace")
    if properties[:4] == _WIDE_PROPERTIES and properties[12:13] == b"\xa1" and properties[13:]:
        return properties[14 : 14 + properties[13]].decode("utf-8", "replace")
    found = field_value(properties, fields_of(properties), 0)
    return None if found is None else str(found)


def read_broker_annotations(message: BacklogMessage, raw: bytes, now_ms: int) -> None:
    """Read what the broker wrote on the delivery: its number, its age, the end of its lock."""
    for key, _, value_at, _ in entries_of(raw):
        if key not in (_SEQUENCE, _ENQUEUED, _LOCKED):
            continue
        value = decode(raw, value_at)[0]
        number = value if isinstance(value, int) else 0
        if key == _SEQUENCE:
            message.sequence_number = number
        elif key == _ENQUEUED:
            message.enqueued_ms = number
        elif number:
            message.lock_s = max((number - now_ms) / 1000, LOCK_SHORTEST_S)


class _Expired(TransferError):
    reason = EXPIRED


def _shortened(message: BacklogMessage, aliases: Aliases, now_ms: int) -> Aliases:
    """The aliases with what is left of the time to live (docs/guarantees.md)."""
    if aliases.time_to_live_ms is None or not message.enqueued_ms:
        return aliases
    left_ms = aliases.time_to_live_ms - max(0, now_ms - message.enqueued_ms)
    if left_ms <= 0:
        message.path = aliases.path
        message.destination = message.path.lower()
        raise _Expired(
            f"its time to live of {aliases.time_to_live_ms / 1000:g} s ended in the backlog, "
            f"{-left_ms / 1000:.0f} s before the syphon came to it"
        )
    return replace(aliases, time_to_live_ms=left_ms)
