"""A syphon with more destinations than one session has handles (SPEC 6: handle-max)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage

from tests.official_sdk import client
from twinbus import EmbeddedBroker
from twinbus.amqp import connection
from twinbus.amqp.events import Event
from twinbus.amqp.output import ProtocolViolation
from twinbus.amqp.performatives import Attach, Begin
from twinbus.amqp.session import Session
from twinbus.amqp.types import UInt
from twinbus.syphon.host import drain
from twinbus.transfer import to_backlog_message

pytestmark = pytest.mark.contract

HANDLE_MAX = 255
"""What Azure Service Bus announces."""

QUEUE = "contoso/x-servicebus-transfer/0"
PATIENCE_S = 120.0


class NarrowSession(Session):
    """A session that announces few handles and refuses a peer that uses more."""

    def begin(self) -> Begin:
        return dataclasses.replace(super().begin(), handle_max=UInt(HANDLE_MAX))

    def take(self, performative: object, payload: bytes, events: list[Event]) -> None:
        if isinstance(performative, Attach) and performative.handle > HANDLE_MAX:
            raise ProtocolViolation(f"handle {performative.handle}, at most {HANDLE_MAX}")
        super().take(performative, payload, events)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    monkeypatch.setattr(connection, "Session", NarrowSession)
    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        yield broker


def drain_to(broker: EmbeddedBroker, destinations: int) -> int:
    """Move one message to each of so many queues; return how many were forwarded."""
    primary, secondary = (broker.connection_string(name) for name in ("contoso", "contoso-dr"))
    paths = [f"entity-{number}" for number in range(destinations)]
    for path in paths:
        broker.create_queue(path, namespace="contoso")
    broker.create_queue(QUEUE, namespace="contoso-dr")
    with client(secondary) as sdk, sdk.get_queue_sender(QUEUE) as sender:
        for at in range(0, destinations, 100):
            sender.send_messages(
                [to_backlog_message(ServiceBusMessage(p), p) for p in paths[at : at + 100]]
            )
    stats = asyncio.run(asyncio.wait_for(drain(primary, secondary, [QUEUE]), PATIENCE_S))
    return stats.completed


def test_destinations_beyond_handle_max_use_further_sessions(broker: EmbeddedBroker) -> None:
    assert drain_to(broker, 3 * HANDLE_MAX) == 3 * HANDLE_MAX


@pytest.mark.soak  # a minute of creating queues
def test_ten_thousand_destinations_are_served(broker: EmbeddedBroker) -> None:
    assert drain_to(broker, 10_000) == 10_000
