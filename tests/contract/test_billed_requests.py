"""Every request that the broker counts is in the ledger, and nothing else is (SPEC 8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

import twinbus.broker.http
import twinbus.broker.links.management
from tests.contract.pairs import until
from tests.ledger_reading import read
from tests.official_sdk import administration, client
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.engine.sessions import Sessions
from twinbus.client.administration import counts_of, list_backlog_queues
from twinbus.console import namespaces as commands
from twinbus.ledger import LedgerWriter
from twinbus.ledger.requests import recording_to
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.replaying import DeadLetterFilter, dead_letters, replay
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
LEASES = "contoso/x-twinbus-lease"
LOCK_S = 5.0


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", "contoso-dr") as running:
        with administration(running.connection_string("contoso-dr")) as admin:
            for queue in BACKLOG:
                admin.create_queue(queue)
            lock = timedelta(seconds=LOCK_S)
            admin.create_queue(LEASES, requires_session=True, lock_duration=lock)
        yield running


@pytest.fixture
def counted(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the broker is asked for from now on: by AMQP request, by HTTP, for a session."""
    counts: Counter[str] = Counter()

    def count(place: Any, name: str) -> None:
        inner = getattr(place, name)

        def counting(*values: Any, **named: Any) -> Any:
            counts[name] += 1
            return inner(*values, **named)

        monkeypatch.setattr(place, name, counting)

    count(twinbus.broker.links.management, "handle")
    count(twinbus.broker.http, "respond")
    count(Sessions, "accept")
    return counts


async def test_the_ledger_has_the_requests_that_the_broker_counts(
    broker: EmbeddedBroker, counted: Counter[str], tmp_path: Path
) -> None:
    texts = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
    secondary = endpoint_of(texts[1])
    with LedgerWriter(tmp_path) as ledger, recording_to(ledger):
        holder, standby = (SyphonHost(*texts, BACKLOG, None, ledger, lease=True) for _ in range(2))
        await holder.start()
        leases = holder.leases
        assert leases is not None
        await until(lambda: all(map(leases.holds, BACKLOG)))
        await standby.start()
        for queue in BACKLOG:
            await counts_of(secondary, queue)
        assert await list_backlog_queues(secondary) == BACKLOG
        assert [
            letter async for letter in dead_letters(secondary, BACKLOG, DeadLetterFilter())
        ] == []
        async with commands.administration(
            Namespace.from_connection_string(texts[1]), "reading"
        ) as admin:
            await admin.get_queue(BACKLOG[0])
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


async def test_a_replay_is_in_the_ledger(broker: EmbeddedBroker, tmp_path: Path) -> None:
    text = broker.connection_string("contoso-dr")
    with client(text) as sdk:
        with sdk.get_queue_sender(BACKLOG[0]) as sender:
            sender.send_messages(to_backlog_message(ServiceBusMessage("x"), "orders", now_ms=0))
        with sdk.get_queue_receiver(BACKLOG[0]) as receiver:
            [message] = receiver.receive_messages(max_wait_time=30)
            receiver.dead_letter_message(message, reason="test")
    with LedgerWriter(tmp_path) as ledger, recording_to(ledger):
        result = await replay(endpoint_of(text), BACKLOG[:1], DeadLetterFilter())
    assert len(result.replayed) == 1
    places = Counter((record["cause"], record["backlog_queue"]) for record in read(tmp_path))
    letters = f"{BACKLOG[0]}/$DeadLetterQueue"
    # Two pages of dead letters, the letter that is received, its copy, and a peek at the end.
    assert places == {
        ("administration", letters): 2,
        ("syphon", letters): 1,
        ("syphon", BACKLOG[0]): 2,
    }
