"""A syphon with more destinations than one session has handles (SPEC 6: handle-max)."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from azure.servicebus import ServiceBusMessage

from tests.official_sdk import client
from twinbus import EmbeddedBroker
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.profile import AZURE_STANDARD, LAPTOP, ServiceProfile
from twinbus.syphon.host import drain
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

log = logging.getLogger(__name__)

HANDLE_MAX = 255
"""What Azure Service Bus announces."""

PATIENCE_S = 300.0
BATCH = 100
MB = 1024


@contextmanager
def served(profile: ServiceProfile) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", "contoso-dr", profile=profile) as broker:
        yield broker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with served(replace(LAPTOP, handle_max=HANDLE_MAX)) as broker:
        yield broker


def drain_to(broker: EmbeddedBroker, destinations: int, backlog_queues: int = 1) -> int:
    """Move one message to each of so many queues; return how many were forwarded."""
    primary, secondary = (broker.connection_string(name) for name in ("contoso", "contoso-dr"))
    paths = [f"entity-{number}" for number in range(destinations)]
    queues = [f"contoso/x-servicebus-transfer/{number}" for number in range(backlog_queues)]
    for path in paths:
        broker.create_queue(path, namespace="contoso")
    for queue in queues:
        broker.create_queue(queue, QueueDescription(max_size_mb=5120), namespace="contoso-dr")
    with client(secondary, retry_total=20) as sdk:
        for number, queue in enumerate(queues):
            with sdk.get_queue_sender(queue) as sender:
                mine = paths[number::backlog_queues]
                for at in range(0, len(mine), BATCH):
                    part = mine[at : at + BATCH]
                    copies = [
                        to_backlog_message(ServiceBusMessage(path), path, now_ms=0) for path in part
                    ]
                    sender.send_messages(copies)
    began, before_mb = time.monotonic(), peak_mb()
    stats = asyncio.run(asyncio.wait_for(drain(primary, secondary, queues), PATIENCE_S))
    took_s, more_mb = time.monotonic() - began, peak_mb() - before_mb
    log.info(
        "%d destinations, %d queues: %.1f s, +%.0f MB",
        destinations, backlog_queues, took_s, more_mb,
    )  # fmt: skip
    return stats.completed


def peak_mb() -> float:
    """The most memory that this process ever had, broker and syphon together."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB


def test_destinations_beyond_handle_max_use_further_sessions(broker: EmbeddedBroker) -> None:
    assert drain_to(broker, 3 * HANDLE_MAX) == 3 * HANDLE_MAX


def test_many_destinations_and_backlog_queues_under_the_limits_of_azure() -> None:
    with served(AZURE_STANDARD) as broker:
        assert drain_to(broker, 300, backlog_queues=20) == 300


@pytest.mark.soak  # thousands of queues, and a drain at what the credits allow
def test_two_thousand_destinations_and_20_backlog_queues_under_the_limits_of_azure() -> None:
    with served(AZURE_STANDARD) as broker:
        assert drain_to(broker, 2_000, backlog_queues=20) == 2_000


@pytest.mark.soak  # a minute of creating queues
def test_ten_thousand_destinations_are_served(broker: EmbeddedBroker) -> None:
    assert drain_to(broker, 10_000) == 10_000
