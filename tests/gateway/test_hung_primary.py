"""Requests to `$management` nodes while the primary hangs: answered by the twin, or refused."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.raw_client import RawClient, RawReceiver, RawSender, message
from tests.official_sdk import administration, async_client
from tests.processes import ServedBroker
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.amqp.message import (
    Properties,
    decode_map,
    decode_properties,
    decode_value,
    encode_message,
    split,
)
from twinbus.amqp.types import Array, Int, Symbol, UInt
from twinbus.broker.embedded import NamespaceAt
from twinbus.broker.port_access import PortAccess
from twinbus.gateway import GatewayHost
from twinbus.servicebus.twins import secondary_number, twin_mark

pytestmark = pytest.mark.contract

ATTEMPT_S = 1.0
BOUND_S = 12.0
"""Attach and answer may take a few attempts each, on a busy machine."""


@dataclass
class HungWorld:
    """A gateway, and a primary in a process of its own that can be stopped."""

    primary: ServedBroker
    secondary: ServedBroker
    gateway: GatewayHost

    def hang(self) -> None:
        self.primary.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.primary.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def hung_world(tmp_path: Path) -> AsyncIterator[HungWorld]:
    with (
        ServedBroker(tmp_path / "contoso", "contoso", ephemeral=True) as primary,
        ServedBroker(tmp_path / "dr", "contoso-dr", ephemeral=True) as secondary,
    ):
        pair = pair_namespaces(
            primary.connection_string(),
            secondary.connection_string(),
            SendAvailabilityOptions(
                backlog_queue_count=1,
                failover_interval=1,
                attempt_timeout=ATTEMPT_S,
                twins=["orders"],
                enable_syphon=False,
            ),
        )
        for broker, mark in ((primary, None), (secondary, twin_mark(pair._primary.label))):
            with administration(broker.connection_string()) as admin:
                admin.create_queue("orders", user_metadata=mark)
                admin.create_queue("plain")
        gateway = GatewayHost(NamespaceAt("gate"), pair, PortAccess(rules=[]))
        await gateway.start()
        try:
            yield HungWorld(primary, secondary, gateway)
        finally:
            primary.process.send_signal(signal.SIGCONT)
            await gateway.close()


class Node:
    """A client's links to one `$management` node."""

    def __init__(self, requests: RawSender, replies: RawReceiver) -> None:
        self._requests, self._replies = requests, replies
        self._ids = itertools.count(1)

    @classmethod
    async def open(cls, raw: RawClient, entity: str) -> Node:
        async with asyncio.timeout(BOUND_S):
            requests = await raw.sender(f"{entity}/$management")
            replies = await raw.receiver(f"{entity}/$management", credit=100)
            return cls(requests, replies)

    async def ask(self, operation: str, **arguments: Any) -> tuple[int, str, Any]:
        """Status, text and body of the answer to this request; one of another request fails."""
        request_id = f"request-{next(self._ids)}"
        async with asyncio.timeout(BOUND_S):
            await self._requests.room()
            self._requests.send_unasked(
                encode_message(
                    properties=Properties(message_id=request_id),
                    application_properties={"operation": f"com.microsoft:{operation}"},
                    value={name.replace("_", "-"): one for name, one in arguments.items()},
                )
            )
            reply = await self._replies.receive()
        assert reply is not None
        sections = split(reply.payload)
        assert decode_properties(sections.properties).correlation_id == request_id
        answer = decode_map(sections.application_properties)
        status, text = int(str(answer["statusCode"])), str(answer["statusDescription"])
        return status, text, decode_value(sections.body)


async def put(broker: ServedBroker, text: str) -> None:
    async with (
        async_client(broker.connection_string()) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage(text))


async def locked(receiver: RawReceiver) -> Array:
    """The lock token of the next message, as a request names it."""
    delivery = await receiver.receive()
    assert delivery is not None
    token = decode_map(split(delivery.payload).delivery_annotations)[Symbol("x-opt-lock-token")]
    assert isinstance(token, UUID)
    return Array([token])


async def test_requests_while_the_primary_hangs_end_soon(tmp_path: Path) -> None:
    async with hung_world(tmp_path) as world:
        raw = await RawClient.open(world.gateway.connection_string())
        late = await RawClient.open(world.gateway.connection_string())
        receiver = await raw.receiver("orders", credit=10)
        await put(world.primary, "here")
        here = await locked(receiver)
        await put(world.secondary, "there")
        there = await locked(receiver)
        before, plain = await Node.open(raw, "orders"), await Node.open(late, "plain")
        assert (await before.ask("peek-message", message_count=Int(1)))[0] == 200
        assert (await plain.ask("peek-message", message_count=Int(1)))[0] == 204
        world.hang()
        # Of a client that has a connection to the primary, which does not answer the attach.
        meanwhile = await Node.open(late, "orders")
        # What the twin has.
        for node in (before, meanwhile):
            assert (await node.ask("renew-lock", lock_tokens=there))[0] == 200
            asked = {"from_sequence_number": 1, "message_count": Int(5)}
            status, _, found = await node.ask("peek-message", **asked)
            assert (status, len(found["messages"])) == (200, 1)
        deferring = {"disposition_status": "defered"}  # codespell:ignore
        settled = await before.ask("update-disposition", lock_tokens=there, **deferring)
        assert settled[0] == 200
        numbers = {
            "sequence_numbers": Array([secondary_number(1)]),
            "receiver_settle_mode": UInt(1),
        }
        status, _, found = await meanwhile.ask("receive-by-sequence-number", **numbers)
        assert (status, len(found["messages"])) == (200, 1)
        # What only the primary has.
        scheduled = {"message-id": "later", "message": message("later")}
        refused = [
            await before.ask("renew-lock", lock_tokens=here),
            await before.ask("schedule-message", messages=[scheduled]),
            await meanwhile.ask("schedule-message", messages=[scheduled]),
            await plain.ask("peek-message", from_sequence_number=1, message_count=Int(1)),
        ]
        assert [one[0] for one in refused] == [503, 408, 503, 408], refused
        assert all("contoso" in one[1] or "primary" in one[1] for one in refused), refused
        world.go_on()
        async with asyncio.timeout(60):
            while (await plain.ask("peek-message", message_count=Int(1)))[0] != 204:
                pass  # Each asks again.
        await raw.close()
        await late.close()
