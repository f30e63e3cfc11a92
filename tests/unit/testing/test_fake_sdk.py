"""The fake SDK keeps the rules of the real one that a pair relies on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from twinbus.testing.fake_sdk import (
    FakeClient,
    FakeNamespace,
    FakePair,
    FakeReceiver,
    FakeSender,
    FakeSide,
    accepts,
    hangs,
    refuses,
)

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("fake", "real"),
    [
        (FakeClient, ServiceBusClient),
        (FakeSender, ServiceBusSender),
        (FakeReceiver, ServiceBusReceiver),
    ],
)
def test_every_public_method_is_one_of_the_sdk(fake: type, real: type) -> None:
    methods = [name for name in vars(fake) if not name.startswith("_")]
    assert methods
    assert [name for name in methods if not callable(getattr(real, name, None))] == []


async def test_an_entity_takes_refuses_or_hangs_as_the_test_says() -> None:
    side = FakeSide(by_entity={"dead": refuses, "stuck": hangs})
    client: Any = FakeNamespace("contoso", side).client(retry_total=0)
    await client.get_queue_sender("orders").send_messages("one")
    with pytest.raises(ConnectionRefusedError):
        await client.get_queue_sender("dead").send_messages("two")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await client.get_topic_sender("stuck").send_messages("three")
    assert side.took == [("orders", "one")]
    assert (side.opened, side.busy, side.busiest) == (3, 0, 1)


async def test_two_calls_on_one_sender_at_once_are_an_error_of_the_caller() -> None:
    sender = FakeClient(FakeSide(behaviour=hangs).connect).get_queue_sender("orders")
    first = asyncio.create_task(sender.send_messages("one"))
    await asyncio.sleep(1)
    with pytest.raises(AssertionError, match="two calls"):
        await sender.send_messages("two")
    first.cancel()
    await asyncio.wait({first})


async def test_a_receiver_peeks_what_was_sent_and_not_drained() -> None:
    side = FakeSide()
    client = FakeClient(side.connect)
    for body in ("a", "b", "c"):
        await client.get_queue_sender("orders").send_messages(ServiceBusMessage(body))
    receiver = client.get_queue_receiver("orders")
    await receiver.__aenter__()
    with pytest.raises(AssertionError, match="lock a message"):
        await receiver.peek_messages(10, sequence_number=1)
    receiver._prefetch_count = -1
    side.drained = 1
    found = await receiver.peek_messages(10, sequence_number=1)
    assert [str(message) for message in found] == ["b", "c"]


async def test_a_fake_pair_diverts_and_returns_in_virtual_time() -> None:
    pair = FakePair(failover_interval=10.0, ping_primary_interval=60.0)
    pair.primary.behaviour = refuses
    sender = pair.client.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    assert (pair.elapsed, pair.state()) == (10.0, "failed over")
    assert [path for path, _ in pair.secondary.took] == ["contoso/x-servicebus-transfer/0"]
    pair.primary.behaviour = accepts
    await asyncio.sleep(61)
    assert pair.state() == "healthy"
    await pair.client.close()


def test_importing_the_fakes_loads_nothing_of_azure() -> None:
    script = (
        "import sys, twinbus.testing.fake_sdk\n"
        "print(sorted(name for name in sys.modules if name.startswith('azure')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
