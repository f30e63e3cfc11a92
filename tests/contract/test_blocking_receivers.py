"""Guarded and twin receivers for code without asyncio."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, cast

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusMessage
from azure.servicebus.exceptions import MessageAlreadySettled

from tests.contract.pairs import bodies, embedded, locked_count, no_thread_left, quick, sides
from tests.official_sdk import administration, client
from twinbus import EmbeddedBroker, blocking
from twinbus.blocking.receiver import PairedReceiver

pytestmark = pytest.mark.contract

PRIMARY, SECONDARY = "contoso", "contoso-dr"
WAIT_S = 20.0

broker = embedded(queues=())


@pytest.fixture(autouse=True)
def entities(broker: EmbeddedBroker) -> None:
    for side in (PRIMARY, SECONDARY):
        mark: dict[str, Any] = (
            {"user_metadata": "twinbus-twin-of:contoso"} if side is SECONDARY else {}
        )
        with administration(broker.connection_string(side)) as admin:
            admin.create_queue("orders", lock_duration=timedelta(seconds=5), **mark)
            admin.create_queue("sessions", requires_session=True, **mark)


def put(broker: EmbeddedBroker, side: str, *texts: str, queue: str = "orders", **more: Any) -> None:
    with (
        client(broker.connection_string(side)) as plain,
        plain.get_queue_sender(queue) as sender,
    ):
        sender.send_messages([ServiceBusMessage(text, **more) for text in texts])


def taken(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    ends = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < ends, (bodies(found), receiver.status())
        found += receiver.receive_messages(count - len(found), max_wait_time=2)
    return found


def twinned(broker: EmbeddedBroker) -> blocking.Pair:
    return blocking.pair_namespaces(*sides(broker), quick(twins=["orders"]))


def test_both_sides_are_read_and_the_sdks_renewer_keeps_their_locks(
    broker: EmbeddedBroker,
) -> None:
    put(broker, PRIMARY, "p")
    put(broker, SECONDARY, "t")
    with (
        no_thread_left(),
        AutoLockRenewer() as renewer,
        twinned(broker) as pair,
        cast("Any", pair.get_queue_receiver("orders", auto_lock_renewer=renewer)) as receiver,
    ):
        assert type(receiver) is PairedReceiver
        found = taken(receiver, 2)
        assert sorted(bodies(found)) == ["p", "t"]
        time.sleep(7)
        for message in found:
            receiver.complete_message(message)
        with pytest.raises(MessageAlreadySettled):
            receiver.complete_message(found[0])
        assert receiver.peek_messages(10, sequence_number=1) == []
        assert receiver.status().sides["secondary"].delivered == 1
        assert len(pair.status().receivers) == 1


def test_iteration_goes_on_when_the_primary_is_killed(broker: EmbeddedBroker) -> None:
    put(broker, PRIMARY, "p")
    with twinned(broker) as pair, pair.get_queue_receiver("orders", max_wait_time=10) as receiver:
        found = []
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
            if len(found) == 1:
                broker.cut_off(PRIMARY)
                put(broker, SECONDARY, "t")
            if len(found) == 2:
                broker.serve_again(PRIMARY)
                put(broker, PRIMARY, "q")
            if len(found) == 3:
                break
        assert found == ["p", "t", "q"]


@pytest.mark.parametrize("prefetch", [0, 50, 1_000])
def test_a_second_after_its_close_nothing_is_locked(broker: EmbeddedBroker, prefetch: int) -> None:
    with administration(broker.connection_string(PRIMARY)) as admin:
        queue = admin.get_queue("orders")
        queue.lock_duration = timedelta(seconds=60)
        admin.update_queue(queue)
    put(broker, PRIMARY, *(f"p{number}" for number in range(200)))
    with twinned(broker) as pair:
        with pair.get_queue_receiver("orders", prefetch_count=prefetch) as receiver:
            for message in taken(receiver, 2):
                receiver.complete_message(message)
        time.sleep(1)
        assert locked_count(broker, PRIMARY) == 0
        with pair.get_queue_receiver("orders") as receiver:
            assert len(taken(receiver, 198)) == 198


def test_a_receiver_that_waits_ends_when_another_thread_closes_the_pair(
    broker: EmbeddedBroker,
) -> None:
    with twinned(broker) as pair:
        receiver = pair.get_queue_receiver("orders")
        threading.Timer(0.5, pair.close).start()
        assert receiver.receive_messages(max_wait_time=60) == []
        with pytest.raises(ValueError, match="shutdown"):
            receiver.receive_messages()


def test_next_and_a_renewer_without_locks_are_as_in_the_sdk(broker: EmbeddedBroker) -> None:
    put(broker, PRIMARY, "p")
    with twinned(broker) as pair, AutoLockRenewer() as renewer:
        receiver: Any = pair.get_queue_receiver("orders", max_wait_time=5)
        assert str(receiver.next()) == "p"
        deletes: dict[str, Any] = {"receive_mode": "receiveanddelete", "guard": True}
        with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
            pair.get_queue_receiver("orders", auto_lock_renewer=renewer, **deletes)


def test_a_session(broker: EmbeddedBroker) -> None:
    put(broker, PRIMARY, "a", queue="sessions", session_id="s")
    with (
        AutoLockRenewer() as renewer,
        twinned(broker) as pair,
        pair.get_queue_receiver(
            "sessions", guard=True, session_id="s", auto_lock_renewer=renewer
        ) as receiver,
    ):
        assert receiver.session.session_id == "s"
        receiver.session.set_state("here")
        assert receiver.session.get_state() == b"here"
        assert receiver.session.renew_lock() == receiver.session.locked_until_utc
        (message,) = taken(receiver, 1)
        receiver.complete_message(message)
