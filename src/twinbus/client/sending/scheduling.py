"""Schedules messages and cancels them, by requests to an entity, which answers with numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.types import Array

if TYPE_CHECKING:
    from twinbus.client.connection import NamespaceConnection, Record

SCHEDULE: Final = "schedule-message"
CANCEL: Final = "cancel-scheduled-message"
NUMBERS: Final = "sequence-numbers"
LONG: Final = 0x81


async def schedule(
    connection: NamespaceConnection, path: str, messages: list[dict[str, Any]], record: Record
) -> list[int]:
    """Schedule messages, each with its bytes and ids by name; return their sequence numbers."""
    answer = await connection.request(path, SCHEDULE, {"messages": messages}, record=record)
    return [int(number) for number in answer.get(NUMBERS, ())]


async def cancel_scheduled(
    connection: NamespaceConnection, path: str, numbers: Iterable[int], record: Record
) -> None:
    """Cancel scheduled messages."""
    await connection.request(path, CANCEL, {NUMBERS: Array(numbers, LONG)}, record=record)
