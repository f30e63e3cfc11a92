"""The senders of a drill, and the gateway before them with --gateway.

They send at a steady rate, whatever happens to the primary. Senders behind a gateway are plain
clients of the SDK that know nothing of Twinbus. The drill judges by what the consumers record, not
by what the senders report.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import azure.servicebus
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from twinbus.broker.embedded import NamespaceAt
from twinbus.broker.port_access import PortAccess
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.world import ENTITIES, Entity
from twinbus.errors import TwinbusError
from twinbus.gateway import GatewayHost
from twinbus.pair import Pair

TIMEOUT_MARGIN_S: Final = 30.0
"""A caller's timeout beyond the failover interval: no outage of a drill needs more."""

PATIENCE_MARGIN_S: Final = 5.0
"""The gateway answers before its client gives up: else a message may be stored of which the client
says that it was not."""

PADDING: Final = "x" * 400
"""Makes a message of half a KB: the size of a small order."""


def timeout_s(plan: DrillPlan) -> float:
    return plan.failover_interval_s + TIMEOUT_MARGIN_S


class DrillTraffic:
    """Sends all messages of the plan; `run` ends when the last send has ended."""

    def __init__(self, plan: DrillPlan, client: Any, sent: Callable[[int], None]) -> None:
        """`client` is a pair, or a client of the SDK; `sent` gets how many sends have ended."""
        self.sends_returned = 0
        """Messages whose send returned: only a check of the ledger."""
        self.began_ms = 0
        self.begun = asyncio.Event()
        """The first message is due."""
        self._plan = plan
        self._client = client
        self._sent = sent
        self._ended = 0

    async def run(self) -> None:
        """Send everything; the ledger counts the sends that raise."""
        async with AsyncExitStack() as opened:
            # First, because the links of the plain SDK may take seconds on a busy machine.
            senders = [
                (await opened.enter_async_context(self._sender(entity)), entity, numbers)
                for entity, numbers in self._shares()
            ]
            began = asyncio.get_running_loop().time()
            self.began_ms = time.time_ns() // 1_000_000
            self.begun.set()
            async with asyncio.TaskGroup() as group:
                for sender, entity, numbers in senders:
                    group.create_task(self._send_to(sender, entity, numbers, began))

    def _shares(self) -> Iterator[tuple[Entity, range]]:
        """Yield the messages of each sender, by entity: one that waits does not hold up others."""
        for number in range(self._plan.senders):
            share = self._plan.share(number)
            for place, entity in enumerate(ENTITIES):
                yield entity, share[place :: len(ENTITIES)]

    def _sender(self, entity: Entity) -> Any:
        client = self._client
        get = client.get_topic_sender if entity.is_topic else client.get_queue_sender
        return get(entity.path)

    async def _send_to(self, sender: Any, entity: Entity, numbers: range, began: float) -> None:
        loop = asyncio.get_running_loop()
        limit_s = timeout_s(self._plan)
        for number in numbers:
            due = began + number / self._plan.rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            try:
                await sender.send_messages(_message(entity, number), timeout=limit_s)
            except (TwinbusError, ServiceBusError):
                # The caller knows, so nothing is lost; the ledger records it.
                pass
            else:
                self.sends_returned += 1
            self._ended += 1
            self._sent(self._ended)


def _message(entity: Entity, number: int) -> ServiceBusMessage:
    session = random.choice(entity.sessions) if entity.sessions else None  # noqa: S311
    return ServiceBusMessage(
        json.dumps({"entity": entity.path, "number": number, "padding": PADDING}),
        message_id=f"{entity.path}-{number:06d}",
        session_id=session,
        content_type="application/json",
    )


class DrillGateway:
    """A gateway before the pair, and a client behind it; a context manager that opens the pair."""

    CLIENT: Final = f"the plain Python SDK (azure-servicebus {azure.servicebus.__version__})"

    def __init__(self, plan: DrillPlan, pair: Pair) -> None:
        self.client: ServiceBusClient
        """A client of the SDK with its defaults, which knows the gateway's connection string."""
        patience_s = timeout_s(plan) - PATIENCE_MARGIN_S
        self._host = GatewayHost(NamespaceAt("drill"), pair, PortAccess(), patience_s=patience_s)

    @property
    def port(self) -> int:
        return self._host.port

    async def __aenter__(self) -> Self:
        await self._host.start()
        self.client = ServiceBusClient.from_connection_string(self._host.connection_string())
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self.client.close()
        finally:
            await self._host.close()
