"""The windows of docs/guarantees.md, and the defects of the original: each opened, and closed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import EntityStatus

from tests.contract import pairs
from tests.contract.pairs import (
    PATIENCE_S,
    bodies,
    embedded,
    numbered,
    quick,
    sockets,
    until,
)
from tests.contract.pairs import drain as received_from
from tests.ledger_reading import read
from tests.official_sdk import NOBODY, administration, async_client, receive_all_async
from twinbus import (
    BacklogUnavailableError,
    EmbeddedBroker,
    Namespace,
    ReservedPropertyError,
    SendAvailabilityOptions,
    pair_namespaces,
)
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.faults import Fault
from twinbus.errors import SyphonError
from twinbus.namespace.access import endpoint_of
from twinbus.pair import Pair
from twinbus.servicebus.names import backlog_paths
from twinbus.syphon.draining import drain
from twinbus.syphon.replaying import DeadLetterFilter, replay

pytestmark = pytest.mark.contract

PLAIN, DETECTING = ENTITIES = "orders", "orders-once"
TWICE_UNLESS_DETECTED = {PLAIN: ["one", "one"], DETECTING: ["one"]}
BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
LOST_ANSWER: Final = "drop_after_commit"
"""The namespace stores the message and cuts the connection instead of saying so."""


class World:
    """Two namespaces, a queue without and one with duplicate detection."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        # The label of the backlog is the name that users gave, not the port of the day.
        self.primary = broker.connection_string("contoso")
        self.secondary = broker.connection_string("contoso-dr")

    def lose_an_answer(self, namespace: str, entity: str) -> None:
        fault = Fault(kind=LOST_ANSWER, entity=entity, count=1)
        self.broker.add_fault(fault, namespace)

    def pair(self, **options: Any) -> Any:
        primary = Namespace.from_connection_string(self.primary, name="contoso")
        # Nothing hangs here: an attempt that takes long is a busy machine's, and would be repeated.
        settings = {"attempt_timeout": 15.0, **options}
        return pair_namespaces(primary, self.secondary, quick(**settings))

    async def brought_home(self) -> dict[str, list[str]]:
        """What arrived at each entity once the syphon had done its work."""
        async with asyncio.timeout(60):
            await drain(self.primary, self.secondary, BACKLOG, idle_s=0.2)
        return {entity: bodies(await received_from(self.primary, entity)) for entity in ENTITIES}


async def send_one(pair: Pair, entity: str) -> None:
    async with pair.get_queue_sender(entity) as sender:
        await sender.send_messages(ServiceBusMessage("one"))


@pytest.fixture
def world() -> Iterator[World]:
    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        broker.create_queue(PLAIN)
        broker.create_queue(DETECTING, QueueDescription(requires_duplicate_detection=True))
        for queue in BACKLOG:
            broker.create_queue(
                queue,
                QueueDescription(lock_duration_ms=5_000, max_delivery_count=1_000),
                "contoso-dr",
            )
        yield World(broker)


async def test_w1_a_send_whose_answer_is_lost_is_diverted_too(world: World) -> None:
    async with world.pair(failover_interval=0) as pair:
        for entity in ENTITIES:
            world.lose_an_answer("contoso", entity)
            await send_one(pair, entity)
            assert pair.status().entities[entity].diverted == 1
    assert await world.brought_home() == TWICE_UNLESS_DETECTED


async def test_w2_a_divert_whose_answer_is_lost_goes_to_another_queue_too(world: World) -> None:
    for entity in ENTITIES:
        async with world.pair() as pair:
            pair.get_queue_sender(entity)
            pair.force_failover(entity)
            world.lose_an_answer("contoso-dr", "contoso/x-servicebus-transfer/*")
            await send_one(pair, entity)
    assert await world.brought_home() == TWICE_UNLESS_DETECTED


async def test_w3_a_forward_whose_answer_is_lost_is_made_again(world: World) -> None:
    found: dict[str, list[str]] = {}
    async with world.pair() as pair:
        # One after the other: a lost connection repeats all that is on it, and both may be.
        for entity in ENTITIES:
            pair.get_queue_sender(entity)
            pair.force_failover(entity)
            await send_one(pair, entity)
            world.lose_an_answer("contoso", entity)
            found[entity] = (await world.brought_home())[entity]
    assert found == TWICE_UNLESS_DETECTED


async def test_w4_what_was_diverted_arrives_after_what_was_sent_later(world: World) -> None:
    async with world.pair() as pair, pair.get_queue_sender(PLAIN) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        pair.force_failover(PLAIN)
        await sender.send_messages(ServiceBusMessage("during"))
        pair.mark_healthy(PLAIN)
        await sender.send_messages(ServiceBusMessage("after"))
    assert (await world.brought_home())[PLAIN] == ["before", "after", "during"]


async def test_w5_a_replay_whose_answer_is_lost_can_be_made_again(world: World) -> None:
    async with world.pair() as pair:
        pair.get_queue_sender(PLAIN)
        pair.force_failover(PLAIN)
        await send_one(pair, PLAIN)
    await _dead_letter_all(world.secondary)
    secondary = endpoint_of(world.secondary)
    world.lose_an_answer("contoso-dr", "contoso/x-servicebus-transfer/*")
    with pytest.raises(SyphonError):
        await replay(secondary, BACKLOG, DeadLetterFilter())
    # The letter is there, locked by the replay that was cut off until its lock ends.
    async with asyncio.timeout(PATIENCE_S):
        while not (await replay(secondary, BACKLOG, DeadLetterFilter())).replayed:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    assert await world.brought_home() == {PLAIN: ["one", "one"], DETECTING: []}


async def _dead_letter_all(text: str) -> None:
    async with async_client(text) as client:
        for queue in BACKLOG:
            async with client.get_queue_receiver(queue) as receiver:
                for message in await receive_all_async(receiver):
                    await receiver.dead_letter_message(message, reason="by hand")


async def test_the_callers_own_retry_carries_the_same_id(world: World) -> None:
    """W6: the first try raised, although its message was stored."""
    # The SDK gives an id to a ServiceBusMessage as it is made; this one has none.
    message = AmqpAnnotatedMessage(data_body=b"one")
    async with world.pair(failover_interval=60, retry_total=0) as pair:
        for entity in ENTITIES:
            world.lose_an_answer("contoso", entity)
            async with pair.get_queue_sender(entity) as sender:
                with pytest.raises(ServiceBusError) as raised:
                    await sender.send_messages(message)
                await sender.send_messages(message)
            assert len(raised.value.message_ids) == 1  # type: ignore[attr-defined]
    assert message.properties is None
    assert await world.brought_home() == TWICE_UNLESS_DETECTED


QUEUES = 3


broker = embedded()
paired = partial(pairs.paired, backlog_queue_count=QUEUES)


async def in_all_queues(broker: EmbeddedBroker, **options: Any) -> list[Any]:
    """What the backlog queues hold, looked at side by side."""
    text = broker.connection_string("contoso-dr")
    paths = backlog_paths("contoso", QUEUES)
    found = await asyncio.gather(
        *(received_from(text, path, wait_s=0.5, **options) for path in paths)
    )
    return [message for messages in found for message in messages]


UNCLONEABLE: dict[str, Callable[[], Any]] = {
    "a value that AMQP has no type for": lambda: AmqpAnnotatedMessage(value_body=object()),
    "a function in a value": lambda: AmqpAnnotatedMessage(value_body={"f": lambda: None}),
    "an object in a sequence": lambda: AmqpAnnotatedMessage(sequence_body=[[1, object()]]),
    "a generator, to be read once": lambda: AmqpAnnotatedMessage(
        value_body=(number for number in range(3))
    ),
    "an object in a property": lambda: ServiceBusMessage(
        b"x",
        application_properties={"key": object()},  # type: ignore[dict-item]
    ),
}


async def test_a_body_that_cannot_be_copied_is_no_silent_success(broker: EmbeddedBroker) -> None:
    """The original returned as if the message were sent when it could not clone its body."""

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        pair.force_failover("orders")
        for what, make in UNCLONEABLE.items():
            with pytest.raises(Exception, match=r".") as caught:
                await sender.send_messages(make(), timeout=60)
            assert len(caught.value.message_ids) == 1, what  # type: ignore[attr-defined]
        # The sender is none the worse for it.
        await sender.send_messages(ServiceBusMessage("good"), timeout=60)
    assert [str(message) for message in await in_all_queues(broker)] == ["good"]


async def test_a_cold_start_with_the_primary_down_fails_over(broker: EmbeddedBroker) -> None:
    """The original needed one successful send before it would ever fail over."""

    async with paired(broker, primary=NOBODY) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("first"), timeout=60)
        assert pair.status().entities["orders"].state == "failed over"
    assert [str(message) for message in await in_all_queues(broker)] == ["first"]


async def test_a_clash_of_property_names_shows_before_the_outage(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The original refused a property named like an alias, but only once it had failed over."""

    def clashing(message_id: str) -> ServiceBusMessage:
        properties: dict[str | bytes, Any] = {"x-ms-path": "mine"}
        return ServiceBusMessage("x", application_properties=properties, message_id=message_id)

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "x-ms-path" in record.message]

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        for number in range(3):
            await sender.send_messages(clashing(f"healthy-{number}"))
        # Warned of once, counted each time, and sent as it is.
        (warning,) = warnings()
        assert "orders" in warning
        assert pair.status().entities["orders"].reserved == 3
        pair.force_failover("orders")
        with pytest.raises(ReservedPropertyError, match="x-ms-path") as caught:
            await sender.send_messages(clashing("failed-over"))
        assert caught.value.message_ids == ("failed-over",)
    async with (
        paired(broker, strict_guards=True) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        with pytest.raises(ReservedPropertyError, match="x-ms-path"):
            await sender.send_messages(clashing("strict"))
    kept = await received_from(broker.connection_string("contoso"), "orders", wait_s=0.5)
    assert [message.message_id for message in kept] == [f"healthy-{n}" for n in range(3)]
    assert kept[0].application_properties == {b"x-ms-path": b"mine"}
    assert await in_all_queues(broker) == []


async def test_what_is_known_of_a_bad_backlog_queue_is_known_to_all(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """In the original every sender had to run into a bad backlog queue by itself."""
    bad = backlog_paths("contoso", QUEUES)[1]

    async with paired(broker, ledger=tmp_path) as pair:
        fault = Fault(kind="refuse_attach", entity=bad)
        broker.add_fault(fault, "contoso-dr")
        pair.get_queue_sender("orders")
        pair.force_failover("orders")
        sent = met = 0
        # Until one has met it, and then so many that one of them would meet it again. Not many
        # more: it is back after 30 s.
        while met < 20:
            assert sent < 80, "nobody chose it"
            async with pair.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("x", message_id=str(sent)))
            sent += 1
            met += "back in" in str(pair.status().backlog_queues[bad])
    diverts = [line for line in read(tmp_path) if line["operation"] == "divert"]
    assert [line["outcome"] for line in diverts if line["backlog_queue"] == bad] != []
    assert sum(line["backlog_queue"] == bad for line in diverts) == 1
    assert sum(line["outcome"] == "ok" for line in diverts) == sent


async def test_the_primarys_error_is_not_lost(broker: EmbeddedBroker) -> None:
    """The original told of the backlog only; what was wrong with the primary was gone."""

    async with paired(broker, primary=NOBODY) as pair, pair.get_queue_sender("orders") as sender:
        broker.add_fault(Fault(kind="refuse_attach", entity="contoso/*"), "contoso-dr")
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("x", message_id="one"), timeout=20)
        first = caught.value
        assert type(first.primary_error).__name__ == "ServiceBusConnectionError"
        assert first.__cause__ is first.primary_error
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("x", message_id="two"), timeout=20)
        # This call asked nobody, but it knows what the primary said last.
        assert "ServiceBusConnectionError" in str(caught.value.primary_error)
        for error, message_id in ((first, "one"), (caught.value, "two")):
            assert "Failed to initiate the connection" in str(error)
            assert set(error.queue_errors) == set(backlog_paths("contoso", QUEUES))
            assert error.message_ids == (message_id,)


async def test_pings_leave_no_sender_behind(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The original kept the sender of every ping."""
    paths = [f"entity-{number}" for number in range(12)]
    answering, silent = paths[:6], paths[6:]
    for path in paths:
        broker.create_queue(path, namespace="contoso")
    for path in silent:
        broker.add_fault(Fault(kind="hang", entity=path), "contoso")

    # A ping that is answered is answered within this on any machine; the others take all of it.
    # The notice board and leases have connections of their own while an entity has failed over.
    async with paired(broker, ledger=tmp_path, attempt_timeout=5.0, board=False) as pair:
        before, open_before = senders_alive(), sockets()
        for path in paths:
            pair.get_queue_sender(path)
            pair.force_failover(path)

        def pings(path: str) -> list[str]:
            """How the pings of an entity ended, in order."""
            lines = [line for line in read(tmp_path) if line["operation"] == "ping"]
            return [line["outcome"] for line in lines if line["entity"] == path]

        await until(lambda: all(len(pings(path)) >= 2 for path in paths))
        for path in paths:
            pair.freeze(path)
        # Both ends of a connection are in this process; the broker closes its own a bit later.
        await until(lambda: sockets() <= open_before)
        # The last ping may still be closing its sender; and what an earlier test left may be gone.
        await until(lambda: senders_alive() <= before)
    # The last of each may have been cut short by the freeze.
    assert all(set(pings(path)[:-1]) == {"ok"} for path in answering)
    assert all(set(pings(path)[:-1]) == {"unknown"} for path in silent)


def senders_alive() -> int:
    gc.collect()
    return sum(isinstance(thing, ServiceBusSender) for thing in gc.get_objects())


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("backlog_queue_count", 0, "1..100"),
        ("backlog_queue_count", 101, "1..100"),
        ("failover_interval", -1, "0..3600"),
        ("failover_interval", timedelta(hours=2), "0..3600"),
        ("ping_primary_interval", 0, "1..1800"),
        ("healthy_pings", 0, "1..10"),
        ("attempt_timeout", 0, "0.1..60"),
        ("ping_mode", "often", "message"),
        ("session_order", "loose", "relaxed"),
        ("classify", "yes", "callable"),
    ],
)
def test_options_are_validated(option: str, value: object, words: str) -> None:
    """The original took any value and went wrong with it later."""
    with pytest.raises((ValueError, TypeError)) as caught:
        SendAvailabilityOptions(**{option: value})  # type: ignore[arg-type]
    text = str(caught.value)
    assert option in text
    assert words in text.replace(" to ", "..")
    assert repr(value) in text or str(value) in text


async def test_a_disabled_entity_does_not_send_the_backlog_to_the_dead_letters(
    broker: EmbeddedBroker,
) -> None:
    """The original's syphon dead-lettered all that was waiting for an entity that was disabled."""

    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        pair.force_failover("orders")
        await sender.send_messages(numbered(30))
    set_status(broker, EntityStatus.DISABLED)
    async with paired(broker, enable_syphon=True, syphon_poll=1.0):
        # Time enough to receive everything several times over and to be refused each time.
        await asyncio.sleep(2.0)
        assert await in_all_queues(broker, sub_queue="deadletter") == []
        set_status(broker, EntityStatus.ACTIVE)
        home = await received_from(broker.connection_string("contoso"), "orders", 30, wait_s=15)
    assert sorted(str(message) for message in home) == sorted(
        f"message {number}" for number in range(30)
    )


def set_status(broker: EmbeddedBroker, status: EntityStatus) -> None:
    with administration(broker.connection_string("contoso")) as admin:
        queue = admin.get_queue("orders")
        queue.status = status
        admin.update_queue(queue)
