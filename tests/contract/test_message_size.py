"""A message too large for the link is refused before it is sent; one that fits never is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from tests.contract.pairs import drain, quick
from tests.official_sdk import async_client
from twinbus import EmbeddedBroker, Namespace, pair_namespaces
from twinbus.broker.descriptions import QueueDescription
from twinbus.pairing.sdk.guards import encoded_bytes

pytestmark = pytest.mark.contract

LIMITS_KB = {"small": 64, "standard": 256, "large": 512}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        for queue, limit_kb in LIMITS_KB.items():
            broker.create_queue(queue, QueueDescription(max_message_size_kb=limit_kb))
        yield broker


def paired(broker: EmbeddedBroker) -> Any:
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
    async with paired(broker) as pair, pair.get_queue_sender(queue) as sender:
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
        assert len(sender.pool._idle) == 1
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
    async with paired(broker) as pair, pair.get_queue_sender("small") as sender:
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
    async with paired(broker) as pair, pair.get_queue_sender("standard") as sender:
        for body in ("x" * 300_000, ["x" * 100_000] * 3):
            large = AmqpAnnotatedMessage(value_body=body)
            with pytest.raises(MessageSizeExceededError) as raised:
                await sender.send_messages(large)
            assert raised.value.message_ids  # type: ignore[attr-defined]
        assert pair.status().entities["standard"].state == "healthy"
