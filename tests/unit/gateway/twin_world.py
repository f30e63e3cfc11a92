"""A gateway's receivers between one client and two namespaces, in memory and in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.fakes import facts, incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from tests.unit.gateway.joined_namespaces import (
    PRIMARY,
    SECONDARY,
    join_both,
    new_namespace,
    no_connection,
)
from twinbus import SendAvailabilityOptions
from twinbus.amqp.events import DeliveryArrived, Detached, Disposed, Event
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.message import Properties, data_sections, decode_map, encode_message, split
from twinbus.amqp.performatives import ACCEPTED_BYTES, Source, Target
from twinbus.amqp.session import Session
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.links.peer import Peer
from twinbus.client.connection import MACHINE, Environment
from twinbus.gateway.primary_connections import PrimaryConnections
from twinbus.gateway.sending import PendingSends
from twinbus.gateway.server import GatewayLinks
from twinbus.gateway.twins import GatewayTwins
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.receivers import PairedReceivers
from twinbus.servicebus.names import SEQUENCE_NUMBER

TICKS = 100
STEP_S = 0.05


class TwinWorld:
    """Two brokers with a queue of one name, a gateway's links, and a client."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        marked: bool | None = True,
        in_primary: bool = True,
    ) -> None:
        self.brokers = {side: new_namespace(side.value) for side in Side}
        ends = join_both(self.brokers[Side.PRIMARY], self.brokers[Side.SECONDARY], monkeypatch)
        self.ends = dict(zip(Side, ends, strict=True))
        self.queues = {
            side: broker.namespace.create_queue("q", QueueDescription(), broker.now_ms())
            for side, broker in self.brokers.items()
            if in_primary or side is Side.SECONDARY
        }

        async def is_marked(*_: object) -> bool | None:
            return marked

        primary, secondary = map(Namespace.from_connection_string, (PRIMARY, SECONDARY))
        self.label = primary.label
        options = SendAvailabilityOptions(backlog_queue_count=1, twins=["q*"], attempt_timeout=5)
        recorder: Any = SimpleNamespace(requests=lambda _: None, ledger=None)
        environment = Environment(chance=lambda: 1.0, is_marked=is_marked)
        self.receivers = PairedReceivers(primary, secondary, options, recorder, environment)
        self.pending = PendingSends("gateway", 5.0)
        self.twins = GatewayTwins(self.receivers, primary.label, self.pending.spawn)
        self.front = new_server()
        paired: Any = SimpleNamespace(
            state=SimpleNamespace(
                primary=primary,
                environment=MACHINE,
                recorder=SimpleNamespace(is_on=False),
                policy=SimpleNamespace(attempt_timeout_s=5.0),
            )
        )
        context: Any = self.front
        self.links = GatewayLinks(
            context, paired, PrimaryConnections(no_connection), self.pending, self.twins
        )
        self.client = JoinedClient(self)
        self.session: Session
        self.link: ReceiverLink
        self.got: list[DeliveryArrived] = []
        self.answers: list[Disposed] = []
        self.detached: list[Detached] = []

    def peer(self) -> Peer:
        return Peer(self.front, self.links)

    async def open(self, *, settled: bool = False, filters: Any = None) -> None:
        """Attach a receiver."""
        await self.run(0)
        self.session = self.client.connection.begin()
        await self.run(0)
        self.attach(settled=settled, filters=filters)
        await self.run(0.3)

    def attach(self, *, settled: bool = False, filters: Any = None) -> None:
        """Attach a receiver, without waiting for the answer."""
        self.link = self.session.attach_receiver(
            "in",
            source=Source(address="q", filter=filters),
            target=Target(address="me"),
            settled=settled,
            confirmed=not settled,
        )

    async def close(self) -> None:
        """End the client's connection, and all others."""
        self.client.peer.connection_lost(None)
        await self.twins.close()
        while self.pending.calls:
            await asyncio.gather(*self.pending.calls)
        await self.receivers.close()
        await self.front.close()
        for broker in self.brokers.values():
            await broker.close()

    async def run(self, seconds: float, *, step_s: float = STEP_S) -> None:
        """Let the time pass, and carry the client's bytes at each step of it."""
        ends_at = asyncio.get_running_loop().time() + seconds
        while True:
            for event in await self.client.exchange(TICKS):
                self._note(event)
            if asyncio.get_running_loop().time() >= ends_at:
                return
            await asyncio.sleep(step_s)

    def _note(self, event: Event) -> None:
        match event:
            case DeliveryArrived():
                self.got.append(event)
            case Disposed():
                self.answers.append(event)
            case Detached():
                self.detached.append(event)

    def put(self, side: Side, *texts: str, properties: Any = None) -> None:
        """Store messages whose id is their text."""
        for text in texts:
            message = incoming(text.encode(), message_id=text, properties=properties)
            self.queues[side].enqueue(message, self.brokers[side].now_ms())

    def left(self, side: Side) -> int:
        """How many messages a side holds, locked ones included."""
        return len(facts(self.queues[side], self.brokers[side].now_ms()))

    def locked(self, side: Side) -> int:
        return len(self.queues[side].states.locks)

    @property
    def texts(self) -> list[str]:
        """What the client got."""
        return [text_of(event) for event in self.got]

    def complete(self, *texts: str) -> None:
        """Complete messages that the client got last under these texts."""
        latest = {text_of(event): event.delivery_id for event in self.got}
        for text in texts or self.texts:
            self.session.dispose(latest[text], latest[text], ACCEPTED_BYTES)

    async def ask(self, operation: str, **arguments: Any) -> int:
        """Ask the `$management` node of the queue; return the status of the answer."""
        requests = self.twins.requests(self.client.peer, "q/$management")
        assert requests is not None
        request = encode_message(
            properties=Properties(message_id="7"),
            application_properties={"operation": f"com.microsoft:{operation}"},
            value={name.replace("_", "-"): value for name, value in arguments.items()},
        )
        answer = split(await requests.answer(split(request)))
        return int(str(decode_map(answer.application_properties)["statusCode"]))


def text_of(event: DeliveryArrived) -> str:
    [body] = data_sections(split(event.payload).body)
    return bytes(body).decode()


def number_of(event: DeliveryArrived) -> int:
    return int(str(decode_map(split(event.payload).message_annotations)[SEQUENCE_NUMBER]))
