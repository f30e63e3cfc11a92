"""Backlog queues: hostile content, spare ones, more destinations than a session has handles."""

from __future__ import annotations

import asyncio
import itertools
import logging
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError
from azure.servicebus.management import EntityStatus

from tests.contract.pairs import quick
from tests.contract.roads import QUEUE, TOPIC, Roads, running_roads
from tests.end_to_end.raw_client import message as raw_message
from tests.official_sdk import administration, client
from twinbus import EmbeddedBroker, Namespace, pair_namespaces
from twinbus.amqp.message import Properties, decode_map, encode_message, split
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, ULong
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.profile import AZURE_STANDARD, LAPTOP, ServiceProfile
from twinbus.client import request_node
from twinbus.console.backlog.queue_contents import remove_if_empty
from twinbus.namespace.administration_client import administration_client
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.draining import DrainStats, drain
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

RESIDENTS = [f"resident-{n}" for n in range(3)]
"""Messages that are in the primary's queue before the syphon comes."""
PATIENCE_S = 60.0
ANSWER_LINKS = 20
"""The syphon numbers the links on which it is answered; the purge has to name one of them."""


@pytest.fixture
def roads() -> Iterator[Roads]:
    with running_roads() as made:
        yield made


def stored(message_id: str, path: object = QUEUE, **aliases: object) -> bytes:
    """A message of a backlog queue."""
    return encode_message(
        properties=Properties(message_id=message_id),
        application_properties={
            **{f"x-ms-{name}": value for name, value in aliases.items()},
            "x-ms-path": path,
        },
        data=b"body",
    )


def purge(number: int) -> bytes:
    """A request to delete a queue's messages, in the form of a backlog message."""
    return encode_message(
        properties=Properties(message_id=f"purge-{number}", reply_to=f"$cbs-answers-{number}"),
        application_properties={
            "operation": "com.microsoft:batch-delete-messages",
            "x-ms-path": f"{QUEUE}/$management",
        },
        value={"message-count": Int(100)},
    )


async def backlog_of(roads: Roads, messages: list[bytes], **options: Any) -> None:
    """Put messages into a backlog queue, and residents into the primary's queue."""
    async with pair_namespaces(roads.primary, roads.secondary, quick(**options)):
        pass
    async with roads.client(roads.primary) as client:
        sender = await client.sender(QUEUE)
        for message_id in RESIDENTS:
            await sender.room()
            await sender.send(raw_message(message_id))
    async with roads.client(roads.secondary) as client:
        sender = await client.sender(roads.backlog[0])
        for message in messages:
            await sender.room()
            await sender.send(message)


async def syphoned(roads: Roads, **options: Any) -> DrainStats:
    work = drain(
        roads.primary,
        roads.secondary,
        roads.backlog,
        options=SendAvailabilityOptions(undeliverable_grace=0.0, **options),
        idle_s=0.2,
    )
    return await asyncio.wait_for(work, PATIENCE_S)


async def dead_letters(roads: Roads, count: int) -> dict[str, tuple[str, str]]:
    """Reason and description of the dead letters of the backlog queue, by message id."""
    found: dict[str, tuple[str, str]] = {}
    async with roads.client(roads.secondary) as client:
        receiver = await client.receiver(f"{roads.backlog[0]}/$DeadLetterQueue", credit=100)
        while len(found) < count:
            delivery = await receiver.receive()
            assert delivery is not None, f"{len(found)} of {count} came: {sorted(found)}"
            words = decode_map(split(delivery.payload).application_properties)
            found[delivery.key] = (
                words["DeadLetterReason"],
                words["DeadLetterErrorDescription"],
            )
    return found


NOT_ENTITIES = {
    "its dead letters": f"{QUEUE}/$DeadLetterQueue",
    "the token node": "$cbs",
    "a subscription": f"{TOPIC}/Subscriptions/all",
    "a rule's node": f"{TOPIC}/Subscriptions/all/$management",
    "an absolute address": f"amqps://contoso.example/{QUEUE}",
    "a query": f"{QUEUE}?timeout=1",
    "an encoded dollar": f"{QUEUE}/%24management",
    "a line break": f"{QUEUE}\r\nx",
    "too long": "q" * 261,
    "slash before": f"/{QUEUE}",
    "slash behind": f"{QUEUE}/",
    "slash alone": "/",
}


@pytest.mark.parametrize("session_order", ["relaxed", "strict"])
def test_a_backlog_message_cannot_purge_a_queue_of_the_primary(
    roads: Roads, session_order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = {f"purge-{n}": purge(n) for n in range(1, ANSWER_LINKS + 1)}
    good = [f"good-{n}" for n in range(len(hostile) + 1)]

    async def scenario() -> None:
        messages = alternating([stored(key) for key in good], list(hostile.values()))
        await backlog_of(roads, messages, session_order=session_order)
        # The numbers of the purges are those of the links in the syphon, as in a new process.
        monkeypatch.setattr(request_node, "_numbers", itertools.count(1))
        await syphoned(roads, session_order=session_order)
        assert set(await roads.received(QUEUE, len(good) + len(RESIDENTS))) == {*RESIDENTS, *good}
        letters = await dead_letters(roads, len(hostile))
        assert {key: reason for key, (reason, _) in letters.items()} == dict.fromkeys(
            hostile, "InvalidDestination"
        )
        assert f"{QUEUE}/$management" in letters["purge-1"][1]

    asyncio.run(scenario())


def test_a_path_that_is_no_entity_is_dead_lettered(roads: Roads) -> None:
    hostile = {name: stored(name, path) for name, path in NOT_ENTITIES.items()}
    good = [f"good-{n}" for n in range(len(hostile) + 1)]

    async def scenario() -> None:
        await backlog_of(roads, alternating([stored(key) for key in good], list(hostile.values())))
        stats = await syphoned(roads)
        assert (stats.forwarded, stats.dead_lettered) == (len(good), len(hostile))
        assert set(await roads.received(QUEUE, len(good) + len(RESIDENTS))) == {*RESIDENTS, *good}
        letters = await dead_letters(roads, len(hostile))
        assert {key: reason for key, (reason, _) in letters.items()} == dict.fromkeys(
            hostile, "InvalidDestination"
        )

    asyncio.run(scenario())


TIMESPAN = Symbol("com.microsoft:timespan")
DATETIME_OFFSET = Symbol("com.microsoft:datetime-offset")
NOT_RESTORABLE: dict[str, dict[str, object]] = {
    "time past 64 bits": {"scheduledenqueuetimeutc": ULong(2**64 - 1)},
    "time past every date": {"scheduledenqueuetimeutc": Timestamp(2**63 - 1)},
    "time before every date": {"scheduledenqueuetimeutc": Timestamp(-(2**63))},
    "described time past every date": {
        "scheduledenqueuetimeutc": Described(DATETIME_OFFSET, ULong(2**64 - 1))
    },
    "life past 64 bits": {"timetolive": ULong(2**64 - 1)},
    "negative life": {"timetolive": Described(TIMESPAN, -(2**63))},
    "long session": {"sessionid": "s" * 129},
}


@pytest.mark.parametrize("ttl_policy", ["full", "remaining"])
def test_a_message_that_cannot_be_restored_does_not_stop_its_neighbours(
    roads: Roads, ttl_policy: str
) -> None:
    hostile = {name: stored(name, **aliases) for name, aliases in NOT_RESTORABLE.items()}
    good = [f"good-{n}" for n in range(len(hostile) + 1)]

    async def scenario() -> None:
        await backlog_of(roads, alternating([stored(key) for key in good], list(hostile.values())))
        stats = await syphoned(roads, ttl_policy=ttl_policy)
        assert (stats.forwarded, stats.dead_lettered) == (len(good), len(hostile))
        assert set(await roads.received(QUEUE, len(good) + len(RESIDENTS))) == {*RESIDENTS, *good}
        letters = await dead_letters(roads, len(hostile))
        assert {key: reason for key, (reason, _) in letters.items()} == dict.fromkeys(
            hostile, "AliasValueInvalid"
        )
        assert "18446744073709551615" in letters["time past 64 bits"][1]

    asyncio.run(scenario())


def alternating(good: list[bytes], hostile: list[bytes]) -> list[bytes]:
    """Each hostile message between two good ones."""
    return [*itertools.chain(*zip(good, hostile, strict=False)), *good[len(hostile) :]]


SPARE = "contoso/x-servicebus-transfer/7"


@pytest.fixture
def secondary() -> Iterator[str]:
    with EmbeddedBroker("contoso-dr") as broker:
        broker.create_queue(SPARE)
        yield broker.connection_string()


def send(secondary: str) -> None:
    with client(secondary) as sdk, sdk.get_queue_sender(SPARE) as sender:
        sender.send_messages(ServiceBusMessage("just in time"))


class Administration:
    """An administration client with some calls of its own."""

    def __init__(self, client: Any, **own: Any) -> None:
        self._client = client
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def removed(secondary: str, **own: Any) -> str | None:
    namespace = Namespace.from_connection_string(secondary)

    async def remove() -> str | None:
        async with administration_client(namespace) as admin:
            used: Any = Administration(admin, **own)
            return await remove_if_empty(used, namespace, SPARE)

    return asyncio.run(remove())


def status(secondary: str) -> Any:
    with administration(secondary) as admin:
        return admin.get_queue(SPARE).status


def test_an_empty_queue_is_removed_once(secondary: str) -> None:
    assert removed(secondary) is None
    assert removed(secondary) == "it is gone already"


def test_a_queue_that_holds_a_message_stays_and_takes_more(secondary: str) -> None:
    send(secondary)
    assert removed(secondary) == "it holds 1 message"
    assert status(secondary) == EntityStatus.ACTIVE
    send(secondary)


def test_nothing_slips_in_between_the_last_look_and_the_deletion(secondary: str) -> None:
    async def send_and_delete(path: str) -> None:
        with pytest.raises(MessagingEntityDisabledError):
            await asyncio.to_thread(send, secondary)
        with administration(secondary) as admin:
            admin.delete_queue(path)

    assert removed(secondary, delete_queue=send_and_delete) is None
    assert removed(secondary) == "it is gone already"


def test_a_removal_that_is_cut_short_gives_the_queue_back(secondary: str) -> None:
    async def interrupted(path: str) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        removed(secondary, get_queue_runtime_properties=interrupted)
    assert status(secondary) == EntityStatus.ACTIVE


log = logging.getLogger(__name__)

HANDLE_MAX = 255
"""What Azure Service Bus announces."""

MANY_PATIENCE_S = 300.0
BATCH = 100
MB = 1024


LAPTOP_WITH_ITS_LIMIT = replace(LAPTOP, handle_max=HANDLE_MAX)


def drain_to(broker: EmbeddedBroker, destinations: int, backlog_queues: int) -> int:
    """Move one message to each of so many queues; return how many were forwarded."""
    primary, secondary = (broker.connection_string(name) for name in ("contoso", "contoso-dr"))
    paths = [f"entity-{number}" for number in range(destinations)]
    queues = [f"contoso/x-servicebus-transfer/{number}" for number in range(backlog_queues)]
    for path in paths:
        broker.create_queue(path, namespace="contoso")
    for queue in queues:
        broker.create_queue(queue, QueueDescription(max_size_mb=5120), namespace="contoso-dr")
    with client(secondary, retry_total=20) as sdk:
        for number, queue in enumerate(queues):
            with sdk.get_queue_sender(queue) as sender:
                mine = paths[number::backlog_queues]
                for at in range(0, len(mine), BATCH):
                    part = mine[at : at + BATCH]
                    copies = [
                        to_backlog_message(ServiceBusMessage(path), path, now_ms=0) for path in part
                    ]
                    sender.send_messages(copies)
    began, before_mb = time.monotonic(), peak_mb()
    stats = asyncio.run(asyncio.wait_for(drain(primary, secondary, queues), MANY_PATIENCE_S))
    took_s, more_mb = time.monotonic() - began, peak_mb() - before_mb
    log.info(
        "%d destinations, %d queues: %.1f s, +%.0f MB",
        destinations, backlog_queues, took_s, more_mb,
    )  # fmt: skip
    return stats.completed


def peak_mb() -> float:
    """The most memory that this process ever had, broker and syphon together."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB


# The long ones create thousands of queues, or drain at what the credits allow.
@pytest.mark.parametrize(
    ("profile", "destinations", "backlog_queues"),
    [
        pytest.param(LAPTOP_WITH_ITS_LIMIT, 3 * HANDLE_MAX, 1, id="beyond handle-max"),
        pytest.param(AZURE_STANDARD, 300, 20, id="limits of Azure"),
        pytest.param(AZURE_STANDARD, 2_000, 20, id="long, Azure", marks=pytest.mark.soak),
        pytest.param(LAPTOP_WITH_ITS_LIMIT, 10_000, 1, id="long", marks=pytest.mark.soak),
    ],
)
def test_destinations_beyond_handle_max_use_further_sessions(
    profile: ServiceProfile, destinations: int, backlog_queues: int
) -> None:
    with EmbeddedBroker("contoso", "contoso-dr", profile=profile) as broker:
        assert drain_to(broker, destinations, backlog_queues) == destinations
