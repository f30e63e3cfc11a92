"""Strict session order with the official SDK and real processes: sessions arrive as they were sent.

What is checked is the first arrival of each message: a send whose answer was lost, or a syphon that
is killed, leaves a second copy behind the first (docs/guarantees).
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import drain as backlog_drain
from tests.contract.pairs import nothing_left, quick, until
from tests.end_to_end import syphon_worker
from tests.official_sdk import administration, client, receive_all
from tests.processes import ServedBroker, line_of, started
from twinbus import (
    BacklogUnavailableError,
    MissingRightError,
    Namespace,
    SendAvailabilityOptions,
    pair_namespaces,
)
from twinbus.ledger import NullLedger
from twinbus.namespace.access import Endpoint
from twinbus.pair import Pair, client_of
from twinbus.pairing.core.backlog import session_queue
from twinbus.pairing.sending.sender import PairedSender
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.draining import drain
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.relay import Relay
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
LEASES = "contoso/x-twinbus-lease"
LOCK = timedelta(seconds=5)
"""Short, so that what a killed process has locked comes back while a test waits."""


@dataclass
class Two:
    """Two namespaces, each a process; the primary has a queue with sessions."""

    primary: ServedBroker
    secondary: ServedBroker

    def sides(self, rule: str | None = None, key: str | None = None) -> tuple[Namespace, Namespace]:
        second = self.secondary.connection_string(rule=rule, key=key)
        return (
            Namespace.from_connection_string(self.primary.connection_string(), "contoso"),
            Namespace.from_connection_string(second),
        )

    @property
    def texts(self) -> tuple[str, str]:
        return self.primary.connection_string(), self.secondary.connection_string()

    def receive(self, sessions: list[str]) -> dict[str, list[str]]:
        """The ids in each session of the primary, in the order in which they are delivered."""
        with ThreadPoolExecutor(len(sessions)) as pool:
            return dict(zip(sessions, pool.map(self._receive, sessions), strict=True))

    def _receive(self, session: str) -> list[str]:
        with (
            client(self.texts[0]) as sdk,
            sdk.get_queue_receiver(
                "orders", session_id=session, receive_mode="receiveanddelete"
            ) as receiver,
        ):
            return [str(message.message_id) for message in receive_all(receiver)]


def first_arrivals(ids: list[str]) -> list[str]:
    return list(dict.fromkeys(ids))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    rules = ("--rule", "sender:send-key:Send")
    with (
        ServedBroker(tmp_path / "primary", "contoso") as primary,
        ServedBroker(tmp_path / "secondary", "contoso-dr", options=rules) as secondary,
    ):
        with administration(primary.connection_string()) as admin:
            admin.create_queue("orders", requires_session=True)
        with administration(secondary.connection_string()) as admin:
            for queue in BACKLOG:
                admin.create_queue(queue, max_delivery_count=2**31 - 1, lock_duration=LOCK)
            admin.create_queue(LEASES, requires_session=True, lock_duration=LOCK)
        yield Two(primary, secondary)


def strict(**changes: Any) -> SendAvailabilityOptions:
    return quick(session_order="strict", **changes)


@dataclass
class Sessions:
    """One task for each session, which sends one message after the other until told to stop."""

    sender: PairedSender
    names: list[str]
    sent: dict[str, list[str]] = field(default_factory=dict)
    raised: list[BaseException] = field(default_factory=list)
    pause_s: float = 0.01
    _stopping: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._send(name) for name in self.names))

    def stop(self) -> None:
        self._stopping = True

    async def _send(self, session: str) -> None:
        sent = self.sent.setdefault(session, [])
        while not self._stopping:
            name = f"{session}-{len(sent)}"
            message = ServiceBusMessage("x" * 100, message_id=name, session_id=session)
            try:
                await self.sender.send_messages(message, timeout=15)
                sent.append(name)
            except Exception as error:  # noqa: BLE001  # the test looks at each
                self.raised.append(error)
                return
            await asyncio.sleep(self.pause_s)


def entity(pair: Pair) -> Any:
    return pair.status().entities["orders"]


async def outage(two: Two, pair: Pair, load: Sessions) -> None:
    """The primary is killed under load and comes back; ends with all sessions on it again."""
    running = asyncio.create_task(load.run())
    await until(lambda: entity(pair).sent > 60)
    two.primary.kill9()
    await until(lambda: entity(pair).diverted > 60)
    await asyncio.to_thread(two.primary.restart)
    await until(lambda: entity(pair).state == "healthy")
    # Every session is drained and returns, although it never stops to send; only not so fast that a
    # busy machine adds more than a syphon with one message of a session under way can move.
    load.pause_s = 0.2
    scan = client_of(pair).session_scan
    assert scan is not None
    # The syphon may be in a long pause between two attempts to connect.
    async with asyncio.timeout(120.0):
        while len(scan.order):  # noqa: ASYNC110  # the world outside has no event to wait for
            await asyncio.sleep(0.02)
    sent = entity(pair).sent
    await until(lambda: entity(pair).sent > sent + 30)
    load.stop()
    await running


async def test_sessions_are_in_order_when_the_primary_is_killed_in_mid_stream(two: Two) -> None:
    names = [f"s{number}" for number in range(6)]

    async with nothing_left():
        options = strict(enable_syphon=True)
        async with pair_namespaces(*two.sides(), options) as pair:
            load = Sessions(pair.get_queue_sender("orders"), names)
            await outage(two, pair, load)
        assert load.raised == []
    received = await asyncio.to_thread(two.receive, names)
    for name in names:
        assert first_arrivals(received[name]) == load.sent[name]


def divert(two: Two, sessions: dict[str, list[str]]) -> None:
    """Put messages where a strict pair would, in the order in which sessions take turns."""
    with client(two.texts[1]) as sdk:
        for queue in BACKLOG:
            mine = {s: ids for s, ids in sessions.items() if place_of(s) == queue}
            turns = zip_longest(*([(s, i) for i in ids] for s, ids in mine.items()))
            batch = [
                to_backlog_message(
                    ServiceBusMessage("x", message_id=turn[1], session_id=turn[0]),
                    "orders",
                    now_ms=0,
                )
                for turn in chain.from_iterable(turns)
                if turn is not None
            ]
            with sdk.get_queue_sender(queue) as sender:
                for at in range(0, len(batch), 100):
                    sender.send_messages(batch[at : at + 100])


def place_of(session: str) -> str:
    return session_queue(BACKLOG, "orders", session)


def numbered(names: list[str], count: int) -> dict[str, list[str]]:
    return {name: [f"{name}-{number}" for number in range(count)] for name in names}


def test_sessions_are_in_order_when_the_syphon_is_killed_in_mid_drain(two: Two) -> None:
    sessions = numbered([f"s{number}" for number in range(8)], 150)
    divert(two, sessions)
    kills = 2
    order = {"primary": two.texts[0], "secondary": two.texts[1], "window": 100}
    given = json.dumps({**order, "queues": {"strict": BACKLOG}})
    for _ in range(kills):
        with started("-m", syphon_worker.__name__, given) as worker:
            while int(line_of(worker)) <= 50:
                pass
            worker.kill()
        assert worker.returncode == -signal.SIGKILL

    options = SendAvailabilityOptions(session_order="strict")
    last = drain(*two.texts, BACKLOG, options=options, idle_s=0.1)
    stats = asyncio.run(asyncio.wait_for(last, 60))

    assert stats.forwarded > 0
    received = two.receive(list(sessions))
    for name, ids in sessions.items():
        assert first_arrivals(received[name]) == ids
        # One message of a session is under way: a kill repeats at most that one, right after it.
        assert len(received[name]) <= len(ids) + kills
        repeated = [i for i, one in enumerate(received[name][1:]) if one == received[name][i]]
        assert len(repeated) == len(received[name]) - len(ids)


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "a lease alone"])
async def test_of_two_syphons_one_forwards_and_the_other_takes_over(
    two: Two, is_strict: bool
) -> None:
    sessions = numbered(["a", "b", "c", "d"], 25)
    order = "strict" if is_strict else "relaxed"
    options = SendAvailabilityOptions(session_order=order)  # type: ignore[arg-type]

    def host() -> SyphonHost:
        return SyphonHost(*two.texts, BACKLOG, options, lease=True)

    def moved(syphon: SyphonHost) -> int:
        return sum(relay.pump.completed for relay in syphon.relays)

    first, second = host(), host()
    await first.start()
    leases = first.leases
    assert leases is not None
    await until(lambda: all(map(leases.holds, BACKLOG)))
    await second.start()
    await asyncio.to_thread(divert, two, sessions)
    await until(lambda: moved(first) == 100)
    assert moved(second) == 0
    problems = {p for line in second.status().values() for p in line.problems.values()}
    assert {p.partition(" (")[0] for p in problems} == {"another syphon has the lease"}
    # The lock runs for 5 s: held for longer than that, it was renewed.
    await asyncio.sleep(LOCK.total_seconds() + 1)
    assert all(map(leases.holds, BACKLOG))
    await first.close()
    await asyncio.to_thread(divert, two, sessions)
    await until(lambda: moved(second) == 100)
    await second.close()


async def test_a_lease_whose_secondary_hangs_ends_before_its_lock_does(two: Two) -> None:
    loop = asyncio.get_running_loop()
    options = SendAvailabilityOptions(session_order="strict")
    host = SyphonHost(*two.texts, BACKLOG[:1], options)
    await host.start()
    leases, relay = host.leases, host.relays[0]
    assert leases is not None
    await until(lambda: relay.primary is not None)
    two.secondary.process.send_signal(signal.SIGSTOP)
    stopped = loop.time()
    try:
        await until(lambda: relay.primary is None)
        assert loop.time() - stopped < LOCK.total_seconds()
        assert not leases.holds(BACKLOG[0])
    finally:
        two.secondary.process.send_signal(signal.SIGCONT)
    await until(lambda: relay.primary is not None)
    await host.close()


async def test_a_relay_that_wakes_up_after_its_lease_has_ended_sends_nothing(two: Two) -> None:
    is_held = False
    primary, secondary = map(Endpoint.parse, two.texts)
    relay = Relay(
        primary,
        secondary,
        place_of("a"),
        pump=Pump(is_strict=True),
        ledger=NullLedger(),
        lease=lambda: is_held,
    )
    relay.start()
    # Its timers have not told it yet that the lease is over.
    relay.lease_changed(True)
    await asyncio.to_thread(divert, two, {"a": ["a-0", "a-1"]})
    await until(lambda: not relay.leased.is_set())
    await asyncio.sleep(1.0)
    assert relay.pump.forwarded == 0
    is_held = True
    relay.lease_changed(True)
    await until(lambda: relay.pump.completed == 2)
    await relay.close()
    assert two.receive(["a"]) == {"a": ["a-0", "a-1"]}


async def test_a_session_that_an_earlier_process_left_in_the_backlog_stays_there(two: Two) -> None:
    divert(two, {"old": ["old-0"]})

    async with (
        nothing_left(),
        pair_namespaces(*two.sides(), strict()) as pair,
        pair.get_queue_sender("ORDERS") as sender,
    ):
        for name in ("old-1", "new-0"):
            session = name.partition("-")[0]
            message = ServiceBusMessage("x", message_id=name, session_id=session)
            await sender.send_messages(message, timeout=10)
        # Of a list, those of the bound session go behind what is there, the others not.
        both = [("old-2", "old"), ("new-1", "new"), ("old-3", "old")]
        await sender.send_messages(
            [ServiceBusMessage("x", message_id=i, session_id=s) for i, s in both]
        )
    kept = await backlog_drain(two.texts[1], place_of("old"))
    assert [message.message_id for message in kept] == ["old-0", "old-1", "old-2", "old-3"]
    # Looking locks nothing: each was delivered for the first time just now.
    assert {message.delivery_count for message in kept} <= {0, None}
    assert two.receive(["new", "old"]) == {"new": ["new-0", "new-1"], "old": []}


async def test_a_bound_session_waits_for_its_queue_and_then_raises_though_the_primary_is_up(
    two: Two,
) -> None:
    divert(two, {"old": ["old-0"]})

    async with pair_namespaces(*two.sides(), strict()) as pair:
        sender = pair.get_queue_sender("orders")
        two.secondary.kill9()
        old = ServiceBusMessage("x", message_id="old-1", session_id="old")
        with pytest.raises(BacklogUnavailableError) as raised:
            await sender.send_messages(old, timeout=10)
        assert raised.value.message_ids == ("old-1",)
        # The namespace is lost, so each queue has a reason; only the session's own was tried.
        tried = [q for q, e in raised.value.queue_errors.items() if isinstance(e, Exception)]
        assert tried == [place_of("old")]
        await sender.send_messages(ServiceBusMessage("x", message_id="n", session_id="new"))
    two.secondary.restart()
    assert two.receive(["new", "old"]) == {"new": ["n"], "old": []}


async def test_the_right_to_look_into_the_backlog_is_asked_for_by_name(two: Two) -> None:
    sides = two.sides(rule="sender", key="send-key")
    with pytest.raises(MissingRightError, match=r"strict session order .* needs the Listen"):
        async with pair_namespaces(*sides, strict(create_backlog_queues=False)):
            raise AssertionError
