"""What a gateway relays for clients is in its ledger: deliveries, settlements and requests."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageNotFoundError

from tests.gateway.gateway_world import GatewayWorld, gateway_world
from tests.ledger_reading import read
from tests.official_sdk import async_administration
from twinbus.servicebus import conditions

pytestmark = pytest.mark.contract

WAIT_S = 20


async def put(world: GatewayWorld, queue: str, *names: str, **fields: Any) -> None:
    """Send messages to the primary, without the gateway."""
    async with world.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(
            [ServiceBusMessage(name, message_id=name, **fields) for name in names]
        )


def lines(ledger: Path, *, cause: str = "consumer") -> list[dict[str, Any]]:
    """The lines of receivers, once for all that they name the pair, the side and the client."""
    found = [one for one in read(ledger) if one.get("cause") == cause]
    found = [one for one in found if one["operation"] != "send"]
    for one in found:
        assert one["pair"].startswith(f"{one['namespace']}+")
        assert one["side"] == "primary"
        assert one["client"]
    return found


def recorded(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("operation", "entity", "message_id", "outcome", "error")
    return [tuple(one[name] for name in names if name in one) for one in found]


async def test_deliveries_settlements_and_requests_of_a_client(tmp_path: Path) -> None:
    async with gateway_world("orders", ledger=tmp_path) as world:
        await put(world, "orders", *"abcde")
        async with world.client() as client, client.get_queue_receiver("orders") as receiver:
            found: dict[str, Any] = {}
            while len(found) < 5:
                for one in await receiver.receive_messages(5, max_wait_time=WAIT_S):
                    found[str(one)] = one
            await receiver.complete_message(found["a"])
            await receiver.dead_letter_message(found["b"], "why")
            await receiver.defer_message(found["c"])
            await receiver.renew_message_lock(found["d"])
            await receiver.abandon_message(found["e"])
            (deferred,) = await receiver.receive_deferred_messages(found["c"].sequence_number)
            await receiver.complete_message(deferred)
            await receiver.peek_messages(1)
            await receiver.complete_message(found["d"])
    mine = lines(tmp_path)
    received = Counter(one["message_id"] for one in mine if one["operation"] == "receive")
    # c by its number too; e may have come once more before the receiver was closed.
    assert received - Counter("e") in (Counter("abcdc"), Counter("abcdce"))
    first = {one["message_id"]: one for one in mine if one["operation"] == "receive"}
    assert first["a"]["sequence_number"] == found["a"].sequence_number
    assert first["a"]["size_bytes"] > 0
    others = [one for one in recorded(mine) if one[0] != "receive"]
    assert others == [
        ("complete", "orders", "a", "ok"),
        ("dead_letter", "orders", "b", "ok"),
        ("defer", "orders", "c", "ok"),
        ("renew", "orders", "ok"),
        ("abandon", "orders", "e", "ok"),
        ("complete", "orders", "c", "ok"),
        ("manage", "orders", "ok"),
        ("complete", "orders", "d", "ok"),
    ]


async def test_requests_that_send_have_the_cause_of_a_sender(tmp_path: Path) -> None:
    async with (
        gateway_world("orders", ledger=tmp_path) as world,
        world.client() as client,
        client.get_queue_sender("orders") as sender,
    ):
        due = datetime.now(UTC) + timedelta(hours=1)
        numbers = await sender.schedule_messages(ServiceBusMessage("x"), due)
        await sender.cancel_scheduled_messages(numbers)
    assert lines(tmp_path) == []
    assert recorded(lines(tmp_path, cause="application")) == [("manage", "orders", "ok")] * 2


async def test_sessions_received_and_deleted_and_refused_requests(tmp_path: Path) -> None:
    async with gateway_world(ledger=tmp_path) as world:
        async with async_administration(world.primary.connection_string()) as admin:
            await admin.create_queue("sessions", requires_session=True)
            await admin.create_queue("orders")
        await put(world, "sessions", "a", session_id="s")
        await put(world, "orders", "b")
        async with world.client(retry_total=0) as client:
            async with client.get_queue_receiver("sessions", session_id="s") as receiver:
                (found,) = await receiver.receive_messages(1, max_wait_time=WAIT_S)
                await receiver.session.renew_lock()
                await receiver.complete_message(found)
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
            async with client.get_queue_receiver("orders", receive_mode=mode) as receiver:
                assert len(await receiver.receive_messages(1, max_wait_time=WAIT_S)) == 1
                with pytest.raises(MessageNotFoundError):
                    await receiver.receive_deferred_messages(4711)
    assert recorded(lines(tmp_path)) == [
        ("manage", "sessions", "ok"),
        ("receive", "sessions", "a", "ok"),
        ("renew", "sessions", "ok"),
        ("complete", "sessions", "a", "ok"),
        ("receive", "orders", "b", "ok"),
        ("manage", "orders", "failed", conditions.MESSAGE_NOT_FOUND),
    ]
