"""Values at the edges of AMQP's types: taken everywhere or refused by name, never lost half-way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from tests.contract.conftest import receive, stays_empty
from tests.official_sdk import administration, client
from twinbus.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.contract

NAMES = ("all", "by-text", "by-action", "last")


def typed(kind: str, value: int) -> Any:
    """A value that the SDK writes with the AMQP type of that name."""
    return {"TYPE": kind, "VALUE": value}


def told(bus: ServiceBusClient, name: str, count: int, **settings: Any) -> list[str]:
    """The bodies of the next messages of a subscription of `news`, which are completed."""
    with bus.get_subscription_receiver("news", name, **settings) as receiver:
        messages = receive(receiver, count)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


@pytest.mark.parametrize("delay_s", [0, 1], ids=["sent", "scheduled"])
def test_a_time_past_the_year_9999_reaches_every_subscription(delay_s: int) -> None:
    with EmbeddedBroker("contoso") as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_topic("news")
            admin.create_queue("front", forward_to="news")
            for name in NAMES:
                admin.create_subscription(
                    "news", name, dead_lettering_on_filter_evaluation_exceptions=True
                )
            by_text, by_action = (
                SqlRuleFilter("at + '' <> 'x'"),
                SqlRuleAction("SET sys.Label = at"),
            )
            admin.create_rule("news", "by-text", "r", filter=by_text)
            admin.create_rule("news", "by-action", "r", action=by_action)
            for name in ("by-text", "by-action"):
                admin.delete_rule("news", name, "$Default")
        far = ServiceBusMessage("far", application_properties={"at": typed("TIMESTAMP", 2**62)})
        if delay_s:
            far.scheduled_enqueue_time_utc = datetime.now(UTC) + timedelta(seconds=delay_s)
        with client(broker.connection_string()) as bus:
            with bus.get_topic_sender("news") as sender:
                sender.send_messages(far)
            with bus.get_queue_sender("front") as sender:
                sender.send_messages([far, ServiceBusMessage("near")])
            found = {name: sorted(told(bus, name, 3)) for name in ("all", "last")}
            dead = {
                name: told(bus, name, 2, sub_queue="deadletter")
                for name in ("by-text", "by-action")
            }
        assert found == {"all": ["far", "far", "near"], "last": ["far", "far", "near"]}
        assert dead == {"by-text": ["far", "far"], "by-action": ["far", "far"]}


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("at", [typed("ULONG", 2**63), typed("TIMESTAMP", -(2**63))])
def test_a_batch_with_a_scheduled_time_out_of_range_is_refused_whole(
    tmp_path: Path, kind: str, at: Any
) -> None:
    def batch(*, is_good: bool) -> list[ServiceBusMessage]:
        messages = [ServiceBusMessage(name, message_id=name) for name in ("1", "2", "3")]
        if not is_good:
            messages[1].raw_amqp_message.annotations = {"x-opt-scheduled-enqueue-time": at}
        return messages

    with EmbeddedBroker("contoso", data=tmp_path) as broker:
        with administration(broker.connection_string()) as admin:
            if kind == "queue":
                admin.create_queue("in", requires_duplicate_detection=True)
            else:
                admin.create_queue("out")
                admin.create_topic("in", requires_duplicate_detection=True)
                admin.create_subscription("in", "s", forward_to="out")
        with client(broker.connection_string()) as bus:
            sender = bus.get_queue_sender if kind == "queue" else bus.get_topic_sender
            with sender("in") as refused, pytest.raises(ServiceBusError) as refusal:
                refused.send_messages(batch(is_good=False))
            with sender("in") as refused, pytest.raises(ServiceBusError) as singly:
                refused.send_messages(batch(is_good=False)[1])
    for error in (refusal, singly):
        assert "x-opt-scheduled-enqueue-time" in str(error.value)
        assert str(at["VALUE"]) in str(error.value)
    # A restart shows what is on disk, and what of it counts as seen.
    with (
        EmbeddedBroker("contoso", data=tmp_path) as broker,
        client(broker.connection_string()) as bus,
    ):
        sender = bus.get_queue_sender if kind == "queue" else bus.get_topic_sender
        with sender("in") as accepted:
            accepted.send_messages(batch(is_good=True))
        with bus.get_queue_receiver("in" if kind == "queue" else "out") as receiver:
            assert [str(message) for message in receive(receiver, 3)] == ["1", "2", "3"]
            assert stays_empty(receiver)
