"""What one send call carries: the application's messages, unchanged, with their ids.

The SDK's message objects are handed to the SDK as they are. Only a message without an id is sent as
a copy that has one, and it is the same one each time the same object is sent (SPEC 3, Ids).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus.transfer import to_backlog_message
from twinbus.transfer.sdk import with_message_id

__all__ = ["MessageIds", "Outgoing"]


class MessageIds:
    """Ids given to messages that had none, remembered as long as the message objects live."""

    def __init__(self) -> None:
        self._given: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def of(self, message: Any) -> str:
        """The id given to this message object, a new one the first time."""
        return self._given.setdefault(message, str(uuid4()))


class Outgoing:
    """The messages of one call, as the SDK takes them and as a backlog queue does."""

    __slots__ = ("_diverted", "_messages", "path", "payload")

    def __init__(self, payload: Any, messages: Sequence[Any], path: str) -> None:
        self.payload = payload
        """What `send_messages` of the SDK gets."""
        self.path = path
        self._messages = messages
        self._diverted: list[Any] | None = None

    @classmethod
    def of(cls, given: Any, path: str, ids: MessageIds) -> Outgoing:
        """What an application handed to `send_messages`, of any kind that the SDK takes."""
        if isinstance(given, ServiceBusMessageBatch):
            return cls(given, given._messages, path)
        if isinstance(given, Iterable) and not isinstance(given, Mapping):
            messages = [_sendable(message, ids) for message in given]
            return cls(messages, messages, path)
        message = _sendable(given, ids)
        return cls(message, (message,), path)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of each message."""
        return tuple(_id_of(message) or "" for message in self._messages)

    def measured(self) -> Iterable[tuple[str | None, int | None]]:
        """Id and size of each message. The size is that of the body: all else costs too much."""
        return [(_id_of(message), _body_bytes(message)) for message in self._messages]

    @property
    def diverted(self) -> Any:
        """Copies for a backlog queue: one message, or a list of them; made once."""
        if self._diverted is None:
            self._diverted = [to_backlog_message(m, self.path) for m in self._messages]
        is_one = len(self._diverted) == 1
        return self._diverted[0] if is_one else self._diverted

    def halves(self) -> tuple[Outgoing, Outgoing]:
        """The same messages in two calls, for a batch that is too large with its aliases."""
        middle = len(self._messages) // 2
        first, second = list(self._messages[:middle]), list(self._messages[middle:])
        return Outgoing(first, first, self.path), Outgoing(second, second, self.path)


def _sendable(message: Any, ids: MessageIds) -> Any:
    if isinstance(message, Mapping):
        try:
            return ServiceBusMessage(**message)
        except TypeError as error:
            raise TypeError(f"a mapping that stands for a message: {error}") from None
    if not isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage):
        raise TypeError(
            "a message is a ServiceBusMessage, an AmqpAnnotatedMessage or a mapping that stands for"
            f" one; got {type(message).__name__}"
        )
    return message if _id_of(message) else with_message_id(message, ids.of(message))


def _annotated(message: Any) -> AmqpAnnotatedMessage:
    return getattr(message, "raw_amqp_message", message)  # type: ignore[no-any-return]


def _id_of(message: Any) -> str | None:
    properties = _annotated(message).properties
    message_id = properties.message_id if properties is not None else None
    if message_id is None or message_id == "":
        return None
    return message_id.decode() if isinstance(message_id, bytes) else str(message_id)


def _body_bytes(message: Any) -> int | None:
    annotated = _annotated(message)
    if annotated.body_type is not AmqpMessageBodyType.DATA:
        return None
    return sum(map(len, annotated.body))
