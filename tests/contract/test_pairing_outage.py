"""A pair whose primary is killed, hangs, comes back, or was never there: real processes, signals.

Every message that a call returned for is on the primary or in a backlog queue, no call outlives its
timeout, and with a failover interval shorter than the callers' patience none raises.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import drain_all, nothing_left, quick, until
from tests.ledger_reading import read
from tests.official_sdk import administration, async_client, receive_all_async
from tests.processes import ServedBroker
from twinbus import Namespace, pair_namespaces
from twinbus.pair import Pair
from twinbus.pairing.sending.sender import PairedSender

pytestmark = pytest.mark.contract

TASKS = 12
PAIRING_S = 10.0
"""Pairing with a secondary that works takes milliseconds; with one that does not, so long."""

GRACE_S = 0.5
"""How far past its timeout a call may return on a busy machine."""

HANGS_S = 4.0
"""An attempt at a primary that hangs; one that works takes milliseconds, or a busy machine's time.
"""

PATIENT_S = 30.0
CLOSED_S = 15.0
"""A close is bounded by an attempt's timeout and what it grants to each side; a hang is not."""

LOOK_S = 0.01


@dataclass
class Two:
    """Two namespaces, each a process."""

    primary: ServedBroker
    secondary: ServedBroker

    def sides(self) -> tuple[Namespace, Namespace]:
        first, second = self.primary.connection_string(), self.secondary.connection_string()
        return (
            Namespace.from_connection_string(first, "contoso"),
            Namespace.from_connection_string(second),
        )

    async def stored(self, pair_queues: tuple[str, ...]) -> set[str]:
        """The ids of everything that either side holds, which is gone after that."""
        kept = taken(self.primary.connection_string(), "orders")
        diverted = (taken(self.secondary.connection_string(), queue) for queue in pair_queues)
        return set().union(*await asyncio.gather(kept, *diverted))


async def taken(text: str, queue: str) -> set[str]:
    """The ids of all messages of a queue, taken out of it without a word for each."""
    async with (
        async_client(text) as client,
        client.get_queue_receiver(
            queue, receive_mode="receiveanddelete", prefetch_count=500
        ) as source,
    ):
        return {str(message.message_id) for message in await receive_all_async(source)}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    first, second = (tmp_path_factory.mktemp(name) for name in ("primary", "secondary"))
    with (
        ServedBroker(first, "contoso") as primary,
        ServedBroker(second, "contoso-dr") as secondary,
    ):
        with administration(primary.connection_string()) as admin:
            admin.create_queue("orders")
        yield Two(primary, secondary)


@pytest.fixture
def two(brokers: Two) -> Two:
    """Both up, whatever the test before has left."""
    if brokers.primary.is_running:
        brokers.primary.process.send_signal(signal.SIGCONT)
    else:
        brokers.primary.restart()
    return brokers


@dataclass
class Load:
    """Tasks that send until told to stop, and what became of each call."""

    sender: PairedSender
    timeout_s: float
    accepted: set[str] = field(default_factory=set)
    raised: list[BaseException] = field(default_factory=list)
    longest_s: float = 0.0
    lag_s: float = 0.0
    """How late this process got its turn, at the worst: a call can be no more punctual."""
    _number: int = 0
    _stopping: bool = False

    async def run(self) -> None:
        await asyncio.gather(self._watch(), *(self._send() for _ in range(TASKS)))

    def stop(self) -> None:
        self._stopping = True

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.lag_s = max(self.lag_s, loop.time() - due)

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._number += 1
            message = ServiceBusMessage("x" * 100, message_id=f"id-{self._number}")
            began = loop.time()
            try:
                await self.sender.send_messages(message, timeout=self.timeout_s)
                self.accepted.add(str(message.message_id))
            except Exception as error:  # noqa: BLE001  # the test looks at each
                self.raised.append(error)
            self.longest_s = max(self.longest_s, loop.time() - began)
            await asyncio.sleep(0.01)


def state(pair: Pair) -> str:
    return pair.status().entities["orders"].state


async def outage(two: Two, pair: Pair, timeout_s: float, *, hang: bool) -> Load:
    """Load through the loss of the primary and its return; ends healthy."""
    load = Load(pair.get_queue_sender("orders"), timeout_s)
    running = asyncio.create_task(load.run())
    await until(lambda: pair.status().entities["orders"].sent > 50)
    if hang:
        two.primary.process.send_signal(signal.SIGSTOP)
    else:
        two.primary.kill9()
    try:
        await until(lambda: state(pair) == "failed over")
        await until(lambda: pair.status().entities["orders"].diverted > 50)
        if hang:
            # An attempt that began before the failover may still be answered, and would heal the
            # entity before a ping does.
            await asyncio.sleep(pair.options.attempt_timeout_s)
    finally:
        if hang:
            two.primary.process.send_signal(signal.SIGCONT)
    if not hang:
        await asyncio.to_thread(two.primary.restart)
    await until(lambda: state(pair) == "healthy")
    sent = pair.status().entities["orders"].sent
    await until(lambda: pair.status().entities["orders"].sent > sent + 20)
    load.stop()
    await running
    return load


@pytest.mark.parametrize("hang", [False, True], ids=["kill -9", "SIGSTOP"])
async def test_no_send_raises_hangs_or_is_lost_when_the_primary_goes_and_returns(
    two: Two, hang: bool, tmp_path: Path
) -> None:
    async with nothing_left():
        options = quick(ledger=tmp_path / "ledger", attempt_timeout=HANGS_S)
        async with pair_namespaces(*two.sides(), options) as pair:
            queues = pair.backlog_queues
            load = await outage(two, pair, PATIENT_S, hang=hang)
        assert load.raised == []
        assert load.longest_s < PATIENT_S
    assert load.accepted - await two.stored(queues) == set()
    records = list(read(tmp_path / "ledger"))
    states = [r["state"] for r in records if r["operation"] == "state"]
    assert states == ["suspect", "failed over", "healthy"]
    pings = [r["outcome"] for r in records if r["operation"] == "ping"]
    assert pings[-1] == "ok"
    assert pings.count("ok") == 1
    failed = {r["outcome"] for r in records if r["operation"] == "send"} - {"ok"}
    assert failed <= {"failed", "unknown"}
    assert ("unknown" in failed) if hang else failed


@pytest.mark.parametrize("hang", [False, True], ids=["kill -9", "SIGSTOP"])
async def test_a_short_patience_is_kept_and_what_is_raised_carries_the_ids(
    two: Two, hang: bool
) -> None:
    async with (
        nothing_left(),
        pair_namespaces(*two.sides(), quick(failover_interval=2.0, attempt_timeout=2.0)) as pair,
    ):
        queues = pair.backlog_queues
        load = await outage(two, pair, 1.0, hang=hang)
    assert load.longest_s < 1.0 + GRACE_S + 2 * load.lag_s
    assert load.raised
    for error in load.raised:
        (message_id,) = error.message_ids  # type: ignore[attr-defined]
        assert message_id.startswith("id-")
    assert load.accepted - await two.stored(queues) == set()


@pytest.mark.parametrize("hang", [False, True], ids=["down", "hanging"])
async def test_a_cold_start_without_the_primary_diverts_all_the_same(two: Two, hang: bool) -> None:
    sides = two.sides()
    if hang:
        two.primary.process.send_signal(signal.SIGSTOP)
    else:
        two.primary.kill9()

    try:
        loop = asyncio.get_running_loop()
        began = loop.time()
        options = quick(attempt_timeout=HANGS_S)
        async with nothing_left(), pair_namespaces(*sides, options) as pair:
            # Pairing never needs the primary to be up, nor waits for it (SPEC 2.5).
            assert loop.time() - began < PAIRING_S
            queues = pair.backlog_queues
            async with pair.get_queue_sender("orders") as sender:
                batch = await sender.create_message_batch()
                batch.add_message(ServiceBusMessage("one", message_id="one"))
                await sender.send_messages(batch, timeout=PATIENT_S)
                await sender.send_messages(
                    ServiceBusMessage("two", message_id="two", session_id="s"), timeout=PATIENT_S
                )
            assert state(pair) == "failed over"
        stored = await drain_all(two.secondary.connection_string(), queues)
        assert {message.message_id for message in stored} == {"one", "two"}
    finally:
        if hang:
            two.primary.process.send_signal(signal.SIGCONT)
        else:
            two.primary.restart()


async def test_a_connection_that_ended_while_idle_is_no_evidence_of_anything(two: Two) -> None:
    """Both sides were restarted since the last message: no failure, no queue pulled."""

    async with nothing_left(), pair_namespaces(*two.sides(), quick()) as pair:
        healthy, diverted = map(pair.get_queue_sender, ("orders", "invoices"))
        pair.force_failover("invoices")
        pair.freeze("invoices")
        for again in ("", "-again"):
            await healthy.send_messages(ServiceBusMessage("x", message_id=f"kept{again}"))
            await diverted.send_messages(ServiceBusMessage("x", message_id=f"diverted{again}"))
            if not again:
                for broker in (two.primary, two.secondary):
                    await asyncio.to_thread(broker.kill9)
                    await asyncio.to_thread(broker.restart)
        status = pair.status()
        assert {queue.state for queue in status.backlog_queues.values()} == {"in rotation"}
        assert [entity.last_error for entity in status.entities.values()] == ["", ""]
        assert status.entities["orders"].since_s is None
        queues = pair.backlog_queues
    wanted = {"kept", "kept-again", "diverted", "diverted-again"}
    assert wanted <= await two.stored(queues)


async def test_closing_while_the_primary_hangs_is_bounded_and_leaves_nothing(two: Two) -> None:
    try:
        loop = asyncio.get_running_loop()
        async with nothing_left():
            async with pair_namespaces(*two.sides(), quick(attempt_timeout=HANGS_S)) as pair:
                sender = pair.get_queue_sender("orders")
                await sender.send_messages(ServiceBusMessage("x"))
                two.primary.process.send_signal(signal.SIGSTOP)
                hanging = asyncio.create_task(sender.send_messages(ServiceBusMessage("y")))
                await asyncio.sleep(0.1)
                began = loop.time()
            assert loop.time() - began < CLOSED_S
            with pytest.raises(Exception, match=r"closed|did not answer"):
                await hanging
    finally:
        two.primary.process.send_signal(signal.SIGCONT)


async def test_a_resolver_that_hangs_for_the_primary_does_not_delay_a_divert(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lookups of the loop share one thread here; those of the primary would hold it."""
    answers, real = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *given: Any, **named: Any) -> Any:
        if host == "primary.localhost":
            answers.wait(PATIENT_S)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return real("localhost" if host == "secondary.localhost" else host, *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    first, second = (
        broker.connection_string().replace("localhost", f"{name}.localhost")
        for name, broker in (("primary", two.primary), ("secondary", two.secondary))
    )
    sides = Namespace.from_connection_string(first), Namespace.from_connection_string(second)
    try:
        async with pair_namespaces(*sides, quick(attempt_timeout=1.0)) as pair:
            senders = [pair.get_queue_sender(f"orders-{number}") for number in range(3)]
            began = loop.time()
            await asyncio.gather(
                *(one.send_messages(ServiceBusMessage("x"), timeout=PATIENT_S) for one in senders)
            )
            assert loop.time() - began < PATIENT_S / 2
            entities = pair.status().entities.values()
            assert [entity.diverted for entity in entities] == [1, 1, 1]
    finally:
        answers.set()
