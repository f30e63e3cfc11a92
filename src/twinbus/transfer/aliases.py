"""The aliases: under which names, and as what types, a backlog message keeps what was cleared.

Names and types are those of the retired .NET library, so that queues which it left behind
can be drained. Four names are ours: a marker that the partition key was the session id (without
it a message that had the key would look like one that had not), the message id where the copy in
the backlog has an id of its own, the count of a dead letter's replays, and the format of a message
that only a later version can restore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from twinbus.amqp.encoding import encode, string
from twinbus.amqp.types import Described, Symbol, Timestamp, ULong
from twinbus.errors import (
    AliasTypeError,
    AliasValueError,
    BacklogFormatError,
    BacklogGuardError,
    InvalidDestinationError,
    MissingDestinationError,
    TransferError,
)
from twinbus.servicebus.names import (
    DATE_MAX_MS,
    DATE_MIN_MS,
    DATE_TIME,
    EPOCH_TICKS,
    FOREVER_MS,
    MESSAGE_ID_MAX,
    SESSION_ID_MAX,
    TICKS_PER_MS,
    TIME_SPAN,
    is_entity_name,
    not_an_entity_name,
)

SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
PATH: Final = "x-ms-path"
PARTITION_KEY_MARKER: Final = "x-twinbus-partitionkey"
MESSAGE_ID: Final = "x-twinbus-messageid"
REPLAYS: Final = "x-twinbus-replays"
FORMAT: Final = "x-twinbus-format"

FORMAT_MAX: Final = 1
"""The highest format that this version restores. It is the format of a message without the alias;
this version writes no other. A later version gives a message that needs more a higher one."""

RESERVED_NAMES: Final = frozenset(
    {
        SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, PATH, PARTITION_KEY_MARKER, MESSAGE_ID, REPLAYS,
        FORMAT,
    }
)  # fmt: skip
"""Application properties that no message may have on its way into the backlog."""

RESERVED_KEYS: Final = RESERVED_NAMES | {name.encode() for name in RESERVED_NAMES}
"""The same as the SDK may have them: names of properties are text or bytes there."""

_KEYS: Final = {name: string(name) for name in RESERVED_NAMES}

_TIME_SPAN: Final = Symbol(TIME_SPAN)
TICKS_MAX: Final = 2**63 - 1
"""The ticks of TimeSpan.MaxValue: no sender could set a longer time to live."""
ULONG_MAX: Final = 2**64 - 1

OWN_ID_BYTES: Final = 32
"""Length of the id that a copy in the backlog gets: a UUID in hexadecimal."""
PROPERTIES_GROWTH_MAX: Final = OWN_ID_BYTES + 8
"""How much longer the properties get with it: the id, and a list head of 9 bytes instead of 3."""

MessageId = str | ULong | UUID | bytes
"""The types that AMQP has for a message id."""

SECTION_GROWTH_MAX: Final = 12
"""The application properties may have to begin: a descriptor of 3 bytes and a map head of 9."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aliases:
    """What a backlog message keeps of the message it was."""

    path: str
    """Destination entity, relative to the primary; `read` takes only what can name an entity."""
    session_id: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None
    """Scheduled enqueue time in unix milliseconds."""
    partition_key_is_session: bool = False
    message_id: MessageId | None = None
    """The message's own id; None: the message in the backlog has it, or it had none."""

    def as_properties(self) -> dict[str, object]:
        """The application properties that carry these, with their AMQP types."""
        properties: dict[str, object] = {}
        if self.session_id is not None:
            properties[SESSION_ID] = self.session_id
        if self.time_to_live_ms is not None:
            properties[TIME_TO_LIVE] = Described(_TIME_SPAN, self.time_to_live_ms * TICKS_PER_MS)
        if self.scheduled_ms is not None:
            properties[SCHEDULED_TIME] = Timestamp(self.scheduled_ms)
        if self.partition_key_is_session:
            properties[PARTITION_KEY_MARKER] = True
        if self.message_id is not None:
            properties[MESSAGE_ID] = self.message_id
        properties[PATH] = self.path
        return properties

    def as_entries(self) -> list[bytes]:
        """The same, each encoded as an entry of a map."""
        return [_KEYS[name] + encode(value) for name, value in self.as_properties().items()]

    def require_restorable(self) -> None:
        """Raise BacklogGuardError for what `read` refuses: it would be dead-lettered later."""
        try:
            Aliases.read(self.as_properties())
        except TransferError as error:
            raise BacklogGuardError(
                f"the syphon could not restore the message from a backlog queue: {error};"
                " send one with a valid value"
            ) from error

    @classmethod
    def read(cls, properties: Mapping[str, object]) -> Aliases:
        """The aliases among application properties; TransferError if they make no sense."""
        _require_known_format(properties.get(FORMAT))
        path = properties.get(PATH)
        if path is None or path == "":
            raise MissingDestinationError(
                f"the message has no {PATH}, so its destination is unknown"
            )
        path = _text(PATH, path)
        if not is_entity_name(path):
            raise InvalidDestinationError(not_an_entity_name(path))
        return cls(
            path=path,
            session_id=_session_id(properties.get(SESSION_ID)),
            time_to_live_ms=_duration_ms(properties.get(TIME_TO_LIVE)),
            scheduled_ms=_time_ms(properties.get(SCHEDULED_TIME)),
            partition_key_is_session=properties.get(PARTITION_KEY_MARKER) is True,
            message_id=read_message_id(properties.get(MESSAGE_ID)),
        )


def overhead_bytes(path: str, *, session_id: str | None = None, message_id: object = None) -> int:
    """The most bytes by which a message to `path` with this session is longer in the backlog.

    `message_id` is the id of a message whose copy gets an id of its own.
    """
    replaced = replaceable_id(message_id)
    aliases = Aliases(
        path=path,
        session_id=session_id,
        # The largest values: an encoding may be shorter for smaller ones.
        time_to_live_ms=FOREVER_MS,
        scheduled_ms=FOREVER_MS,
        partition_key_is_session=session_id is not None,
        message_id=replaced,
    )
    growth = SECTION_GROWTH_MAX + (0 if replaced is None else PROPERTIES_GROWTH_MAX)
    return growth + sum(map(len, aliases.as_entries()))


def lifetime_ms(expiry_ms: int, creation_ms: int) -> int:
    """The time to live of a message that says when it expires; 0 would mean that it never does."""
    return min(max(expiry_ms - creation_ms, 1), FOREVER_MS)


def replaceable_id(message_id: object) -> MessageId | None:
    """The id as an alias keeps it; None: there is none, or no service takes it, and it stays."""
    try:
        return read_message_id(message_id)
    except (AliasTypeError, AliasValueError):
        return None


def read_message_id(value: object) -> MessageId | None:
    """The message id that an alias holds; AliasTypeError, AliasValueError if it is not valid."""
    if value is None or isinstance(value, UUID):
        return value
    if isinstance(value, bool | Timestamp) or not isinstance(value, str | int | bytes):
        raise _unreadable(MESSAGE_ID, value, "a string, a UUID, an unsigned number or binary")
    if isinstance(value, int):
        if not 0 <= value <= ULONG_MAX:
            raise AliasValueError(f"{MESSAGE_ID} is {value}, not 0 to {ULONG_MAX}")
        return ULong(value)
    if len(value) > MESSAGE_ID_MAX:
        raise AliasValueError(
            f"{MESSAGE_ID} has {len(value)} characters; the limit is {MESSAGE_ID_MAX}"
        )
    return str(value) if isinstance(value, str) else value


def _require_known_format(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unreadable(FORMAT, value, "a number")
    if value > FORMAT_MAX:
        raise BacklogFormatError(
            f"the message has the backlog format {value} of a later version of Twinbus; this"
            f" version restores format {FORMAT_MAX}: upgrade what runs the syphon, then replay it"
        )


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return str(value)
    raise _unreadable(name, value, "a string")


def _session_id(value: object) -> str | None:
    if value is None:
        return None
    session_id = _text(SESSION_ID, value)
    if len(session_id) > SESSION_ID_MAX:
        raise AliasValueError(
            f"{SESSION_ID} has {len(session_id)} characters; the limit is {SESSION_ID_MAX}"
        )
    return session_id


def _duration_ms(value: object) -> int | None:
    """Milliseconds of a described timespan, or of a plain number of ticks."""
    if isinstance(value, Described) and value.descriptor == TIME_SPAN:
        value = value.value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unreadable(TIME_TO_LIVE, value, "a timespan in ticks")
    if not 0 <= value <= TICKS_MAX:
        raise AliasValueError(f"{TIME_TO_LIVE} is {value} ticks, not 0 to {TICKS_MAX}")
    # Up, so that less than a millisecond does not become none.
    milliseconds = -(-value // TICKS_PER_MS)
    return milliseconds if milliseconds < FOREVER_MS else None


def _time_ms(value: object) -> int | None:
    """Unix milliseconds of a timestamp, of a plain number of them, or of a described date."""
    if isinstance(value, Described) and value.descriptor == DATE_TIME:
        ticks = value.value
        if isinstance(ticks, int) and not isinstance(ticks, bool):
            return _date_ms((ticks - EPOCH_TICKS) // TICKS_PER_MS)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unreadable(SCHEDULED_TIME, value, "a timestamp")
    return _date_ms(int(value))


def _date_ms(unix_ms: int) -> int:
    if not DATE_MIN_MS <= unix_ms <= DATE_MAX_MS:
        raise AliasValueError(
            f"{SCHEDULED_TIME} is {unix_ms} ms after 1970, which is no date of the years 1 to 9999"
        )
    return unix_ms


def _unreadable(name: str, value: object, wanted: str) -> AliasTypeError:
    return AliasTypeError(f"{name} is {value!r:.80} ({type(value).__name__}), not {wanted}")
