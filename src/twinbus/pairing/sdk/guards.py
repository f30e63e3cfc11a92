"""Two guards: they find messages that the primary takes and a backlog queue would not.

Such a message is too large with its aliases, or has an application property with the name of an
alias. While the entity is healthy it is counted and reported once; in a failover it is refused, and
with `strict_guards` always.

To copy and size a message exactly costs a fifth of sending it. So a healthy send checks only the
length of the body and the names of the properties. Only a message whose body is so near the limit
that its properties could exceed it is copied and sized.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus.errors import BacklogGuardError, BacklogMessageTooLargeError, error_text
from twinbus.servicebus.names import BATCH_ALLOWANCE, PROPERTIES_BYTES_MAX, STANDARD_MESSAGE_BYTES
from twinbus.servicebus.twins import DIVERTED, DivertMark
from twinbus.transfer.aliases import OWN_ID_BYTES, RESERVED_KEYS
from twinbus.transfer.sdk import to_backlog_message, with_property

ALIASES_MAX: Final = 2 * 1_024
"""More than all aliases together: a path has 260 characters at most, a session id and a message
id 128."""

SIZED_MAX: Final = 2**31
"""Limit of a batch that only measures messages: it must refuse none."""

SMALL_ENTRY, LARGE_ENTRY = 5, 8
"""Bytes that the SDK's batch adds for one message: below 256 bytes, and from there."""


class BacklogLimits:
    """The largest message of each backlog queue, from the options or from its link."""

    def __init__(self, option: int | None) -> None:
        self._option = option
        self._messages: dict[str, int] = {}
        self._batches: dict[str, int] = {}
        self.smallest = option
        """The smallest known limit; None: none is known yet."""
        self.watched = option or STANDARD_MESSAGE_BYTES
        """The limit that `quick_check` checks. Until a queue reports its own, it is the smallest of
        any tier: a larger message is reason to open a link and learn the limit."""
        self.smallest_batch = option
        """The smallest limit of a batch, which on Premium may be below that of a message."""

    def learn(self, queue: str, message_bytes: int | None, batch_bytes: int | None) -> None:
        if message_bytes is None or batch_bytes is None:
            return
        if (self._messages.get(queue), self._batches.get(queue)) == (message_bytes, batch_bytes):
            return
        self._messages[queue], self._batches[queue] = message_bytes, batch_bytes
        if self._option is None:
            self.smallest = self.watched = min(self._messages.values())
        self.smallest_batch = min(self.smallest or batch_bytes, *self._batches.values())

    def of(self, queue: str) -> int | None:
        """The limit of one queue; None: it is not known yet."""
        return self._option if self._option is not None else self._messages.get(queue)


def flaws(
    messages: Sequence[Any], path: str, limit_bytes: int | None, *, has_own_ids: bool = False
) -> list[BacklogGuardError]:
    """An error for each message that could not be diverted; usually none."""
    own_id = "0" * OWN_ID_BYTES if has_own_ids else None
    found: list[BacklogGuardError | None] = []
    for message in messages:
        raw = annotated(message)
        names = raw.application_properties
        if (names and not RESERVED_KEYS.isdisjoint(names)) or (
            limit_bytes is not None and _is_near(raw, limit_bytes)
        ):
            try:
                found.append(too_large(message, diverted_copy(message, path, own_id), limit_bytes))
            except BacklogGuardError as refusal:
                found.append(refusal)
    return [flaw for flaw in found if flaw is not None]


def quick_check(
    message: ServiceBusMessage, limit_bytes: int | None
) -> tuple[str | None, int | None] | None:
    """Id and body size of a message, for the ledger; None: it may have a flaw and needs `flaws`.

    One pass for all that a healthy send must know of its message.
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
        size_bytes is None or size_bytes > limit_bytes - PROPERTIES_BYTES_MAX - ALIASES_MAX
    ):
        return None
    properties = raw.properties
    message_id = None if properties is None else properties.message_id
    return message_id if type(message_id) is str and message_id else id_of(message), size_bytes


def id_of(message: Any) -> str | None:
    """The id of a message as text; None: it has none."""
    properties = annotated(message).properties
    message_id = properties.message_id if properties is not None else None
    if type(message_id) is str:
        return message_id or None
    if message_id is None or message_id == b"":
        return None
    return message_id.decode() if isinstance(message_id, bytes) else str(message_id)


def _is_near(message: AmqpAnnotatedMessage, limit_bytes: int) -> bool:
    """Whether the message could exceed the limit in the backlog, by its body length."""
    size_bytes = body_bytes(message)
    if size_bytes is None:
        body = message.body
        # A text has at most four bytes a character; the size of other values is unknown.
        size_bytes = len(body) * 4 if isinstance(body, str | bytes) else 0 if body is None else None
    return size_bytes is None or size_bytes + PROPERTIES_BYTES_MAX + ALIASES_MAX > limit_bytes


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
    except Exception:  # noqa: BLE001  # the attempt itself will report what cannot be encoded
        return None
    return BacklogMessageTooLargeError(
        size_bytes=before, overhead_bytes=max(0, size_bytes - before), limit_bytes=limit_bytes
    )


def refused_size(
    payload: Any, body_sizes: Iterable[int | None], limit_bytes: int, *, was_sent: bool = False
) -> int | None:
    """The size of a message, list or batch that a link with this limit refuses; None: it may not.

    A single message is measured as the SDK encodes it, so no message that fits is refused. For
    several the size is a lower bound, and a service may take a little more than the limit: only
    after a failed attempt (`was_sent`) the limit itself is the bound.
    """
    allowance = 0 if was_sent else BATCH_ALLOWANCE
    if isinstance(payload, ServiceBusMessageBatch):
        size_bytes: int = payload.size_in_bytes
    elif type(payload) is list:
        size_bytes = sum(size or 0 for size in body_sizes)
    else:
        message, allowance = annotated(payload), 0
        if not was_sent and not _is_near(message, limit_bytes):
            return None
        try:
            size_bytes = encoded_bytes(message)
        except Exception:  # noqa: BLE001  # the attempt itself will report what cannot be encoded
            return None
    return size_bytes if size_bytes > limit_bytes + allowance else None


def diverted_copy(message: Any, path: str, own_id: str | None = None) -> AmqpAnnotatedMessage:
    """The copy for a backlog queue; BacklogGuardError where there can be none."""
    try:
        copy: AmqpAnnotatedMessage = to_backlog_message(
            message, path, now_ms=time.time_ns() // 1_000_000, own_id=own_id
        )
    except BacklogGuardError:
        raise
    except Exception as error:
        # A message that cannot be copied must never seem to be stored.
        raise BacklogGuardError(
            "the message cannot be copied for a backlog queue"
            f" ({error_text(error)}); send one that the SDK can encode"
        ) from error
    return copy


def twinned_copy(message: Any, mark: DivertMark) -> AmqpAnnotatedMessage:
    """The copy for a twin: the message as it is, with the property that says it was diverted.

    A mark that it has already, because it was received from a twin and is sent on, is replaced.
    """
    try:
        copy: AmqpAnnotatedMessage = with_property(message, DIVERTED, mark.text())
    except Exception as error:
        raise BacklogGuardError(
            f"the message cannot be copied for a twin ({error_text(error)}); send one that the SDK"
            " can encode"
        ) from error
    return copy


def annotated(message: Any) -> AmqpAnnotatedMessage:
    """The AMQP message that a message of the SDK is or holds."""
    return getattr(message, "raw_amqp_message", message)  # type: ignore[no-any-return]


def body_bytes(message: AmqpAnnotatedMessage) -> int | None:
    """The length of a data body; None: it is a value or a sequence, which only encoding can size.

    The SDK's public body is a generator; its private list saves half a microsecond a send.
    """
    data = getattr(message, "_data_body", None)
    try:
        if type(data) is list:
            return len(data[0]) if len(data) == 1 else sum(map(len, data))
        if message.body_type is AmqpMessageBodyType.DATA:
            return sum(map(len, message.body))
    except TypeError:
        # A part without a length is no data: the SDK will report it when it encodes it.
        pass
    return None


def encoded_bytes(message: AmqpAnnotatedMessage) -> int:
    """The size of the message on the wire, as the SDK encodes it into a batch."""
    batch = ServiceBusMessageBatch(SIZED_MAX)
    empty = batch.size_in_bytes
    batch.add_message(message)
    taken = batch.size_in_bytes - empty
    return taken - (SMALL_ENTRY if taken - SMALL_ENTRY < 256 else LARGE_ENTRY)
