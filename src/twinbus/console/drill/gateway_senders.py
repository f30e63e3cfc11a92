"""A drill through a gateway: the gateway before the drill's pair, and a client that sends to it.

The client is a program in JavaScript where Node is at hand, else the plain Python SDK. Either knows
only the gateway's connection string.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Self

import azure.servicebus
from azure.servicebus.aio import ServiceBusClient

from twinbus.broker.host import NamespaceAt
from twinbus.broker.port_access import PortAccess
from twinbus.console.drill.javascript_client import (
    JavaScriptTraffic,
    NoJavaScript,
    javascript_client,
)
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.traffic import DrillTraffic, timeout_s
from twinbus.console.drill.world import World
from twinbus.gateway import GatewayHost
from twinbus.pair import Pair

NAME: Final = "drill"

PATIENCE_MARGIN_S: Final = 5.0
"""The gateway answers before its client gives up: else a message may be stored of which the client
says that it was not."""

Senders = Callable[[Callable[[int], None]], DrillTraffic | JavaScriptTraffic]
"""Makes the traffic of a drill; takes the function that gets how many sends have ended."""


class GatewaySenders:
    """The gateway and its client; a context manager that starts and closes the pair too."""

    def __init__(self, plan: DrillPlan, pair: Pair, world: World) -> None:
        self.client = ""
        """The language and SDK of the client, and why it is not JavaScript if it is not."""
        self.traffic: Senders
        self._plan = plan
        self._world = world
        patience_s = timeout_s(plan) - PATIENCE_MARGIN_S
        self._host = GatewayHost(NamespaceAt(NAME), pair, PortAccess(), patience_s=patience_s)
        self._opened = AsyncExitStack()

    @property
    def port(self) -> int:
        """The gateway's port."""
        return self._host.port

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            await self._host.start()
            opened.push_async_callback(self._host.close)
            text = self._host.connection_string()
            try:
                program = await javascript_client()
            except NoJavaScript as reason:
                client = ServiceBusClient.from_connection_string(text)
                self.client = f"Python (azure-servicebus {azure.servicebus.__version__}; {reason})"
                self.traffic = partial(
                    DrillTraffic, self._plan, await opened.enter_async_context(client)
                )
            else:
                self.client = program.name
                log = self._world.directory / "client.log"
                self.traffic = partial(JavaScriptTraffic, self._plan, program, text, log)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.aclose()
