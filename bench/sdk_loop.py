"""A good loop on the official SDK: receive 100, one list send, the completes gathered."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from bench.sdk_restoring import from_backlog_message

BATCH = 100

QUIET_S = 0.2
"""A queue that brings nothing for so long is empty: less than a twentieth of a round."""


async def move_by_sdk(primary_text: str, secondary_text: str, queue: str) -> tuple[int, float]:
    """Move a backlog queue's messages; how many, and when (perf_counter) the last was completed.

    To find that the queue is empty, and to close its clients, takes the SDK seconds that a loop
    which goes on for ever does not spend.
    """
    moved, ended = 0, time.perf_counter()
    senders: dict[str, Any] = {}
    primary = ServiceBusClient.from_connection_string(primary_text)
    secondary = ServiceBusClient.from_connection_string(secondary_text)
    async with primary, secondary:
        async with secondary.get_queue_receiver(queue) as source:
            wait_s = 10.0
            while messages := await source.receive_messages(BATCH, max_wait_time=wait_s):
                wait_s = QUIET_S
                groups: dict[str, list[Any]] = defaultdict(list)
                for message in messages:
                    restored, aliases = from_backlog_message(message)
                    groups[aliases.path].append(restored)
                for path, group in groups.items():
                    if path not in senders:
                        senders[path] = primary.get_queue_sender(path)
                    await senders[path].send_messages(group)
                await asyncio.gather(*(source.complete_message(m) for m in messages))
                moved, ended = moved + len(messages), time.perf_counter()
        for sender in senders.values():
            await sender.close()
    return moved, ended
