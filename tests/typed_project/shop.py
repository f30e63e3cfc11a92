"""An application for asyncio, with every annotation that a strict type checker asks for."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from azure.core.credentials import AzureSasCredential
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus import (
    DeadLetterError,
    EmbeddedBroker,
    EntityChanged,
    EventsDropped,
    EventStream,
    MessageSender,
    Namespace,
    Pair,
    PairClosedError,
    PairedSender,
    PairSide,
    PairStatus,
    Processor,
    SendAvailabilityOptions,
    Verdict,
    pair_namespaces,
    process,
)
from twinbus.testing import LocalNamespace

log = logging.getLogger("shop")


async def remind(sender: MessageSender, text: str) -> None:
    """Send by any sender: the SDK's own, or that of a pair."""
    await sender.send_messages(ServiceBusMessage(text), timeout=30)


async def send_every_kind(sender: PairedSender) -> list[int]:
    """Send whatever the SDK's own sender takes."""
    message = ServiceBusMessage("order 1")
    raw = AmqpAnnotatedMessage(data_body=[b"order 2"])
    await sender.send_messages(message)
    await sender.send_messages([message, ServiceBusMessage("order 3")], timeout=1.5)
    await sender.send_messages(raw)
    await sender.send_messages({"body": "order 4", "subject": "orders"})
    await sender.send_messages([message, raw])
    await sender.send_messages(ServiceBusMessage(f"order {number}") for number in range(5))
    batch = await sender.create_message_batch(max_size_in_bytes=10_000)
    batch.add_message(message)
    await sender.send_messages(batch, timeout=None)
    at = datetime.now(UTC) + timedelta(hours=1)
    numbers = await sender.schedule_messages([message], at, timeout=5)
    await sender.cancel_scheduled_messages(numbers, timeout=5)
    return numbers


async def schedule(sender: MessageSender) -> list[int]:
    """Schedule by any sender."""
    async with sender as open_sender:
        batch = await open_sender.create_message_batch()
        await open_sender.send_messages(batch)
        numbers = await open_sender.schedule_messages(
            [ServiceBusMessage("later")], datetime.now(UTC)
        )
        await open_sender.cancel_scheduled_messages(numbers[0])
        assert open_sender.entity_name
        assert open_sender.fully_qualified_namespace
        return numbers


async def watch(events: EventStream) -> None:
    """Log events; each kind has its own attributes."""
    async for event in events:
        match event:
            case EntityChanged():
                log.info("%s is %s", event.path, event.after.value)
            case EventsDropped():
                log.warning("%d events were missed", event.count)
            case _:
                log.info("%s at %.0f", event.as_dict(), event.at)


def summary(status: PairStatus) -> str:
    """Name the entities that have failed over."""
    waiting = [path for path, entity in status.entities.items() if entity.diverted]
    return ", ".join(waiting) or str(status)


def judge(error: BaseException) -> Verdict:
    """Count only errors of the network."""
    return Verdict.COUNTS if isinstance(error, OSError) else Verdict.IGNORED


async def handle(message: ServiceBusReceivedMessage) -> None:
    """Handle an order."""
    if not message.subject:
        raise DeadLetterError("NoSubject", "an order needs a subject")


async def handle_by_hand(message: ServiceBusReceivedMessage, receiver: ServiceBusReceiver) -> None:
    """Set an order aside."""
    await receiver.defer_message(message)


def note(error: Exception, message: ServiceBusReceivedMessage | None) -> None:
    """Count failures."""
    log.info("%s: %s", message, error)


async def consume(pair: Pair, connection_string: str) -> None:
    """Process two queues until one is stopped."""
    shipping: Processor = process(connection_string, "shipping", handle_by_hand, sessions=4)
    async with pair.process(
        "orders", handle, concurrency=8, max_lock_renewal=timedelta(minutes=10), on_error=note
    ) as orders:
        await orders.run_until_stopped()
        await shipping.stop()


async def serve(pair: Pair) -> None:
    """Use a pair that was given."""
    side: PairSide = pair.primary
    async with pair.get_queue_sender("orders") as sender:
        await remind(sender, side.state.value)
        await send_every_kind(sender)
        await schedule(sender)
    async with pair.get_queue_receiver("orders", max_wait_time=5) as receiver:
        async for message in receiver:
            await receiver.complete_message(message)
    log.info("%s", summary(pair.status()))
    await watch(pair.events(buffer=10))


async def plain(connection_string: str) -> None:
    """Use the SDK's own client: `remind` takes its senders too."""
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        await remind(client.get_queue_sender("orders"), "without a pair")
        await schedule(client.get_topic_sender("events"))


async def main() -> None:
    """Run the application on two namespaces in this process."""
    options = SendAvailabilityOptions(
        failover_interval=timedelta(seconds=30), enable_syphon=True, classify=judge
    )
    credential = AzureSasCredential("SharedAccessSignature sr=...")
    primary = Namespace("contoso.servicebus.windows.net", credential, name="contoso")
    try:
        with EmbeddedBroker("contoso-dr") as broker, LocalNamespace() as local:
            local.create_queue("orders")
            secondary = broker.connection_string("contoso-dr")
            await plain(local.connection_string)
            async with pair_namespaces(primary, secondary, options) as pair:
                await serve(pair)
    except PairClosedError as error:
        log.exception("not sent: %s", error.message_ids)


if __name__ == "__main__":
    asyncio.run(main())
