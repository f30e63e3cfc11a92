"""A diverted message is, to the byte, one that was sent straight; so are values at AMQP's edges."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from tests.contract.conftest import receive, stays_empty
from tests.contract.corpus import raw_messages, sdk_messages, sdk_session_messages
from tests.contract.pairs import drain as received_from
from tests.contract.pairs import quick
from tests.contract.reference_pump import drain_by_sdk
from tests.contract.roads import QUEUE, SESSIONS, TOPIC, Roads, running_roads
from tests.official_sdk import administration, async_client, client
from twinbus import pair_namespaces
from twinbus.amqp.message import join, split
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.transfer.sections import (
    DELIVERY_MARKS,
    NULL,
    entries_of,
    fields_of,
    to_backlog_sections,
)

pytestmark = pytest.mark.contract

DUE_S = 3.0
"""How far ahead the scheduled messages lie: past the time that all are sent in."""

MARKS = {name.encode() for name in DELIVERY_MARKS}
TTL, ABSOLUTE_EXPIRY, CREATION = 2, 8, 9


def facts(payload: bytes) -> dict[str, Any]:
    """The raw bytes of all that a message's sender decided, part by part."""
    sections = split(payload)
    raw, custom = sections.message_annotations, sections.application_properties
    lives = _field(sections.header, TTL) != NULL
    return {
        "header": [_field(sections.header, place) for place in range(3)],
        "delivery annotations": sections.delivery_annotations,
        "annotations": {
            raw[start:value_at]: raw[value_at:end]
            for key, start, value_at, end in entries_of(raw)
            if key not in MARKS
        },
        "properties": [
            NULL if lives and place in (ABSOLUTE_EXPIRY, CREATION) else field
            for place, field in enumerate(_fields(sections.properties))
        ],
        "application properties": [custom[start:end] for _, start, _, end in entries_of(custom)],
        "body": sections.body,
        "footer": sections.footer,
    }


def _fields(raw: bytes) -> list[bytes]:
    bounds = fields_of(raw)
    found = [raw[start:end] for start, end in itertools.pairwise(bounds)]
    # A field that is left out at the end of a list is null: AMQP knows no difference.
    return found + [NULL] * (13 - len(found))


def _field(raw: bytes, place: int) -> bytes:
    return _fields(raw)[place]


@pytest.fixture
def roads() -> Iterator[Roads]:
    with running_roads() as made:
        yield made


async def received(roads: Roads, entity: str, count: int) -> dict[str, dict[str, Any]]:
    """What an entity holds, by message id."""
    return {key: facts(wire) for key, wire in (await roads.received(entity, count)).items()}


@pytest.mark.parametrize("entity", [QUEUE, TOPIC])
async def test_everything_that_the_sdk_can_send_arrives_as_if_sent_straight(
    roads: Roads, entity: str
) -> None:
    later = datetime.now(UTC) + timedelta(seconds=DUE_S)
    count = len(sdk_messages(later))
    await roads.straight(entity, sdk_messages(later))
    straight = await received(roads, entity, count)
    await roads.diverted(entity, sdk_messages(later))
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (count, 0)
    assert await received(roads, entity, count) == straight


async def test_messages_of_a_session_arrive_as_if_sent_straight(roads: Roads) -> None:
    count = len(sdk_session_messages())
    await roads.straight(SESSIONS, sdk_session_messages())
    straight = await received(roads, SESSIONS, count)
    await roads.diverted(SESSIONS, sdk_session_messages())
    await roads.syphoned()
    diverted = await received(roads, SESSIONS, count)
    assert diverted == straight
    assert list(diverted) == list(straight), "in another order"


async def test_what_only_other_clients_send_arrives_as_if_sent_straight(roads: Roads) -> None:
    """Types that the SDK has no name for, and encodings that it would not choose."""

    messages = raw_messages()
    async with (
        roads.client(roads.primary) as primary,
        roads.client(roads.secondary) as secondary,
        pair_namespaces(roads.primary, roads.secondary, quick()),
    ):
        sender = await primary.sender(QUEUE)
        backlog = await secondary.sender(roads.backlog[0])
        for wire in messages.values():
            await sender.room()
            await sender.send(wire)
            await backlog.room()
            await backlog.send(join(to_backlog_sections(split(wire), QUEUE, now_ms=0)))
    straight = await received(roads, QUEUE, len(messages))
    for name, wire in messages.items():
        assert straight[name] == facts(wire), name
    stats = await roads.syphoned()
    assert (stats.forwarded, stats.dead_lettered) == (len(messages), 0)
    assert await received(roads, QUEUE, len(messages)) == straight


NAMES = ("all", "by-text", "by-action", "last")


def typed(kind: str, value: int) -> Any:
    """A value that the SDK writes with the AMQP type of that name."""
    return {"TYPE": kind, "VALUE": value}


def told(bus: ServiceBusClient, name: str, count: int, **settings: Any) -> list[str]:
    """The bodies of the next messages of a subscription of `news`, which are completed."""
    with bus.get_subscription_receiver("news", name, **settings) as receiver:
        messages = receive(receiver, count)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


@pytest.mark.parametrize("delay_s", [0, 1], ids=["sent", "scheduled"])
def test_a_time_past_the_year_9999_reaches_every_subscription(delay_s: int) -> None:
    with EmbeddedBroker("contoso") as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_topic("news")
            admin.create_queue("front", forward_to="news")
            for name in NAMES:
                admin.create_subscription(
                    "news", name, dead_lettering_on_filter_evaluation_exceptions=True
                )
            by_text, by_action = (
                SqlRuleFilter("at + '' <> 'x'"),
                SqlRuleAction("SET sys.Label = at"),
            )
            admin.create_rule("news", "by-text", "r", filter=by_text)
            admin.create_rule("news", "by-action", "r", action=by_action)
            for name in ("by-text", "by-action"):
                admin.delete_rule("news", name, "$Default")
        far = ServiceBusMessage("far", application_properties={"at": typed("TIMESTAMP", 2**62)})
        if delay_s:
            far.scheduled_enqueue_time_utc = datetime.now(UTC) + timedelta(seconds=delay_s)
        with client(broker.connection_string()) as bus:
            with bus.get_topic_sender("news") as sender:
                sender.send_messages(far)
            with bus.get_queue_sender("front") as sender:
                sender.send_messages([far, ServiceBusMessage("near")])
            found = {name: sorted(told(bus, name, 3)) for name in ("all", "last")}
            dead = {
                name: told(bus, name, 2, sub_queue="deadletter")
                for name in ("by-text", "by-action")
            }
        assert found == {"all": ["far", "far", "near"], "last": ["far", "far", "near"]}
        assert dead == {"by-text": ["far", "far"], "by-action": ["far", "far"]}


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("at", [typed("ULONG", 2**63), typed("TIMESTAMP", -(2**63))])
def test_a_batch_with_a_scheduled_time_out_of_range_is_refused_whole(
    tmp_path: Path, kind: str, at: Any
) -> None:
    def batch(*, is_good: bool) -> list[ServiceBusMessage]:
        messages = [ServiceBusMessage(name, message_id=name) for name in ("1", "2", "3")]
        if not is_good:
            messages[1].raw_amqp_message.annotations = {"x-opt-scheduled-enqueue-time": at}
        return messages

    with EmbeddedBroker("contoso", data=tmp_path) as broker:
        with administration(broker.connection_string()) as admin:
            if kind == "queue":
                admin.create_queue("in", requires_duplicate_detection=True)
            else:
                admin.create_queue("out")
                admin.create_topic("in", requires_duplicate_detection=True)
                admin.create_subscription("in", "s", forward_to="out")
        with client(broker.connection_string()) as bus:
            sender = bus.get_queue_sender if kind == "queue" else bus.get_topic_sender
            with sender("in") as refused, pytest.raises(ServiceBusError) as refusal:
                refused.send_messages(batch(is_good=False))
            with sender("in") as refused, pytest.raises(ServiceBusError) as singly:
                refused.send_messages(batch(is_good=False)[1])
    for error in (refusal, singly):
        assert "x-opt-scheduled-enqueue-time" in str(error.value)
        assert str(at["VALUE"]) in str(error.value)
    # A restart shows what is on disk, and what of it counts as seen.
    with (
        EmbeddedBroker("contoso", data=tmp_path) as broker,
        client(broker.connection_string()) as bus,
    ):
        sender = bus.get_queue_sender if kind == "queue" else bus.get_topic_sender
        with sender("in") as accepted:
            accepted.send_messages(batch(is_good=True))
        with bus.get_queue_receiver("in" if kind == "queue" else "out") as receiver:
            assert [str(message) for message in receive(receiver, 3)] == ["1", "2", "3"]
            assert stays_empty(receiver)


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
