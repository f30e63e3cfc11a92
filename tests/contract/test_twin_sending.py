"""Diverts to twins on real brokers: what arrives there, and what goes to the backlog instead."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.management import SqlRuleFilter

from tests.contract.corpus import sdk_messages, sdk_session_messages
from tests.contract.pairs import (
    bodies,
    drain,
    drain_all,
    embedded,
    is_twin_used,
    nothing_left,
    paired,
    quick,
    sides,
    until,
)
from tests.contract.roads import QUEUE, SESSIONS, TOPIC, Roads, running_roads
from tests.contract.test_fidelity import DUE_S, facts
from tests.ledger_reading import read
from tests.official_sdk import administration, async_client, receive_all_async
from tests.processes import with_key
from twinbus import EmbeddedBroker, Fault, TwinChanged, blocking
from twinbus.amqp.encoding import string
from twinbus.broker.descriptions import AuthorizationRule, QueueDescription
from twinbus.pair import Pair
from twinbus.servicebus.conditions import RESOURCE_LIMIT
from twinbus.servicebus.names import backlog_paths
from twinbus.servicebus.twins import DIVERTED, DivertMark, read_divert_mark, twin_mark

pytestmark = pytest.mark.contract

DR = "contoso-dr"
MARK = twin_mark("contoso")
HANGS_S = 2.0
"""An attempt at a primary that hangs."""

RULES = [AuthorizationRule(key_name="weak", primary_key="k", rights=frozenset({"Send"}))]
broker = embedded(rules=RULES)


def make_twin(broker: EmbeddedBroker, path: str = "orders", **settings: Any) -> None:
    broker.create_queue(path, QueueDescription(user_metadata=MARK, **settings), namespace=DR)


async def in_twin(broker: EmbeddedBroker, **options: Any) -> list[ServiceBusReceivedMessage]:
    return await drain(broker.connection_string(DR), "orders", **options)


async def in_backlog(broker: EmbeddedBroker) -> list[ServiceBusReceivedMessage]:
    return await drain_all(broker.connection_string(DR), backlog_paths("contoso", 2))


def mark_of(message: ServiceBusReceivedMessage) -> DivertMark | None:
    properties: dict[Any, Any] = message.application_properties or {}
    return read_divert_mark(properties.get(DIVERTED.encode()))


@pytest.fixture
def roads() -> Iterator[Roads]:
    with running_roads() as made:
        made.make_twins()
        yield made


@pytest.mark.parametrize("entity", [QUEUE, TOPIC])
async def test_a_message_in_the_twin_is_one_that_was_sent_straight_with_one_property_more(
    roads: Roads, entity: str
) -> None:
    later = datetime.now(UTC) + timedelta(seconds=DUE_S)
    count = len(sdk_messages(later))
    await roads.straight(entity, sdk_messages(later))
    await roads.twinned(entity, sdk_messages(later))
    straight = await roads.received(entity, count)
    twinned = await roads.received(entity, count, is_twin=True)
    assert twinned.keys() == straight.keys()
    added = string(DIVERTED) + string(roads.label)
    for key, wire in straight.items():
        expected, found = facts(wire), facts(twinned[key])
        expected["application properties"].append(added)
        assert found == expected, key


async def test_messages_of_a_session_keep_it_and_their_order_in_the_twin(roads: Roads) -> None:
    count = len(sdk_session_messages())
    await roads.straight(SESSIONS, sdk_session_messages())
    # All in one batch.
    await roads.twinned(SESSIONS, [sdk_session_messages()])
    straight = await roads.received(SESSIONS, count)
    twinned = await roads.received(SESSIONS, count, is_twin=True)
    assert list(twinned) == list(straight)
    for key, wire in straight.items():
        expected, found = facts(wire), facts(twinned[key])
        assert found["properties"] == expected["properties"], key
        assert found["annotations"] == expected["annotations"], key


async def test_lists_and_batches_are_stored_in_the_twin(broker: EmbeddedBroker) -> None:
    make_twin(broker)
    async with nothing_left(), paired(broker, twins="*") as pair:
        async with pair.get_queue_sender("orders") as sender:
            await until(lambda: is_twin_used(pair, "orders"))
            pair.force_failover("orders")
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("c"))
            batch.add_message(ServiceBusMessage("d", application_properties={"n": 1}))
            await sender.send_messages(batch)
            await sender.send_messages({"body": "e"})
        status = pair.status().entities["orders"]
        assert (status.diverted, status.twinned) == (5, 5)
        assert "5 diverted (5 to its twin), 0 raised; diverts to its twin" in str(pair.status())
    found = await in_twin(broker)
    assert sorted(bodies(found)) == ["a", "b", "c", "d", "e"]
    assert {mark_of(message) for message in found} == {DivertMark("contoso")}
    assert await in_backlog(broker) == []


async def test_a_twin_topic_has_its_own_subscriptions_and_filters(broker: EmbeddedBroker) -> None:
    broker.create_topic("events", ["all"], namespace="contoso")
    text = broker.connection_string(DR)
    with administration(text) as admin:
        admin.create_topic("events", user_metadata=MARK)
        for name, sql in (("red", "color = 'red'"), ("blue", "color = 'blue'")):
            admin.create_subscription("events", name)
            admin.delete_rule("events", name, "$Default")
            admin.create_rule("events", name, "only", filter=SqlRuleFilter(sql))
    async with (
        paired(broker, twins=["events"]) as pair,
        pair.get_topic_sender("events") as sender,
    ):
        await until(lambda: is_twin_used(pair, "events"))
        pair.force_failover("events")
        for color in ("red", "blue", "red"):
            properties: dict[Any, Any] = {"color": color}
            await sender.send_messages(ServiceBusMessage(color, application_properties=properties))
    async with async_client(text) as client:
        for name, count in (("red", 2), ("blue", 1)):
            async with client.get_subscription_receiver("events", name) as source:
                found = await receive_all_async(source, settle=source.complete_message)
            assert bodies(found) == [name] * count
            assert {mark_of(message) for message in found} == {DivertMark("contoso")}


@pytest.mark.parametrize("namesake", ["missing", "unmarked", "of another primary"])
async def test_a_namesake_without_the_mark_is_never_written_to(
    broker: EmbeddedBroker, namesake: str, caplog: pytest.LogCaptureFixture
) -> None:
    marks = {"unmarked": None, "of another primary": twin_mark("contoso2")}
    if namesake in marks:
        description = QueueDescription(user_metadata=marks[namesake])
        broker.create_queue("orders", description, namespace=DR)
    async with paired(broker, twins=["orders"]) as pair:
        async with pair.get_queue_sender("orders") as sender:
            await until(lambda: twin_state(pair) == "not used")
            pair.force_failover("orders")
            await sender.send_messages([ServiceBusMessage(str(n)) for n in range(3)])
        status = pair.status()
        assert (status.entities["orders"].diverted, status.entities["orders"].twinned) == (3, 0)
        assert "diverts to the backlog: its twin is not used (the secondary has no" in str(status)
    assert f"with the mark {MARK}; `twinbus twins create` makes one" in caplog.text
    assert len(await in_backlog(broker)) == 3
    if namesake in marks:
        assert await in_twin(broker) == []


def twin_state(pair: Pair) -> str:
    twin = pair.status().entities["orders"].twin
    assert twin is not None
    return twin.state


async def test_a_full_twin_is_pulled_and_the_backlog_takes_the_messages(
    broker: EmbeddedBroker,
) -> None:
    make_twin(broker)
    fault = Fault(kind="refuse_send", entity="orders", condition=RESOURCE_LIMIT)
    number = broker.add_fault(fault, DR)
    async with paired(broker, twins=["orders"]) as pair:
        events: list[Any] = []
        pair.on_event(events.append)
        async with pair.get_queue_sender("orders") as sender:
            await until(lambda: is_twin_used(pair, "orders"))
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("one"))
            assert twin_state(pair) == "pulled"
            broker.remove_fault(number, DR)
            await sender.send_messages(ServiceBusMessage("two"))
        changes = [event for event in events if isinstance(event, TwinChanged)]
        assert [(event.path, event.is_used) for event in changes] == [
            ("orders", True),
            ("orders", False),
        ]
        assert changes[0].is_verified
    assert sorted(bodies(await in_backlog(broker))) == ["one", "two"]
    assert await in_twin(broker) == []


async def test_a_silent_twin_leaves_its_messages_to_the_backlog(broker: EmbeddedBroker) -> None:
    make_twin(broker)
    async with paired(broker, twins=["orders"], attempt_timeout=HANGS_S) as pair:
        async with pair.get_queue_sender("orders") as sender:
            await until(lambda: is_twin_used(pair, "orders"))
            broker.add_fault(Fault(kind="hang", entity="orders"), DR)
            pair.force_failover("orders")
            for number in range(3):
                await sender.send_messages(ServiceBusMessage(str(number)), timeout=30)
        broker.clear_faults(DR)
    assert sorted(bodies(await in_backlog(broker))) == ["0", "1", "2"]


async def test_a_twin_with_other_settings_refuses_what_the_backlog_then_takes(
    broker: EmbeddedBroker,
) -> None:
    make_twin(broker, requires_session=True)
    async with (
        paired(broker, twins=["orders"]) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        await until(lambda: is_twin_used(pair, "orders"))
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("one"))
        assert twin_state(pair) == "in use", "the next message may have a session"
    assert bodies(await in_backlog(broker)) == ["one"]


@pytest.mark.parametrize("kind", ["hang", "refuse_send"])
async def test_the_mark_says_whether_an_attempt_on_the_primary_was_not_answered(
    broker: EmbeddedBroker, kind: Any
) -> None:
    make_twin(broker)
    async with paired(broker, twins=["orders"], attempt_timeout=HANGS_S) as pair:
        async with pair.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            await until(lambda: is_twin_used(pair, "orders"))
            # A refusal with an internal error counts, and is an answer.
            broker.add_fault(Fault(kind=kind, entity="orders"), "contoso")
            began_ms = time.time() * 1_000
            await sender.send_messages(ServiceBusMessage("tried"), timeout=30)
            await sender.send_messages(ServiceBusMessage("not tried"), timeout=30)
        broker.clear_faults("contoso")
    marks = {str(message): mark_of(message) for message in await in_twin(broker)}
    assert marks["not tried"] == DivertMark("contoso")
    tried = marks["tried"]
    assert tried is not None
    if kind == "hang":
        assert tried.unanswered_since_ms is not None
        assert abs(tried.unanswered_since_ms - began_ms) < 1_000
    else:
        assert tried == DivertMark("contoso")


async def test_the_ledger_names_the_twin(broker: EmbeddedBroker, tmp_path: Path) -> None:
    make_twin(broker)
    async with (
        paired(broker, twins=["orders"], ledger=str(tmp_path)) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        await until(lambda: is_twin_used(pair, "orders"))
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("x", message_id="1"))
    lines = [record for record in read(tmp_path) if record["operation"] == "divert"]
    assert [
        (line["entity"], line["backlog_queue"], line["side"], line["message_id"]) for line in lines
    ] == [("orders", "orders", "secondary", "1")]
    reads = [record for record in read(tmp_path) if record.get("backlog_queue") == "orders"]
    assert [record["operation"] for record in reads].count("manage") == 1


@pytest.mark.parametrize(("twins", "is_used"), [(["orders"], True), (["ord*"], False)])
async def test_without_the_right_to_read_marks_only_a_listed_name_is_used(
    broker: EmbeddedBroker,
    twins: list[str],
    is_used: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "twinbus.pairing")
    make_twin(broker)
    for path in backlog_paths("contoso", 2):
        broker.create_queue(path, namespace=DR)
    weak = with_key(broker.connection_string(DR), "weak", "k")
    async with paired(broker, secondary=weak, twins=twins, create_backlog_queues=False) as pair:
        async with pair.get_queue_sender("orders") as sender:
            await until(lambda: twin_state(pair) != "not checked yet")
            assert is_twin_used(pair, "orders") is is_used
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("x"))
        assert pair.status().entities["orders"].twinned == int(is_used)
        if is_used:
            assert "diverts to its twin, not verified" in str(pair.status())
            assert "not verified: its mark cannot be read" in caplog.text
        else:
            assert "without the Manage right" in str(pair.status())
    assert len(await in_twin(broker)) == int(is_used)


async def test_many_marks_are_read_by_listing(broker: EmbeddedBroker) -> None:
    names = [f"q{number}" for number in range(12)]
    for name in names:
        make_twin(broker, name) if name != "q3" else broker.create_queue(name, namespace=DR)
    async with paired(broker, twins=["q*"]) as pair:
        senders = [pair.get_queue_sender(name) for name in names]
        await until(
            lambda: all(
                (twin := entity.twin) is not None and twin.state != "not checked yet"
                for entity in pair.status().entities.values()
            )
        )
        assert [name for name in names if not is_twin_used(pair, name)] == ["q3"]
        await asyncio.gather(*(sender.close() for sender in senders))


async def test_a_paired_receiver_gets_what_a_paired_sender_diverts_while_the_primary_is_down(
    broker: EmbeddedBroker,
) -> None:
    make_twin(broker)
    async with (
        paired(broker, twins=["orders"]) as pair,
        pair.get_queue_sender("orders") as sender,
        pair.get_queue_receiver("orders") as receiver,
    ):
        await sender.send_messages(ServiceBusMessage("before"))
        await until(lambda: is_twin_used(pair, "orders"))
        broker.cut_off("contoso")
        await sender.send_messages(ServiceBusMessage("during"), timeout=30)
        found: list[str] = []
        async with asyncio.timeout(30):
            while "during" not in found:
                for message in await receiver.receive_messages(10, max_wait_time=1):
                    found.append(str(message))
                    # What came before the outage belongs to the primary, which is down.
                    if str(message) == "during":
                        await receiver.complete_message(message)
        broker.serve_again("contoso")
    assert await in_twin(broker) == []


def test_a_blocking_pair_diverts_to_twins_too(broker: EmbeddedBroker) -> None:
    make_twin(broker)
    with blocking.pair_namespaces(*sides(broker), quick(twins=["orders"])) as pair:
        with pair.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("before"))
            ends = time.monotonic() + 30
            while not is_twin_used(pair, "orders"):
                assert time.monotonic() < ends
                time.sleep(0.01)
            pair.force_failover("orders")
            sender.send_messages(ServiceBusMessage("during"))
        assert pair.status().entities["orders"].twinned == 1
    assert bodies(asyncio.run(in_twin(broker))) == ["during"]
