"""What an operation on a `$management` node may use of the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Topic
from twinbus.broker.refusals import NotAllowed
from twinbus.broker.sas import LISTEN

Body = dict[str, Any] | None
"""The body of a response; None is status 204, no content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagementContext:
    """What an operation may use."""

    namespace: BrokerNamespace
    address: str
    """Of the entity: "orders", "topic/subscriptions/x", "orders/$deadletterqueue"."""
    require: Callable[[str], None]
    """Raises `Unauthorized` unless the client has the right on this entity."""
    holder: Callable[[str], object | None]
    """Who holds locks for the client's link of that name."""
    payload: Callable[[int, int], bytes]
    """The stored payload of a message, by entity id and sequence number."""
    new_message_id: Callable[[], str]

    def queue(self) -> Queue:
        """The queue, subscription or dead-letter queue at the address, if the client may listen."""
        self.require(LISTEN)
        entity = self.namespace.resolve(self.address)
        if isinstance(entity, Topic):
            raise NotAllowed(
                f"{entity.path!r} is a topic and holds no messages to receive; use a subscription."
            )
        return entity
