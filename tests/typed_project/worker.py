"""The same application without asyncio."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from twinbus.blocking import (
    EventStream,
    MessageSender,
    Pair,
    PairedSender,
    PairSide,
    PairStatus,
    Processor,
    SendAvailabilityOptions,
    pair_namespaces,
    process,
)

log = logging.getLogger("worker")


def remind(sender: MessageSender, text: str) -> list[int]:
    """Send by any sender: the SDK's own, or that of a pair."""
    with sender as open_sender:
        open_sender.send_messages([ServiceBusMessage(text)], timeout=30)
        open_sender.send_messages(open_sender.create_message_batch())
        return open_sender.schedule_messages(ServiceBusMessage(text), datetime.now(UTC))


def send_every_kind(sender: PairedSender) -> None:
    """Send what the SDK's own sender takes."""
    sender.send_messages(ServiceBusMessage("order 1"), timeout=5)
    sender.send_messages([{"body": "order 2"}, ServiceBusMessage("order 3")])
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("order 4"))
    sender.send_messages(batch)
    sender.cancel_scheduled_messages(remind(sender, "order 5"), timeout=1)


def show(side: PairSide, status: PairStatus, events: EventStream) -> None:
    """Log what a pair says about itself."""
    log.info("%s, %s", side.reason, status.protected)
    for event in events:
        log.info("%s", event.at)


def handle(message: ServiceBusReceivedMessage) -> None:
    """Handle an event."""
    log.info("%s", message)


def consume(pair: Pair, connection_string: str) -> None:
    """Process a subscription and a queue."""
    orders: Processor = process(connection_string, "orders", handle, concurrency=4)
    with orders, pair.process("events", handle, subscription="audit") as events:
        events.run_until_stopped()


def serve(pair: Pair) -> None:
    """Use a pair that was given."""
    with pair.get_topic_sender("events") as sender:
        send_every_kind(sender)
        remind(sender, "a pair's")
    with pair.get_subscription_receiver("events", "audit") as receiver:
        for message in receiver.receive_messages(max_message_count=10):
            receiver.complete_message(message)
    show(pair.primary, pair.status(), pair.events())


def main(primary: str, secondary: str) -> None:
    """Run the application."""
    with ServiceBusClient.from_connection_string(primary) as client:
        remind(client.get_queue_sender("orders"), "the SDK's own")
    options = SendAvailabilityOptions(session_order="strict", ping_mode="link")
    with pair_namespaces(primary, secondary, options) as pair:
        serve(pair)
