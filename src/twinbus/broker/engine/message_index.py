"""All messages of one entity by sequence number, with their counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from twinbus.broker.journal import MessageState, StoredMessage, copy_message

DEFERRED, SCHEDULED = MessageState.DEFERRED, MessageState.SCHEDULED

ORDER_SLACK = 64
"""Numbers of removed messages that the browsing order may hold beyond one for each left."""


class MessageIndex:
    """Every message of one entity, whatever its state."""

    __slots__ = ("_order", "deferred_count", "messages", "scheduled_count", "size_bytes")

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        """By sequence number, in ascending order, since each new number is the highest yet."""
        self.size_bytes = 0
        self.deferred_count = 0
        self.scheduled_count = 0
        self._order: list[int] | None = None
        """Ascending numbers, to start browsing anywhere; made when needed, may hold old ones."""

    def add(self, message: StoredMessage) -> None:
        """Add a message; its number is higher than any before."""
        number = message.sequence_number
        self.messages[number] = message
        self.size_bytes += message.size_bytes
        if message.state is SCHEDULED:
            self.scheduled_count += 1
        elif message.state is DEFERRED:
            self.deferred_count += 1
        order = self._order
        if order is not None:
            order.append(number)
            if len(order) > 2 * len(self.messages) + ORDER_SLACK:
                self._order = None

    def remove(self, message: StoredMessage) -> None:
        del self.messages[message.sequence_number]
        self.size_bytes -= message.size_bytes
        if message.state is SCHEDULED:
            self.scheduled_count -= 1
        elif message.state is DEFERRED:
            self.deferred_count -= 1

    def defer(self, message: StoredMessage) -> None:
        if message.state is not DEFERRED:
            message.state = DEFERRED
            self.deferred_count += 1

    def from_number(self, sequence_number: int) -> Iterator[StoredMessage]:
        """The messages from that number on, in order."""
        order = self._order
        if order is None or len(order) > 2 * len(self.messages) + ORDER_SLACK:
            order = self._order = list(self.messages)
        messages = self.messages
        for index in range(bisect_left(order, sequence_number), len(order)):
            message = messages.get(order[index])
            if message is not None:
                yield message


def first_number(message: StoredMessage) -> int:
    """The message's number in the entity that first stored it."""
    return message.enqueued_sequence_number or message.sequence_number


def copy_of(message: StoredMessage) -> StoredMessage:
    """A copy of the message to be moved; it has no number yet."""
    copy = copy_message(message)
    copy.sequence_number = copy.enqueued_sequence_number = 0
    return copy
