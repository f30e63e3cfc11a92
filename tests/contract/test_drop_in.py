"""What an application written for the SDK meets with a pair; and how large a message may be."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
)

from tests.contract.pairs import drain, quick
from tests.official_sdk import administration, async_client
from twinbus import (
    EmbeddedBroker,
    Fault,
    Namespace,
    PairNotStartedError,
    ScheduleUnknownError,
    blocking,
    pair_namespaces,
)
from twinbus.broker.descriptions import QueueDescription
from twinbus.pairing.sdk.guards import encoded_bytes

pytestmark = pytest.mark.contract

LIMITS_KB = {"small": 64, "standard": 256, "large": 512}
LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", "contoso-dr") as embedded:
        embedded.create_queue("orders")
        embedded.create_queue("carts", QueueDescription(requires_session=True))
        for queue, limit_kb in LIMITS_KB.items():
            embedded.create_queue(queue, QueueDescription(max_message_size_kb=limit_kb))
        embedded.create_topic("news")
        with administration(embedded.connection_string("contoso")) as admin:
            admin.create_subscription("news", "readers", requires_session=True)
        yield embedded


@pytest.fixture
def strings(broker: EmbeddedBroker) -> tuple[str, str]:
    return broker.connection_string("contoso"), broker.connection_string("contoso-dr")


async def test_sessions_are_listed_by_the_pair(strings: tuple[str, str]) -> None:
    async with pair_namespaces(*strings, quick()) as pair:
        async with pair.get_queue_sender("carts") as sender:
            await sender.send_messages(ServiceBusMessage("x", session_id="s1"))
        async with pair.get_topic_sender("news") as sender:
            await sender.send_messages(ServiceBusMessage("x", session_id="s2"))
        assert [name async for name in pair.list_queue_sessions("carts")] == ["s1"]
        listed = pair.list_subscription_sessions("news", "readers", timeout=30)
        assert [name async for name in listed] == ["s2"]


def test_sessions_are_listed_by_the_blocking_pair(strings: tuple[str, str]) -> None:
    with blocking.pair_namespaces(*strings, quick()) as pair:
        with pair.get_queue_sender("carts") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s1"))
        with pair.get_topic_sender("news") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s2"))
        assert list(pair.list_queue_sessions("carts")) == ["s1"]
        assert list(pair.list_subscription_sessions("news", "readers", timeout=30)) == ["s2"]


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_schedule_without_an_answer_ends_in_time_with_the_error_of_the_sdk(
    broker: EmbeddedBroker, strings: tuple[str, str], cancels: bool
) -> None:
    options = quick(attempt_timeout=30.0, failover_interval=600.0)
    async with (
        pair_namespaces(*strings, options) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        # The link is open: what is asked now may have been carried out.
        numbers = await sender.schedule_messages(ServiceBusMessage("now"), LATER)
        broker.add_fault(Fault(kind="hang", entity="orders"))
        began = time.monotonic()
        try:
            message = ServiceBusMessage("x", message_id="1")
            call: Awaitable[Any] = (
                sender.cancel_scheduled_messages(numbers, timeout=2)
                if cancels
                else sender.schedule_messages(message, LATER, timeout=2)
            )
            with pytest.raises(OperationTimeoutError, match="not repeated") as raised:
                await call
        finally:
            broker.clear_faults()
        assert time.monotonic() - began < 20
        assert isinstance(raised.value, ScheduleUnknownError)
        assert raised.value.message_ids == (() if cancels else ("1",))
        await sender.cancel_scheduled_messages([])


async def test_a_mistyped_entity_is_not_steered(strings: tuple[str, str]) -> None:
    async with pair_namespaces(*strings, quick()) as pair:
        for steer in (pair.force_failover, pair.mark_healthy, pair.freeze, pair.unfreeze):
            with pytest.raises(ValueError, match="no sender for 'orders'; it has none"):
                steer("orders")
        async with pair.get_queue_sender("orders"):
            with pytest.raises(ValueError, match="no sender for 'ordres'; it has orders"):
                pair.force_failover("ordres")
            pair.force_failover("/ORDERS")
        assert list(pair.status().entities) == ["orders"]
        assert pair.status().entities["orders"].forced


def blocks() -> list[str]:
    """The Python blocks of the page that shows the change from the SDK to a pair."""
    page = Path(__file__).resolve().parents[2] / "docs" / "from-sdk.md"
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_a_pair_made_at_import_is_started_as_the_page_shows_for_gunicorn(
    strings: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [module] = [one for one in blocks() if one.startswith("# orders.py")]
    [hooks] = [one for one in blocks() if one.startswith("# gunicorn.conf.py")]
    monkeypatch.setenv("PRIMARY", strings[0])
    monkeypatch.setenv("SECONDARY", strings[1])
    orders, settings = ModuleType("orders"), ModuleType("settings")
    monkeypatch.setitem(sys.modules, "orders", orders)
    exec(module, vars(orders))
    exec(hooks, vars(settings))
    with pytest.raises(PairNotStartedError, match="was not started"):
        orders.take("order 1")
    settings.post_fork(None, None)
    orders.take("order 2")
    assert orders.pair.status().entities["orders"].sent == 1
    settings.worker_exit(None, None)


@pytest.mark.parametrize(("place", "printed"), [(0, "order 1\n"), (1, "")])
def test_the_examples_of_the_page_run_as_printed(place: int, printed: str) -> None:
    examples = [one for one in blocks() if "EmbeddedBroker" in one]
    assert len(examples) == 2
    done = subprocess.run(
        [sys.executable, "-c", examples[place]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def calm_pair(broker: EmbeddedBroker) -> Any:
    primary = Namespace.from_connection_string(broker.connection_string("contoso"), name="contoso")
    # Nothing here may look like an outage, on a busy machine either.
    options = quick(failover_interval=60.0, attempt_timeout=20.0)
    return pair_namespaces(primary, broker.connection_string("contoso-dr"), options)


def of_size(size_bytes: int) -> ServiceBusMessage:
    """A message that the SDK encodes into exactly so many bytes."""

    def made(body_bytes: int) -> ServiceBusMessage:
        properties: dict[Any, Any] = {"a": "é" * 50, "n": 7}
        return ServiceBusMessage(
            b"x" * body_bytes,
            message_id="1",
            session_id="s",
            subject="of some size",
            application_properties=properties,
        )

    empty_bytes = encoded_bytes(made(1_000).raw_amqp_message) - 1_000
    return made(size_bytes - empty_bytes)


@pytest.mark.parametrize("queue", LIMITS_KB)
async def test_the_limit_is_that_of_the_service_to_the_byte(
    broker: EmbeddedBroker, queue: str
) -> None:
    limit_bytes = LIMITS_KB[queue] * 1_024
    text = broker.connection_string("contoso")
    async with calm_pair(broker) as pair, pair.get_queue_sender(queue) as sender:
        for size_bytes in (limit_bytes, limit_bytes + 1, limit_bytes + 70_000):
            assert encoded_bytes(of_size(size_bytes).raw_amqp_message) == size_bytes
            is_taken = size_bytes <= limit_bytes
            async with async_client(text) as sdk, sdk.get_queue_sender(queue) as plain:
                assert await is_sent(plain, of_size(size_bytes), ServiceBusError) is is_taken
            for _ in range(2):
                message = of_size(size_bytes)
                assert await is_sent(sender, message, MessageSizeExceededError) is is_taken
            status = pair.status().entities[queue]
            assert (status.state, status.diverted) == ("healthy", 0)
        # The link was never detached.
        assert len(sender.pool.idle) == 1
    assert len(await drain(text, queue)) == 3


async def is_sent(sender: Any, message: Any, refusal: type[Exception]) -> bool:
    try:
        await sender.send_messages(message)
    except refusal:
        return False
    return True


async def test_a_list_may_exceed_a_small_limit_by_what_the_service_allows(
    broker: EmbeddedBroker,
) -> None:
    """The SDK lets a list have 256 KB; the service detaches the link that takes 64 KB."""
    text = broker.connection_string("contoso")
    async with calm_pair(broker) as pair, pair.get_queue_sender("small") as sender:
        await sender.send_messages([ServiceBusMessage(b"x" * 30_000) for _ in range(4)])
        with pytest.raises(MessageSizeExceededError, match="takes 65536 bytes and got 150000"):
            await sender.send_messages([ServiceBusMessage(b"x" * 30_000) for _ in range(5)])
        assert pair.status().entities["small"].state == "healthy"
    assert len(await drain(text, "small")) == 4


async def test_the_plain_sdk_sender_goes_on_after_a_message_far_too_large(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a disposition its call would wait, and a detach would cost it the link."""
    text = broker.connection_string("contoso")
    async with async_client(text) as sdk, sdk.get_queue_sender("large") as plain:
        with pytest.raises(MessageSizeExceededError, match="exceeds the limit"):
            await plain.send_messages(of_size(2_000_000))
        link = plain._handler._link
        await plain.send_messages(of_size(1_500))
        assert plain._handler._link is link
    assert len(await drain(text, "large")) == 1
    assert "refused a message to 'large'" in caplog.text


async def test_a_value_body_is_measured_too(broker: EmbeddedBroker) -> None:
    async with calm_pair(broker) as pair, pair.get_queue_sender("standard") as sender:
        for body in ("x" * 300_000, ["x" * 100_000] * 3):
            large = AmqpAnnotatedMessage(value_body=body)
            with pytest.raises(MessageSizeExceededError) as raised:
                await sender.send_messages(large)
            assert raised.value.message_ids  # type: ignore[attr-defined]
        assert pair.status().entities["standard"].state == "healthy"
