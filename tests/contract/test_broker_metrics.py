"""What `/metrics` of a namespace says, read by Prometheus's own parser."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from prometheus_client.parser import text_string_to_metric_families

from tests.official_sdk import PATIENCE_S, client, receive_count
from twinbus import EmbeddedBroker
from twinbus.broker import exposition
from twinbus.exposition import CONTENT_TYPE

pytestmark = pytest.mark.contract


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", data=tmp_path) as embedded:
        yield embedded


def scraped(broker: EmbeddedBroker) -> dict[str, float]:
    http_client = http.client.HTTPConnection("localhost", broker.port(), timeout=PATIENCE_S)
    try:
        http_client.request("GET", "/metrics")
        answer = http_client.getresponse()
        assert answer.status == 200
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        text = answer.read().decode()
    finally:
        http_client.close()
    result = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            assert sample.labels.pop("namespace") == "contoso"
            words = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            result[f"{sample.name.removeprefix('twinbus_broker_')}{{{words}}}"] = sample.value
    return result


def test_depths_connections_and_commits(broker: EmbeddedBroker) -> None:
    broker.create_queue("orders")
    broker.create_topic("news", ["all"])
    before = scraped(broker)
    assert before["messages{entity=orders,state=active}"] == 0
    assert before["connections{}"] == 0
    with (
        client(broker.connection_string()) as sdk,
        sdk.get_queue_sender("orders") as sender,
        sdk.get_topic_sender("news") as topic,
        sdk.get_queue_receiver("orders") as receiver,
    ):
        sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(3)])
        topic.send_messages(ServiceBusMessage("y"))
        first, second = receive_count(receiver, 2)
        receiver.dead_letter_message(first)
        receiver.defer_message(second)
        during = scraped(broker)
    assert during["messages{entity=orders,state=active}"] == 1
    assert during["messages{entity=orders,state=deferred}"] == 1
    assert during["messages{entity=orders,state=dead-lettered}"] == 1
    assert during["messages{entity=news/Subscriptions/all,state=active}"] == 1
    assert during["bytes{entity=orders}"] > 300
    assert during["connections{}"] >= 2
    assert during["commits_total{}"] > before["commits_total{}"]
    assert during["commit_failures_total{}"] == 0


def test_past_the_limit_entities_are_summed(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "ENTITIES_MAX", 2)
    for name in "abcd":
        broker.create_queue(name)
    with client(broker.connection_string()) as sdk:
        for name in "acd":
            with sdk.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage("x"))
    found = {k: v for k, v in scraped(broker).items() if "state=active" in k}
    assert found == {
        "messages{entity=a,state=active}": 1,
        "messages{entity=b,state=active}": 0,
        "messages{entity=(others),state=active}": 2,
    }
