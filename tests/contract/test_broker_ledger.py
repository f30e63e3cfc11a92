"""What a broker counts while the SDK is at work: its ledger, the requests it bills, its metrics."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError
from prometheus_client.parser import text_string_to_metric_families

import twinbus.broker.http
import twinbus.broker.links.management
from tests.contract.conftest import receive
from tests.contract.pairs import until
from tests.ledger_reading import read
from tests.official_sdk import PATIENCE_S, PING_CONTENT_TYPE, administration, client, receive_count
from tests.processes import ServedBroker, run_twinbus
from twinbus import BrokerStartError, EmbeddedBroker
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.sessions import Sessions
from twinbus.broker.exposition import ENTITIES_MAX
from twinbus.broker.faults import Fault
from twinbus.client.administration import counts_of, list_backlog_queues
from twinbus.console import namespaces as commands
from twinbus.exposition import CONTENT_TYPE
from twinbus.ledger import LedgerWriter
from twinbus.ledger.requests import recording_to
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.replaying import DeadLetterFilter, dead_letters, replay
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract
BACKLOG = "contoso/x-servicebus-transfer/3"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def broker(ledger: Path, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", data=tmp_path / "data", ledger=ledger) as embedded:
        yield embedded


def records(ledger: Path) -> list[dict[str, Any]]:
    """The records of a ledger, once for all that they have the right time, view and namespace."""
    found = list(read(ledger))
    for record in found:
        assert record.pop("view") == "broker"
        assert record.pop("namespace") == "contoso"
        assert abs(record.pop("at_ms") - time.time() * 1000) < 60_000
        del record["v"], record["process"]
    return found


def told(ledger: Path) -> list[tuple[Any, ...]]:
    """Operation, entity, message id and number of each, and state or error where there is one."""
    return [
        (
            record["operation"],
            record.get("entity"),
            record.get("message_id"),
            record.get("sequence_number"),
            *(record[name] for name in ("state", "error") if name in record),
        )
        for record in records(ledger)
    ]


def wait_until_told(ledger: Path, wanted: set[tuple[Any, ...]]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not wanted <= set(told(ledger)):
        assert time.monotonic() < ends, told(ledger)
        time.sleep(0.02)


def message(name: str, **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x" * 100, message_id=name, **properties)


def test_every_message_is_told_of_from_send_to_end(broker: EmbeddedBroker, ledger: Path) -> None:
    broker.create_queue("orders")
    with client(broker.connection_string()) as sdk, sdk.get_queue_sender("orders") as sender:
        sender.send_messages([message("a"), message("b"), message("c")])
        with sdk.get_queue_receiver("orders") as receiver:
            a, b, c = receive(receiver, 3)
            receiver.complete_message(a)
            receiver.defer_message(b)
            receiver.dead_letter_message(c, reason="bad", error_description="very")
            (b,) = receiver.receive_deferred_messages([b.sequence_number or 0])
            receiver.complete_message(b)
        sender.send_messages(message("d"))
        with sdk.get_queue_receiver(
            "orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver:
            receiver.receive_messages(1, max_wait_time=PATIENCE_S)
    broker.stop()
    assert told(ledger) == [
        ("state", None, None, None, "serving"),
        ("state", None, None, None, "recovered"),
        ("send", "orders", "a", 1),
        ("send", "orders", "b", 2),
        ("send", "orders", "c", 3),
        ("receive", "orders", "a", 1),
        ("receive", "orders", "b", 2),
        ("receive", "orders", "c", 3),
        ("complete", "orders", "a", 1),
        ("defer", "orders", "b", 2),
        ("dead_letter", "orders", "c", 3, "bad"),
        ("receive", "orders", "b", 2),
        ("complete", "orders", "b", 2),
        ("send", "orders", "d", 4),
        ("receive", "orders", "d", 4),
        ("complete", "orders", "d", 4),
        ("state", None, None, None, "stopped"),
    ]
    assert [path.suffix for path in ledger.glob("*.jsonl*")] == [".jsonl"]
    sends = [record for record in records(ledger) if record["operation"] == "send"]
    assert {record["outcome"] for record in sends} == {"ok"}
    assert all(100 < record["size_bytes"] < 300 for record in sends)


def test_what_expires_is_told_of_apart_from_what_is_lost(
    broker: EmbeddedBroker, ledger: Path
) -> None:
    broker.create_queue("gone")
    broker.create_queue("kept", QueueDescription(dead_letter_on_expiration=True))
    with client(broker.connection_string()) as sdk:
        for queue in ("gone", "kept"):
            with sdk.get_queue_sender(queue) as sender:
                sender.send_messages(message("a", time_to_live=timedelta(seconds=1)))
        wanted = {
            ("expire", "gone", "a", 1),
            ("dead_letter", "kept", "a", 1, "TTLExpiredException"),
        }
        wait_until_told(ledger, wanted)


def test_scheduled_cancelled_and_duplicated_messages_and_pings(
    broker: EmbeddedBroker, ledger: Path
) -> None:
    broker.create_queue("once", QueueDescription(requires_duplicate_detection=True))
    later = datetime.now(UTC) + timedelta(hours=1)
    with client(broker.connection_string()) as sdk, sdk.get_queue_sender("once") as sender:
        number = sender.schedule_messages(message("a"), later)
        sender.cancel_scheduled_messages(number)
        sender.send_messages(message("b"))
        sender.send_messages(message("b"))
        sender.schedule_messages(message("c"), datetime.now(UTC) + timedelta(seconds=1.5))
        sender.send_messages(ServiceBusMessage(b"", content_type=PING_CONTENT_TYPE, message_id="p"))
        with sdk.get_queue_receiver("once") as receiver:
            assert len(receive(receiver, 2)) == 2
    broker.stop()
    assert told(ledger)[2:-1] == [
        ("send", "once", "a", 1, "scheduled"),
        ("manage", "once", "a", 1, "cancelled"),
        ("send", "once", "b", 2),
        ("send", "once", "b", None, "duplicate"),
        ("send", "once", "c", 3, "scheduled"),
        ("ping", "once", "p", None),
        ("receive", "once", "b", 2),
        ("receive", "once", "c", 4),
    ]


def test_topics_and_their_subscriptions(broker: EmbeddedBroker, ledger: Path) -> None:
    broker.create_topic("news", ["all", "more"])
    with client(broker.connection_string()) as sdk, sdk.get_topic_sender("news") as sender:
        sender.send_messages(message("a"))
        with sdk.get_subscription_receiver("news", "all") as receiver:
            (found,) = receiver.receive_messages(1, max_wait_time=PATIENCE_S)
            receiver.complete_message(found)
    broker.stop()
    assert [(row[0], (row[1] or "").lower(), row[2]) for row in told(ledger)[2:-1]] == [
        ("send", "news", "a"),
        ("receive", "news/subscriptions/all", "a"),
        ("complete", "news/subscriptions/all", "a"),
    ]


def test_refused_sends_have_their_ids_and_what_never_came_has_no_record(
    broker: EmbeddedBroker, ledger: Path
) -> None:
    broker.create_queue("orders")
    refuse = Fault(kind="refuse_send", count=1)
    drop = Fault(kind="drop_before_commit", count=1)
    drop_late = Fault(kind="drop_after_commit", count=1)
    with client(broker.connection_string()) as sdk:
        for fault, names in ((refuse, "ab"), (drop, "c"), (drop_late, "d")):
            number = broker.add_fault(fault)
            with sdk.get_queue_sender("orders") as sender, pytest.raises(ServiceBusError):
                sender.send_messages([message(name) for name in names])
            broker.remove_fault(number)
    broker.stop()
    sends = [row for row in told(ledger) if row[0] == "send"]
    assert [row[:4] for row in sends] == [
        ("send", "orders", "a", None),
        ("send", "orders", "b", None),
        ("send", "orders", "d", 1),
    ]
    outcomes = [record.get("outcome") for record in records(ledger)]
    assert outcomes == [None, None, "failed", "failed", "ok", None]


def test_the_metrics_say_what_could_not_be_recorded(broker: EmbeddedBroker) -> None:
    connection = http.client.HTTPConnection("localhost", broker.port(), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    assert 'twinbus_broker_ledger_unrecorded_total{namespace="contoso"} 0.0\n' in text


def test_a_killed_broker_has_told_all_that_it_acknowledged_and_the_next_ends_its_file(
    tmp_path: Path, ledger: Path
) -> None:
    with ServedBroker(tmp_path, "contoso", options=("--ledger", str(ledger))) as served:
        administration(served.connection_string("contoso")).create_queue(BACKLOG)
        with (
            client(served.connection_string("contoso")) as sdk,
            sdk.get_queue_sender(BACKLOG) as sender,
        ):
            for number in range(50):
                sender.send_messages(message(f"m{number}"))
            served.kill9()
        sent = [row[2] for row in told(ledger) if row[0] == "send"]
        assert sent == [f"m{number}" for number in range(50)]
        assert [path.name[-11:] for path in ledger.glob("*.jsonl*")] == [".jsonl.open"]
        served.start()
        served.terminate()
    assert [path.suffix for path in ledger.glob("*.jsonl*")] == [".jsonl", ".jsonl"]
    in_order = sorted(read(ledger), key=lambda one: int(one["at_ms"]))
    found = [
        (one["state"], one.get("entity"), one.get("lines"))
        for one in in_order
        if one["operation"] == "state"
    ]
    assert found == [
        ("serving", None, None),
        ("recovered", None, 0),
        ("serving", None, None),
        ("recovered", BACKLOG, 50),
        ("recovered", None, 50),
        ("stopped", None, None),
    ]
    # The one that was killed left a gap; what its successor found on the disk is the evidence.
    [gap] = read(ledger).findings.gaps
    assert gap.process == in_order[0]["process"]


def test_a_ledger_that_cannot_be_kept_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerStartError, match=r"no ledger can be kept in .*file"):
        EmbeddedBroker("contoso", ledger=tmp_path / "file").start()
    done = run_twinbus("serve", "contoso:0", "--ephemeral", "--ledger", "abfss://lake/ledger")
    assert done.returncode == 2
    assert "abfss://lake/ledger is a URL: name a directory" in done.stderr
    assert done.stderr.count("\n") == 1


BACKLOG_QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
LEASES = "contoso/x-twinbus-lease"
LOCK_S = 5.0


@pytest.fixture
def two_namespaces() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", "contoso-dr") as running:
        with administration(running.connection_string("contoso-dr")) as admin:
            for queue in BACKLOG_QUEUES:
                admin.create_queue(queue)
            lock = timedelta(seconds=LOCK_S)
            admin.create_queue(LEASES, requires_session=True, lock_duration=lock)
        yield running


@pytest.fixture
def counted(two_namespaces: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the broker is asked for from now on: by AMQP request, by HTTP, for a session."""
    counts: Counter[str] = Counter()

    def count(place: Any, name: str) -> None:
        inner = getattr(place, name)

        def counting(*values: Any, **named: Any) -> Any:
            counts[name] += 1
            return inner(*values, **named)

        monkeypatch.setattr(place, name, counting)

    count(twinbus.broker.links.management, "handle_in_steps")
    count(twinbus.broker.http, "respond")
    count(Sessions, "accept")
    return counts


async def test_the_ledger_has_the_requests_that_the_broker_counts(
    two_namespaces: EmbeddedBroker, counted: Counter[str], tmp_path: Path
) -> None:
    texts = (
        two_namespaces.connection_string("contoso"),
        two_namespaces.connection_string("contoso-dr"),
    )
    secondary = endpoint_of(texts[1])
    with LedgerWriter(tmp_path) as ledger, recording_to(ledger):
        holder, standby = (
            SyphonHost(*texts, BACKLOG_QUEUES, None, ledger, lease=True) for _ in range(2)
        )
        await holder.start()
        leases = holder.leases
        assert leases is not None
        await until(lambda: all(map(leases.holds, BACKLOG_QUEUES)))
        await standby.start()
        for queue in BACKLOG_QUEUES:
            await counts_of(secondary, queue)
        assert await list_backlog_queues(secondary) == BACKLOG_QUEUES
        assert [
            letter async for letter in dead_letters(secondary, BACKLOG_QUEUES, DeadLetterFilter())
        ] == []
        async with commands.administration(
            Namespace.from_connection_string(texts[1]), "reading"
        ) as admin:
            await admin.get_queue(BACKLOG_QUEUES[0])
        # Long enough that the locks were renewed, and that the standby has tried again.
        await asyncio.sleep(LOCK_S)
        await asyncio.gather(holder.close(), standby.close())
    records = [record for record in read(tmp_path) if record["operation"] in ("manage", "renew")]
    causes = Counter(str(record["cause"]) for record in records)
    assert len(records) == counted.total(), (causes, counted)
    assert counted["accept"] > 4, "the standby tried again"
    assert causes["administration"] == 2 + 1 + 2 + 1
    renewals = [record for record in records if record["operation"] == "renew"]
    assert len(renewals) >= 2
    assert {record["cause"] for record in renewals} == {"lease"}


async def test_a_replay_is_in_the_ledger(two_namespaces: EmbeddedBroker, tmp_path: Path) -> None:
    text = two_namespaces.connection_string("contoso-dr")
    with client(text) as sdk:
        with sdk.get_queue_sender(BACKLOG_QUEUES[0]) as sender:
            sender.send_messages(to_backlog_message(ServiceBusMessage("x"), "orders", now_ms=0))
        with sdk.get_queue_receiver(BACKLOG_QUEUES[0]) as receiver:
            [message] = receiver.receive_messages(max_wait_time=30)
            receiver.dead_letter_message(message, reason="test")
    with LedgerWriter(tmp_path) as ledger, recording_to(ledger):
        result = await replay(endpoint_of(text), BACKLOG_QUEUES[:1], DeadLetterFilter())
    assert len(result.replayed) == 1
    places = Counter((record["cause"], record["backlog_queue"]) for record in read(tmp_path))
    letters = f"{BACKLOG_QUEUES[0]}/$DeadLetterQueue"
    # Two pages of dead letters, the letter that is received, its copy, and a peek at the end.
    assert places == {
        ("administration", letters): 2,
        ("syphon", letters): 1,
        ("syphon", BACKLOG_QUEUES[0]): 2,
    }


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


def test_past_the_limit_entities_are_summed() -> None:
    names = [f"q{number:04}" for number in range(ENTITIES_MAX + 2)]
    with EmbeddedBroker("contoso") as broker:
        for name in names:
            broker.create_queue(name)
        with client(broker.connection_string()) as sdk:
            for name in (names[0], *names[-2:]):
                with sdk.get_queue_sender(name) as sender:
                    sender.send_messages(ServiceBusMessage("x"))
        found = {k: v for k, v in scraped(broker).items() if "state=active" in k}
    assert len(found) == ENTITIES_MAX + 1
    assert {name: count for name, count in found.items() if count} == {
        "messages{entity=q0000,state=active}": 1,
        "messages{entity=(others),state=active}": 2,
    }
