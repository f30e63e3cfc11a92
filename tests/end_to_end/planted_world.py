"""An outage with planted faults, between broker processes that keep ledgers of their own.

Of what is diverted, a hacked syphon loses one message and forwards three twice; two are refused as
too large and are dead-lettered; one expires in its backlog queue, which was given a time to
live; two still wait. All else arrives and is received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from tests.contract.pairs import quick
from tests.end_to_end.bad_pumps import PlantedPump, pumped_by
from tests.official_sdk import Faults, administration, async_client, receive_all_async
from tests.processes import ServedBroker
from twinbus import Namespace, pair_namespaces
from twinbus.ledger import LedgerWriter
from twinbus.pair import Pair
from twinbus.servicebus.names import backlog_paths
from twinbus.syphon.draining import drain

STRAIGHT, DIVERTED, WAITING = 60, 90, 2
ENTITY, LARGE = "orders", "small"
EXPIRED = "planted-expired"
TOO_LARGE = tuple(f"planted-large-{n}" for n in range(2))
WAIT = tuple(f"planted-waiting-{n}" for n in range(WAITING))
BRIEF = timedelta(seconds=1)
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Planted:
    """What was done, by message id; and where the ledger of all parts is."""

    ledger: Path
    secondary: str
    queue: str
    accepted: frozenset[str]
    dropped: str = PlantedPump.DROPPED
    twice: frozenset[str] = PlantedPump.TWICE
    expired: str = EXPIRED
    dead_lettered: frozenset[str] = frozenset(TOO_LARGE)
    waiting: frozenset[str] = frozenset(WAIT)

    @property
    def received(self) -> frozenset[str]:
        gone = {self.dropped, self.expired, *self.dead_lettered, *self.waiting}
        return self.accepted - gone

    @property
    def diverted(self) -> int:
        return len(self.accepted) - STRAIGHT

    @property
    def came_out(self) -> int:
        """Deliveries out of the backlog queue: those given back came twice."""
        return self.diverted - len(self.waiting) - 1 + len(self.twice)


class PlantedWorld:
    """Runs the outage once; both namespaces stay up until the end."""

    def __init__(self, directory: Path) -> None:
        self.ledger = directory / "ledger"
        options = ("--quiet", "--ledger", str(self.ledger))
        self._broker = ServedBroker(directory, "contoso", "second", options=options)
        self._accepted: set[str] = set()
        self._queue = backlog_paths("contoso", 1)[0]

    def __enter__(self) -> Planted:
        self._broker.start()
        self._primary = self._broker.connection_string("contoso")
        self._secondary = self._broker.connection_string("second")
        with administration(self._primary) as admin:
            admin.create_queue(ENTITY)
            admin.create_queue(LARGE)
        asyncio.run(asyncio.wait_for(self._run(), PATIENCE_S))
        return Planted(self.ledger, self._secondary, self._queue, frozenset(self._accepted))

    def __exit__(self, *_: object) -> None:
        self._broker.kill9()

    def _pair(self) -> AbstractAsyncContextManager[Pair]:
        return pair_namespaces(
            Namespace.from_connection_string(self._primary, "contoso"),
            Namespace.from_connection_string(self._secondary),
            quick(backlog_queue_count=1, ledger=str(self.ledger), failover_interval=0.0),
        )

    async def _run(self) -> None:
        async with self._pair() as pair:
            await self._send(pair, ENTITY, (f"straight-{n}" for n in range(STRAIGHT)))
            await asyncio.to_thread(self._break)
            proper = await asyncio.to_thread(self._set_time_to_live, BRIEF)
            await self._send(pair, ENTITY, [EXPIRED])
            await asyncio.to_thread(self._set_time_to_live, proper, dead_letter=True)
            await self._send(pair, ENTITY, (f"diverted-{n}" for n in range(DIVERTED)))
            await self._send(pair, ENTITY, [PlantedPump.DROPPED, *sorted(PlantedPump.TWICE)])
            await self._send(pair, LARGE, TOO_LARGE)
        await asyncio.to_thread(self._mend)
        with LedgerWriter(self.ledger) as ledger:
            with pumped_by(PlantedPump):
                await drain(
                    self._primary, self._secondary, [self._queue], ledger=ledger, idle_s=0.1
                )
            await self._receive(ledger)
        async with self._pair() as pair:
            await asyncio.to_thread(self._break)
            await self._send(pair, ENTITY, WAIT)

    async def _send(self, pair: Pair, entity: str, names: Iterable[str]) -> None:
        async with pair.get_queue_sender(entity) as sender:
            for name in names:
                await sender.send_messages(ServiceBusMessage("x" * 50, message_id=name))
                self._accepted.add(name)

    async def _receive(self, ledger: LedgerWriter) -> None:
        """Receive all that is in the primary, as a consumer that keeps a ledger."""
        async with (
            async_client(self._primary) as client,
            client.get_queue_receiver(ENTITY) as receiver,
        ):

            async def take(message: ServiceBusReceivedMessage) -> None:
                about: dict[str, Any] = {
                    "namespace": "contoso",
                    "entity": ENTITY,
                    "view": "client",
                }
                about |= {"cause": "consumer", "outcome": "ok"}
                ledger.record("receive", message_id=message.message_id, size_bytes=50, **about)
                await receiver.complete_message(message)
                ledger.record("complete", message_id=message.message_id, **about)

            await receive_all_async(receiver, page=1, settle=take)

    def _break(self) -> None:
        Faults(self._primary).add("refuse_send", description="planted: the entity is down")

    def _mend(self) -> None:
        """Take the outage away when the brief message has expired; two will be too large."""
        time.sleep(BRIEF.total_seconds() + 0.5)
        faults = Faults(self._primary)
        faults.clear()
        faults.add(
            "refuse_send", entity=LARGE, count=len(TOO_LARGE),
            condition="amqp:link:message-size-exceeded",
        )  # fmt: skip

    def _set_time_to_live(self, lives: timedelta, *, dead_letter: bool = False) -> timedelta:
        """Give the backlog queue a time to live, a brief one is not to be; what it had before."""
        with administration(self._secondary) as admin:
            queue = admin.get_queue(self._queue)
            before = queue.default_message_time_to_live
            queue.default_message_time_to_live = lives
            queue.dead_lettering_on_message_expiration = dead_letter
            admin.update_queue(queue)
        assert isinstance(before, timedelta)
        return before
