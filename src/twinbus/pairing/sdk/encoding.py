"""Messages of the SDK as bytes of one delivery, as the SDK's own senders encode them."""

from __future__ import annotations

from typing import Any, Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.pairing.sdk.guards import SIZED_MAX, annotated

SINGLE_FORMAT: Final = 0
BATCH_FORMAT: Final = 0x8001_3700


def encoded(payload: Any) -> tuple[bytes, int]:
    """Return the bytes and the message format of a message, a list of messages or a batch.

    Raises what the SDK raises for a message that it cannot encode.
    """
    if not isinstance(payload, ServiceBusMessageBatch | list):
        message = PyamqpTransport.to_outgoing_amqp_message(annotated(payload))
        return bytes(encode_payload(bytearray(), message)), SINGLE_FORMAT
    if isinstance(payload, ServiceBusMessageBatch):
        batch = payload
    else:
        batch = ServiceBusMessageBatch(SIZED_MAX)
        for message in payload:
            batch.add_message(message)
    return bytes(encode_payload(bytearray(), Message(*batch._message))), BATCH_FORMAT


def too_large(path: str, size_bytes: int, limit_bytes: int) -> MessageSizeExceededError:
    """The SDK's error for a delivery above the limit of its entity."""
    return MessageSizeExceededError(
        message=f"{path} takes {limit_bytes} bytes in one send, and this one has {size_bytes}"
    )
