"""A broker's clock moved on: what ends with time ends, for the official SDK, without waiting."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from tests.official_sdk import client
from twinbus import EmbeddedBroker
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.profile import LAPTOP
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange, EntityNotFound
from twinbus.errors import BrokerStartError

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", test_clock=True) as served:
        yield served


@pytest.fixture(scope="module")
def sdk(broker: EmbeddedBroker) -> Iterator[ServiceBusClient]:
    # An hour ends the SDK's tokens, and with them its links: it attaches again.
    with client(broker.connection_string(), retry_total=3) as plain:
        yield plain


def engine(broker: EmbeddedBroker) -> BrokerNamespace:
    return broker._host.server().namespace


def test_a_lock_ends_and_its_message_comes_again(
    broker: EmbeddedBroker, sdk: ServiceBusClient
) -> None:
    broker.create_queue("locks")
    with sdk.get_queue_sender("locks") as sender, sdk.get_queue_receiver("locks") as receiver:
        sender.send_messages(ServiceBusMessage("x"))
        [message] = receiver.receive_messages(max_wait_time=30)
        broker.advance(timedelta(seconds=59))
        receiver.renew_message_lock(message)
        broker.advance(timedelta(seconds=61))
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        [again] = receiver.receive_messages(max_wait_time=30)
        assert again.delivery_count == 1


def test_times_to_live_schedules_and_duplicate_windows_end_in_their_order(
    broker: EmbeddedBroker, sdk: ServiceBusClient
) -> None:
    description = QueueDescription(
        requires_duplicate_detection=True, dead_letter_on_expiration=True
    )
    broker.create_queue("times", description)
    with sdk.get_queue_sender("times") as sender, sdk.get_queue_receiver("times") as receiver:
        at = datetime.now(UTC) + timedelta(hours=1)
        short = ServiceBusMessage("early", time_to_live=timedelta(minutes=5), message_id="a")
        late = ServiceBusMessage("late", time_to_live=timedelta(minutes=90), message_id="b")
        sender.schedule_messages(late, at)
        sender.send_messages(short)
        # After an hour and 11 minutes the window of 10 minutes is over, and `late` is there: its
        # life began when it was enqueued, not at the end of the jump.
        broker.advance(timedelta(minutes=71))
        sender.send_messages(ServiceBusMessage("again", message_id="a"))
        sender.send_messages(ServiceBusMessage("dropped", message_id="a"))
        found = receiver.receive_messages(5, max_wait_time=30)
        found += receiver.receive_messages(5, max_wait_time=1) if len(found) < 2 else []
        assert [str(message) for message in found] == ["late", "again"]
        enqueued = found[0].enqueued_time_utc
        assert enqueued is not None
        assert abs(enqueued - at) < timedelta(seconds=2)
        dead = sdk.get_queue_receiver("times", sub_queue="deadletter")
        [expired] = dead.receive_messages(max_wait_time=30)
        dead.close()
        assert (str(expired), expired.dead_letter_reason) == ("early", "TTLExpiredException")


def test_an_idle_queue_is_deleted(broker: EmbeddedBroker) -> None:
    broker.create_queue("idle", QueueDescription(auto_delete_on_idle_ms=300_000))
    broker.advance(timedelta(minutes=4))
    assert engine(broker).get_queue("idle").path == "idle"
    broker.advance(timedelta(minutes=2))
    with pytest.raises(EntityNotFound):
        engine(broker).get_queue("idle")


def test_an_idle_link_is_detached_and_one_in_use_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "twinbus.broker")
    profile = dataclasses.replace(LAPTOP, link_idle_s=600)
    with EmbeddedBroker(profile=profile, test_clock=True) as broker:
        broker.create_queue("links")
        sdk = client(broker.connection_string(), retry_total=0)
        with sdk, sdk.get_queue_sender("links") as sender:
            for _ in range(3):
                broker.advance(timedelta(seconds=590))
                sender.send_messages(ServiceBusMessage("in use"))
            assert "IdleTimerExpired" not in caplog.text
            broker.advance(timedelta(seconds=610))
            assert "IdleTimerExpired" in caplog.text


def test_a_token_ends_its_link_and_a_new_one_of_the_same_client_is_good(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_queue("tokens")
    caplog.set_level(logging.INFO, "twinbus.broker")
    with (
        client(broker.connection_string(), retry_total=3) as sdk,
        sdk.get_queue_sender("tokens") as sender,
    ):
        sender.send_messages(ServiceBusMessage("1"))
        # The SDK's tokens live for an hour, by the clock of the client, which stays where it is.
        broker.advance(timedelta(minutes=50))
        assert "refused a link" not in caplog.text
        broker.advance(timedelta(minutes=15))
        assert "refused a link to 'tokens'" in caplog.text
        sender.send_messages(ServiceBusMessage("2"))
        assert "sent nothing for" not in caplog.text
    assert len(engine(broker).get_queue("tokens").messages) == 2


def test_the_clock_never_goes_back_nor_out_of_the_range_of_dates(broker: EmbeddedBroker) -> None:
    for by in (timedelta(0), timedelta(seconds=-1), timedelta(days=40_000)):
        with pytest.raises(ArgumentOutOfRange, match="the clock moves on by 1 ms or more"):
            broker.advance(by)


def test_without_a_test_clock_it_is_refused() -> None:
    with EmbeddedBroker() as plain, pytest.raises(ArgumentInvalid, match="--test-clock"):
        plain.advance(timedelta(seconds=1))


def test_a_test_clock_needs_a_namespace_in_memory(tmp_path: object) -> None:
    with pytest.raises(BrokerStartError, match="a test clock needs a namespace in memory"):
        EmbeddedBroker(data=str(tmp_path), test_clock=True)
