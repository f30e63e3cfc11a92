"""The syphon between two real brokers: everything arrives as it was sent, whatever dies."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.contract.pairs import until
from tests.end_to_end import syphon_worker
from tests.ledger_reading import read
from tests.official_sdk import Faults, administration, client, receive_all, receive_count
from tests.processes import ServedBroker, line_of, started
from twinbus import errors
from twinbus.ledger import LedgerWriter
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.core.pump import IntakeLimits
from twinbus.syphon.draining import DrainStats, drain
from twinbus.syphon.host import SyphonHost
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
LIMITS = IntakeLimits(messages=200)
PATIENCE_S = 60.0


class Namespaces:
    """A primary with entities of each kind, a secondary with backlog queues."""

    def __init__(self, primary: ServedBroker, secondary: ServedBroker) -> None:
        self.brokers = primary, secondary
        self.primary = primary.connection_string()
        self.secondary = secondary.connection_string()

    def drain(self, *queues: str, **settings: Any) -> DrainStats:
        """Drain to the end; bounded, so that a fault of ours is a failure and no hang."""
        settings.setdefault("limits", LIMITS)
        settings.setdefault("idle_s", 0.2)
        work = drain(self.primary, self.secondary, queues or BACKLOG, **settings)
        return asyncio.run(asyncio.wait_for(work, PATIENCE_S))

    def worker(self, queues: list[str], **more: Any) -> tuple[str, ...]:
        """The arguments of Python that drain these queues in a process."""
        order = {"primary": self.primary, "secondary": self.secondary, **more}
        return "-m", syphon_worker.__name__, json.dumps({**order, "queues": {"relaxed": queues}})

    def divert(self, queue: str, path: str, messages: list[ServiceBusMessage]) -> None:
        """Put messages into a backlog queue as a paired sender does."""
        with client(self.secondary) as sdk, sdk.get_queue_sender(queue) as sender:
            for at in range(0, len(messages), 100):
                batch = [to_backlog_message(m, path, now_ms=0) for m in messages[at : at + 100]]
                sender.send_messages(batch)

    def receive(
        self, path: str, count: int | None = None, **settings: Any
    ) -> list[ServiceBusReceivedMessage]:
        """Receive and delete messages of a queue, or a subscription as topic/name; None: all."""
        topic, _, subscription = path.partition("/")
        with client(self.primary) as sdk:
            receiver = (
                sdk.get_subscription_receiver(
                    topic, subscription, receive_mode="receiveanddelete", **settings
                )
                if subscription
                else sdk.get_queue_receiver(path, receive_mode="receiveanddelete", **settings)
            )
            with receiver:
                return receive_all(receiver) if count is None else receive_count(receiver, count)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedBroker, ...]]:
    one, two = tmp_path_factory.mktemp("primary"), tmp_path_factory.mktemp("secondary")
    rules = ("--rule", "sender:send-key:Send")
    with (
        ServedBroker(one, "contoso", options=rules) as primary,
        ServedBroker(two, "contoso-dr", options=rules) as secondary,
    ):
        yield primary, secondary


@pytest.fixture
def namespaces(brokers: tuple[ServedBroker, ServedBroker]) -> Iterator[Namespaces]:
    """Fresh entities for each test."""
    made = Namespaces(*brokers)
    with administration(made.primary) as admin:
        admin.create_queue("orders")
        admin.create_queue("sessions", requires_session=True)
        admin.create_topic("events")
        for subscription in ("all", "audit"):
            admin.create_subscription("events", subscription)
    with administration(made.secondary) as admin:
        for queue in BACKLOG:
            admin.create_queue(queue, max_delivery_count=2**31 - 1, lock_duration=LOCK)
    yield made
    Faults(made.primary).clear()
    for text in (made.primary, made.secondary):
        with administration(text) as admin:
            for name in [queue.name for queue in admin.list_queues()]:
                admin.delete_queue(name)
            for name in [topic.name for topic in admin.list_topics()]:
                admin.delete_topic(name)


LOCK = timedelta(seconds=6)
"""Short, so that a killed syphon's messages come back while a test waits."""


def counts(admin: ServiceBusAdministrationClient, queue: str) -> tuple[int, int]:
    """Messages that wait, and dead letters."""
    found = admin.get_queue_runtime_properties(queue)
    total, dead = found.total_message_count, found.dead_letter_message_count
    assert total is not None
    assert dead is not None
    return total - dead, dead


def numbered(prefix: str, count: int, **properties: Any) -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(f"body {n}", message_id=f"{prefix}-{n}", **properties)
        for n in range(count)
    ]


def test_two_thousand_messages_of_every_kind_are_drained(
    namespaces: Namespaces, tmp_path: Path
) -> None:
    namespaces.divert(BACKLOG[0], "orders", numbered("q", 800))
    namespaces.divert(BACKLOG[0], "events", numbered("t", 500))
    for session in range(5):
        name = f"s{session}"
        namespaces.divert(BACKLOG[1], "sessions", numbered(name, 80, session_id=name))
    namespaces.divert(BACKLOG[1], "ORDERS", numbered("again", 300))
    seen: list[int] = []

    with LedgerWriter(tmp_path / "ledger") as ledger:
        stats = namespaces.drain(
            ledger=ledger, on_progress=lambda progress: seen.append(progress.waiting)
        )

    assert (stats.forwarded, stats.completed, stats.dead_lettered) == (2_000, 2_000, 0)
    assert seen[0] == 2_000
    assert seen[-1] == 0
    got = [message.message_id or "" for message in namespaces.receive("orders")]
    assert len(got) == 1_100
    # Each backlog queue keeps its order; between two there is none.
    assert [one for one in got if one.startswith("q-")] == [f"q-{n}" for n in range(800)]
    assert [one for one in got if one.startswith("again-")] == [f"again-{n}" for n in range(300)]
    for subscription in ("all", "audit"):
        ids = [m.message_id for m in namespaces.receive(f"events/{subscription}", 500)]
        assert ids == [f"t-{n}" for n in range(500)]
    for session in range(5):
        name = f"s{session}"
        ids = [m.message_id for m in namespaces.receive("sessions", 80, session_id=name)]
        assert ids == [f"{name}-{n}" for n in range(80)]
    records = Counter(
        (record["operation"], record["outcome"]) for record in read(tmp_path / "ledger")
    )
    assert records["backlog_receive", "ok"] == 2_000
    assert records["forward", "ok"] == 2_000
    assert records["complete", "ok"] == 2_000


def test_what_cannot_be_delivered_is_dead_lettered_with_its_reason(
    namespaces: Namespaces,
) -> None:
    with administration(namespaces.primary) as admin:
        admin.create_queue("small")
    Faults(namespaces.primary).add(
        "refuse_send",
        entity="small",
        condition="amqp:link:message-size-exceeded",
        description="it takes 1024 bytes",
    )
    with client(namespaces.secondary) as sdk, sdk.get_queue_sender(BACKLOG[0]) as sender:
        sender.send_messages(ServiceBusMessage("stray", message_id="no-path"))
        odd: dict[Any, Any] = {"x-ms-path": "orders", "x-ms-timetolive": "soon"}
        sender.send_messages(ServiceBusMessage("odd", message_id="odd", application_properties=odd))
    namespaces.divert(BACKLOG[0], "small", [ServiceBusMessage("x" * 4_000, message_id="large")])
    namespaces.divert(BACKLOG[0], "sessions", [ServiceBusMessage("x", message_id="sessionless")])
    namespaces.divert(BACKLOG[0], "nowhere", [ServiceBusMessage("x", message_id="lost-way")])
    namespaces.divert(BACKLOG[0], "orders", numbered("good", 50))

    options = SendAvailabilityOptions(undeliverable_grace=1.0)
    stats = namespaces.drain(BACKLOG[0], options=options)

    assert (stats.forwarded, stats.dead_lettered) == (50, 5)
    with (
        client(namespaces.secondary) as sdk,
        sdk.get_queue_receiver(BACKLOG[0], sub_queue="deadletter") as receiver,
    ):
        dead = receive_count(receiver, 5)
        reasons = {m.message_id: m.dead_letter_reason for m in dead}
        words = {m.message_id: m.dead_letter_error_description or "" for m in dead}
    assert reasons == {
        "no-path": "MissingDestination",
        "odd": "AliasTypeUnknown",
        "large": "MessageTooLarge",
        "sessionless": "RefusedByDestination",
        "lost-way": "DestinationNotFound",
    }
    assert "1024" in words["large"]
    assert "nowhere" in words["lost-way"]


def test_a_held_destination_does_not_stop_the_others_and_gets_its_messages_later(
    namespaces: Namespaces,
) -> None:
    namespaces.divert(BACKLOG[0], "orders", numbered("held", 40))
    namespaces.divert(BACKLOG[0], "events", numbered("free", 400))
    fault = Faults(namespaces.primary).add(
        "refuse_send",
        entity="orders",
        condition="amqp:resource-limit-exceeded",
        description="the queue is full",
    )

    async def run() -> None:
        host = SyphonHost(namespaces.primary, namespaces.secondary, [BACKLOG[0]], limits=LIMITS)
        await host.start()
        relay = host.relays[0]
        await until(lambda: relay.pump.forwarded == 400)
        assert "the queue is full" in relay.pump.held["orders"]
        Faults(namespaces.primary).remove(fault)
        await until(lambda: relay.pump.completed == 440)
        await host.close()

    asyncio.run(run())
    assert {m.message_id for m in namespaces.receive("orders")} == {f"held-{n}" for n in range(40)}
    with administration(namespaces.secondary) as admin:
        assert counts(admin, BACKLOG[0]) == (0, 0)


def test_deferred_messages_of_a_dead_syphon_are_found(namespaces: Namespaces) -> None:
    namespaces.divert(BACKLOG[0], "orders", numbered("d", 5))
    with (
        client(namespaces.secondary) as sdk,
        sdk.get_queue_receiver(BACKLOG[0]) as receiver,
    ):
        for message in receive_count(receiver, 5):
            receiver.defer_message(message)
    stats = namespaces.drain(BACKLOG[0])
    assert stats.completed == 5
    assert len(namespaces.receive("orders", 5)) == 5


def test_locks_are_renewed_while_the_primary_is_slow(namespaces: Namespaces) -> None:
    namespaces.divert(BACKLOG[0], "orders", numbered("slow", 20))
    Faults(namespaces.primary).add("delay", entity="orders", delay_ms=9_000)
    stats = namespaces.drain(BACKLOG[0])
    assert stats.completed == 20
    Faults(namespaces.primary).clear()
    assert len(namespaces.receive("orders")) == 20


def test_a_syphon_that_ends_leaves_nothing_locked(namespaces: Namespaces) -> None:
    queue = "contoso/x-servicebus-transfer/long-locks"
    with administration(namespaces.secondary) as admin:
        admin.create_queue(queue, lock_duration=timedelta(minutes=5))

    async def run() -> None:
        host = SyphonHost(namespaces.primary, namespaces.secondary, [queue], limits=LIMITS)
        await host.start()
        relay = host.relays[0]
        await until(lambda: relay.pump.credit > 0 and relay.secondary is not None)
        # What the queue delivers now stays in the socket until the relay is about to end.
        line = relay.secondary
        assert line is not None
        assert line.transport is not None
        socket = line.transport.socket
        assert socket is not None
        socket.pause_reading()
        await asyncio.to_thread(namespaces.divert, queue, "orders", numbered("m", 20))
        asyncio.get_running_loop().call_later(0.2, socket.resume_reading)
        await host.close()

    asyncio.run(run())
    assert len(namespaces.receive("orders")) == 20
    with administration(namespaces.secondary) as admin:
        assert counts(admin, queue) == (0, 0)


def test_a_lost_secondary_costs_no_duplicates(namespaces: Namespaces) -> None:
    namespaces.divert(BACKLOG[0], "orders", numbered("m", 300))

    async def run() -> None:
        host = SyphonHost(namespaces.primary, namespaces.secondary, [BACKLOG[0]], limits=LIMITS)
        await host.start()
        relay = host.relays[0]
        for target in (60, 180):
            await until(lambda goal=target: relay.pump.forwarded >= goal)
            await until(lambda: relay.secondary is not None)
            assert relay.secondary is not None
            relay.secondary.drop("a test cut it")
        await until(lambda: relay.pump.completed + relay.pump.forwarded >= 300)
        await until(lambda: relay.pump.in_flight == 0)
        await host.close()

    asyncio.run(run())
    namespaces.drain(BACKLOG[0])
    assert sorted(m.message_id or "" for m in namespaces.receive("orders")) == sorted(
        f"m-{n}" for n in range(300)
    )


def test_kill_9_in_the_middle_loses_nothing_and_duplicates_no_more_than_the_window(
    namespaces: Namespaces,
) -> None:
    window, total = 100, 3_000
    for queue in BACKLOG:
        namespaces.divert(queue, "orders", numbered(queue[-1], total // 2))
    for _ in range(2):
        with started(*namespaces.worker(BACKLOG, window=window)) as worker:
            while int(line_of(worker)) == 0:
                pass
            worker.kill()
        assert worker.returncode == -signal.SIGKILL

    namespaces.drain()

    received = Counter(m.message_id for m in namespaces.receive("orders"))
    expected = {f"{queue[-1]}-{n}" for queue in BACKLOG for n in range(total // 2)}
    assert set(received) == expected
    duplicates = sum(count - 1 for count in received.values())
    assert duplicates <= 2 * len(BACKLOG) * window, duplicates


def test_a_pump_that_completes_before_it_sends_and_is_killed_loses_messages(
    namespaces: Namespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_PUMP_FILE", str(tmp_path / "lost"))
    namespaces.divert(BACKLOG[0], "orders", numbered("m", 200))
    for expected in (-signal.SIGKILL, 0):
        with started(*namespaces.worker(BACKLOG[:1], window=40, pump="HastyPump")) as worker:
            worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == expected
    lost = set((tmp_path / "lost").read_text().split())
    assert lost
    received = {m.message_id for m in namespaces.receive("orders")}
    assert received == {f"m-{n}" for n in range(200)} - lost


def test_the_primary_may_come_and_go(namespaces: Namespaces) -> None:
    primary, _ = namespaces.brokers
    namespaces.divert(BACKLOG[0], "orders", numbered("m", 1_000))

    async def run() -> None:
        host = SyphonHost(namespaces.primary, namespaces.secondary, [BACKLOG[0]], limits=LIMITS)
        await host.start()
        relay = host.relays[0]
        await until(lambda: relay.pump.forwarded >= 100)
        primary.kill9()
        await until(lambda: "primary" in relay.problems)
        assert relay.pump.credit == 0
        primary.restart()
        await until(lambda: relay.pump.completed == 1_000)
        assert relay.problems == {}
        await host.close()

    asyncio.run(run())
    received = Counter(m.message_id for m in namespaces.receive("orders"))
    assert len(received) == 1_000
    assert sum(received.values()) <= 1_000 + LIMITS.messages


def test_wrong_use_gets_one_clear_line(namespaces: Namespaces) -> None:
    secondary = namespaces.brokers[1]
    with pytest.raises(errors.SyphonError, match="no queue nothing/here in"):
        namespaces.drain("nothing/here")
    weak = Namespaces(*namespaces.brokers)
    weak.secondary = secondary.connection_string(rule="sender", key="send-key")
    with pytest.raises(errors.SyphonError, match="needs the Manage right"):
        weak.drain()
