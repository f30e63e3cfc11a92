"""Calls of a closed sender and of a closed pair: the error has the ids of the messages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from twinbus.errors import PairClosedError
from twinbus.testing.fake_pair import FakePair
from twinbus.testing.fake_sdk import refuses

pytestmark = pytest.mark.virtual_time

MESSAGE = ServiceBusMessage("x", message_id="1")


@pytest.mark.parametrize("given", [MESSAGE, [MESSAGE]], ids=["one", "list"])
@pytest.mark.parametrize("closed", ["sender", "pair"])
async def test_an_error_of_what_was_closed_has_the_ids(given: Any, closed: str) -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await (sender.close() if closed == "sender" else world.client.close())
    kind, text = (ValueError, "sender") if closed == "sender" else (PairClosedError, "pair")
    at = datetime(2030, 1, 1, tzinfo=UTC)
    for call in (sender.send_messages, lambda each: sender.schedule_messages(each, at)):
        with pytest.raises(kind, match=f"the {text}.* was closed") as caught:
            await call(given)
        assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]
        # As the SDK's sender raises it.
        assert isinstance(caught.value, ValueError)
    await world.client.close()


async def test_what_is_no_message_has_no_id() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.close()
    with pytest.raises(ValueError, match="was closed") as caught:
        await sender.send_messages(7)  # type: ignore[arg-type]
    assert caught.value.message_ids == ()  # type: ignore[attr-defined]
    await world.client.close()


async def test_a_sender_closed_while_a_call_waits_for_its_retry_says_so() -> None:
    world = FakePair(retry_backoff_factor=5.0, failover_interval=3600.0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    waiting = asyncio.create_task(sender.send_messages(MESSAGE))
    await asyncio.sleep(1.0)
    await sender.close()
    with pytest.raises(ValueError, match="the sender to orders was closed") as caught:
        await waiting
    assert caught.value.message_ids == ("1",)  # type: ignore[attr-defined]
    await world.client.close()
