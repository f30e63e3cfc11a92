"""Records the seeds: what the official SDK sends in some sessions, as bytes, one file for each.

    python -m tests.fuzz.record

A bearer token stands in for a signature: it does not expire, so the recordings stay good.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)

from tests.fuzz.engine import create_entities
from tests.fuzz.recordings import SEEDS
from tests.fuzz.world import MANAGE_TOKEN, TOKENS
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.links.peer import Peer

WAIT_S = 5
PEEK_LOCK, DELETE = ServiceBusReceiveMode.PEEK_LOCK, ServiceBusReceiveMode.RECEIVE_AND_DELETE


def send(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("one", message_id="m", subject="s"))
        batch = sender.create_message_batch()
        for number in range(3):
            properties: Any = {"n": number, "t": "x", "when": datetime.now(UTC)}
            batch.add_message(ServiceBusMessage("b", application_properties=properties))
        sender.send_messages(batch)
        sender.send_messages(ServiceBusMessage("late", time_to_live=timedelta(days=40)))


def schedule(client: ServiceBusClient) -> None:
    later = datetime.now(UTC) + timedelta(days=3650)
    with client.get_queue_sender("orders") as sender:
        numbers = sender.schedule_messages(
            [ServiceBusMessage("s1"), ServiceBusMessage("s2")], later
        )
        sender.cancel_scheduled_messages(numbers[0])
        sender.send_messages(ServiceBusMessage("s3", scheduled_enqueue_time_utc=later))


def settle(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(6)])
    with client.get_queue_receiver("orders", receive_mode=PEEK_LOCK) as receiver:
        found = receiver.receive_messages(max_message_count=6, max_wait_time=WAIT_S)
        while len(found) < 6:
            found += receiver.receive_messages(max_message_count=6, max_wait_time=WAIT_S)
        receiver.renew_message_lock(found[0])
        receiver.complete_message(found[0])
        receiver.abandon_message(found[1])
        receiver.defer_message(found[2])
        receiver.dead_letter_message(found[3], reason="r", error_description="d")
        number = found[2].sequence_number
        assert number is not None
        (deferred,) = receiver.receive_deferred_messages([number])
        receiver.complete_message(deferred)
        receiver.peek_messages(10)
    dead = client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with dead as receiver:
        (letter,) = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S)
        receiver.complete_message(letter)


def delete(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(4)])
    with client.get_queue_receiver("orders", receive_mode=DELETE, prefetch_count=2) as receiver:
        receiver.receive_messages(max_message_count=4, max_wait_time=WAIT_S)


def sessions(client: ServiceBusClient) -> None:
    with client.get_queue_sender("talks") as sender:
        sender.send_messages(
            [ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b", session_id="s")]
        )
    with client.get_queue_receiver("talks", session_id="s") as receiver:
        (first, *_) = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S)
        receiver.session.set_state("state")
        receiver.session.get_state()
        receiver.session.renew_lock()
        receiver.complete_message(first)


def publish(client: ServiceBusClient) -> None:
    with client.get_topic_sender("news") as sender:
        properties: Any = {"n": 5, "when": datetime.now(UTC), "t": "x"}
        message = ServiceBusMessage("n", application_properties=properties)
        sender.send_messages([message, ServiceBusMessage("n2", correlation_id="c", to="t")])
    with client.get_subscription_receiver("news", "all") as receiver:
        for message in receiver.receive_messages(max_message_count=2, max_wait_time=WAIT_S):
            receiver.complete_message(message)


def main() -> int:
    scenes: tuple[Callable[[ServiceBusClient], None], ...] = (
        *(send, schedule, settle, delete, sessions, publish),
    )
    streams: dict[Peer, bytearray] = {}
    receive = Peer.data_received

    def note(peer: Peer, data: bytes) -> None:
        streams.setdefault(peer, bytearray()).extend(data)
        receive(peer, data)

    setattr(Peer, receive.__name__, note)
    for scene in scenes:
        streams.clear()
        with EmbeddedBroker("fuzz", tokens=TOKENS) as broker:
            broker._change(None, create_entities)
            endpoint = broker.connection_string().partition(";")[0]
            client = ServiceBusClient.from_connection_string(
                f"{endpoint};SharedAccessSignature={MANAGE_TOKEN};UseDevelopmentEmulator=true"
            )
            with client:
                scene(client)
        for number, stream in zip(itertools.count(), streams.values()):
            path = SEEDS / f"{scene.__name__}-{number}.amqp"
            path.write_bytes(stream)
            sys.stdout.write(f"{path.name}: {len(stream)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
