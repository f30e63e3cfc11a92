"""What a drain does to live callers of a primary that throttles: their p95 with it and without it.

Two namespaces in a process of their own; the primary takes 400 sends a second of everybody
together. Twenty live callers send through one pair, and in the rounds of "ours" the syphon of
another pair brings a backlog home meanwhile. The "ratio" is p95 with the drain over p95 without
it: less is better, and 2 is the limit (issue 12).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bench.broker_send_vs_rabbitmq import CONNECTION_STRING
from bench.harness import Progress, Sides
from bench.paired_sides import DATA, QUEUE, serving
from bench.relay_world import scaled
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.namespace.tokens import sign
from twinbus.syphon.draining import drain
from twinbus.transfer.sdk import to_backlog_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinbus.pair import Pair
    from twinbus.pairing.sending.sender import PairedSender

ROUNDS: Final = 5
UNIT: Final = "p95 of a live send in ms, with the drain and without"
PER_S: Final = 400
CALLERS: Final = 20
PAUSE_S: Final = 0.2
CALLS: Final = 1_500
"""Of one round: some 15 seconds."""

BACKLOG: Final = 6_000
"""Added for each round, of which a drain moves less."""


class LiveCallers:
    """A pair whose callers send on and on, and the backlog beside them."""

    def __init__(self, primary: str, secondary: str) -> None:
        self._primary, self._secondary = primary, secondary

    def alone(self) -> float:
        return asyncio.run(self._round(is_draining=False))

    def beside_a_drain(self) -> float:
        return asyncio.run(self._round(is_draining=True))

    async def _round(self, *, is_draining: bool) -> float:
        options = SendAvailabilityOptions(ledger="")
        async with pair_namespaces(self._primary, self._secondary, options) as pair:
            senders = [pair.get_queue_sender(QUEUE) for _ in range(CALLERS)]
            async with contextlib.AsyncExitStack() as stack:
                for sender in senders:
                    await stack.enter_async_context(sender)
                    await sender.send_messages(ServiceBusMessage("warm"))
                return await self._measured(pair, senders, is_draining=is_draining)

    async def _measured(
        self, pair: Pair, senders: list[PairedSender], *, is_draining: bool
    ) -> float:
        draining = None
        if is_draining:
            await self._fill(pair.backlog_queues)
            work = drain(self._primary, self._secondary, pair.backlog_queues)
            draining = asyncio.create_task(work)
        took_ms: list[float] = []

        async def call(sender: PairedSender) -> None:
            for _ in range(scaled(CALLS) // CALLERS):
                began = time.perf_counter()
                await sender.send_messages(ServiceBusMessage("live"), timeout=60)
                took_ms.append((time.perf_counter() - began) * 1e3)
                await asyncio.sleep(PAUSE_S)

        await asyncio.gather(*(call(sender) for sender in senders))
        if draining is not None:
            draining.cancel()
            await asyncio.wait({draining})
        return statistics.quantiles(took_ms, n=20)[-1]

    async def _fill(self, queues: tuple[str, ...]) -> None:
        """Have a backlog that outlasts the round; what the round before left is part of it."""
        each = [to_backlog_message(ServiceBusMessage(b"x" * 1_000), QUEUE, now_ms=0)] * 100
        async with ServiceBusClient.from_connection_string(self._secondary) as client:
            for queue in queues:
                async with client.get_queue_sender(queue) as sender:
                    for _ in range(scaled(BACKLOG) // len(queues) // len(each)):
                        await sender.send_messages(each)


@contextlib.contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """Two namespaces of which the first throttles."""
    DATA.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="harm-", dir=DATA) as directory,
        serving(progress, Path(directory)) as (primary, secondary),
    ):
        add_fault(primary, {"kind": "throttle", "per_s": PER_S})
        callers = LiveCallers(primary, secondary)
        yield Sides(
            ours=callers.beside_a_drain,
            peer=callers.alone,
            note=f"less is better; the primary takes {PER_S} sends a second",
        )


def add_fault(connection_string: str, fault: dict[str, object]) -> None:
    """Put a fault in force over HTTP."""
    found = CONNECTION_STRING.search(connection_string)
    assert found is not None
    endpoint, rule, key = found.groups()
    place = endpoint.removeprefix("sb://").rstrip("/")
    token = sign(f"sb://{place}/", rule, key, int(time.time()) + 600)
    headers = {"Authorization": token, "Content-Type": "application/json"}
    url = f"http://{place}/$faults"
    request = urllib.request.Request(url, json.dumps(fault).encode(), headers, method="POST")
    urllib.request.urlopen(request, timeout=10).close()
