"""Lists of a hundred messages: a paired sender against the plain SDK, while the primary works.

100 messages of 1 KB with ids in each call, ledger on. The ratio is what pairing leaves of the SDK's
own rate per second of client CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage

from bench.paired_sides import UNIT, both_sides

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bench.harness import Progress, Sides

__all__ = ["ROUNDS", "UNIT", "sides"]

ROUNDS = 75
BATCHES = 10
"""Of one round: many short rounds, for the speed of a machine drifts within seconds. In rounds four
times as long the ratio of one run was 0.90 to 1.03, with these 0.97 to 0.98."""

BATCH_SIZE = 100
BODY = b"x" * 1_024


def sides(progress: Progress) -> AbstractContextManager[Sides]:
    """A plain and a paired sender to one queue."""
    words = f"azure-servicebus asyncio, lists of {BATCH_SIZE} x {len(BODY)} bytes, ledger on"
    return both_sides(progress, make, BATCHES * BATCH_SIZE, words)


def make() -> list[list[ServiceBusMessage]]:
    """One round's lists, of new messages."""
    return [
        [
            ServiceBusMessage(BODY, message_id=f"message-{number:04d}-{place:04d}")
            for place in range(BATCH_SIZE)
        ]
        for number in range(BATCHES)
    ]
