"""`twinbus faults` against a broker in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.official_sdk import client
from tests.unit.console.commands import Ran, run
from twinbus import EmbeddedBroker

COULD_NOT, USAGE_ERROR = 1, 2


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso") as served:
        served.create_queue("orders")
        monkeypatch.setenv("TWINBUS_PRIMARY", served.connection_string())
        yield served


def test_faults_are_added_listed_and_ended(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    def types(*words: str) -> str:
        ran = run(capsys, "faults", *words)
        assert (ran.status, ran.err) == (0, "")
        return ran.out

    assert types("list") == "no fault is in force\n"
    said = types("add", "throttle", "--entity", "orders", "--for", "1h", "--times", "2")
    assert said.startswith("fault 1: throttle on orders, 2 times, for ")
    with (
        client(broker.connection_string(), retry_total=0) as sdk,
        sdk.get_queue_sender("orders") as sender,
        pytest.raises(ServiceBusServerBusyError),
    ):
        sender.send_messages(ServiceBusMessage("x"))
    delay = json.loads(types("add", "delay", "--delay", "20ms", "--output", "json"))
    assert (delay["id"], delay["delay_ms"], delay["entity"]) == (2, 20, None)
    types("add", "refuse-send", "--condition", "amqp:not-allowed", "--probability", "0.5")
    head, first, second, third = types("list").splitlines()
    assert head.split()[:3] == ["NUMBER", "KIND", "ENTITY"]
    assert first.split()[:4] == ["1", "throttle", "orders", "1"]
    assert second.split()[:3] == ["2", "delay", "all"]
    assert third.endswith("amqp:not-allowed, probability 0.5")
    assert types("remove", "2") == "fault 2 ended\n"
    listed = json.loads(types("list", "--output", "json"))["faults"]
    assert [fault["id"] for fault in listed] == [1, 3]
    assert types("clear") == "2 faults ended\n"
    assert types("list") == "no fault is in force\n"


def test_what_the_broker_refuses_is_one_line(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*words: str) -> Ran:
        ran = run(capsys, "faults", *words)
        assert (ran.out, ran.err.count("\n")) == ("", 1)
        return ran

    wrong = fails("add", "explode")
    assert wrong.status == USAGE_ERROR
    assert "'explode' is unknown; use one of refuse_attach" in wrong.err
    gone = fails("remove", "7")
    assert gone.status == COULD_NOT
    assert "no fault '7' is in force" in gone.err
    text = broker.connection_string().replace("SAS_KEY_VALUE", "s3cret")
    monkeypatch.setenv("TWINBUS_PRIMARY", text)
    refused = fails("list")
    assert refused.status == COULD_NOT
    assert "wrong key or wrong key name" in refused.err
    monkeypatch.setenv("TWINBUS_PRIMARY", "")
    assert fails("list").status == USAGE_ERROR
