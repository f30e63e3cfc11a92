"""Backlog queues that come late: made, or enabled, after the pair was started.

Real processes: `twinbus serve` has both namespaces. The waits of the search are the product's own,
shortened; tests/unit/pairing/core/test_backlog.py holds their true lengths in virtual time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import EntityStatus

from tests.contract.pairs import PATIENCE_S, bodies, drain_all, quick, until
from tests.end_to_end.hand_made_world import Sides
from tests.official_sdk import administration
from twinbus import BacklogUnavailableError, MissingRightError, Namespace, pair_namespaces
from twinbus.pair import Pair
from twinbus.pairing.observing.events import PairEvent

# A second stands for a minute.
pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("short_searches")]


@asynccontextmanager
async def paired(
    sides: Sides, secondary: str, **options: Any
) -> AsyncIterator[tuple[Pair, list[PairEvent]]]:
    side = Namespace.from_connection_string(sides.primary, sides.label)
    events: list[PairEvent] = []
    async with pair_namespaces(side, secondary, quick(attempt_timeout=15.0, **options)) as pair:
        pair.on_event(events.append)
        yield pair, events


def told(events: list[PairEvent]) -> list[tuple[str, Any]]:
    """The kind and the subject of each event about protection."""
    return [
        (name, event.get("queue", event.get("protected")))
        for event in (event.as_dict() for event in events)
        if (name := event["event"]).startswith(("BacklogQueue", "Protection"))
    ]


async def is_diverted(pair: Pair, secondary: str, *queues: str) -> None:
    """Have a message diverted, and find it in the backlog."""
    async with pair.get_queue_sender("orders") as sender:
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("diverted"))
    (found,) = await drain_all(secondary, queues)
    assert str(found) == "diverted"


async def test_queues_that_an_administrator_makes_later_protect_the_pair(
    sides: Sides, caplog: pytest.LogCaptureFixture
) -> None:
    queues = sides.queues(2)
    caplog.set_level(logging.INFO, "twinbus")
    weak = sides.weak("sender")
    async with paired(sides, weak, create_backlog_queues=False) as (pair, events):
        assert not pair.status().protected
        assert pair.status().searching
        assert {queue.state for queue in pair.status().backlog_queues.values()} == {"left out"}
        with administration(sides.secondary) as admin:
            admin.create_queue(queues[1])
            await until(lambda: pair.backlog_queues == queues[1:])
            assert pair.status().searching, "the other one is still missing"
            admin.create_queue(queues[0])
        await until(lambda: pair.backlog_queues == queues)
        assert pair.status().searching is None
        assert told(events) == [
            ("BacklogQueueFound", queues[1]),
            ("ProtectionChanged", True),
            ("BacklogQueueFound", queues[0]),
        ]
        await is_diverted(pair, sides.secondary, *queues)
    # One line for each change, however many searches there were; queues that are left out for the
    # same reason share theirs.
    assert sum("left out" in r.message for r in caplog.records) == 1
    for queue in queues:
        lines = [r.message for r in caplog.records if r.message.startswith(queue)]
        assert len(lines) == 1, lines


async def test_queues_disabled_at_start_and_enabled_later_protect_the_pair(
    sides: Sides,
) -> None:
    queues = sides.queues(2)
    with administration(sides.secondary) as admin:
        for queue in queues:
            admin.create_queue(queue, status=EntityStatus.DISABLED, max_delivery_count=1_000)
        async with paired(sides, sides.secondary) as (pair, events):
            assert not pair.status().protected
            for queue in queues:
                description = admin.get_queue(queue)
                description.status = EntityStatus.ACTIVE
                admin.update_queue(description)
            await until(lambda: pair.status().protected and pair.status().searching is None)
            assert ("ProtectionChanged", True) in told(events)
            assert pair.backlog_queues == queues
            await is_diverted(pair, sides.secondary, *queues)


async def test_a_queue_that_is_deleted_later_is_made_again_or_found_again(
    sides: Sides,
) -> None:
    queues = sides.queues(2)
    weak = sides.weak("sender")
    text = sides.secondary
    with administration(text) as admin:
        async with paired(sides, text, backlog_queue_count=1) as (pair, events):
            async with paired(sides, weak, backlog_queue_count=1, create_backlog_queues=False) as (
                other,
                noticed,
            ):
                other.get_queue_sender("orders")
                other.force_failover("orders")
                admin.delete_queue(queues[0])
                async with other.get_queue_sender("orders") as sender:
                    # It has lost its only queue and may not make it again. A pair without a queue
                    # sends to the primary (SPEC 2.5).
                    lost = ServiceBusMessage("lost its queue")
                    await sender.send_messages(lost, timeout=PATIENCE_S)
                assert "lost its queue" in bodies(await drain_all(sides.primary, ("orders",)))
                await until(lambda: other.backlog_queues == ())
                assert ("BacklogQueueLeftOut", queues[0]) in told(noticed)
                assert ("ProtectionChanged", False) in told(noticed)
                pair.get_queue_sender("orders")
                pair.force_failover("orders")
                async with pair.get_queue_sender("orders") as sender:
                    await until_sent(sender)
                await until(lambda: other.status().protected)
                assert told(noticed)[-2:] == [
                    ("BacklogQueueFound", queues[0]),
                    ("ProtectionChanged", True),
                ]
            assert ("BacklogQueueFound", queues[0]) in told(events)


async def until_sent(sender: Any) -> None:
    """Send until one send returns, as a caller with patience would."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await sender.send_messages(ServiceBusMessage("x"), timeout=5)
            except BacklogUnavailableError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_a_missing_listen_right_fails_the_pairing_of_a_syphon(
    sides: Sides,
) -> None:
    queues = sides.queues(2)
    with administration(sides.secondary) as admin:
        for queue in queues:
            admin.create_queue(queue)
    weak = sides.weak("sender")
    with pytest.raises(MissingRightError, match=r"enable_syphon.*Listen"):
        async with paired(sides, weak, create_backlog_queues=False, enable_syphon=True):
            raise AssertionError
    both = sides.weak("both")
    async with paired(sides, both, create_backlog_queues=False, enable_syphon=True) as (pair, _):
        assert pair.backlog_queues == queues
