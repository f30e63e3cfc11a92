"""Links of a blocking sender on its caller's thread: what is sent there, and each way to fail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from tests.contract.certificates import client_context
from tests.contract.pairs import PATIENCE_S, embedded, interrupted, no_thread_left, quick, sides
from tests.official_sdk import client, receive_all
from tests.processes import until
from twinbus import EmbeddedBroker, Fault, PairClosedError, PairingError
from twinbus.blocking import Namespace, Pair, PairedSender, pair_namespaces
from twinbus.broker.sas import AcceptedToken
from twinbus.pairing.sdk import direct_links
from twinbus.servicebus.names import backlog_paths

pytestmark = pytest.mark.contract

TOKEN = AcceptedToken(name="app", text="eyJ.web.token", rights=frozenset({"Manage"}))
SIDES = "contoso", "contoso-dr"


broker = embedded(tls=True, tokens=[TOKEN])

CARRIED_BY: dict[str, Any] = {}
"""The option for what carries the messages, in the present test."""


@pytest.fixture(params=["sdk", "own"], autouse=True)
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(CARRIED_BY, "links", request.param)
    kind: str = request.param
    return kind


@pytest.fixture(autouse=True)
def nothing_left(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open a link with the first send; fail if a test leaves a thread or a socket behind."""
    monkeypatch.setattr(direct_links, "BUSY_SENDS", 1)
    with no_thread_left():
        yield


@contextmanager
def paired(broker: EmbeddedBroker, **options: Any) -> Iterator[tuple[Pair, PairedSender]]:
    settings = quick(**{"attempt_timeout": 15.0, **CARRIED_BY, **options})
    with (
        pair_namespaces(*sides(broker), settings) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        yield pair, sender


def links_of(sender: PairedSender) -> direct_links.DirectLinks:
    return sender._links


def open_link(sender: PairedSender) -> None:
    """Send until a direct link is open."""
    sender.send_messages(ServiceBusMessage("opens", message_id="opens"))
    until(lambda: bool(links_of(sender).idle))


def stored(broker: EmbeddedBroker, *queues: str, namespace: str = "contoso") -> list[str]:
    """The ids in these queues, which are emptied."""
    found: list[str] = []
    with client(broker.connection_string(namespace)) as sdk:
        for queue in queues:
            with sdk.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
                found += [str(message.message_id) for message in receive_all(receiver)]
    return found


class Watched:
    """Counts the sends on the caller's thread."""

    def __init__(self, sender: PairedSender) -> None:
        self.count = 0
        links = links_of(sender)
        self._send = links.send
        links.send = self  # type: ignore[method-assign, assignment]

    def __call__(self, *args: Any) -> None:
        self.count += 1
        self._send(*args)


def test_a_busy_sender_sends_on_its_callers_thread_and_all_is_counted(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with paired(broker, ledger=str(tmp_path)) as (pair, sender):
        open_link(sender)
        watched = Watched(sender)
        with ThreadPoolExecutor(4) as pool:
            list(
                pool.map(
                    lambda n: sender.send_messages(ServiceBusMessage("x", message_id=str(n))),
                    range(100),
                )
            )
        # Not on this road: a list, a large message, a short timeout.
        count = watched.count
        sender.send_messages([ServiceBusMessage("x", message_id="list")])
        sender.send_messages(ServiceBusMessage(b"x" * 100_000, message_id="large"), timeout=60)
        sender.send_messages(ServiceBusMessage("x", message_id="hurry"), timeout=14)
        assert watched.count == count > 0
        assert pair.status().entities["orders"].sent == 104
    lines = [json.loads(line) for file in tmp_path.glob("**/*.jsonl") for line in file.open()]
    ids = {"opens", "list", "large", "hurry", *map(str, range(100))}
    sends = [line for line in lines if line["operation"] == "send"]
    assert sorted(line["message_id"] for line in sends) == sorted(ids)
    assert {line["outcome"] for line in sends} == {"ok"}
    assert sorted(stored(broker, "orders")) == sorted(ids)


def test_a_refusal_is_the_one_of_the_core(broker: EmbeddedBroker) -> None:
    with paired(broker, retry_total=0) as (pair, sender):
        open_link(sender)
        watched = Watched(sender)
        broker.add_fault(Fault(kind="refuse_send", condition="amqp:not-allowed"))
        with pytest.raises(ServiceBusError) as raised:
            sender.send_messages(ServiceBusMessage("x", message_id="refused"))
        broker.clear_faults()
        assert watched.count == 1
        assert raised.value.message_ids == ("refused",)  # type: ignore[attr-defined]
        status = pair.status().entities["orders"]
        assert (status.state, status.sent, status.raised) == ("healthy", 1, 1)
        sender.send_messages(ServiceBusMessage("x", message_id="taken"))
    assert sorted(stored(broker, "orders")) == ["opens", "taken"]


def test_a_lost_answer_is_repeated_by_the_core_under_the_same_id(broker: EmbeddedBroker) -> None:
    with paired(broker, failover_interval=600.0) as (pair, sender):
        open_link(sender)
        broker.add_fault(Fault(kind="drop_after_commit", entity="orders", count=1))
        sender.send_messages(ServiceBusMessage("x", message_id="twice"), timeout=60)
        assert pair.status().entities["orders"].state == "healthy"
    assert sorted(stored(broker, "orders")) == ["opens", "twice", "twice"]


def test_a_primary_that_hangs_ends_the_attempt_in_time_and_the_message_is_diverted(
    broker: EmbeddedBroker,
) -> None:
    with paired(broker, attempt_timeout=1.0, failover_interval=0.0) as (pair, sender):
        open_link(sender)
        watched = Watched(sender)
        broker.add_fault(Fault(kind="hang", entity="orders"))
        began = time.monotonic()
        sender.send_messages(ServiceBusMessage("x", message_id="saved"), timeout=60)
        assert time.monotonic() - began < 30
        assert watched.count == 1
        status = pair.status().entities["orders"]
        assert (status.state, status.diverted) == ("failed over", 1)
        # The next goes to the backlog at once.
        sender.send_messages(ServiceBusMessage("x", message_id="next"), timeout=60)
        assert watched.count == 1
        broker.clear_faults()
    backlog = backlog_paths("contoso", 2)
    assert sorted(stored(broker, *backlog, namespace="contoso-dr")) == ["next", "saved"]


@pytest.mark.parametrize("links", ["sdk"], indirect=True)
def test_a_send_that_the_sdk_does_not_end_is_cut_off(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK waits without a bound for a link that is not ready."""
    with paired(broker, attempt_timeout=1.0, failover_interval=0.0) as (pair, sender):
        open_link(sender)
        link: Any = links_of(sender).idle[0]
        handler = link.sdk._handler
        monkeypatch.setattr(handler, "_client_ready", lambda: False)
        began = time.monotonic()
        sender.send_messages(ServiceBusMessage("x", message_id="saved"), timeout=60)
        assert time.monotonic() - began < 30
        assert pair.status().entities["orders"].diverted == 1
        pair.mark_healthy("orders")
        sender.send_messages(ServiceBusMessage("x", message_id="back"))


def test_a_link_that_ended_while_idle_is_no_evidence_of_anything(broker: EmbeddedBroker) -> None:
    with paired(broker, failover_interval=0.0) as (pair, sender):
        open_link(sender)
        told: list[Any] = []
        pair.on_event(told.append)
        link: Any = links_of(sender).idle[0]
        link.cut_off()
        sender.send_messages(ServiceBusMessage("x", message_id="after"))
        assert [type(event).__name__ for event in told] == []
        assert pair.status().entities["orders"].sent == 2


def test_ctrl_c_ends_the_send_and_leaves_the_pair_as_it_was(broker: EmbeddedBroker) -> None:
    with paired(broker, attempt_timeout=50.0) as (pair, sender):
        open_link(sender)
        broker.add_fault(Fault(kind="hang", entity="orders"))
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), interrupted():
            sender.send_messages(ServiceBusMessage("x", message_id="never"))
        assert time.monotonic() - began < 30
        broker.clear_faults()
        until(lambda: pair.status().entities["orders"].raised == 1)
        assert pair.status().entities["orders"].state == "healthy"
        sender.send_messages(ServiceBusMessage("x", message_id="surely"))
    assert "surely" in stored(broker, "orders")


@pytest.mark.parametrize("part", ["pair", "sender", "side"])
def test_a_close_from_another_thread_ends_a_send_that_waits(
    broker: EmbeddedBroker, part: str
) -> None:
    with paired(broker, attempt_timeout=1.0, failover_interval=600.0) as (pair, sender):
        open_link(sender)
        broker.add_fault(Fault(kind="hang", entity="orders"))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(sender.send_messages, ServiceBusMessage("never"))
            until(lambda: bool(links_of(sender).busy))
            {"pair": pair, "sender": sender, "side": pair.primary}[part].close()  # type: ignore[attr-defined]
            with pytest.raises((PairingError, ValueError), match="closed"):
                waiting.result(PATIENCE_S)
        broker.clear_faults()
        with pytest.raises((PairClosedError, ValueError), match="closed"):
            sender.send_messages(ServiceBusMessage("late"))


class FetchingAsync:
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken(TOKEN.text, int(time.time()) + 3600)


def test_tls_and_a_credential_for_asyncio_serve_direct_links_too(broker: EmbeddedBroker) -> None:
    trust = client_context()
    primary, secondary = (
        Namespace(f"localhost:{broker.port(name)}", FetchingAsync(), name, ssl_context=trust)
        for name in SIDES
    )
    with (
        pair_namespaces(primary, secondary, quick(attempt_timeout=15.0, **CARRIED_BY)) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        open_link(sender)
        watched = Watched(sender)
        for number in range(5):
            sender.send_messages(ServiceBusMessage("x", message_id=str(number)))
        assert watched.count == 5
    assert sorted(stored(broker, "orders")) == ["0", "1", "2", "3", "4", "opens"]


def test_a_websocket_has_no_direct_links(broker: EmbeddedBroker) -> None:
    text = broker.connection_string("contoso")
    kind = TransportType.AmqpOverWebsocket
    primary = Namespace.from_connection_string(text, "contoso", transport_type=kind)
    secondary = broker.connection_string("contoso-dr")
    with (
        pair_namespaces(primary, secondary, quick(attempt_timeout=15.0, **CARRIED_BY)) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
        until(lambda: links_of(sender).opening is None)
        assert links_of(sender).idle == []
        sender.send_messages(ServiceBusMessage("x"))
        assert links_of(sender).opening is None


@pytest.mark.parametrize("links", ["own"], indirect=True)
def test_an_own_link_is_given_up_in_good_time_before_its_token_expires(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paired(broker) as (_, sender):
        open_link(sender)
        link: Any = links_of(sender).idle[0]
        assert link.is_usable(time.monotonic())
        later_s = time.time() + 0.8 * 3_600
        monkeypatch.setattr("twinbus.client.sending.blocking_link.time.time", lambda: later_s)
        assert not link.is_usable(time.monotonic())
        monkeypatch.undo()


@pytest.mark.parametrize("links", ["own"], indirect=True)
def test_an_own_link_sends_on_when_its_credit_was_used_up(broker: EmbeddedBroker) -> None:
    with paired(broker) as (_, sender):
        open_link(sender)
        watched = Watched(sender)
        link: Any = links_of(sender).idle[0]
        count = link._link._link.credit + 10
        for number in range(count):
            sender.send_messages(ServiceBusMessage("x", message_id=str(number)))
        assert watched.count == count
    assert len(stored(broker, "orders")) == count + 1
