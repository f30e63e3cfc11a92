"""A gateway in front of two embedded brokers, for tests with the official SDK and a raw client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from tests.end_to_end.raw_client import RawClient, RawSender
from tests.processes import with_key
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.broker.embedded import EmbeddedBroker, NamespaceAt, parse_rule
from twinbus.broker.port_access import PortAccess
from twinbus.gateway import GatewayHost
from twinbus.gateway.sending import PENDING_BYTES_MAX
from twinbus.gateway.server import GatewayServer

PATIENCE_S = 60.0
RULES = {"sender": "send-key:Send", "listener": "listen-key:Listen"}


@dataclass
class GatewayWorld:
    """Two brokers and a gateway."""

    primary: EmbeddedBroker
    secondary: EmbeddedBroker
    gateway: GatewayHost
    opened: list[RawClient] = field(default_factory=list)
    """Closed with the gateway."""

    @property
    def server(self) -> GatewayServer:
        assert self.gateway.server is not None
        return self.gateway.server

    async def raw(self, rule: str | None = None, path: str = "") -> RawClient:
        """A raw client of the gateway."""
        self.opened.append(await RawClient.open(self.connection_string(rule), path))
        return self.opened[-1]

    async def sender(self, queue: str) -> RawSender:
        """A sender of a raw client of its own, that may send its first message."""
        return await (await self.raw()).ready_sender(queue)

    def client(self, rule: str | None = None, **options: Any) -> ServiceBusClient:
        """A client of the gateway, with all rights or those of a rule."""
        return ServiceBusClient.from_connection_string(self.connection_string(rule), **options)

    def connection_string(self, rule: str | None = None) -> str:
        text = self.gateway.connection_string()
        return with_key(text, rule, rule and RULES[rule].partition(":")[0])

    async def received(self, queue: str, count: int) -> list[str]:
        """The bodies of so many messages of the primary, received there without the gateway."""
        bodies: list[str] = []
        text = self.primary.connection_string()
        async with (
            asyncio.timeout(PATIENCE_S),
            ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_receiver(queue) as receiver,
        ):
            while len(bodies) < count:
                for message in await receiver.receive_messages(count, max_wait_time=1):
                    bodies.append(str(message))
                    await receiver.complete_message(message)
        return bodies


@asynccontextmanager
async def gateway_world(
    *queues: str,
    ledger: Path | None = None,
    patience_s: float = 30.0,
    access: PortAccess | None = None,
    pending_bytes_max: int = PENDING_BYTES_MAX,
    **options: Any,
) -> AsyncIterator[GatewayWorld]:
    """Both brokers and the gateway, with these queues in the primary.

    `access`: who may connect to the gateway; None: the rules that `connection_string` takes.
    """
    settings: dict[str, Any] = {
        "backlog_queue_count": 2,
        "failover_interval": 0.5,
        "ping_primary_interval": 1,
        "attempt_timeout": 1,
        "ledger": None if ledger is None else str(ledger),
        **options,
    }
    rules = [parse_rule(f"{name}:{rest}") for name, rest in RULES.items()]
    with EmbeddedBroker("contoso") as primary, EmbeddedBroker("contoso-dr") as secondary:
        for queue in queues:
            primary.create_queue(queue)
        pair = pair_namespaces(
            primary.connection_string(),
            secondary.connection_string(),
            SendAvailabilityOptions(**settings),
        )
        gateway = GatewayHost(
            NamespaceAt("gate"),
            pair,
            access or PortAccess(rules=rules),
            patience_s=patience_s,
            pending_bytes_max=pending_bytes_max,
        )
        await gateway.start()
        world = GatewayWorld(primary, secondary, gateway)
        try:
            yield world
        finally:
            for client in world.opened:
                await client.close()
            await gateway.close()
