"""One message after another: a paired sender against the plain SDK, while the primary works.

1 KB messages with an id, one awaited send each, ledger on. The ratio is what pairing leaves of the
SDK's own rate per second of client CPU; 1 would mean that it costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage

from bench.paired_sides import ROUNDS, UNIT, both_sides

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bench.harness import Progress, Sides

__all__ = ["ROUNDS", "UNIT", "sides"]

MESSAGES = 1_500
"""Of one round: half a second of work for either side."""

BODY = b"x" * 1_024


def sides(progress: Progress) -> AbstractContextManager[Sides]:
    """A plain and a paired sender to one queue."""
    words = f"azure-servicebus asyncio, {len(BODY)} bytes, one at a time, ledger on"
    return both_sides(progress, make, MESSAGES, words)


def make() -> list[ServiceBusMessage]:
    """One round's messages: new ones, for the SDK leaves its marks on those it has sent."""
    return [
        ServiceBusMessage(BODY, message_id=f"message-{number:08d}") for number in range(MESSAGES)
    ]
