"""What the receivers of a pair write to the ledger, beside what the broker saw of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError

import twinbus.broker.links.management
from tests.contract import pairs
from tests.contract.pairs import until
from tests.contract.test_paired_receivers import (
    PRIMARY,
    SECONDARY,
    complete,
    entities,
    lock_for,
    put,
    taken,
)
from tests.ledger_reading import read
from twinbus import EmbeddedBroker
from twinbus.broker.engine.sessions import Sessions
from twinbus.client.receiving import ReceivingLink
from twinbus.pairing.receiving import side, watchdog
from twinbus.pipeline.proof.proof import proof_of
from twinbus.servicebus.twins import DIVERTED, SECONDARY_BIT, DivertMark

pytestmark = pytest.mark.contract

__all__ = ["entities"]

SETTLED = ("complete", "abandon", "defer", "dead_letter")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(PRIMARY, SECONDARY, ledger=tmp_path / "broker") as embedded:
        yield embedded


@pytest.fixture
def paired(tmp_path: Path) -> Any:
    # A look at the notice board is a request too.
    return partial(pairs.paired, attempt_timeout=5.0, ledger=tmp_path / "clients", board=False)


@pytest.fixture
def asked(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the broker is asked for: by request to `$management`, and for a session."""
    counts: Counter[str] = Counter()

    def count(place: Any, name: str) -> None:
        inner = getattr(place, name)

        def counting(*values: Any, **named: Any) -> Any:
            counts[name] += 1
            return inner(*values, **named)

        monkeypatch.setattr(place, name, counting)

    count(twinbus.broker.links.management, "handle_in_steps")
    count(Sessions, "accept")
    return counts


def lines(tmp_path: Path, *operations: str) -> list[dict[str, Any]]:
    """The lines of the receivers, in order, once for all that they name the pair."""
    found = [one for one in read(tmp_path / "clients") if one.get("cause") == "consumer"]
    for one in found:
        primary, _, secondary = one["pair"].partition("+")
        assert primary == "contoso"
        assert one["namespace"] == {"primary": primary, "secondary": secondary}[one["side"]]
    return [one for one in found if not operations or one["operation"] in operations]


def recorded(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("operation", "side", "message_id", "outcome", "error", "state")
    return [tuple(one[name] for name in names if name in one) for one in found]


def place(line: dict[str, Any]) -> tuple[Any, ...]:
    """A message in one namespace; the broker calls that by its own name."""
    is_primary = line.get("side", line["namespace"]) in ("primary", PRIMARY)
    return is_primary, line["entity"], line["message_id"], line["sequence_number"]


async def test_messages_of_both_sides_and_their_settlements(
    broker: EmbeddedBroker, paired: Any, tmp_path: Path
) -> None:
    for name in "abcd":
        await put(broker, PRIMARY, name, message_id=name)
    await put(broker, SECONDARY, "t", message_id="t")
    async with (
        paired(broker, twins=["orders"]) as pair,
        cast("Any", pair.get_queue_receiver("orders")) as receiver,
    ):
        found = {str(one): one for one in await taken(receiver, 5)}
        await complete(receiver, [found["a"], found["t"]])
        await receiver.defer_message(found["b"])
        await receiver.dead_letter_message(found["c"], "why")
        await receiver.abandon_message(found["d"])
        (again,) = await taken(receiver, 1)
        await receiver.complete_message(again)
    received = lines(tmp_path, "receive")
    # What was abandoned may come once more, and is then released, before the next call takes it.
    theirs = [one for one in read(tmp_path / "broker") if one["operation"] == "receive"]
    assert Counter(map(place, received)) == Counter(map(place, theirs))
    assert {one["message_id"] for one in received} == set("abcdt")
    (twins,) = [one for one in received if one["side"] == "secondary"]
    assert twins["sequence_number"] == (found["t"].sequence_number or 0) & ~SECONDARY_BIT
    assert {one["entity"] for one in received} == {"orders"}
    assert all(one["size_bytes"] > 0 for one in received)
    assert sorted(recorded(lines(tmp_path, *SETTLED))) == [
        ("abandon", "primary", "d", "ok"),
        ("complete", "primary", "a", "ok"),
        ("complete", "primary", "d", "ok"),
        ("complete", "secondary", "t", "ok"),
        ("dead_letter", "primary", "c", "ok"),
        ("defer", "primary", "b", "ok"),
    ]


async def test_the_ledger_has_each_delivery_and_request_that_the_broker_counts(
    broker: EmbeddedBroker, paired: Any, asked: Counter[str], tmp_path: Path
) -> None:
    await put(broker, PRIMARY, *(str(number) for number in range(60)))
    async with paired(broker) as pair:
        guarded = partial(pair.get_queue_receiver, "orders", guard=True)
        # Some of what was fetched ahead is released at the end, unseen.
        async with cast("Any", guarded(prefetch_count=20)) as receiver:
            await complete(receiver, await taken(receiver, 5))
        async with cast("Any", guarded()) as receiver:
            one, two = await taken(receiver, 2)
            await receiver.renew_message_lock(one)
            await receiver.defer_message(one)
            (deferred,) = await receiver.receive_deferred_messages(one.sequence_number)
            await receiver.complete_message(deferred)
            assert len(await receiver.peek_messages(3)) == 3
            # Its link is gone: settled by its lock token.
            receiver._inbox.sides[0].connection.drop("a test")
            await receiver.complete_message(two)
    mine = lines(tmp_path)
    theirs = [one for one in read(tmp_path / "broker") if one.get("entity") == "orders"]
    received = Counter(one["message_id"] for one in mine if one["operation"] == "receive")
    assert received == Counter(one["message_id"] for one in theirs if one["operation"] == "receive")
    completed = Counter(one["message_id"] for one in mine if one["operation"] == "complete")
    assert completed == Counter(
        one["message_id"] for one in theirs if one["operation"] == "complete"
    )
    assert completed.total() == 7
    requests = lines(tmp_path, "manage", "renew")
    assert [one["operation"] for one in requests] == ["renew", "manage"], "a renewal and a peek"
    # With the receive by number and two settlements by lock token.
    assert asked["handle_in_steps"] == len(requests) + 3
    assert {one["entity"] for one in requests} == {"orders"}


async def test_a_receiver_that_waits_costs_no_operation(
    broker: EmbeddedBroker,
    paired: Any,
    asked: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "SILENT_LEAST_S", 0.2)
    monkeypatch.setattr(watchdog, "SPREAD_S", 0.0)
    checks = 0
    drain = ReceivingLink.drain

    async def counted(link: ReceivingLink, *given: Any) -> bool:
        nonlocal checks
        checks += 1
        return await drain(link, *given)

    monkeypatch.setattr(ReceivingLink, "drain", counted)
    async with (
        paired(broker, twins=["orders"]) as pair,
        cast("Any", pair.get_queue_receiver("orders")) as receiver,
    ):
        async with asyncio.timeout(60):
            while checks <= 6:  # Both links were checked again and again.
                assert await receiver.receive_messages(max_wait_time=1) == []
    assert (lines(tmp_path), asked.total()) == ([], 0)


async def test_what_a_receiver_gives_back_is_no_duplicate(
    broker: EmbeddedBroker, paired: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The credit of a call that has ended brings messages that no call wants.
    monkeypatch.setattr(side, "LINGER_S", 5.0)
    names = [str(number) for number in range(4)]
    async with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        get: Any = partial(pair.get_queue_receiver, "orders", guard=True)
        async with get() as greedy:
            assert await greedy.receive_messages(9, max_wait_time=0.1) == []
            await sender.send_messages([ServiceBusMessage(name, message_id=name) for name in names])
            await until(lambda: greedy.status().sides["primary"].delivered > 4)
        async with get(prefetch_count=20) as greedy:
            await complete(greedy, await taken(greedy, 1))
            await until(lambda: greedy.status().buffered == 3)
        await sender.send_messages(ServiceBusMessage("5", message_id="twice"))
        await put(broker, PRIMARY, "6", message_id="twice")
        async with get() as receiver:
            await complete(receiver, await taken(receiver, 5))
    received = Counter(map(place, lines(tmp_path, "receive")))
    released = Counter(map(place, lines(tmp_path, "release")))
    assert released == received - Counter(received.keys())
    assert released.total() >= 8
    theirs = [one for one in read(tmp_path / "broker") if one["operation"] == "release"]
    assert released == Counter(map(place, theirs))
    report = proof_of(tmp_path / "clients").report
    told = [(one.message_id, one.times, one.window) for one in report.duplicates]
    assert told == [("twice", 2, "unexplained")]


@pytest.mark.parametrize("first", [PRIMARY, SECONDARY])
async def test_a_second_copy_is_received_and_completed_as_one(
    broker: EmbeddedBroker, paired: Any, tmp_path: Path, first: str
) -> None:
    mark = {DIVERTED: DivertMark("contoso", time.time_ns() // 1_000_000).text()}
    second = SECONDARY if first is PRIMARY else PRIMARY

    async def send(side: str) -> None:
        properties = mark if side is SECONDARY else None
        await put(broker, side, "x", message_id="7", application_properties=properties)

    async with (
        paired(broker, twins=["orders"]) as pair,
        cast("Any", pair.get_queue_receiver("orders")) as receiver,
    ):
        await send(first)
        await complete(receiver, await taken(receiver, 1))
        await send(second)
        assert await receiver.receive_messages(max_wait_time=2) == []
        assert receiver.status().second_copies == 1
    sides = {PRIMARY: "primary", SECONDARY: "secondary"}
    assert recorded(lines(tmp_path)) == [
        ("receive", sides[first], "7", "ok"),
        ("complete", sides[first], "7", "ok"),
        ("receive", sides[second], "7", "ok"),
        ("complete", sides[second], "7", "ok", "second_copy"),
    ]


async def test_sessions_and_their_requests(
    broker: EmbeddedBroker, paired: Any, asked: Counter[str], tmp_path: Path
) -> None:
    await put(broker, PRIMARY, "a", queue="sessions", session_id="s", message_id="a")
    async with paired(broker) as pair:
        get: Any = partial(pair.get_queue_receiver, "sessions", guard=True)
        async with get(session_id="s") as receiver:
            (found,) = await taken(receiver, 1)
            await receiver.session.renew_lock()
            await receiver.session.set_state(b"1")
            assert await receiver.session.get_state() == b"1"
            await receiver.complete_message(found)
        with pytest.raises(OperationTimeoutError):
            async with get(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1):
                pass
    assert recorded(lines(tmp_path)) == [
        ("manage", "primary", "ok"),
        ("receive", "primary", "a", "ok"),
        ("renew", "primary", "ok"),
        ("manage", "primary", "ok"),
        ("manage", "primary", "ok"),
        ("complete", "primary", "a", "ok"),
        ("manage", "primary", "ok"),
    ]
    assert asked["handle_in_steps"] == 3


async def test_a_settlement_that_the_service_refuses_is_failed(
    broker: EmbeddedBroker, paired: Any, tmp_path: Path
) -> None:
    await lock_for(broker, PRIMARY, 5)
    await put(broker, PRIMARY, "a", message_id="a")
    async with (
        paired(broker) as pair,
        cast("Any", pair.get_queue_receiver("orders", guard=True)) as receiver,
    ):
        (found,) = await taken(receiver, 1)
        await asyncio.sleep(5.5)
        # As if this machine's clock were behind.
        found._expiry = datetime.now(UTC) + timedelta(hours=1)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(found)
    assert recorded(lines(tmp_path, "complete")) == [
        ("complete", "primary", "a", "failed", "com.microsoft:message-lock-lost")
    ]


async def test_received_and_deleted_is_one_line(
    broker: EmbeddedBroker, paired: Any, tmp_path: Path
) -> None:
    await put(broker, PRIMARY, "n", queue="news", message_id="n")
    async with paired(broker) as pair:
        source: Any = pair.get_subscription_receiver(
            "news", "readers", guard=True, receive_mode="receiveanddelete"
        )
        async with source as receiver:
            await taken(receiver, 1)
    (line,) = lines(tmp_path)
    assert (line["operation"], line["message_id"]) == ("receive", "n")
    assert line["entity"] == "news/Subscriptions/readers"


async def test_an_outage_is_in_the_ledger_message_by_message(
    broker: EmbeddedBroker, paired: Any, tmp_path: Path
) -> None:
    received: list[str] = []

    async def receive(receiver: Any) -> None:
        async for message in receiver:
            await receiver.complete_message(message)
            received.append(str(message.message_id))

    async with (
        paired(broker, twins=["orders"], failover_interval=0.5, enable_syphon=False) as pair,
        pair.get_queue_sender("orders") as sender,
        cast("Any", pair.get_queue_receiver("orders")) as receiver,
    ):
        consumer = asyncio.create_task(receive(receiver))
        for number in range(15):
            await sender.send_messages(ServiceBusMessage("x", message_id=str(number)), timeout=30)
            if number == 4:
                await until(lambda: len(received) == 5)
                broker.cut_off(PRIMARY)
            if number == 9:
                await until(lambda: len(received) == 10)
                broker.serve_again(PRIMARY)
        await until(lambda: len(received) == 15, what=received)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)
    found = list(read(tmp_path / "clients"))
    diverted = {
        one["message_id"]
        for one in found
        if one["operation"] == "divert" and one["outcome"] == "ok"
    }
    assert {one["backlog_queue"] for one in found if one["operation"] == "divert"} == {"orders"}
    assert diverted >= {"5", "6", "7", "8", "9"}
    for operation in ("receive", "complete"):
        mine = [one for one in lines(tmp_path, operation) if one["outcome"] == "ok"]
        assert {one["message_id"] for one in mine} == {str(number) for number in range(15)}
        of_twin = {one["message_id"] for one in mine if one["side"] == "secondary"}
        assert of_twin == diverted
    theirs = [one for one in read(tmp_path / "broker") if one["operation"] == "receive"]
    assert Counter(map(place, lines(tmp_path, "receive"))) == Counter(map(place, theirs))
