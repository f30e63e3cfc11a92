"""A broker with the limits of Azure: throttling, links, connections, quotas, races of creations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter

from tests.end_to_end.raw_client import (
    PATIENCE_S,
    ConnectionLost,
    RawClient,
    RawSender,
    Refused,
    message,
)
from tests.official_sdk import administration, client
from twinbus import EmbeddedBroker
from twinbus.amqp.performatives import Error
from twinbus.broker.profile import AZURE_PREMIUM, AZURE_STANDARD, PROFILES, ServiceProfile

pytestmark = pytest.mark.end_to_end


@contextmanager
def like(profile: ServiceProfile = AZURE_STANDARD, **limits: Any) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", profile=replace(profile, **limits)) as broker:
        broker.create_queue("orders")
        yield broker


async def sent(sender: RawSender, count: int) -> tuple[int, int]:
    """Send so many at once; how many were taken, and how many answered server-busy."""
    futures = []
    for number in range(count):
        await sender.room()
        futures.append(sender.send(message(str(number))))
    answers = await asyncio.gather(*futures, return_exceptions=True)
    refusals = [answer for answer in answers if answer is not None]
    assert all(isinstance(one, Refused) for one in refusals), refusals
    assert {one.condition for one in refusals if isinstance(one, Refused)} <= {
        "com.microsoft:server-busy"
    }
    return count - len(refusals), len(refusals)


async def test_sends_above_the_credits_are_busy_and_the_next_second_takes_more() -> None:
    with like(credits_per_s=5) as broker:
        connection = await RawClient.open(broker.connection_string())
        sender = await connection.sender("orders")
        began = time.time()
        taken, busy = await sent(sender, 400)
        seconds = int(time.time()) - int(began) + 1
        assert 5 <= taken <= 5 * seconds
        assert busy > 0
        async with asyncio.timeout(PATIENCE_S):
            more = 0
            while not more:
                more, _ = await sent(sender, 1)
        await connection.close()


async def test_receives_cost_credits_too_and_go_on_with_the_next_second() -> None:
    with like(credits_per_s=30) as broker:
        connection = await RawClient.open(broker.connection_string())
        sender = await connection.sender("orders")
        stored = 0
        async with asyncio.timeout(PATIENCE_S):
            while stored < 60:
                stored += (await sent(sender, 10))[0]
                await asyncio.sleep(0.1)
        began = int(time.time())
        receiver = await connection.receiver("orders", credit=100)
        keys = set()
        for _ in range(stored):
            delivery = await receiver.receive()
            assert delivery is not None
            keys.add(delivery.key)
        # 60 messages at 30 a second: a second boundary lies between the first and the last.
        assert int(time.time()) > began
        await connection.close()


def test_the_sdk_gets_its_own_error_with_azures_code_and_an_administrator_503() -> None:
    with like(credits_per_s=1, creation_s=0.0) as broker:
        text = broker.connection_string()
        with client(text) as sdk, sdk.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage("x") for _ in range(300)])
            with pytest.raises(ServiceBusServerBusyError, match="50009"):
                sender.send_messages(ServiceBusMessage("x"))
        # The debt of that list lasts for five minutes.
        with administration(text) as admin, pytest.raises(HttpResponseError) as caught:
            admin.create_queue("more")
        assert caught.value.status_code == 503


async def test_a_topics_filters_cost_a_credit_each() -> None:
    with like(credits_per_s=1000) as broker:
        broker.create_topic("events", [f"s{number}" for number in range(499)])
        connection = await RawClient.open(broker.connection_string())
        sender = await connection.sender("events")
        began = int(time.time())
        taken, busy = await sent(sender, 400)
        # 500 credits a message: two a second.
        assert taken <= 2 * (int(time.time()) - began + 1)
        assert busy > 0
        await connection.close()


async def test_a_session_has_256_links_and_one_more_ends_the_connection() -> None:
    with like() as broker:
        connection = await RawClient.open(broker.connection_string())
        assert connection.session.free_handles == 254  # $cbs has two
        for _ in range(254):
            await connection.sender("orders")
        connection.session.handle_max = 1000
        with pytest.raises(ConnectionLost, match="handle-max is 255"):
            await connection.sender("orders")


async def test_idle_links_are_detached_and_busy_ones_are_not() -> None:
    with like(link_idle_s=2.0) as broker:
        broker.create_queue("empty")
        connection = await RawClient.open(broker.connection_string())
        await connection.receiver("empty", credit=1)
        await connection.sender("orders")
        busy = await connection.sender("orders")
        errors: list[Error | None] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(errors) < 2:
                await busy.room()
                busy.send_unasked(message("x"))
                await asyncio.sleep(0.1)
                while not connection.detached.empty():
                    errors.append(connection.detached.get_nowait())
        for error in errors:
            assert error is not None
            assert error.condition == "amqp:link:detach-forced"
            assert "IdleTimerExpired: Idle timeout: 00:00:02." in str(error.description)
        await busy.send(message("y"))
        await connection.close()


async def test_connections_and_receivers_are_limited() -> None:
    with like(connections_max=2, receivers_max=3) as broker:
        text = broker.connection_string()
        first, second = await RawClient.open(text), await RawClient.open(text)
        with pytest.raises(ConnectionLost, match="ConnectionsQuotaExceeded"):
            await RawClient.open(text)
        receivers = [await first.receiver("orders", credit=1) for _ in range(3)]
        with pytest.raises(Refused) as refused:
            await second.receiver("orders", credit=1)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
        await receivers[0].close()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await second.receiver("orders", credit=1)
                    break
                except Refused:
                    await asyncio.sleep(0.05)
        await first.close()
        third = await opened_again(text)
        for connection in (second, third):
            await connection.close()


async def opened_again(text: str) -> RawClient:
    """A connection, as soon as the broker takes one more."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await RawClient.open(text)
            except ConnectionLost:
                await asyncio.sleep(0.05)


def test_the_tier_limits_what_can_be_created() -> None:
    profile = replace(AZURE_STANDARD, entities_max=3, subscriptions_max=2, creation_s=0.0)
    filters = {"sql_filters_max": 1, "correlation_filters_max": 1}
    with (
        like(profile, **filters) as broker,
        administration(broker.connection_string()) as admin,
    ):
        assert admin.get_namespace_properties().messaging_sku == "Standard"
        for description in (
            {"max_size_in_megabytes": 6144},
            {"max_message_size_in_kilobytes": 257},
        ):
            with pytest.raises(HttpResponseError) as caught:
                admin.create_queue("large", **description)  # type: ignore[arg-type]
            assert caught.value.status_code == 400
        admin.create_queue("second", max_size_in_megabytes=5120)
        admin.create_topic("topic")
        with pytest.raises(HttpResponseError, match="3 queues and topics"):
            admin.create_queue("fourth")
        for name in ("a", "b"):
            admin.create_subscription("topic", name)
        with pytest.raises(HttpResponseError, match="2 subscriptions"):
            admin.create_subscription("topic", "c")
        for filter_ in (SqlRuleFilter("a = 1"), CorrelationRuleFilter(label="x")):
            kind = type(filter_).__name__
            admin.create_rule("topic", "a", kind, filter=filter_)
            with pytest.raises(HttpResponseError, match="which is the limit"):
                admin.create_rule("topic", "b", kind, filter=filter_)
        admin.delete_queue("second")
        admin.create_queue("fourth")


def test_premium_takes_messages_of_a_megabyte_unless_more_is_asked_for() -> None:
    with (
        like(AZURE_PREMIUM, creation_s=0.0) as broker,
        administration(broker.connection_string()) as admin,
    ):
        assert admin.get_namespace_properties().messaging_sku == "Premium"
        assert admin.create_queue("usual").max_message_size_in_kilobytes == 1024
        large = admin.create_queue("large", max_message_size_in_kilobytes=102_400)
        assert large.max_message_size_in_kilobytes == 102_400
        assert admin.create_queue("big", max_size_in_megabytes=81_920).max_size_in_megabytes


def test_of_two_creations_at_once_one_is_told_that_the_other_is_in_progress() -> None:
    with (
        like(creation_s=3.0) as broker,
        administration(broker.connection_string()) as admin,
        administration(broker.connection_string()) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(admin.create_queue, "new")
        while "new" not in {queue.name for queue in other.list_queues()}:
            assert not first.done()
        with pytest.raises(ResourceExistsError, match="SubCode=40901"):
            other.create_queue("new")
        first.result()
        with pytest.raises(ResourceExistsError, match="exists already"):
            other.create_queue("new")


def test_the_profiles_have_the_documented_figures() -> None:
    assert list(PROFILES) == ["laptop", "azure-standard", "azure-premium"]
    standard = AZURE_STANDARD
    assert (standard.credits_per_s, standard.handle_max, standard.link_idle_s) == (1000, 255, 600)
    assert (standard.connections_max, standard.receivers_max) == (5000, 5000)
    assert (standard.entities_max, AZURE_PREMIUM.entities_max) == (10_000, 1000)
    assert AZURE_PREMIUM.credits_per_s is None
