"""What the plain SDK meets when it is refused, or the broker misbehaves on request."""

from __future__ import annotations

import logging
import re
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    TransportType,
)
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import EntityStatus

from tests.contract.conftest import Tour, receive_one, stays_empty, with_both_clients
from tests.contract.pairs import embedded
from tests.official_sdk import Faults, administration, client, is_missing
from twinbus import EmbeddedBroker
from twinbus.broker.descriptions import AuthorizationRule

pytestmark = pytest.mark.contract

REFUSED = (ServiceBusAuthorizationError, ServiceBusAuthenticationError)
"""The SDK tells a missing right at attach or at put-token, and names them differently."""


def hello() -> ServiceBusMessage:
    return ServiceBusMessage("hello")


@with_both_clients
def test_an_entity_that_is_not_there_is_not_found(tour: Tour) -> None:
    with pytest.raises(ServiceBusAuthenticationError, check=is_missing):
        tour.sender("nowhere").send_messages(hello())
    with pytest.raises(ServiceBusAuthenticationError, check=is_missing):
        tour.receiver("nowhere").receive_messages(max_wait_time=1)


@with_both_clients
def test_a_wrong_key_and_an_unknown_rule_are_refused(tour: Tour) -> None:
    queue = tour.queue()
    for rule, key in (("RootManageSharedAccessKey", "wrong"), ("nobody", "SAS_KEY_VALUE")):
        text = tour.broker.connection_string(rule=rule, key=key)
        with tour.connect(text) as stranger, pytest.raises(ServiceBusAuthenticationError):
            stranger.get_queue_sender(queue).send_messages(hello())
    log = tour.broker.log()
    assert "signature does not match" in log
    assert "'nobody'" in log
    assert "wrong" not in log, "the log holds a key"


def test_a_rule_allows_what_its_rights_say_and_no_more(tour: Tour) -> None:
    queue = tour.queue()
    may_send = tour.broker.connection_string(rule="sender", key="send-key")
    may_listen = tour.broker.connection_string(rule="listener", key="listen-key")
    with client(may_send) as sending, client(may_listen) as listening:
        with sending.get_queue_sender(queue) as sender:
            sender.send_messages(hello())
        with listening.get_queue_receiver(queue) as receiver:
            receiver.complete_message(receive_one(receiver))
        with pytest.raises(REFUSED):
            sending.get_queue_receiver(queue).receive_messages(max_wait_time=1)
        with pytest.raises(REFUSED):
            listening.get_queue_sender(queue).send_messages(hello())
    assert tour.admin.get_queue_runtime_properties(queue).total_message_count == 0


@with_both_clients
@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")  # the SDK's
@pytest.mark.parametrize("path", ["", "/$servicebus/websocket"])
def test_the_same_port_speaks_amqp_over_websocket(tour: Tour, path: str) -> None:
    # The SDK appends the path of Service Bus to whatever it was given, even to that path itself.
    queue = tour.queue()
    large = b"w" * (200 * 1024)
    with tour.connect(
        tour.broker.connection_string(),
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"sb://localhost:{tour.broker.port()}{path}",
    ) as over_websocket:
        sender = over_websocket.get_queue_sender(queue)
        receiver = over_websocket.get_queue_receiver(queue)
        with sender, receiver:
            sender.send_messages(ServiceBusMessage(large))
            got = receive_one(receiver)
            assert b"".join(got.body) == large
            receiver.complete_message(got)
    assert tour.admin.get_queue_runtime_properties(queue).total_message_count == 0


@pytest.fixture
def faults(tour: Tour) -> Iterator[Faults]:
    yield tour.faults
    tour.faults.clear()


def test_faults_are_listed_counted_down_and_removed(tour: Tour, faults: Faults) -> None:
    sender = tour.sender(tour.queue())
    sender.send_messages(hello())
    number = faults.add("refuse_send", count=2, condition="amqp:resource-limit-exceeded")
    with pytest.raises(ServiceBusQuotaExceededError):
        sender.send_messages(hello())
    (listed,) = faults.list()["faults"]
    assert (listed["id"], listed["kind"], listed["count"]) == (number, "refuse_send", 1)
    faults.remove(number)
    sender.send_messages(hello())
    assert faults.list()["faults"] == []
    with pytest.raises(urllib.error.HTTPError) as unknown:
        faults.add("explode")
    assert unknown.value.code == 400
    stranger = Faults(tour.broker.connection_string(rule="sender", key="send-key"))
    with pytest.raises(urllib.error.HTTPError) as refused:
        stranger.add("hang")
    assert refused.value.code in {401, 403}
    for error in (unknown.value, refused.value):
        error.close()


@with_both_clients
def test_a_refused_attach_and_a_throttled_send_strike_their_entity_alone(
    tour: Tour, faults: Faults
) -> None:
    struck, other = tour.queue(), tour.queue()
    faults.add("refuse_attach", entity=struck, condition="com.microsoft:server-busy", count=1)
    with pytest.raises(ServiceBusServerBusyError):
        tour.sender(struck).send_messages(hello())
    faults.add("throttle", entity=struck, count=1)
    unaffected = tour.sender(other)
    unaffected.send_messages(hello())
    sender = tour.sender(struck)
    with pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(hello())
    sender.send_messages(hello())
    assert tour.admin.get_queue_runtime_properties(struck).total_message_count == 1


def test_a_hanging_send_is_not_answered_and_not_stored(tour: Tour, faults: Faults) -> None:
    queue = tour.queue()
    with (
        client(tour.broker.connection_string(), try_timeout=2) as impatient,
        impatient.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(hello())
        faults.add("hang", entity=queue, for_ms=60_000)
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(hello())
    faults.clear()
    assert tour.admin.get_queue_runtime_properties(queue).total_message_count == 1


def test_who_waits_for_a_session_hears_that_the_queue_is_disabled(tour: Tour) -> None:
    queue = tour.queue(requires_session=True)
    settings = tour.admin.get_queue(queue)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            tour.client.get_queue_receiver(
                queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=60
            ).receive_messages
        )
        while f"{queue!r}" not in tour.broker.log() and waiting.running():
            time.sleep(0.05)
            settings.status = EntityStatus.DISABLED
            tour.admin.update_queue(settings)
        with pytest.raises(MessagingEntityDisabledError):
            waiting.result(60)


def test_faults_strike_scheduling_too(tour: Tour, faults: Faults) -> None:
    queue = tour.queue()
    sender = tour.sender(queue)
    later = datetime.now(UTC) + timedelta(hours=1)
    faults.add(kind="throttle", entity=queue, count=1)
    with pytest.raises(ServiceBusServerBusyError):
        sender.schedule_messages(hello(), later)
    faults.add(kind="hang", entity=queue, count=1)
    with pytest.raises(OperationTimeoutError):
        sender.schedule_messages(hello(), later, timeout=1)
    assert len(sender.schedule_messages(hello(), later)) == 1
    counts = tour.admin.get_queue_runtime_properties(queue)
    assert counts.scheduled_message_count == 1


def test_a_delayed_send_is_answered_late(tour: Tour, faults: Faults) -> None:
    queue = tour.queue()
    sender = tour.sender(queue)
    sender.send_messages(hello())
    faults.add("delay", entity=queue, delay_ms=700, count=1)
    began = time.monotonic()
    sender.send_messages(hello())
    assert time.monotonic() - began >= 0.7
    assert tour.admin.get_queue_runtime_properties(queue).total_message_count == 2


@with_both_clients
@pytest.mark.parametrize(("kind", "stored"), [("drop_before_commit", 0), ("drop_after_commit", 1)])
def test_a_connection_dropped_around_the_commit_leaves_the_sender_in_doubt(
    tour: Tour, faults: Faults, kind: str, stored: int
) -> None:
    queue = tour.queue()
    sender = tour.sender(queue)
    faults.add(kind, entity=queue, count=1)
    with pytest.raises(ServiceBusError):
        sender.send_messages(hello(), timeout=5)
    assert tour.admin.get_queue_runtime_properties(queue).total_message_count == stored
    receiver = tour.receiver(queue)
    assert stays_empty(receiver) is not bool(stored)
    sender.send_messages(hello())
    assert faults.list()["faults"] == []


TRACKING = re.compile(r"TrackingId:[0-9a-f-]{36}_B, SystemTracker:contoso, Timestamp:\d{4}-")
LISTENER = AuthorizationRule(key_name="listener", primary_key="KEY", rights=frozenset({"Listen"}))


refusing = embedded("contoso", rules=[LISTENER], scope="module")


def send(queue: str) -> Callable[[ServiceBusClient], Any]:
    def act(sdk: ServiceBusClient) -> None:
        with sdk.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x"))

    return act


def receive(queue: str) -> Callable[[ServiceBusClient], Any]:
    def act(sdk: ServiceBusClient) -> None:
        with sdk.get_queue_receiver(queue) as receiver:
            receiver.receive_messages(1, max_wait_time=1)

    return act


def refused(text: str, act: Callable[[ServiceBusClient], Any], error: Any) -> str:
    with client(text) as sdk, pytest.raises(error) as caught:
        act(sdk)
    return f"{caught.value} {getattr(caught.value, 'inner_exception', '')}"


def test_a_missing_entity_is_told_by_the_text_that_the_javascript_sdk_looks_for(
    refusing: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    text = refusing.connection_string()
    for act in (send("ghost"), receive("ghost")):
        said = refused(text, act, ServiceBusAuthenticationError)
        assert "Status code: 404" in said
        assert "The messaging entity 'sb://localhost/ghost' could not be found." in said
        tracking = TRACKING.search(said)
        assert tracking is not None
        assert tracking.group() in caplog.text


def test_a_missing_right_and_a_bad_key_have_azures_words(refusing: EmbeddedBroker) -> None:
    text = refusing.connection_string()
    listening = text.replace("RootManageSharedAccessKey", "listener").replace(
        "SAS_KEY_VALUE", "KEY"
    )
    said = refused(listening, send("orders"), ServiceBusAuthorizationError)
    assert "Unauthorized access. 'Send' claim(s) are required" in said
    assert TRACKING.search(said)
    wrong = text.replace("SAS_KEY_VALUE", "WRONG")
    for string, expected in (
        (listening, "Authorization failed for specified action: Manage,EntityWrite."),
        (wrong, "InvalidSignature: The token has an invalid signature."),
    ):
        with administration(string) as admin, pytest.raises(ClientAuthenticationError) as caught:
            admin.create_queue("mine")
        assert expected in str(caught.value)
        assert TRACKING.search(str(caught.value))
