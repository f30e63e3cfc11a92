"""The interface that the SDK's senders and paired senders share, for annotations.

async def remind(sender: MessageSender) -> None:
    await sender.send_messages(ServiceBusMessage("pay the bill"))
"""

# ruff: noqa: ASYNC109  # the SDK named the parameter `timeout`

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol, Self, TypeAlias

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

Message: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
"""One message in any form that the SDK's senders take; a mapping has the keywords of
ServiceBusMessage."""

Messages: TypeAlias = Message | Iterable[Message]
"""What a paired sender sends and schedules; `send_messages` takes a ServiceBusMessageBatch too."""

SdkMessages: TypeAlias = (
    Message
    | Iterable[ServiceBusMessage]
    | Iterable[AmqpAnnotatedMessage]
    | Iterable[Mapping[str, Any]]
)
"""What the SDK's own annotations allow: the messages of one list are of one form."""


class MessageSender(Protocol):
    """A sender to one queue or topic: `azure.servicebus.aio.ServiceBusSender` or `PairedSender`."""

    @property
    def client_identifier(self) -> str:
        """Its name for the service."""
        ...

    @property
    def entity_name(self) -> str:
        """The queue or topic."""
        ...

    @property
    def fully_qualified_namespace(self) -> str:
        """The host of the namespace; for a paired sender the primary's."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: Any) -> None: ...

    async def send_messages(
        self, message: SdkMessages | ServiceBusMessageBatch, *, timeout: float | None = None
    ) -> None:
        """Send a message, a list or a batch."""

    async def schedule_messages(
        self,
        messages: SdkMessages,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
    ) -> list[int]:
        """Schedule messages; return their sequence numbers."""
        ...

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel what `schedule_messages` scheduled."""

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """Return an empty batch."""
        ...

    async def close(self) -> None:
        """Close the sender."""
