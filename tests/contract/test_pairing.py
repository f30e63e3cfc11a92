"""A pair on two real namespaces that both work: where messages go, and what wrong use gets."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from tests.contract import pairs
from tests.contract.pairs import (
    bodies,
    drain,
    drain_all,
    embedded,
    nothing_left,
    numbered,
    quick,
    sides,
    until,
)
from tests.ledger_reading import read
from tests.official_sdk import NOBODY, async_administration
from tests.processes import with_key
from twinbus import (
    BacklogUnavailableError,
    EmbeddedBroker,
    MissingRightError,
    NamespaceInUseError,
    PairingError,
    ReservedPropertyError,
    SameNamespaceError,
    ScheduleUnavailableError,
    pair_namespaces,
)
from twinbus.broker.descriptions import AuthorizationRule, QueueDescription
from twinbus.pairing.core.backlog import lease_path
from twinbus.servicebus.names import FOREVER_MS, backlog_paths, board_path

pytestmark = pytest.mark.contract

RULES = (AuthorizationRule(key_name="sender", primary_key="send-key", rights=frozenset({"Send"})),)


broker = embedded(rules=RULES)
# Nothing hangs here: an attempt that takes long is a busy machine's, and would be repeated.
paired = partial(pairs.paired, attempt_timeout=15.0)


async def backlog_of(broker: EmbeddedBroker) -> list[Any]:
    return await drain_all(broker.connection_string("contoso-dr"), backlog_paths("contoso", 2))


async def test_healthy_sends_land_on_the_primary_and_nowhere_else(broker: EmbeddedBroker) -> None:
    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("one"))
        await sender.send_messages([ServiceBusMessage("two"), {"body": "three"}])
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("four"))
        await sender.send_messages(batch, timeout=10)
        await sender.send_messages(AmqpAnnotatedMessage(data_body=b"five"))
        await sender.send_messages([])
        status = pair.status()
    assert status.entities["orders"].state == "healthy"
    assert (status.entities["orders"].sent, status.entities["orders"].diverted) == (5, 0)
    received = await drain(broker.connection_string("contoso"), "orders", 5)
    assert bodies(received) == ["one", "two", "three", "four", "five"]
    assert await backlog_of(broker) == []


async def test_a_forced_failover_diverts_every_kind_of_message_with_its_aliases(
    broker: EmbeddedBroker,
) -> None:
    when = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        pair.force_failover("ORDERS")
        await sender.send_messages(
            ServiceBusMessage(
                "one", session_id="s", partition_key="s", time_to_live=timedelta(hours=1)
            )
        )
        await sender.send_messages(ServiceBusMessage("two", scheduled_enqueue_time_utc=when))
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("three", message_id="three-id"))
        batch.add_message(ServiceBusMessage("four"))
        await sender.send_messages(batch)
        assert pair.status().entities["orders"].diverted == 4
    messages = {str(message): message for message in await backlog_of(broker)}
    assert set(messages) == {"one", "two", "three", "four"}
    one = messages["one"].application_properties
    assert one[b"x-ms-sessionid"] == b"s"
    assert one[b"x-ms-path"] == b"orders"
    assert messages["one"].session_id is None
    assert messages["two"].application_properties[b"x-ms-scheduledenqueuetimeutc"]
    assert messages["three"].message_id == "three-id"


async def test_topics_and_marking_healthy_again(broker: EmbeddedBroker) -> None:
    broker.create_topic("news", ["all"])

    async with paired(broker) as pair:
        async with pair.get_topic_sender("news") as sender:
            await sender.send_messages(ServiceBusMessage("first"))
            pair.force_failover("news")
            await sender.send_messages(ServiceBusMessage("second"))
            pair.mark_healthy("news")
            await sender.send_messages(ServiceBusMessage("third"))
        async with pair.get_subscription_receiver("news", "all") as receiver:
            received = await receiver.receive_messages(2, max_wait_time=60)
            while len(received) < 2:
                received += await receiver.receive_messages(2, max_wait_time=60)
        assert bodies(received) == ["first", "third"]
    assert bodies(await backlog_of(broker)) == ["second"]


async def test_the_same_message_object_keeps_its_id_and_is_not_changed(
    broker: EmbeddedBroker,
) -> None:
    message = AmqpAnnotatedMessage(data_body=b"nameless")

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(message)
        pair.force_failover("orders")
        await sender.send_messages(message)
    (kept,) = await drain(broker.connection_string("contoso"), "orders", 1)
    (diverted,) = await backlog_of(broker)
    assert kept.message_id == diverted.message_id is not None
    assert message.properties is None


async def test_scheduling_needs_the_primary_and_says_so(broker: EmbeddedBroker) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        numbers = await sender.schedule_messages(numbered(2), later)
        assert len(numbers) == 2
        await sender.cancel_scheduled_messages(numbers)
        pair.force_failover("orders")
        with pytest.raises(ScheduleUnavailableError, match="scheduled_enqueue_time_utc"):
            await sender.schedule_messages(numbered(1), later)
        with pytest.raises(ScheduleUnavailableError):
            await sender.cancel_scheduled_messages(1)


async def test_a_reserved_property_is_refused_only_where_it_would_be_lost(
    broker: EmbeddedBroker,
) -> None:
    message = ServiceBusMessage("x", application_properties={"x-ms-path": "mine"}, message_id="i")

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(message)
        pair.force_failover("orders")
        with pytest.raises(ReservedPropertyError, match="x-ms-path") as caught:
            await sender.send_messages(message)
        assert caught.value.message_ids == ("i",)


async def test_a_batch_that_is_too_large_with_its_aliases_is_split(broker: EmbeddedBroker) -> None:
    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        batch = await sender.create_message_batch()
        count = 0
        while batch.size_in_bytes < batch.max_size_in_bytes - 1_100:
            batch.add_message(ServiceBusMessage(b"x" * 900, message_id=str(count)))
            count += 1
        pair.force_failover("orders")
        await sender.send_messages(batch)
    ids = [message.message_id for message in await backlog_of(broker)]
    assert sorted(ids) == sorted(map(str, range(count)))


async def test_many_tasks_share_one_sender(broker: EmbeddedBroker) -> None:
    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        await asyncio.gather(*(sender.send_messages(m) for m in numbered(60)))
    received = await drain(broker.connection_string("contoso"), "orders", 60)
    assert sorted(bodies(received)) == sorted(f"message {n}" for n in range(60))


async def test_a_queue_that_does_not_exist_is_one_clear_line_and_no_failover(
    broker: EmbeddedBroker,
) -> None:
    async with paired(broker) as pair, pair.get_queue_sender("nothing") as sender:
        with pytest.raises(MessagingEntityNotFoundError, match="nothing") as caught:
            await sender.send_messages(ServiceBusMessage("x", message_id="my-id"))
        assert caught.value.message_ids == ("my-id",)  # type: ignore[attr-defined]
        assert pair.status().entities["nothing"].state == "healthy"


async def test_the_same_namespace_twice_is_refused(broker: EmbeddedBroker) -> None:
    text = broker.connection_string("contoso")

    with pytest.raises(SameNamespaceError, match="give two namespaces"):
        async with pair_namespaces(text, text.replace("localhost", "127.0.0.1")):
            raise AssertionError


async def test_a_namespace_object_belongs_to_one_pair_at_a_time(broker: EmbeddedBroker) -> None:
    primary, secondary = sides(broker)

    async with pair_namespaces(primary, secondary, quick()):
        with pytest.raises(NamespaceInUseError, match="make another"):
            async with pair_namespaces(primary, sides(broker)[1], quick()):
                raise AssertionError
        async with pair_namespaces(*sides(broker), quick()):
            pass
    async with pair_namespaces(primary, secondary, quick()):
        pass


async def test_backlog_queues_are_made_as_the_spec_says_and_a_race_is_no_error(
    broker: EmbeddedBroker,
) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(_pair_once(broker))
    async with paired(broker) as pair, paired(broker) as other:
        assert pair.backlog_queues == other.backlog_queues == backlog_paths("contoso", 2)
        (found, *_), _ = await asyncio.gather(*_descriptions(broker, *pair.backlog_queues))
    assert found.max_size_in_megabytes == 5120
    assert found.max_delivery_count == 2_147_483_647
    assert found.default_message_time_to_live // timedelta(milliseconds=1) == FOREVER_MS
    assert found.auto_delete_on_idle // timedelta(milliseconds=1) == FOREVER_MS
    assert found.lock_duration == timedelta(minutes=1)
    assert found.dead_lettering_on_message_expiration is True
    assert found.enable_batched_operations is True
    assert found.requires_duplicate_detection is False
    assert found.requires_session is False


def _descriptions(broker: EmbeddedBroker, *queues: str) -> list[Any]:
    async def look(queue: str) -> list[Any]:
        async with async_administration(broker.connection_string("contoso-dr")) as client:
            return [await client.get_queue(queue)]

    return [look(queue) for queue in queues]


async def _pair_once(broker: EmbeddedBroker) -> None:
    async with paired(broker) as pair:
        assert len(pair.backlog_queues) == 2


async def test_an_unsafe_queue_is_left_out_unless_drift_is_accepted(broker: EmbeddedBroker) -> None:
    unsafe = backlog_paths("contoso", 2)[0]
    broker.create_queue(unsafe, QueueDescription(requires_session=True), "contoso-dr")

    async with paired(broker) as pair:
        assert unsafe not in pair.backlog_queues
        assert "requires_session" in pair.status().backlog_queues[unsafe].reason
    async with paired(broker, accept_drift=True) as pair:
        assert unsafe in pair.backlog_queues


async def test_without_the_manage_right_pairing_names_it_and_the_way_without_it(
    broker: EmbeddedBroker,
) -> None:
    weak = with_key(broker.connection_string("contoso-dr"), "sender", "send-key")
    primary = broker.connection_string("contoso")

    with pytest.raises(MissingRightError, match=r"Manage.*create_backlog_queues=False"):
        async with pair_namespaces(primary, weak, quick()):
            raise AssertionError
    async with pair_namespaces(primary, broker.connection_string("contoso-dr"), quick()) as p:
        made = p.backlog_queues
    async with pair_namespaces(primary, weak, quick(create_backlog_queues=False)) as pair:
        assert pair.backlog_queues == made
        async with pair.get_queue_sender("orders") as sender:
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("diverted"))


async def test_a_secondary_that_is_not_there_leaves_the_pair_unprotected_but_sending(
    broker: EmbeddedBroker,
) -> None:
    primary = broker.connection_string("contoso")

    began = time.monotonic()
    async with nothing_left():
        async with pair_namespaces(primary, NOBODY, quick()) as pair:
            assert time.monotonic() - began < 10
            assert not pair.status().protected
            assert "UNPROTECTED" in str(pair.status())
            async with pair.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(BacklogUnavailableError, match="require_secondary") as caught:
            async with pair_namespaces(primary, NOBODY, quick(require_secondary=True)):
                raise AssertionError
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("short_searches")
async def test_a_secondary_that_comes_later_is_found(broker: EmbeddedBroker) -> None:
    with EmbeddedBroker("late") as probe:
        port, text = probe.port(), probe.connection_string()
    late = EmbeddedBroker(f"late:{port}")
    async with pair_namespaces(broker.connection_string("contoso"), text, quick()) as pair:
        assert not pair.status().protected
        with late:
            await until(lambda: pair.status().protected)
            async with pair.get_queue_sender("orders") as sender:
                pair.force_failover("orders")
                await sender.send_messages(ServiceBusMessage("x"))


async def test_close_leaves_nothing_behind_and_later_calls_say_so(broker: EmbeddedBroker) -> None:
    async with nothing_left():
        async with paired(broker) as pair:
            sender = pair.get_queue_sender("orders")
            await asyncio.gather(*(sender.send_messages(m) for m in numbered(20)))
            pair.force_failover("orders")
            await asyncio.gather(*(sender.send_messages(m) for m in numbered(20)))
        await pair.close()
    with pytest.raises(PairingError, match="closed"):
        await sender.send_messages(ServiceBusMessage("late"))
    with pytest.raises(PairingError, match="closed"):
        pair.get_queue_sender("orders")


async def test_a_cancelled_send_leaves_the_sender_usable(broker: EmbeddedBroker) -> None:
    async with nothing_left(), paired(broker) as pair:
        sender = pair.get_queue_sender("orders")
        for wait_s in (0.0, 0.001, 0.1, 0.3):
            task = asyncio.create_task(sender.send_messages(ServiceBusMessage("maybe")))
            await asyncio.sleep(wait_s)
            task.cancel()
            await asyncio.wait({task})
        await sender.send_messages(ServiceBusMessage("surely"))
        assert pair.status().entities["orders"].state == "healthy"
    received = await drain(broker.connection_string("contoso"), "orders")
    assert "surely" in bodies(received)


async def test_the_ledger_has_a_line_for_each_message_and_attempt(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with (
        paired(broker, ledger=tmp_path) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages([ServiceBusMessage("ab", message_id=i) for i in "12"])
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("abc", message_id="3"))
    records = list(read(tmp_path))
    sent = [r for r in records if r["operation"] in {"send", "divert"}]
    assert [(r["operation"], r["message_id"], r["size_bytes"], r["outcome"]) for r in sent] == [
        ("send", "1", 2, "ok"),
        ("send", "2", 2, "ok"),
        ("divert", "3", 3, "ok"),
    ]
    assert sent[2]["backlog_queue"].startswith("contoso/x-servicebus-transfer/")
    assert [r["state"] for r in records if r["operation"] == "state"] == ["failed over", "closed"]
    calls = [r for r in records if r.get("cause") == "administration"]
    # One list of what is there, which are none, and two queues created; then the notice board
    # and the lease queue.
    assert calls[0].get("backlog_queue") is None
    assert {r["backlog_queue"] for r in calls[1:3]} == set(backlog_paths("contoso", 2))
    others = {board_path("contoso"), lease_path("contoso")}
    assert {r["backlog_queue"] for r in calls[3:]} == others
    assert calls[-1]["outcome"] == "ok"
    assert [r["outcome"] for r in calls[:3]] == ["ok", "ok", "ok"]


async def test_the_syphon_of_the_pair_brings_the_backlog_home(broker: EmbeddedBroker) -> None:
    async with (
        paired(broker, enable_syphon=True, syphon_poll=1.0) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        pair.force_failover("orders")
        for message in numbered(5):
            await sender.send_messages(message)
        async with asyncio.timeout(60):
            received = await drain(broker.connection_string("contoso"), "orders", 5, wait_s=10)
    assert sorted(bodies(received)) == [f"message {n}" for n in range(5)]
