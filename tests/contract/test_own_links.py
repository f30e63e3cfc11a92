"""Senders over links of our own client, with a real broker: what the SDK's senders do, they do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
)

from tests.contract.pairs import bodies, drain, drain_all, embedded, nothing_left, paired, until
from tests.official_sdk import async_client
from twinbus import EmbeddedBroker, Fault, Pair, ScheduleUnknownError
from twinbus.amqp.link import SenderLink
from twinbus.broker.links.client_limits import LinkIdle
from twinbus.client.connection import NamespaceConnection
from twinbus.errors import BacklogMessageTooLargeError
from twinbus.namespace.tokens import NamespaceToken
from twinbus.servicebus.conditions import CONNECTION_FORCED, DETACH_FORCED, RESOURCE_DELETED
from twinbus.servicebus.failures import CONDITIONS, FailureMeaning, of_error
from twinbus.servicebus.names import backlog_paths

pytestmark = pytest.mark.contract

LATER = datetime.now(UTC) + timedelta(days=1)
UNANSWERED = (CONNECTION_FORCED, DETACH_FORCED, RESOURCE_DELETED, "amqp:client-error")
"""Not the conditions of a refused message."""

broker = embedded()


def own(broker: EmbeddedBroker, **options: Any) -> Pair:
    settings = {"links": "own", "failover_interval": 600.0, "attempt_timeout": 15.0, **options}
    return paired(broker, **settings)


def link_of(sender: Any) -> SenderLink:
    found = sender.pool._links.link
    assert found is not None
    link: SenderLink = found.link
    return link


def end_idle_links(broker: Any) -> None:
    """Detach all links, as the service does after ten minutes without a message."""
    server = broker._host.server("contoso")

    def detach() -> None:
        for peer in server.peers:
            for link in [*peer.entity_links()]:
                peer.detach(link, LinkIdle(link, 600.0))

    broker._call(detach)


async def test_every_form_of_a_message_arrives_as_over_the_sdks_sender(
    broker: EmbeddedBroker,
) -> None:
    text = broker.connection_string("contoso")

    def forms() -> list[Any]:
        return [
            ServiceBusMessage(
                "one",
                message_id="1",
                session_id="s",
                partition_key="s",
                subject="subject",
                time_to_live=timedelta(minutes=5),
                application_properties={"number": 1, b"name": b"text", "flag": True},
            ),
            AmqpAnnotatedMessage(data_body=[b"a", b"b"], properties={"message_id": "2"}),
            AmqpAnnotatedMessage(value_body={"k": [1, "x"]}, properties={"message_id": "3"}),
            {"body": "four", "message_id": "4"},
            [ServiceBusMessage("five", message_id="5"), {"body": "six", "message_id": "6"}],
        ]

    async def received(sender: Any) -> list[Any]:
        for form in forms():
            await sender.send_messages(form)
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("seven", message_id="7"))
        await sender.send_messages(batch)
        found: list[Any] = [message.raw_amqp_message for message in await drain(text, "orders")]
        return [
            (
                each.body_type,
                each.body if each.body_type.value == "value" else list(each.body),
                each.properties.message_id,
                each.properties.group_id,
                each.properties.subject,
                each.header.time_to_live,
                each.application_properties,
            )
            for each in found
        ]

    async with nothing_left():
        async with async_client(text) as sdk, sdk.get_queue_sender("orders") as plain:
            expected = await received(plain)
        async with own(broker) as pair, pair.get_queue_sender("orders") as sender:
            assert await received(sender) == expected
            assert len(expected) == 7
            with pytest.raises(ValueError, match="acceptable max batch size"):
                await sender.create_message_batch(10**9)


async def test_messages_are_scheduled_and_cancelled(broker: EmbeddedBroker) -> None:
    async with own(broker) as pair, pair.get_queue_sender("orders") as sender:
        one = ServiceBusMessage("one", message_id="1", session_id="s", partition_key="s")
        numbers = await sender.schedule_messages(one, LATER)
        numbers += await sender.schedule_messages([ServiceBusMessage("2"), {"body": "3"}], LATER)
        assert len(set(numbers)) == 3
        await sender.cancel_scheduled_messages(numbers[1:])
        await sender.cancel_scheduled_messages(numbers[0])
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(numbers[0])
        broker.add_fault(Fault(kind="hang", entity="orders"))
        with pytest.raises(OperationTimeoutError, match="not repeated") as raised:
            await sender.schedule_messages(one, LATER, timeout=0.5)
        assert isinstance(raised.value, ScheduleUnknownError)
        broker.clear_faults()
        assert pair.status().entities["orders"].diverted == 0


async def test_a_refusal_is_the_same_exception_as_over_the_sdks_sender(
    broker: EmbeddedBroker,
) -> None:
    async def refused(sender: Any, condition: str) -> tuple[str, FailureMeaning]:
        number = broker.add_fault(Fault(kind="refuse_send", condition=condition))
        try:
            with pytest.raises(Exception) as raised:  # noqa: PT011  # its class is compared
                await sender.send_messages(ServiceBusMessage("x", message_id="refused"))
        finally:
            broker.remove_fault(number)
        assert raised.value.message_ids == ("refused",)  # type: ignore[attr-defined]
        return type(raised.value).__name__, of_error(raised.value)

    async with (
        own(broker, retry_total=0) as pair,
        paired(broker, retry_total=0, failover_interval=600.0) as by_sdk,
        pair.get_queue_sender("orders") as ours,
        by_sdk.get_queue_sender("orders") as sdks,
    ):
        for condition in [name for name in CONDITIONS if name not in UNANSWERED]:
            assert await refused(ours, condition) == await refused(sdks, condition)
        assert [pair.status().entities["orders"].diverted] == [0]


async def test_an_outage_diverts_and_the_way_back_is_found(broker: EmbeddedBroker) -> None:
    async with (
        nothing_left(),
        own(broker, failover_interval=0.0, attempt_timeout=2.0) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("before", message_id="before"))
        broker.add_fault(Fault(kind="hang"), "contoso")
        await sender.send_messages(ServiceBusMessage("saved", message_id="saved"), timeout=60)
        more = [ServiceBusMessage(str(n), message_id=str(n), session_id="s") for n in range(3)]
        await sender.send_messages(more, timeout=60)
        with pytest.raises(BacklogMessageTooLargeError):
            await sender.send_messages(ServiceBusMessage(b"x" * 262_100), timeout=60)
        status = pair.status().entities["orders"]
        assert (status.state, status.diverted) == ("failed over", 4)
        broker.clear_faults()
        await until(lambda: pair.status().entities["orders"].state == "healthy")
        await sender.send_messages(ServiceBusMessage("after", message_id="after"))
    ids = {m.message_id for m in await drain(broker.connection_string("contoso"), "orders")}
    assert {"before", "after"} <= ids <= {"before", "after", "saved"}
    queues = backlog_paths("contoso", 2)
    saved = await drain_all(broker.connection_string("contoso-dr"), queues)
    assert {m.message_id for m in saved} == {"saved", "0", "1", "2"}


async def test_a_link_that_the_service_ends_for_idleness_is_no_evidence_of_anything(
    broker: EmbeddedBroker,
) -> None:
    async with own(broker, failover_interval=0.0) as pair:
        told: list[Any] = []
        async with pair.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("1"))
            pair.on_event(told.append)
            before = link_of(sender)
            end_idle_links(broker)
            await until(lambda: sender.pool.take_ready(0.0) is None)
            await sender.send_messages(ServiceBusMessage("2"))
            assert link_of(sender) is not before
        assert told == []
    assert bodies(await drain(broker.connection_string("contoso"), "orders")) == ["1", "2"]


async def test_the_token_of_a_link_is_renewed(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[NamespaceToken] = []
    fetch = NamespaceConnection._token

    async def short(connection: NamespaceConnection, path: str) -> NamespaceToken:
        token = await fetch(connection, path)
        if path == "orders":
            tokens.append(token)
            token = replace(token, expires_at_s=0.0)  # It is over in a second.
        return token

    monkeypatch.setattr(NamespaceConnection, "_token", short)
    async with own(broker) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("1"))
        link = link_of(sender)
        await until(lambda: len(tokens) >= 2)
        await sender.send_messages(ServiceBusMessage("2"))
        assert link_of(sender) is link


async def test_a_cancelled_send_is_seen_and_a_stored_one_is_recorded(
    broker: EmbeddedBroker,
) -> None:
    async with nothing_left(), own(broker) as pair, pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        for steps in range(6):
            call = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
            for _ in range(steps):
                await asyncio.sleep(0)
            was_asked = call.cancel()
            await asyncio.wait({call})
            assert call.cancelled() is was_asked
        await sender.send_messages(ServiceBusMessage("last"))
        status = pair.status().entities["orders"]
        assert (status.state, status.diverted) == ("healthy", 0)
        assert status.sent + status.raised >= 7


async def test_a_wrong_key_is_the_sdks_authentication_error(broker: EmbeddedBroker) -> None:
    wrong = broker.connection_string("contoso").replace("SharedAccessKey=", "SharedAccessKey=not")
    async with (
        own(broker, primary=wrong, create_backlog_queues=True) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        with pytest.raises(ServiceBusAuthenticationError) as raised:
            await sender.send_messages(ServiceBusMessage("x", message_id="1"))
        assert raised.value.message_ids == ("1",)  # type: ignore[attr-defined]
        assert pair.status().entities["orders"].state == "healthy"
