"""Two guards (SPEC 4): would a message that the primary takes fit a backlog queue as well?

Not if its aliases make it too large, and not if an application property has the name of an alias.
While the entity is healthy such a message is counted and warned of once; failed over it is refused,
and with `strict_guards` always.

To copy and size a message exactly costs a fifth of sending it. So a healthy send is looked at only
from outside: the length of its body and the names of its properties. Only a message whose body
comes so near to the limit that its properties could carry it over is copied and sized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus.errors import BacklogGuardError, BacklogMessageTooLargeError
from twinbus.transfer import to_backlog_message
from twinbus.transfer.aliases import RESERVED_KEYS

__all__ = [
    "BacklogLimits",
    "annotated",
    "body_bytes",
    "diverted_copy",
    "encoded_bytes",
    "flaws",
    "glance",
    "id_of",
    "too_large",
]

PROPERTIES_MAX: Final = 64 * 1_024
"""The service takes no message whose properties, system and application together, have more."""

ALIASES_MAX: Final = 2 * 1_024
"""More than all aliases together: a path has 260 characters at most, a session id 128."""

STANDARD_BYTES: Final = 256 * 1_024
"""The smallest limit of any tier, Standard's."""

SIZED_MAX: Final = 2**31
"""For a batch that is used as a scale: it must not refuse what it is to weigh."""

SMALL_ENTRY, LARGE_ENTRY = 5, 8
"""What the SDK's batch counts for one message beside itself: below 256 bytes, and from there."""


class BacklogLimits:
    """How much a backlog queue takes in one message: as the options say, or as its link said."""

    def __init__(self, option: int | None) -> None:
        self._option = option
        self._messages: dict[str, int] = {}
        self._batches: dict[str, int] = {}
        self.smallest = option
        """What every queue takes that is known of; None: nothing is known yet."""
        self.watched = option or STANDARD_BYTES
        """From what size on a message is looked at closely. While no queue was asked, that is what
        every tier takes: a larger one is worth to ask for."""
        self.smallest_batch = option
        """The same of a batch, which on Premium may have less than a message."""

    def learn(self, queue: str, message_bytes: int | None, batch_bytes: int | None) -> None:
        """Note what the link of a queue said."""
        if message_bytes is None or batch_bytes is None:
            return
        if (self._messages.get(queue), self._batches.get(queue)) == (message_bytes, batch_bytes):
            return
        self._messages[queue], self._batches[queue] = message_bytes, batch_bytes
        if self._option is None:
            self.smallest = self.watched = min(self._messages.values())
        self.smallest_batch = min(self.smallest or batch_bytes, *self._batches.values())

    def of(self, queue: str) -> int | None:
        """What one queue takes; None: it was not asked yet."""
        return self._option if self._option is not None else self._messages.get(queue)


def flaws(messages: Sequence[Any], path: str, limit_bytes: int | None) -> list[BacklogGuardError]:
    """Why messages could not be diverted, an error for each that could not; usually none."""
    return [
        flaw
        for message in messages
        if _is_suspect(annotated(message), limit_bytes)
        and (flaw := _flaw(message, path, limit_bytes)) is not None
    ]


def glance(
    message: ServiceBusMessage, limit_bytes: int | None
) -> tuple[str | None, int | None] | None:
    """Id and body size of a message, for the ledger; None: it may have a flaw, so look closer.

    One look for all that a healthy send must know of its message.
    """
    raw = message.raw_amqp_message
    names = raw.application_properties
    if names and not RESERVED_KEYS.isdisjoint(names):
        return None
    data = getattr(raw, "_data_body", None)
    if type(data) is list and len(data) == 1 and type(data[0]) is bytes:
        size_bytes: int | None = len(data[0])
    else:
        size_bytes = body_bytes(raw)
    if limit_bytes is not None and (
        size_bytes is None or size_bytes > limit_bytes - PROPERTIES_MAX - ALIASES_MAX
    ):
        return None
    properties = raw.properties
    message_id = None if properties is None else properties.message_id
    return message_id if type(message_id) is str and message_id else id_of(message), size_bytes


def id_of(message: Any) -> str | None:
    """The id that a message has, as text; None: it has none."""
    properties = annotated(message).properties
    message_id = properties.message_id if properties is not None else None
    if type(message_id) is str:
        return message_id or None
    if message_id is None or message_id == b"":
        return None
    return message_id.decode() if isinstance(message_id, bytes) else str(message_id)


def _is_suspect(message: AmqpAnnotatedMessage, limit_bytes: int | None) -> bool:
    """Whether the message could have a flaw, for all that can be seen of it at no cost."""
    names = message.application_properties
    if names and not RESERVED_KEYS.isdisjoint(names):
        return True
    return limit_bytes is not None and _is_near(message, limit_bytes)


def _is_near(message: AmqpAnnotatedMessage, limit_bytes: int) -> bool:
    """Whether the message could be over the limit in the backlog, for all its body tells."""
    size_bytes = body_bytes(message)
    if size_bytes is None:
        body = message.body
        # A text has four bytes a character at most; what is inside other values, nobody knows.
        size_bytes = len(body) * 4 if isinstance(body, str | bytes) else 0 if body is None else None
    return size_bytes is None or size_bytes + PROPERTIES_MAX + ALIASES_MAX > limit_bytes


def _flaw(message: Any, path: str, limit_bytes: int | None) -> BacklogGuardError | None:
    try:
        return too_large(message, diverted_copy(message, path), limit_bytes)
    except BacklogGuardError as refusal:
        return refusal


def too_large(
    message: Any, copy: AmqpAnnotatedMessage, limit_bytes: int | None
) -> BacklogMessageTooLargeError | None:
    """The error for a message whose copy for the backlog is over the limit; None: it is not."""
    if limit_bytes is None or not _is_near(copy, limit_bytes):
        return None
    try:
        size_bytes = encoded_bytes(copy)
        if size_bytes <= limit_bytes:
            return None
        before = encoded_bytes(annotated(message))
    except Exception:  # noqa: BLE001  # what cannot be encoded, the attempt itself will say
        return None
    return BacklogMessageTooLargeError(
        size_bytes=before, overhead_bytes=max(0, size_bytes - before), limit_bytes=limit_bytes
    )


def diverted_copy(message: Any, path: str) -> AmqpAnnotatedMessage:
    """The copy for a backlog queue; BacklogGuardError where there can be none."""
    try:
        copy: AmqpAnnotatedMessage = to_backlog_message(message, path)
    except BacklogGuardError:
        raise
    except Exception as error:
        # A message that nobody can copy must never look as if it had been stored.
        raise BacklogGuardError(
            "the message cannot be copied for a backlog queue"
            f" ({type(error).__name__}: {error}); send one that the SDK can encode"
        ) from error
    return copy


def annotated(message: Any) -> AmqpAnnotatedMessage:
    """The AMQP message that a message of the SDK is or holds."""
    return getattr(message, "raw_amqp_message", message)  # type: ignore[no-any-return]


def body_bytes(message: AmqpAnnotatedMessage) -> int | None:
    """The length of a body of data; None: it is a value or a sequence, which only encoding tells.

    The SDK gives the body as a generator; its own list saves half a microsecond of every send.
    """
    data = getattr(message, "_data_body", None)
    try:
        if type(data) is list:
            return len(data[0]) if len(data) == 1 else sum(map(len, data))
        if message.body_type is AmqpMessageBodyType.DATA:
            return sum(map(len, message.body))
    except TypeError:
        # Something that has no length is no data: the SDK will say so when it encodes it.
        pass
    return None


def encoded_bytes(message: AmqpAnnotatedMessage) -> int:
    """What the message has on the wire, as the SDK encodes it: a copy is put into a batch."""
    batch = ServiceBusMessageBatch(SIZED_MAX)
    empty = batch.size_in_bytes
    batch.add_message(message)
    taken = batch.size_in_bytes - empty
    return taken - (SMALL_ENTRY if taken - SMALL_ENTRY < 256 else LARGE_ENTRY)
