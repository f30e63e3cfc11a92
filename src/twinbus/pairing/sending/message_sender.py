"""The interface that the SDK's senders and paired senders share, for annotations.

async def remind(sender: MessageSender) -> None:
    await sender.send_messages(ServiceBusMessage("pay the bill"))
"""

# ruff: noqa: ASYNC109  # the SDK named the parameter `timeout`

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

Message: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
"""One message in any form that the SDK's senders take; a mapping has the keywords of
ServiceBusMessage."""

Messages: TypeAlias = Message | Iterable[Message]
"""What a paired sender sends and schedules; `send_messages` takes a ServiceBusMessageBatch too."""
