"""The relay delivers what the plainest pump on the official SDK delivers, as the SDK sees it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from tests.contract.corpus import sdk_messages, sdk_session_messages
from tests.contract.pairs import drain as received_from
from tests.contract.reference_pump import drain_by_sdk
from tests.contract.roads import QUEUE, SESSIONS, Roads, running_roads
from tests.official_sdk import async_client
from twinbus.transfer.sections import DELIVERY_MARKS

pytestmark = pytest.mark.contract

DUE_S = 2.0


@pytest.fixture
def roads() -> Iterator[Roads]:
    with running_roads() as made:
        yield made


async def by_reference(roads: Roads) -> int:
    async with async_client(roads.primary) as primary, async_client(roads.secondary) as secondary:
        return sum([await drain_by_sdk(primary, secondary, queue) for queue in roads.backlog])


async def by_relay(roads: Roads) -> int:
    return (await roads.syphoned()).forwarded


def seen(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """All that a receiver can see of a message and that its sender decided."""
    raw = message.raw_amqp_message
    assert raw.header is not None
    body = raw.body if str(raw.body_type) == "AmqpMessageBodyType.VALUE" else list(raw.body)
    own = {
        key: value
        for key, value in (raw.annotations or {}).items()
        if (key.decode() if isinstance(key, bytes) else key) not in DELIVERY_MARKS
    }
    properties = {
        name: getattr(raw.properties, name)
        for name in vars(raw.properties)
        if name not in ("absolute_expiry_time", "creation_time") or raw.header.time_to_live is None
    }
    return {
        "body": body,
        "annotations": own,
        "properties": properties,
        "header": (raw.header.durable, raw.header.priority, raw.header.time_to_live),
        "application properties": raw.application_properties,
        "footer": raw.footer,
    }


async def moved(roads: Roads, entity: str, messages: list[Any], mover: Any) -> dict[Any, Any]:
    """What a receiver gets after `messages` went through the backlog, moved by `mover`."""
    await roads.diverted(entity, messages)
    assert await mover(roads) == len(messages)
    session = {"session_id": messages[0].session_id} if entity == SESSIONS else {}
    got = await received_from(roads.primary, entity, len(messages), wait_s=DUE_S + 1, **session)
    return {message.message_id: seen(message) for message in got}


@pytest.mark.parametrize("entity", [QUEUE, SESSIONS])
async def test_relay_and_reference_deliver_the_same(roads: Roads, entity: str) -> None:
    later = datetime.now(UTC) + timedelta(seconds=DUE_S)
    make = (
        sdk_session_messages if entity == SESSIONS else lambda: sdk_messages(later, readable=True)
    )
    reference = await moved(roads, entity, make(), by_reference)
    relay = await moved(roads, entity, make(), by_relay)
    assert len(reference) == len(make())
    assert relay == reference


PAST_64_BITS = {"TYPE": "ULONG", "VALUE": 2**64 - 1}
"""A number with its AMQP type, as the SDK takes it."""


async def test_relay_and_reference_dead_letter_the_same(roads: Roads) -> None:
    bad: list[dict[str | bytes, Any]] = [
        {},
        {"x-ms-path": "orders", "x-ms-timetolive": "soon"},
        {"x-ms-path": 5},
        {"x-ms-path": "orders/$management"},
        {"x-ms-path": "orders", "x-ms-scheduledenqueuetimeutc": "then"},
        {"x-ms-path": "orders", "x-ms-scheduledenqueuetimeutc": PAST_64_BITS},
    ]

    async def dead_letters(mover: Any) -> list[tuple[str | None, str | None]]:
        async with (
            async_client(roads.secondary) as sdk,
            sdk.get_queue_sender(roads.backlog[0]) as sender,
        ):
            for properties in bad:
                message = ServiceBusMessage("stray", application_properties=properties)
                await sender.send_messages(message)
        assert await mover(roads) == 0
        got = await received_from(
            roads.secondary, roads.backlog[0], len(bad), wait_s=3, sub_queue="deadletter"
        )
        return [(m.dead_letter_reason, m.dead_letter_error_description) for m in got]

    await roads.diverted(QUEUE, [])
    reference = await dead_letters(by_reference)
    assert [reason for reason, _ in reference] == [
        "MissingDestination",
        *["AliasTypeUnknown"] * 2,
        "InvalidDestination",
        "AliasTypeUnknown",
        "AliasValueInvalid",
    ]
    assert [reason for reason, _ in await dead_letters(by_relay)] == [
        reason for reason, _ in reference
    ]
