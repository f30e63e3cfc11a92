"""Values at the edges of AMQP's types: taken everywhere or refused by name, never lost half-way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from tests.contract.conftest import receive
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
