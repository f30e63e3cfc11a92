"""What callers pass by mistake is refused with a text that says what to pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

import twinbus
from twinbus import Namespace, blocking
from twinbus.namespace.address import ConnectionString
from twinbus.testing.fake_sdk import FakePair

STRING = "Endpoint=sb://{}.example/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", [None, 7, b"orders", "", "//"])
async def test_the_name_of_an_entity_is_a_text(name: Any) -> None:
    world = FakePair()
    for make in (world.client.get_queue_sender, world.client.get_topic_sender):
        with pytest.raises(ValueError, match="the name of an entity must be a text that is not"):
            make(name)
    await world.client.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", ["orders ", "a" * 261, "orders/$management", "$cbs", "a//b"])
async def test_a_name_that_no_entity_can_have_is_refused(name: str) -> None:
    world = FakePair()
    for make in (world.client.get_queue_sender, world.client.get_topic_sender):
        with pytest.raises(ValueError, match="is not the path of a queue or topic"):
            make(name)
    await world.client.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("wrong", ["10", timedelta(seconds=10), [10], Decimal(10)])
async def test_a_timeout_is_a_number(wrong: Any) -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    message, at = ServiceBusMessage("x"), datetime(2030, 1, 1, tzinfo=UTC)
    for call in (
        lambda: sender.send_messages(message, timeout=wrong),
        lambda: sender.send_messages([message], timeout=wrong),
        lambda: sender.schedule_messages(message, at, timeout=wrong),
        lambda: sender.cancel_scheduled_messages(1, timeout=wrong),
    ):
        with pytest.raises(TypeError, match="the timeout must be a number of seconds or None; got"):
            await call()
    assert world.primary.took == []
    await world.client.close()


@pytest.mark.virtual_time
async def test_unknown_keywords_warn_as_in_the_sdk() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    calls: list[Callable[..., Awaitable[Any]]] = [
        partial(sender.send_messages, ServiceBusMessage("x")),
        partial(sender.schedule_messages, [], datetime(2030, 1, 1, tzinfo=UTC)),
        partial(sender.cancel_scheduled_messages, []),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="Unsupported keyword args: {'colour': 'red'}") as told:
            await call(colour="red")
        assert told[0].filename == __file__
    assert len(world.primary.took) == 1
    await world.client.close()


@pytest.mark.virtual_time
async def test_a_connection_string_of_one_entity_has_senders_to_that_entity_only() -> None:
    world = FakePair()
    world.client.state.primary.parts = ConnectionString.parse(
        STRING.format("contoso") + ";EntityPath=orders"
    )
    world.client.get_queue_sender("orders")
    for make in (world.client.get_queue_sender, world.client.get_topic_sender):
        with pytest.raises(ValueError, match=r"for 'orders' \(EntityPath\).* no sender to 'bills'"):
            make("bills")
    assert [entity.path for entity in world.client.state.monitors.all()] == ["orders"]
    await world.client.close()


def test_a_secondary_needs_a_connection_string_of_the_namespace() -> None:
    primary = Namespace.from_connection_string(STRING.format("a"))
    for pair_namespaces in (twinbus.pair_namespaces, blocking.pair_namespaces):
        with pytest.raises(ValueError, match=r"secondary is for 'orders' \(EntityPath\)"):
            pair_namespaces(primary, STRING.format("b") + ";EntityPath=orders")
    # What was refused is not in use.
    primary.claim()


@pytest.mark.parametrize("options", [{}, {"ledger": "x"}, "", 0])
async def test_options_are_of_their_class(options: Any) -> None:
    primary, secondary = (Namespace.from_connection_string(STRING.format(x)) for x in ("a", "b"))
    text = "options must be SendAvailabilityOptions or None; got"
    with pytest.raises(TypeError, match=text):
        async with twinbus.pair_namespaces(primary, secondary, options):
            pass
    with (
        pytest.raises(TypeError, match=text),
        blocking.pair_namespaces(primary, secondary, options),
    ):
        pass
    # What was refused is not in use.
    for side in (primary, secondary):
        side.claim()
