"""A processor against a hand-written receive loop on the official SDK: receive, handle, complete.

Both run 8 handlers at once that do nothing, over the SDK's own receiver, from one queue of a broker
in a process of its own. The figure is how many messages the client receives and completes in a
second of its own processor time; the ratio is what the processor's renewals, bounded slots and
separate settlements leave of the loop's rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bench.harness import Progress, Sides
from bench.paired_sides import DATA, QUEUE, serving
from twinbus import process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

UNIT = "messages per second of client CPU"
MESSAGES = 1_500
CONCURRENCY = 8
BODY = b"x" * 1_024
PAGE = 100
LIMIT_S = 120.0


@contextlib.contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """A processor and a loop that empty one queue in turn."""
    DATA.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="processor-", dir=DATA) as directory,
        serving(progress, Path(directory)) as (primary, _),
    ):
        yield Sides(
            ours=lambda: asyncio.run(_round(primary, _by_processor)),
            peer=lambda: asyncio.run(_round(primary, _by_loop)),
            note=f"azure-servicebus asyncio, {len(BODY)} bytes, {CONCURRENCY} handlers at once",
        )


async def _round(text: str, work: Callable[[ServiceBusClient], Awaitable[None]]) -> float:
    async with ServiceBusClient.from_connection_string(text) as client:
        await _fill(client)
        gc.collect()
        used = time.process_time()
        async with asyncio.timeout(LIMIT_S):
            await work(client)
        return MESSAGES / (time.process_time() - used)


async def _fill(client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        for _ in range(MESSAGES // PAGE):
            await sender.send_messages([ServiceBusMessage(BODY) for _ in range(PAGE)])


async def _by_processor(client: ServiceBusClient) -> None:
    handled, done = 0, asyncio.Event()

    async def handle(_: Any) -> None:
        nonlocal handled
        handled += 1
        if handled == MESSAGES:
            done.set()

    async with process(client, QUEUE, handle, concurrency=CONCURRENCY):
        await done.wait()


async def _by_loop(client: ServiceBusClient) -> None:
    """What people write: receive as many as run at once, handle and complete them side by side."""
    handled = 0
    async with client.get_queue_receiver(QUEUE) as receiver:

        async def handle(message: Any) -> None:
            nonlocal handled
            handled += 1
            await receiver.complete_message(message)

        while handled < MESSAGES:
            messages = await receiver.receive_messages(CONCURRENCY, max_wait_time=10.0)
            await asyncio.gather(*(handle(message) for message in messages))
