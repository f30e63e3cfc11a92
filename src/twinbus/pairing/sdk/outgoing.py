"""The messages of one send call, with their ids.

The application's message objects go to the SDK unchanged. Only a message without an id is sent as a
copy with one, and the same object gets the same id each time it is sent. Where the
description of the backlog queues could not be read, a copy for them has an id of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.errors import BacklogGuardError
from twinbus.pairing.sdk.guards import (
    annotated,
    body_bytes,
    diverted_copy,
    flaws,
    id_of,
    quick_check,
    refused_size,
    too_large,
    twinned_copy,
)
from twinbus.servicebus.twins import DivertMark
from twinbus.transfer.aliases import overhead_bytes
from twinbus.transfer.sdk import with_message_id

MAPPINGS_MAX: Final = 1_000
"""Mappings whose id is remembered after a failed send. They allow no weak reference, so each is
kept alive meanwhile; a caller with more of them to retry sets `message_id` itself."""

ENTRY_GROWTH_MAX: Final = 3
"""A message that grows past 255 bytes has a longer length field in a batch."""


class MessageIds:
    """Ids given to messages that had none: the same object keeps the same id.

    A message object keeps its id as long as it lives. A mapping, often a template that is filled in
    again and again, keeps it until it was sent, and only while its content is the same.
    """

    def __init__(self, *, own_in_backlog: bool = False, new_id: Callable[[], UUID] = uuid4) -> None:
        self.new_id = new_id
        self.own_in_backlog = own_in_backlog
        """Whether a copy for a backlog queue has an id of its own: the queue may detect duplicates,
        and two messages for two entities may have the same id."""
        self.given: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._mappings: OrderedDict[int, tuple[Any, dict[str, Any], str]] = OrderedDict()

    @property
    def for_backlog(self) -> Callable[[], UUID] | None:
        """What makes the ids of copies for a backlog queue; None: they keep their own."""
        return self.new_id if self.own_in_backlog else None

    def of(self, message: Any) -> str:
        """The id of this message object, a new one the first time."""
        given = self.given.get(message)
        if given is None:
            given = self.given[message] = str(self.new_id())
        return given

    def of_mapping(self, mapping: Any, content: dict[str, Any]) -> str:
        """The id of this mapping from its last failed send with this content; else a new one."""
        known = self._mappings.get(id(mapping))
        if known is not None and known[0] is mapping and known[1] == content:
            return known[2]
        message_id = str(self.new_id())
        self._mappings[id(mapping)] = mapping, content, message_id
        self._mappings.move_to_end(id(mapping))
        if len(self._mappings) > MAPPINGS_MAX:
            self._mappings.popitem(last=False)
        return message_id

    def forget(self, mappings: Sequence[Any]) -> None:
        """Forget mappings that were sent: their next content is another message."""
        for mapping in mappings:
            self._mappings.pop(id(mapping), None)


class Outgoing:
    """The messages of one call, in the forms for the SDK and for a backlog queue."""

    __slots__ = (
        "_by_session", "_diverted", "_measured", "_new_id", "_own_ids", "mappings", "messages",
        "path", "payload", "suspects",
    )  # fmt: skip

    def __init__(
        self,
        payload: Any,
        messages: Sequence[Any],
        path: str,
        new_id: Callable[[], UUID] | None = None,
    ) -> None:
        """`new_id` makes the ids that copies for a backlog queue have of their own; None: none."""
        self.payload = payload
        """The argument of the SDK's `send_messages`."""
        self.messages = messages
        """The same messages one by one, each with an id."""
        self.path = path
        self.mappings: list[Any] = []
        """The mappings among the given messages."""
        self.suspects: list[Any] = []
        """Messages that may have a flaw and need a closer check (docs/guarantees.md)."""
        self._new_id = new_id
        self._own_ids: Sequence[str | None] | None = None
        self._diverted: list[Any] | None = None
        self._measured: list[tuple[str | None, int | None]] | None = None
        self._by_session: dict[str | None, list[Any]] | None = None

    @classmethod
    def of(cls, given: Any, path: str, ids: MessageIds, limit_bytes: int | None = None) -> Outgoing:
        """The messages given to `send_messages`, of any kind that the SDK takes.

        Messages that may exceed this limit of a backlog queue become `suspects`.
        """
        if isinstance(given, ServiceBusMessageBatch):
            payload, every = _named_batch(given, ids)
            result = cls(payload, every, path, ids.for_backlog)
        elif isinstance(given, Iterable) and not isinstance(given, Mapping):
            every = list(given)
            result = cls(every, every, path, ids.for_backlog)
        else:
            every = [given]
            result = cls(given, every, path, ids.for_backlog)
        result._inspect(every, ids, limit_bytes)
        if type(result.payload) is list:
            result.payload = result.messages
        elif not isinstance(result.payload, ServiceBusMessageBatch):
            [result.payload] = result.messages
        return result

    def _inspect(self, every: Sequence[Any], ids: MessageIds, limit_bytes: int | None) -> None:
        """Measure each message once, give ids where needed, and collect suspects and mappings."""
        messages, measured = [], []
        for one in every:
            message = one
            seen = quick_check(one, limit_bytes) if type(one) is ServiceBusMessage else None
            if seen is None or seen[0] is None:
                message = with_id(one, ids)
                if seen is None:
                    self.suspects.append(message)
                seen = id_of(message), body_bytes(annotated(message))
                if _is_mapping(one):
                    self.mappings.append(one)
            messages.append(message)
            measured.append(seen)
        self.messages, self._measured = messages, measured

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(id_of(message) or "" for message in self.messages)

    def measured(self) -> Sequence[tuple[str | None, int | None]]:
        """Id and body size of each message; sizing the whole message would cost too much."""
        if self._measured is None:
            self._measured = [(id_of(m), body_bytes(annotated(m))) for m in self.messages]
        return self._measured

    def diverted(self, limit_bytes: int | None) -> Any:
        """Copies for a backlog queue with this limit: one message, or a list of them.

        BacklogGuardError, before anything is sent, if the queue could not store one of them.
        """
        if self._diverted is None:
            if self._own_ids is None:
                # Drawn once: every retry of this call, on whatever queue, carries the same.
                new_id = self._new_id
                self._own_ids = [new_id().hex if new_id else None for _ in self.messages]
            self._diverted = [
                diverted_copy(message, self.path, own_id)
                for message, own_id in zip(self.messages, self._own_ids, strict=True)
            ]
        for message, copy in zip(self.messages, self._diverted, strict=True):
            refusal = too_large(message, copy, limit_bytes)
            if refusal is not None:
                raise refusal
        return self._diverted[0] if len(self._diverted) == 1 else self._diverted

    def twinned(self, limit_bytes: int | None, mark: DivertMark) -> Any:
        """The messages as they are, with this mark, for a twin with this limit.

        BacklogGuardError, before anything is sent, if the twin would not take one of them.
        """
        copies = []
        for message in self.messages:
            copies.append(copy := twinned_copy(message, mark))
            refusal = too_large(message, copy, limit_bytes)
            if refusal is not None:
                raise refusal
        return copies[0] if len(copies) == 1 else copies

    def flaws(self, limit_bytes: int | None) -> list[BacklogGuardError]:
        return flaws(self.suspects, self.path, limit_bytes, has_own_ids=self._new_id is not None)

    def refused_size(self, limit_bytes: int, *, was_sent: bool) -> int | None:
        sizes = (size for _, size in self.measured())
        return refused_size(self.payload, sizes, limit_bytes, was_sent=was_sent)

    def halves(self) -> tuple[Outgoing, Outgoing]:
        middle = len(self.messages) // 2
        halves = self._part(self.messages[:middle]), self._part(self.messages[middle:])
        if self._own_ids is not None:
            halves[0]._own_ids, halves[1]._own_ids = self._own_ids[:middle], self._own_ids[middle:]
        return halves

    def by_session(self) -> dict[str | None, list[Any]]:
        if self._by_session is None:
            self._by_session = {}
            for message in self.messages:
                self._by_session.setdefault(_session_of(message), []).append(message)
        return self._by_session

    def parts(self) -> list[Outgoing]:
        return [self._part(part) for part in self.by_session().values()]

    def _part(self, messages: Sequence[Any]) -> Outgoing:
        part = list(messages)
        return Outgoing(part, part, self.path, self._new_id)


def _session_of(message: Any) -> str | None:
    properties = annotated(message).properties
    session = properties.group_id if properties is not None else None
    if session is None:
        return None
    return session.decode("utf-8", "replace") if isinstance(session, bytes) else str(session)


def with_id(message: Any, ids: MessageIds) -> Any:
    """The message itself if it has an id, else a copy with one; TypeError if it is no message."""
    if isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage):
        return message if id_of(message) is not None else with_message_id(message, ids.of(message))
    if not _is_mapping(message):
        raise TypeError(
            "a message is a ServiceBusMessage, an AmqpAnnotatedMessage or a mapping of its"
            f" arguments; got {type(message).__name__}"
        )
    content = dict(message)
    try:
        made = ServiceBusMessage(**content)
    except TypeError as error:
        raise TypeError(f"a mapping of a message's arguments: {error}") from None
    if not content.get("message_id"):
        # The SDK generates a new id for every message it makes.
        made.message_id = ids.of_mapping(message, content)
    return made


def _is_mapping(message: Any) -> bool:
    """Whether the SDK takes an object as the arguments of a message: what `**` unpacks."""
    return hasattr(message, "keys") and hasattr(message, "__getitem__")


def _named_batch(batch: ServiceBusMessageBatch, ids: MessageIds) -> tuple[Any, list[Any]]:
    """A batch whose messages all have ids, and its messages.

    Our own batches give ids as messages are added; a batch of the SDK is made again. If the ids do
    not fit into it any more, it goes to the primary as it is, as it would without a pair; then only
    its copies for the backlog have ids.
    """
    messages = batch._messages
    if all(id_of(message) is not None for message in messages):
        return batch, messages
    named = [with_id(message, ids) for message in messages]
    again = ServiceBusMessageBatch(batch.max_size_in_bytes, **_options_of(batch))
    try:
        for message in named:
            again.add_message(message)
    except MessageSizeExceededError:
        return batch, named
    return again, named


def _options_of(batch: ServiceBusMessageBatch) -> dict[str, Any]:
    """With these the SDK sends another batch as it is; otherwise it would pack it again."""
    return {
        "amqp_transport": batch._amqp_transport,
        "tracing_attributes": batch._tracing_attributes,
    }


class PairedMessageBatch(ServiceBusMessageBatch):
    """The SDK's batch, for a paired sender: it gives ids, and leaves room for the aliases.

    It is also full when its copies, with their aliases, would exceed the limit of a backlog queue.
    The size of the aliases is an upper bound, counted message by message, so a full batch is
    diverted in one piece unless the limit of the backlog turned out smaller. `max_size_in_bytes`
    is the room for the messages themselves: it shrinks a little with each one that is added.
    """

    def __init__(
        self,
        max_size_in_bytes: int,
        *,
        room_bytes: int,
        path: str,
        ids: MessageIds,
        like: ServiceBusMessageBatch | None = None,
    ) -> None:
        """`room_bytes` is the limit of a backlog queue; `like` a batch of the entity's sender."""
        self._room_bytes = room_bytes
        self._aliases_bytes = 0
        self._path = path
        self._ids = ids
        self._without_session = overhead_bytes(path) + ENTRY_GROWTH_MAX
        super().__init__(max_size_in_bytes, **({} if like is None else _options_of(like)))

    @property
    def max_size_in_bytes(self) -> int:
        """The size that the messages may have together to fit the primary and the backlog."""
        return min(self._max_size_in_bytes, self._room_bytes - self._aliases_bytes)

    def add_message(self, message: Any) -> None:
        """Add a message; MessageSizeExceededError if it does not fit the primary or the backlog.

        A message without an id is added as a copy with one.
        """
        named = with_id(message, self._ids)
        before = self._aliases_bytes
        self._aliases_bytes += self._added_by(named)
        try:
            super().add_message(named)
        except BaseException:
            self._aliases_bytes = before
            raise

    def _added_by(self, message: Any) -> int:
        properties, session = annotated(message).properties, _session_of(message)
        replaced = None
        if self._ids.own_in_backlog and properties is not None:
            replaced = properties.message_id
        if session is None and replaced is None:
            return self._without_session
        overhead = overhead_bytes(self._path, session_id=session, message_id=replaced)
        return overhead + ENTRY_GROWTH_MAX
