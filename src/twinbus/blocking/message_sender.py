"""The interface that the sync SDK's senders and blocking paired senders share, for annotations."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol, Self

from azure.servicebus import ServiceBusMessageBatch

from twinbus.pairing.sending.message_sender import SdkMessages


class MessageSender(Protocol):
    """A sender to one queue or topic: `azure.servicebus.ServiceBusSender` or `PairedSender`."""

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

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: Any) -> None: ...

    def send_messages(
        self, message: SdkMessages | ServiceBusMessageBatch, *, timeout: float | None = None
    ) -> None:
        """Send a message, a list or a batch."""

    def schedule_messages(
        self,
        messages: SdkMessages,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
    ) -> list[int]:
        """Schedule messages; return their sequence numbers."""
        ...

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        """Cancel what `schedule_messages` scheduled."""

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Return an empty batch."""
        ...

    def close(self) -> None:
        """Close the sender."""
