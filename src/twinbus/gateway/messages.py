"""The messages of one delivery of a client, as bytes: for the primary and for a backlog queue.

The primary gets the client's own bytes; only a message without an id gets one spliced in. A batch
stays a batch. The same messages in backlog form are made when they are first diverted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from twinbus.amqp.encoding import binary, string
from twinbus.amqp.message import (
    BATCH_FORMAT,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Properties,
    Sections,
    batch_parts,
    decode_map,
    encode_map_section,
    encode_properties,
    join,
    split,
)
from twinbus.amqp.types import DecodeError, Symbol
from twinbus.broker.links.context import new_message_id
from twinbus.broker.links.turns import at_once
from twinbus.broker.messages.plain import ID_BYTES_MAX
from twinbus.broker.refusals import MalformedMessage, MessageTooLarge
from twinbus.client.in_flight import Wire
from twinbus.errors import BacklogGuardError, BacklogMessageTooLargeError
from twinbus.servicebus.names import (
    BATCH_ALLOWANCE,
    BATCH_MESSAGES_MAX,
    PARTITION_KEY,
    SESSION_ID_MAX,
)
from twinbus.servicebus.twins import DIVERTED, DivertMark
from twinbus.transfer.aliases import RESERVED_NAMES, overhead_bytes
from twinbus.transfer.sections import (
    GROUP_ID,
    MESSAGE_ID_FIELD,
    field_value,
    fields_of,
    to_backlog_sections,
    with_fields,
    with_property,
)

_has_reserved: Final = re.compile("|".join(map(re.escape, RESERVED_NAMES)).encode()).search
_ID_GROWTH: Final = overhead_bytes("", message_id="") - overhead_bytes("")
"""What a message with an empty id grows by when its copy gets an id of its own."""

READ_AT_ONCE: Final = 16
"""Messages of a batch that are read in one step."""

_LONGEST_SESSION_ID: Final = chr(0x10FFFF) * SESSION_ID_MAX
_DATA_SECTION: Final = bytes((0x00, 0x53, DATA))


class EncodedMessage(NamedTuple):
    """One message, with an id. Kept as bytes, for most are never needed in sections.

    A batch has thousands: sections of each would make the garbage collector stop all clients.
    """

    data: bytes
    message_id: str
    session_id: str | None
    size_bytes: int
    """As its client sent it."""
    body_bytes: int

    @property
    def sections(self) -> Sections:
        return split(self.data)


class EncodedMessages:
    """The messages of one delivery; `OutgoingMessages` of a send call."""

    __slots__ = ("_diverted", "_messages", "_own_ids", "path", "payload", "suspects")

    def __init__(
        self,
        payload: Wire,
        messages: Sequence[EncodedMessage],
        path: str,
        own_ids: Sequence[str | None],
    ) -> None:
        self.payload = payload
        self.path = path
        self.suspects: list[EncodedMessage] = []
        """Messages that a backlog queue may not take (docs/guarantees.md)."""
        self._messages = messages
        self._own_ids = own_ids
        self._diverted: list[bytes] | None = None

    @classmethod
    def of(
        cls, data: bytes, message_format: int, path: str, limit_bytes: int, *, has_own_ids: bool
    ) -> EncodedMessages:
        """Read a delivery; `MalformedMessage` if it cannot be read.

        Messages that may exceed this limit of a backlog queue become `suspects`.
        """
        return at_once(
            cls.reading(data, message_format, path, limit_bytes, has_own_ids=has_own_ids)
        )

    @classmethod
    def reading(
        cls, data: bytes, message_format: int, path: str, limit_bytes: int, *, has_own_ids: bool
    ) -> Generator[None, None, EncodedMessages]:
        """Read a delivery as `of` does, some messages at a time."""
        try:
            if message_format == BATCH_FORMAT:
                payload, messages = yield from _read_batch(data)
            else:
                message, _ = _read(data)
                payload, messages = Wire(message.data, 0), [message]
        except DecodeError as error:
            raise MalformedMessage(f"the message cannot be read: {error}") from error
        if message_format != BATCH_FORMAT and message_format:
            payload = Wire(payload.data, message_format)
        # Drawn once: every retry of this call, on whatever queue, carries the same.
        own_ids: list[str | None] = []
        made = cls(payload, messages, path, own_ids)
        overhead_max = _overhead_max(path)
        for number, one in enumerate(messages, 1):
            if not number % READ_AT_ONCE:
                yield
            replaced = one.message_id if has_own_ids else None
            own_ids.append(new_message_id() if has_own_ids else None)
            if _is_suspect(one, path, overhead_max, limit_bytes, replaced):
                made.suspects.append(one)
        return made

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(message.message_id for message in self._messages)

    def measured(self) -> list[tuple[str | None, int | None]]:
        """Id and body size of each message, for the ledger."""
        return [(message.message_id, message.body_bytes) for message in self._messages]

    def diverted(self, limit_bytes: int | None) -> Wire:
        """The copies for a backlog queue; BacklogGuardError if it could not store one of them."""
        if self._diverted is None:
            self._diverted = [
                _backlog_form(message, self.path, own_id)
                for message, own_id in zip(self._messages, self._own_ids, strict=True)
            ]
        for message, copy in zip(self._messages, self._diverted, strict=True):
            self._require_size(message, copy, limit_bytes)
        if len(self._diverted) == 1:
            return Wire(self._diverted[0], 0)
        return _batch(Sections(), self._diverted)

    def twinned(self, limit_bytes: int | None, mark: DivertMark) -> Wire:
        """The messages as they are, with this mark; BacklogGuardError if one is too large."""
        copies = [_marked(message, mark) for message in self._messages]
        for message, copy in zip(self._messages, copies, strict=True):
            self._require_size(message, copy, limit_bytes)
        if len(copies) == 1:
            return Wire(copies[0], 0)
        return _batch(_envelope(self._messages), copies)

    @staticmethod
    def _require_size(message: EncodedMessage, copy: bytes, limit_bytes: int | None) -> None:
        if limit_bytes is not None and len(copy) > limit_bytes:
            raise BacklogMessageTooLargeError(
                size_bytes=message.size_bytes,
                overhead_bytes=max(0, len(copy) - message.size_bytes),
                limit_bytes=limit_bytes,
            )

    def flaws(self, limit_bytes: int | None) -> list[BacklogGuardError]:
        """An error for each suspect that a backlog queue with this limit would not take."""
        found: list[BacklogGuardError] = []
        own_id = self._own_ids[:1]  # All are of one length.
        for message in self.suspects:
            try:
                EncodedMessages(self.payload, [message], self.path, own_id).diverted(limit_bytes)
            except BacklogGuardError as flaw:
                found.append(flaw)
        return found

    def refused_size(self, limit_bytes: int, *, was_sent: bool) -> int | None:
        """The size that a link with this limit refuses; None: it may not."""
        is_batch = self.payload.message_format == BATCH_FORMAT
        allowance = BATCH_ALLOWANCE if is_batch and not was_sent else 0
        size_bytes = len(self.payload.data)
        return size_bytes if size_bytes > limit_bytes + allowance else None

    def halves(self) -> tuple[EncodedMessages, EncodedMessages]:
        """The same messages in two calls, for a batch that is too large with its aliases."""
        middle = len(self._messages) // 2
        return self._part(range(middle)), self._part(range(middle, len(self._messages)))

    def by_session(self) -> dict[str | None, list[int]]:
        """The numbers of the messages of each session; under None those without one."""
        sessions: dict[str | None, list[int]] = {}
        for number, message in enumerate(self._messages):
            sessions.setdefault(message.session_id, []).append(number)
        return sessions

    def parts(self) -> list[EncodedMessages]:
        """The same messages in one call for each session."""
        return [self._part(numbers) for numbers in self.by_session().values()]

    def _part(self, numbers: Sequence[int]) -> EncodedMessages:
        messages = [self._messages[number] for number in numbers]
        payload = _batch(_envelope(messages), [message.data for message in messages])
        return EncodedMessages(
            payload, messages, self.path, [self._own_ids[number] for number in numbers]
        )


def plain_bytes_max(path: str, limit_bytes: int, *, has_own_ids: bool) -> int:
    """The largest plain message without reserved names that is no suspect: it needs no guard."""
    growth = _ID_GROWTH + 4 * ID_BYTES_MAX if has_own_ids else 0
    return limit_bytes - _overhead_max(path) - growth


@lru_cache(maxsize=1_024)
def takes_as_it_is(fixed: bytes) -> bool:
    """Whether a plain message with these bytes before its body has no reserved name."""
    return not _has_reserved(fixed)


def _read(data: bytes) -> tuple[EncodedMessage, bool]:
    """A message, with an id if it had none; and whether it was given one."""
    sections, size_bytes = split(data), len(data)
    bounds = fields_of(sections.properties)
    message_id = field_value(sections.properties, bounds, MESSAGE_ID_FIELD)
    session_id = field_value(sections.properties, bounds, GROUP_ID)
    is_given = message_id is None or message_id in ("", b"")
    if is_given:
        message_id = new_message_id()
        sections.properties = with_fields(
            sections.properties, PROPERTIES, bounds, {MESSAGE_ID_FIELD: string(message_id)}
        )
        data = join(sections)
    elif isinstance(message_id, bytes):
        message_id = message_id.decode("utf-8", "replace")
    session = str(session_id) if isinstance(session_id, str) else None
    body_bytes = len(sections.body)
    return EncodedMessage(data, str(message_id), session, size_bytes, body_bytes), is_given


def _read_batch(data: bytes) -> Generator[None, None, tuple[Wire, list[EncodedMessage]]]:
    # Counted first: an empty message is 5 bytes on the wire and a hundred times that here.
    parts, envelope = list[bytes](), Sections()
    found = batch_parts(data, envelope)
    while more := list(islice(found, READ_AT_ONCE)):
        parts += more
        if len(parts) > BATCH_MESSAGES_MAX:
            raise MessageTooLarge(
                f"The batch holds more than {BATCH_MESSAGES_MAX} messages, which is the limit; send"
                " fewer in one batch."
            )
        yield
    if not parts:
        raise MalformedMessage("the batch holds no message")
    messages, has_given = [], False
    for number, part in enumerate(parts, 1):
        message, is_given = _read(part)
        messages.append(message)
        has_given = has_given or is_given
        if not number % READ_AT_ONCE:
            yield
    if not has_given:
        return Wire(data, BATCH_FORMAT), messages
    sections: list[bytes] = []
    for number, message in enumerate(messages, 1):
        sections.append(_data_section(message.data))
        if not number % READ_AT_ONCE:
            yield
    return _batch_of(envelope, sections), messages


def _envelope(messages: Sequence[EncodedMessage]) -> Sections:
    """The envelope of a batch: session and partition key, where all messages have the same.

    A service chooses the partition by the envelope, without reading the messages in it.
    """
    envelope = Sections()
    first = messages[0]
    if first.session_id is not None and all(
        message.session_id == first.session_id for message in messages
    ):
        envelope.properties = encode_properties(Properties(group_id=first.session_id))
    keys = [_partition_key(message) for message in messages]
    if keys[0] is not None and all(key == keys[0] for key in keys):
        annotations = {Symbol(PARTITION_KEY): keys[0]}
        envelope.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, annotations)
    return envelope


def _partition_key(message: EncodedMessage) -> str | None:
    try:
        key = decode_map(message.sections.message_annotations).get(PARTITION_KEY)
    except DecodeError:
        return None  # The service says what is wrong with it.
    return str(key) if isinstance(key, str) else None


def _batch(envelope: Sections, parts: Sequence[bytes]) -> Wire:
    return _batch_of(envelope, [_data_section(part) for part in parts])


def _batch_of(envelope: Sections, sections: Sequence[bytes]) -> Wire:
    envelope.body = b"".join(sections)
    return Wire(join(envelope), BATCH_FORMAT)


def _data_section(part: bytes) -> bytes:
    return _DATA_SECTION + binary(part)


def _is_suspect(
    message: EncodedMessage, path: str, overhead_max: int, limit_bytes: int, replaced: str | None
) -> bool:
    """Whether a backlog queue may not take the message. `replaced`: the id that its copy loses."""
    session_id = message.session_id
    # All of it that is before the body, and no less: only few are worth splitting.
    before_body = message.data[: len(message.data) - message.body_bytes]
    if _has_reserved(before_body) and _has_reserved(message.sections.application_properties):
        return True
    size_bytes = message.size_bytes + (0 if replaced is None else _ID_GROWTH + 4 * len(replaced))
    if size_bytes + overhead_max <= limit_bytes and len(session_id or "") <= SESSION_ID_MAX:
        return False
    overhead = overhead_bytes(path, session_id=session_id, message_id=replaced)
    return message.size_bytes + overhead > limit_bytes


@lru_cache(maxsize=1_024)
def _overhead_max(path: str) -> int:
    """More than any message to that entity grows by, if its session id is a valid one."""
    return overhead_bytes(path, session_id=_LONGEST_SESSION_ID)


def _marked(message: EncodedMessage, mark: DivertMark) -> bytes:
    try:
        return join(with_property(message.sections, DIVERTED, mark.text()))
    except DecodeError as error:
        raise BacklogGuardError(
            f"the message cannot be copied for a twin ({error}); send one that is valid AMQP 1.0"
        ) from error


def _backlog_form(message: EncodedMessage, path: str, own_id: str | None) -> bytes:
    try:
        now_ms = time.time_ns() // 1_000_000
        return join(to_backlog_sections(message.sections, path, now_ms=now_ms, own_id=own_id))
    except DecodeError as error:
        raise BacklogGuardError(
            f"the message cannot be copied for a backlog queue ({error}); send one that is valid"
            " AMQP 1.0"
        ) from error
