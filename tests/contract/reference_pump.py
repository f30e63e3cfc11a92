"""The plainest pump, on the official SDK: receive, restore, send, and only then complete.

Nothing is pipelined, held or deferred. It is here to compare with: what the relay delivers must be
what this delivers, as far as the SDK can carry it (its decoder forgets the AMQP types of integers
and described values, so a relay that is faithful to the byte cannot be built on it).

Clients are handed in and known by their methods, so that nothing of azure is loaded here.
"""

from __future__ import annotations

from typing import Any, Final

from bench.sdk_restoring import from_backlog_message
from twinbus.errors import TransferError

__all__ = ["drain_by_sdk"]

BATCH: Final = 100
"""Messages of one receive."""

QUIET_S: Final = 1.0
"""A queue that brings nothing for so long is taken for empty."""

INT_MIN, INT_MAX, LONG_MAX = -(2**31), 2**31 - 1, 2**63 - 1


async def drain_by_sdk(primary: Any, secondary: Any, queue: str, *, wait_s: float = QUIET_S) -> int:
    """Move what a backlog queue holds, message by message; how many the primary took.

    `primary` and `secondary` are clients (`azure.servicebus.aio.ServiceBusClient`) of the two
    namespaces. A message that cannot be brought anywhere is dead-lettered; what the primary does
    not take is raised, and the message stays where it is.
    """
    senders: dict[str, Any] = {}
    moved = 0
    async with secondary.get_queue_receiver(queue) as source:
        try:
            while messages := await source.receive_messages(BATCH, max_wait_time=wait_s):
                for message in messages:
                    moved += await _move(message, source, primary, senders)
        finally:
            for sender in senders.values():
                await sender.close()
    return moved


async def _move(message: Any, source: Any, primary: Any, senders: dict[str, Any]) -> bool:
    try:
        restored, aliases = from_backlog_message(message)
    except TransferError as error:
        await source.dead_letter_message(message, reason=error.reason, error_description=str(error))
        return False
    path = aliases.path
    if path.lower() not in senders:
        # A sender of the SDK knows no difference between a queue and a topic.
        senders[path.lower()] = await primary.get_queue_sender(path).__aenter__()
    await senders[path.lower()].send_messages(_sendable(restored))
    await source.complete_message(message)
    return True


def _sendable(restored: Any) -> Any:
    """The message with its values as the SDK's encoder takes them.

    It writes a plain integer with 32 bits, and reads plain bytes among application properties as
    text.
    """
    restored.application_properties = _written(restored.application_properties)
    restored.annotations = _written(restored.annotations)
    restored.footer = _written(restored.footer)
    for body in ("_value_body", "_sequence_body"):
        if getattr(restored, body, None) is not None:
            setattr(restored, body, _written(getattr(restored, body)))
    return restored


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_written(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and not INT_MIN <= value <= INT_MAX:
        return {"TYPE": "LONG" if value <= LONG_MAX else "ULONG", "VALUE": value}
    if isinstance(value, bytes) and not _is_text(value):
        return {"TYPE": "BINARY", "VALUE": value}
    return value


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
