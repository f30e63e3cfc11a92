"""`schedule_messages` whose answer is lost: one scheduled copy, and an error that says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import quick
from tests.official_sdk import Faults, administration, async_client
from tests.processes import ServedBroker
from twinbus import Namespace, pair_namespaces
from twinbus.errors import ScheduleUnknownError

pytestmark = pytest.mark.end_to_end

PLAIN, DETECTING = "orders", "orders-once"
PATIENT_S = 60.0
# The retries that must not happen would come long before the failover. An attempt has much time,
# because one that a full machine makes late is not repeated either.
OPTIONS = quick(failover_interval=60.0, attempt_timeout=30.0, retry_backoff_factor=0.1)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    directory = tmp_path_factory.mktemp("schedule")
    with ServedBroker(directory, "contoso", "dr") as broker:
        primary = broker.connection_string("contoso")
        with administration(primary) as admin:
            admin.create_queue(PLAIN)
            admin.create_queue(DETECTING, requires_duplicate_detection=True)
        yield primary, broker.connection_string("dr")


def later() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def scheduled(text: str, queue: str, message_id: str) -> list[int | None]:
    """The sequence numbers of the scheduled copies of a message."""
    async with async_client(text) as sdk, sdk.get_queue_receiver(queue) as receiver:
        found = await receiver.peek_messages(250)
        return [each.sequence_number for each in found if each.message_id == message_id]


def pair_of(sides: tuple[str, str]) -> Any:
    primary, secondary = sides
    named = Namespace.from_connection_string(primary, name="contoso")
    return pair_namespaces(named, secondary, OPTIONS)


async def lose(sides: tuple[str, str], kind: str, queue: str) -> None:
    await asyncio.to_thread(lambda: Faults(sides[0]).add(kind, entity=queue, count=1))


@pytest.mark.parametrize("queue", [PLAIN, DETECTING])
async def test_a_lost_answer_leaves_one_copy_and_an_error(
    sides: tuple[str, str], queue: str
) -> None:
    async with pair_of(sides) as pair, pair.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("opens the link"), timeout=PATIENT_S)
        await lose(sides, "drop_after_commit", queue)
        message = ServiceBusMessage("one", message_id="stored")
        with pytest.raises(ScheduleUnknownError, match="may be scheduled") as raised:
            await sender.schedule_messages(message, later(), timeout=PATIENT_S)
        assert raised.value.message_ids == ("stored",)
        assert len(await scheduled(sides[0], queue, "stored")) == 1


@pytest.mark.parametrize("queue", [PLAIN, DETECTING])
async def test_a_lost_request_leaves_no_copy_and_the_same_error(
    sides: tuple[str, str], queue: str
) -> None:
    async with pair_of(sides) as pair, pair.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("opens the link"), timeout=PATIENT_S)
        await lose(sides, "drop_before_commit", queue)
        message = ServiceBusMessage("one", message_id="lost")
        with pytest.raises(ScheduleUnknownError):
            await sender.schedule_messages(message, later(), timeout=PATIENT_S)
        assert await scheduled(sides[0], queue, "lost") == []


async def test_the_callers_own_retry_gets_no_number_that_is_none(sides: tuple[str, str]) -> None:
    """The broker answers 0 for a duplicate that it dropped; 0 cancels nothing."""
    async with pair_of(sides) as pair, pair.get_queue_sender(DETECTING) as sender:
        message = ServiceBusMessage("one", message_id="twice")
        [number] = await sender.schedule_messages(message, later(), timeout=PATIENT_S)
        with pytest.raises(ScheduleUnknownError, match="duplicate") as raised:
            await sender.schedule_messages(
                [message, ServiceBusMessage("new", message_id="new")], later(), timeout=PATIENT_S
            )
        assert raised.value.message_ids == ("twice", "new")
        assert await scheduled(sides[0], DETECTING, "twice") == [number]
        assert len(await scheduled(sides[0], DETECTING, "new")) == 1


async def test_a_refusal_and_a_link_that_did_not_open_are_retried(sides: tuple[str, str]) -> None:
    for kind in ("throttle", "refuse_attach"):
        await lose(sides, kind, PLAIN)
        async with pair_of(sides) as pair:
            # Without `async with` the call itself opens the link.
            sender = pair.get_queue_sender(PLAIN)
            message = ServiceBusMessage("one", message_id=kind)
            [number] = await sender.schedule_messages(message, later(), timeout=PATIENT_S)
            await sender.close()
        assert await scheduled(sides[0], PLAIN, kind) == [number]


async def test_a_cancellation_without_an_answer_is_not_repeated(sides: tuple[str, str]) -> None:
    async with pair_of(sides) as pair, pair.get_queue_sender(PLAIN) as sender:
        message = ServiceBusMessage("one", message_id="kept")
        [number] = await sender.schedule_messages(message, later(), timeout=PATIENT_S)
        await lose(sides, "hang", PLAIN)
        with pytest.raises(ScheduleUnknownError, match=f"{number}"):
            await sender.cancel_scheduled_messages(number, timeout=2.0)
        assert await scheduled(sides[0], PLAIN, "kept") == [number]
