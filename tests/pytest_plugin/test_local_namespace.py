"""The classes behind the fixtures: what a test sees of a namespace, and its outages."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from tests.official_sdk import client
from twinbus import Fault, testing
from twinbus.blocking import pair_namespaces
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.testing import LocalNamespace, LocalPair, OutageKind, SentMessage, administration

pytestmark = pytest.mark.end_to_end

DOCS = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


@pytest.fixture
def namespace() -> Iterator[LocalNamespace]:
    with LocalNamespace() as served:
        served.create_queue("orders")
        yield served


@pytest.fixture
def sender(namespace: LocalNamespace) -> Iterator[ServiceBusSender]:
    with (
        client(namespace.connection_string) as sdk,
        sdk.get_queue_sender("orders") as opened,
    ):
        yield opened


def texts(messages: list[SentMessage]) -> list[str]:
    return [str(message) for message in messages]


def test_what_was_sent_is_listed_also_after_it_was_received(
    namespace: LocalNamespace, sender: ServiceBusSender
) -> None:
    message = ServiceBusMessage(
        "one order",
        message_id="1",
        session_id="s",
        subject="new",
        correlation_id="c",
        content_type="text/plain",
        application_properties={"count": 3},
    )
    sender.send_messages(message)
    with (
        client(namespace.connection_string) as sdk,
        sdk.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver,
    ):
        assert receiver.receive_messages(1, max_wait_time=20)
    assert namespace.sent("ORDERS") == [
        SentMessage(
            entity="orders",
            body=b"one order",
            message_id="1",
            session_id="s",
            subject="new",
            correlation_id="c",
            content_type="text/plain",
            application_properties={"count": 3},
        )
    ]
    assert namespace.sent("payments") == []


def test_batches_scheduled_messages_and_other_bodies_are_listed_in_order(
    namespace: LocalNamespace, sender: ServiceBusSender
) -> None:
    sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    sender.schedule_messages(ServiceBusMessage("3"), datetime.now(UTC) + timedelta(hours=1))
    sender.send_messages(AmqpAnnotatedMessage(value_body={"four": 4}))
    sender.send_messages(AmqpAnnotatedMessage(sequence_body=[[5, 6]]))
    sent = namespace.sent("orders", count=5)
    assert texts(sent[:3]) == ["1", "2", "3"]
    assert [message.body for message in sent[3:]] == [{"four": 4}, [5, 6]]


def test_a_duplicate_is_not_listed(namespace: LocalNamespace) -> None:
    with administration(namespace.connection_string) as admin:
        admin.create_queue("once", requires_duplicate_detection=True)
    with client(namespace.connection_string) as sdk, sdk.get_queue_sender("once") as opened:
        for _ in range(2):
            opened.send_messages(ServiceBusMessage("order", message_id="1"))
    assert texts(namespace.sent("once")) == ["order"]


def test_it_waits_for_messages_and_says_which_came(
    namespace: LocalNamespace, sender: ServiceBusSender
) -> None:
    sending = threading.Timer(0.1, lambda: sender.send_messages(ServiceBusMessage("late")))
    sending.start()
    assert texts(namespace.sent("orders", count=1)) == ["late"]
    sending.join()
    with pytest.raises(AssertionError, match=r"1 of 2 messages were sent within 0.01 s: 'late'"):
        namespace.sent("orders", count=2, timeout=0.01)


@pytest.mark.parametrize("kind", get_args(OutageKind))
def test_an_outage_fails_sends_for_its_block_and_loses_nothing(
    namespace: LocalNamespace, kind: OutageKind
) -> None:
    def send(text: str) -> None:
        with (
            client(namespace.connection_string, try_timeout=5) as sdk,
            sdk.get_queue_sender("orders") as opened,
        ):
            opened.send_messages(ServiceBusMessage(text))

    with client(namespace.connection_string) as sdk, sdk.get_queue_sender("orders") as opened:
        opened.send_messages(ServiceBusMessage("before"))
        with namespace.outage(kind):
            with pytest.raises((ServiceBusError, OSError)):
                opened.send_messages(ServiceBusMessage("on an open link"), timeout=2)
            # The SDK's sync client waits for ever for a peer that does not answer at first.
            if kind != "hang":
                with pytest.raises((ServiceBusError, OSError)):
                    send("on a new link")
            assert texts(namespace.sent("orders")) == ["before"]
    send("after")
    assert texts(namespace.sent("orders")) == ["before", "after"]
    with (
        client(namespace.connection_string) as sdk,
        sdk.get_queue_receiver("orders") as receiver,
    ):
        received = [str(message) for message in receiver.peek_messages(10)]
    assert received == ["before", "after"]


def test_an_outage_can_be_of_one_entity(
    namespace: LocalNamespace, sender: ServiceBusSender
) -> None:
    namespace.create_topic("events", "audit")
    with client(namespace.connection_string) as sdk, sdk.get_topic_sender("events") as other:
        with namespace.outage("throttle", "events"):
            sender.send_messages(ServiceBusMessage("taken"))
            with pytest.raises(ServiceBusServerBusyError):
                other.send_messages(ServiceBusMessage("refused"))
        other.send_messages(ServiceBusMessage("taken"))
    assert texts(namespace.sent("events")) == ["taken"]
    wrong: Any = "explode"
    with pytest.raises(ValueError, match="kill, hang, throttle, refuse"), namespace.outage(wrong):
        pass
    with pytest.raises(ValueError, match="whole namespace"), namespace.outage("kill", "orders"):
        pass


def test_a_pair_diverts_in_an_outage_and_its_syphon_brings_the_messages_home(
    namespace: LocalNamespace,
) -> None:
    with LocalNamespace("contoso-dr") as secondary:
        local = LocalPair(namespace, secondary)
        sides = namespace.connection_string, secondary.connection_string
        with (
            pair_namespaces(*sides, local.options) as pair,
            pair.get_queue_sender("orders") as sender,
        ):
            with namespace.outage("kill"):
                sender.send_messages(ServiceBusMessage("order"), timeout=60)
                assert texts(local.diverted()) == ["order"]
            assert texts(namespace.sent("orders", count=1)) == ["order"]


def test_the_example_of_the_administration_client_runs_as_printed() -> None:
    [example] = re.findall(r"```python\n(from.*?)```", DOCS.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['orders']\n", "")


def test_the_public_names_of_testing_all_load() -> None:
    assert set(testing._HOMES) == set(testing.__all__)
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'crystal_ball'"):
        testing.crystal_ball  # type: ignore[attr-defined]  # noqa: B018


def test_an_outage_can_be_any_fault(namespace: LocalNamespace, sender: ServiceBusSender) -> None:
    lost = Fault(kind="refuse_send", entity="orders", count=1)
    with namespace.outage(lost):
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("refused"))
        sender.send_messages(ServiceBusMessage("taken"))
    assert texts(namespace.sent("orders")) == ["taken"]
    with pytest.raises(ValueError, match="in the fault"), namespace.outage(lost, "orders"):
        pass
    # A broker cannot detach links on request, and what was added before is gone.
    with pytest.raises(ArgumentInvalid), namespace.outage(Fault(kind="detach")):
        pass


def test_the_clock_of_the_namespace_can_be_moved(
    namespace: LocalNamespace, sender: ServiceBusSender
) -> None:
    sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(minutes=5)))
    namespace.advance(timedelta(minutes=6))
    with (
        client(namespace.connection_string) as sdk,
        sdk.get_queue_receiver("orders") as receiver,
    ):
        assert receiver.peek_messages(1) == []


def test_with_an_upstream_the_fixtures_break_a_real_namespace_behind_a_proxy(
    namespace: LocalNamespace, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("TWINBUS_UPSTREAM", namespace.connection_string)
    proxied = request.getfixturevalue("service_bus")
    outage = request.getfixturevalue("outage")
    assert proxied.connection_string != namespace.connection_string
    with (
        client(proxied.connection_string, retry_total=0, **proxied.client_options) as sdk,
        sdk.get_queue_sender("orders") as opened,
    ):
        opened.send_messages(ServiceBusMessage("through the proxy"))
        with outage("throttle", "orders"), pytest.raises(ServiceBusServerBusyError):
            opened.send_messages(ServiceBusMessage("refused"))
    assert texts(namespace.sent("orders")) == ["through the proxy"]
    with pytest.raises(pytest.skip.Exception, match="unset TWINBUS_UPSTREAM"):
        request.getfixturevalue("sent_messages")
