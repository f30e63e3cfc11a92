"""Sends through a gateway whose entities have twins."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import bodies, drain, is_twin_used, until
from tests.gateway.gateway_world import gateway_world
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.faults import Fault
from twinbus.servicebus.twins import DIVERTED, read_divert_mark, twin_mark

pytestmark = pytest.mark.contract


async def test_clients_of_a_gateway_are_diverted_to_the_twin_as_they_sent() -> None:
    async with (
        gateway_world("orders", twins=["orders"], attempt_timeout=2.0) as world,
        world.client() as client,
    ):
        pair = world.gateway.pair
        label = pair._primary.label
        description = QueueDescription(user_metadata=twin_mark(label))
        world.secondary.create_queue("orders", description)
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            await until(lambda: is_twin_used(pair, "orders"))
            world.primary.add_fault(Fault(kind="hang", entity="orders"))
            await sender.send_messages(ServiceBusMessage("first", message_id="1"))
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            with_session = ServiceBusMessage("session", session_id="s")
            await sender.send_messages(with_session)
            status = pair.status().entities["orders"]
            assert (status.diverted, status.twinned) == (4, 3)
            world.primary.clear_faults()
        found = await drain(world.secondary.connection_string(), "orders")
        assert sorted(bodies(found)) == ["a", "b", "first"]
        marks = {
            str(message): read_divert_mark(
                (message.application_properties or {})[DIVERTED.encode()]
            )
            for message in found
        }
        assert {mark.label for mark in marks.values() if mark is not None} == {label}
        unanswered = {text for text, mark in marks.items() if mark and mark.unanswered_since_ms}
        assert unanswered == {"first"}
