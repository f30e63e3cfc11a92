"""One `twinbus serve` for each module of contract tests, and the official SDK's clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.official_sdk import ClosedTogether, Faults, administration, client
from tests.processes import ServedBroker

RULES = ("--rule", "sender:send-key:Send", "--rule", "listener:listen-key:Listen")
PATIENCE_S = 30.0
"""How long a message that must come may take; on a quiet machine it takes milliseconds."""

QUIET_S = 0.5
"""How long to look for a message that must not come."""


@dataclass
class Tour:
    """A broker and one client; what it opens is closed, all at once, when the module is done."""

    broker: ServedBroker
    admin: ServiceBusAdministrationClient
    client: ServiceBusClient
    faults: Faults
    opened: ClosedTogether
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def queue(self, **settings: Any) -> str:
        """A new queue's name."""
        name = f"queue-{next(self._numbers)}"
        self.admin.create_queue(name, **settings)
        return name

    def topic(self, *subscriptions: str, **settings: Any) -> str:
        """A new topic's name."""
        name = f"topic-{next(self._numbers)}"
        self.admin.create_topic(name)
        for subscription in subscriptions:
            self.admin.create_subscription(name, subscription, **settings)
        return name

    def sender(self, queue: str) -> ServiceBusSender:
        return self.opened.add(self.client.get_queue_sender(queue))

    def receiver(self, queue: str, **settings: Any) -> ServiceBusReceiver:
        return self.opened.add(self.client.get_queue_receiver(queue, **settings))

    def dead_letters(self, queue: str) -> ServiceBusReceiver:
        return self.receiver(queue, sub_queue="deadletter")

    def pair(self, **settings: Any) -> tuple[ServiceBusSender, ServiceBusReceiver]:
        """A sender to and a receiver of a new queue."""
        name = self.queue(**settings)
        return self.sender(name), self.receiver(name)


def receive(
    receiver: ServiceBusReceiver, count: int, wait_s: float = PATIENCE_S
) -> list[ServiceBusReceivedMessage]:
    """The next `count` messages, fewer when they do not come in time."""
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < count:
        more = receiver.receive_messages(count - len(received), max_wait_time=wait_s)
        if not more:
            break
        received += more
    return received


def receive_one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    """The next message."""
    (message,) = receive(receiver, 1)
    return message


def stays_empty(receiver: ServiceBusReceiver) -> bool:
    """Whether nothing comes for a while. Opened first: opening must not use up the while."""
    receiver.__enter__()
    return not receiver.receive_messages(1, max_wait_time=QUIET_S)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    directory: Path = tmp_path_factory.mktemp("broker")
    with ServedBroker(directory, "contoso", options=RULES) as served:
        yield served
        status = served.terminate()
        assert status == 0, served.log()
        assert "Traceback" not in served.log()


@pytest.fixture(scope="module")
def tour(broker: ServedBroker) -> Iterator[Tour]:
    text = broker.connection_string()
    with administration(text) as admin, client(text) as sdk, ClosedTogether() as opened:
        yield Tour(broker, admin, sdk, Faults(text), opened)
