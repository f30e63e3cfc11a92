"""A world of transactions: an application takes orders and sends invoices, each in one transaction.

    result = simulate_transactions(7)
    assert not result.violations

The namespace crashes at discharges, hangs and is reached over a bad network; the application is
killed. What it is told of each transaction is compared with what is stored in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.simulation.machine import Process, SimLoop
from tests.simulation.namespace import EPOCH_MS, SimNamespace
from tests.simulation.network import Network, Wire
from tests.simulation.transactions.line import TransactedLine
from tests.simulation.truth import Deed
from twinbus.amqp.message import encode_message, split
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import LockedMessage, SettlementOutcome
from twinbus.broker.messages.incoming import parse
from twinbus.broker.messages.rendering import render
from twinbus.client.connection import Environment
from twinbus.errors import TransactionError, TransactionUnknownError
from twinbus.ledger.requests import BilledRequests
from twinbus.ledger.writer import NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.transacting.transactions import Transactions

ORDERS, INVOICES = "orders", "invoices"
ORDER_COUNT: Final = 12
LOCK_MS: Final = 20_000
FAULTS_END_S: Final = 60.0
QUIET_STEPS, QUIET_STEP_S = 120, 5.0
ANSWER_S: Final = 5.0
WAIT_S: Final = 3.0
AT_ONCE: Final = 3
NAMESPACE: Final = "Endpoint=sb://primary.example/;SharedAccessKeyName=a;SharedAccessKey=b"

WORK_S: Final = (0.0, 0.0, 0.02, 0.3, 2.0, 130.0)
"""What an application does in a transaction; the last is longer than a transaction lives."""


class Oops(Exception):
    """An application changes its mind."""


@dataclass
class Attempt:
    """One transaction: it completes an order and sends so many invoices."""

    number: int
    order: int
    count: int
    told: str | None = None
    """committed, rolled back or unknown; None: the application was killed before it was told."""


@dataclass
class TransactionResult:
    seed: int
    violations: list[str] = field(default_factory=list)
    told: Counter[str | None] = field(default_factory=Counter)


class TransactionWorld:
    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.rng = rng = Random(seed)
        self.loop = loop
        self.network = Network(rng)
        self.primary = SimNamespace(loop, "primary", lambda *_: None)
        self.namespaces = {"primary": self.primary}
        self.lines: list[Any] = []
        self.attempts: list[Attempt] = []
        self.result = TransactionResult(seed)
        self._process: Process | None = None
        self._environment = Environment(
            monotonic=loop.time,
            since_boot=loop.time,
            wall_ns=lambda: EPOCH_MS * 1_000_000 + round(loop.time() * 1e9),
            chance=rng.random,
            choose=rng.choice,
            new_id=lambda: UUID(int=rng.getrandbits(128)),
            connect=partial(TransactedLine, self),  # type: ignore[arg-type]
        )
        engine, now_ms = self.primary.engine, self.primary.now_ms()
        locked = QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=2_000)
        engine.create_queue(ORDERS, locked, now_ms)
        engine.create_queue(INVOICES, QueueDescription(), now_ms)
        wires = [encode_message(data=b"%d" % order) for order in range(ORDER_COUNT)]
        batch = [parse(wire, partial(str, number)) for number, wire in enumerate(wires)]
        engine.send(engine.send_target(ORDERS), batch, now_ms)

    @property
    def has_faults(self) -> bool:
        return self.loop.time() < FAULTS_END_S

    async def run(self) -> None:
        is_expired = property(self._is_expired)
        with patch.object(ServiceBusReceivedMessage, "_lock_expired", is_expired):
            troubles = asyncio.create_task(self._troubles())
            while self.loop.time() < FAULTS_END_S:
                await self._start()
                await asyncio.sleep(self.rng.choice((3.0, 20.0, 60.0)))
                assert self._process is not None
                await self._process.kill()
            await troubles
            self.network.calm()
            self.primary.restart()
            self.primary.go_on()
            await self._start()
            for _ in range(QUIET_STEPS):
                await asyncio.sleep(QUIET_STEP_S)
                if not self.primary.contents(ORDERS):
                    break
            assert self._process is not None
            await self._process.kill()
        self._check()

    async def _start(self) -> None:
        number = 1 if self._process is None else self._process.number + 1
        self._process = Process(self.loop, "shop", number)
        shop = self._process.spawn(self._shop())
        shop.add_done_callback(self._shop_ended)

    def _shop_ended(self, shop: asyncio.Task[None]) -> None:
        if not shop.cancelled():
            self._violation("stuck", f"the application ended: {shop.exception()!r}")

    # What goes wrong

    async def _troubles(self) -> None:
        rng = self.rng
        while self.has_faults:
            await asyncio.sleep(rng.uniform(1.0, 8.0))
            weather = self.network.weather("shop", "primary")
            match rng.choice(("stop", "slow", "flaky", "blocked", "calm")):
                case "stop":
                    self.primary.stop()
                    await asyncio.sleep(rng.choice((0.5, 3.0, 9.0)))
                    self.primary.go_on()
                case "slow":
                    weather.slow_s = rng.choice((0.05, 1.0))
                case "flaky":
                    weather.flaky = rng.choice((0.02, 0.1))
                case "blocked":
                    weather.blocked_until = self.loop.time() + rng.choice((0.5, 6.0))
                case _:
                    self.network.calm()

    def discharging(self, namespace: SimNamespace) -> None:
        """A discharge has arrived: now and then the namespace dies around it."""
        if self.has_faults and self.rng.random() < 0.15:
            self.loop.call_later(self.rng.uniform(0.0, 0.04), self._crash, namespace)

    def _crash(self, namespace: SimNamespace) -> None:
        if namespace.is_up:
            namespace.crash(dark=self.rng.random() < 0.3)
            self.loop.call_later(self.rng.choice((0.2, 4.0)), namespace.restart)

    # The application

    async def _shop(self) -> None:
        space = Namespace.from_connection_string(NAMESPACE)
        group = Transactions(
            space,
            answer_s=ANSWER_S,
            requests=BilledRequests("primary", ledger=NullLedger()),
            environment=self._environment,
        )
        while True:
            try:
                async with group.get_queue_receiver(ORDERS) as receiver:
                    while True:
                        orders = await receiver.receive_messages(AT_ONCE, WAIT_S)
                        handled = (self._handle(group, receiver, one) for one in orders)
                        await asyncio.gather(*handled)
            except ServiceBusError:
                await asyncio.sleep(1.0)

    async def _handle(self, group: Transactions, receiver: Any, order: Any) -> None:
        rng, count = self.rng, self.rng.randint(1, 3)
        attempt = Attempt(len(self.attempts), int(str(order)), count)
        self.attempts.append(attempt)
        try:
            async with group.transaction() as t:
                await t.complete_message(order)
                for index in range(count):
                    named = f"{attempt.number}.{index}"
                    await t.send_messages(INVOICES, ServiceBusMessage(named, message_id=named))
                if self.has_faults:
                    await asyncio.sleep(rng.choices(WORK_S, (9, 9, 9, 9, 3, 1))[0])
                    if rng.random() < 0.1:
                        raise Oops
            attempt.told = "committed"
        except TransactionUnknownError:
            attempt.told = "unknown"
        except (TransactionError, ServiceBusError, Oops):
            attempt.told = "rolled back"
            with contextlib.suppress(ServiceBusError, ValueError):
                await receiver.abandon_message(order)

    # What was true

    def _check(self) -> None:
        stored: defaultdict[int, int] = defaultdict(int)
        for found_in, payload in self.primary.contents(INVOICES):
            stored[int(_body(render(payload, found_in)).split(".")[0])] += 1
        left = {int(_body(render(wire, one))) for one, wire in self.primary.contents(ORDERS)}
        done: Counter[int] = Counter()
        for attempt in self.attempts:
            found = stored[attempt.number]
            self.result.told[attempt.told] += 1
            if found not in (0, attempt.count):
                self._violation("half", f"{attempt} stored {found}")
            if attempt.told == "committed" and found != attempt.count:
                self._violation("claims", f"{attempt} stored {found}")
            if attempt.told == "rolled back" and found:
                self._violation("claims", f"{attempt} stored {found}")
            done[attempt.order] += found > 0
        for order in range(ORDER_COUNT):
            if done[order] != (order not in left):
                where = "is left" if order in left else "is gone"
                self._violation("half", f"order {order} {where}, and invoiced {done[order]} times")
        if left:
            self._violation("stuck", f"orders {sorted(left)} were not handled")

    def _violation(self, kind: str, text: str) -> None:
        self.result.violations.append(f"{kind}: {text}")

    # What lines tell

    def note_lock(self, queue: Queue, delivery: LockedMessage, wire: Wire) -> None:
        """Nothing here asks who got what."""

    def note_settled(self, token: bytes, outcome: SettlementOutcome) -> None:
        """Nothing here asks how it was settled outside of a transaction."""

    def forward_deed(self, *_: object) -> Deed:
        raise AssertionError("a send outside of a transaction")

    def _is_expired(self, message: Any) -> bool:
        until = message.locked_until_utc
        ms = EPOCH_MS + round(self.loop.time() * 1000)
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        return until is not None and until <= now


def _body(wire: bytes) -> str:
    """The text of a message with one short section of data."""
    return split(wire).body[5:].decode()


def simulate_transactions(
    seed: int, planted: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> TransactionResult:
    """Run one world to its end."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        world = TransactionWorld(seed, loop)
        # Each fault is logged, which would take longer than all the rest.
        logging.disable(logging.WARNING)
        try:
            with planted():
                runner.run(world.run())
        finally:
            logging.disable(logging.NOTSET)
    return world.result
