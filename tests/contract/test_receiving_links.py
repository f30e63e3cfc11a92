"""Our own receiving links against the broker: every outcome, sessions, requests, and each end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.contract.pairs import until
from tests.official_sdk import administration
from twinbus import EmbeddedBroker, Fault
from twinbus.amqp.message import Properties, decode_map, decode_properties, encode_message, split
from twinbus.broker.descriptions import QueueDescription
from twinbus.client.in_flight import Wire
from twinbus.client.links import UpstreamConnection
from twinbus.client.lock_requests import (
    peek,
    receive_deferred,
    renew_locks,
    renew_session_lock,
    session_state,
    set_session_state,
    settle_by_token,
)
from twinbus.client.outcomes import (
    COMPLETE,
    RELEASE,
    SettlingOutcome,
    abandon,
    dead_letter,
    defer,
)
from twinbus.client.receiving import NEXT_SESSION, Delivery, ReceivingLink
from twinbus.client.request_node import (
    ConnectionLost,
    LinkEnded,
    LockLost,
    RequestRefused,
)
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus import conditions

pytestmark = pytest.mark.contract

PATIENCE_S = 20.0
QUEUE = "orders"
DEAD = "orders/$DeadLetterQueue"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso") as embedded:
        embedded.create_queue(QUEUE)
        embedded.create_queue("sessions", QueueDescription(requires_session=True))
        embedded.create_queue("brief", QueueDescription(lock_duration_ms=5_000))
        yield embedded


class Receiver:
    """A link, what it brought, and how it ended."""

    def __init__(self, connection: UpstreamConnection, path: str, **options: Any) -> None:
        self.arrived: list[Delivery] = []
        self.ended: list[Exception] = []
        self.link = ReceivingLink(
            connection,
            path,
            on_deliveries=self.arrived.extend,
            on_ended=lambda _, error: self.ended.append(error),
            **options,
        )

    async def take(self, count: int) -> list[Delivery]:
        """Grant credit until this many more came; they are taken out."""
        if self.link.credit < count - len(self.arrived):
            self.link.grant(count - len(self.arrived))
        await until(lambda: len(self.arrived) >= count)
        taken, self.arrived[:count] = self.arrived[:count], []
        return taken

    async def settle(self, delivery: Delivery, outcome: SettlingOutcome) -> None:
        await settled(self.link, delivery, outcome)


async def settled(link: ReceivingLink, delivery: Delivery, outcome: SettlingOutcome) -> None:
    answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    link.settle(delivery, outcome, answer.set_result)
    async with asyncio.timeout(PATIENCE_S):
        error = await answer
    if error is not None:
        raise error


@asynccontextmanager
async def connected(broker: EmbeddedBroker) -> AsyncIterator[UpstreamConnection]:
    namespace = Namespace.from_connection_string(broker.connection_string())
    connection = UpstreamConnection(namespace, PATIENCE_S)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def receiving(
    broker: EmbeddedBroker, path: str = QUEUE, **options: Any
) -> AsyncIterator[tuple[UpstreamConnection, Receiver]]:
    async with connected(broker) as connection:
        yield connection, await opened(connection, path, **options)


async def opened(connection: UpstreamConnection, path: str, **options: Any) -> Receiver:
    receiver = Receiver(connection, path, **options)
    await receiver.link.open(PATIENCE_S)
    return receiver


async def send(
    connection: UpstreamConnection, path: str, *ids: str, session: str | None = None
) -> None:
    pool = connection.pool(path)
    await pool.open()
    for name in ids:
        properties = Properties(message_id=name, group_id=session)
        await pool.send_messages(Wire(encode_message(properties=properties, data=b"x"), 0))


def id_of(data: bytes) -> str:
    return str(decode_properties(split(data).properties).message_id)


def ids(deliveries: list[Delivery]) -> list[str]:
    return [id_of(delivery.data) for delivery in deliveries]


def application_properties(data: bytes) -> dict[Any, Any]:
    return decode_map(split(data).application_properties)


async def left(connection: UpstreamConnection, path: str = QUEUE) -> list[str]:
    """What the entity still holds, in any state."""
    return [id_of(data) for data in await peek(connection, path, 1, 100)]


async def test_what_is_completed_is_gone_and_what_is_not_stays(broker: EmbeddedBroker) -> None:
    async with receiving(broker, client_id="worker-1") as (connection, receiver):
        await send(connection, QUEUE, *map(str, range(300)))
        taken = await receiver.take(300)
        assert ids(taken) == [str(n) for n in range(300)]
        answers: list[Exception | None] = []
        for delivery in taken[:299]:
            receiver.link.settle(delivery, COMPLETE, answers.append)
        await until(lambda: len(answers) == 299)
        assert set(answers) == {None}
        assert await left(connection) == ["299"]


async def test_an_abandoned_message_comes_again_with_its_changes(broker: EmbeddedBroker) -> None:
    async with receiving(broker) as (connection, receiver):
        await send(connection, QUEUE, "a")
        (delivery,) = await receiver.take(1)
        await receiver.settle(delivery, abandon({"tries": 1}))
        (again,) = await receiver.take(1)
        assert application_properties(again.data) == {"tries": 1}
        await receiver.settle(again, abandon())
        (third,) = await receiver.take(1)
        await receiver.settle(third, COMPLETE)
        assert await left(connection) == []


async def test_a_deferred_message_is_received_and_settled_by_number(
    broker: EmbeddedBroker,
) -> None:
    async with receiving(broker) as (connection, receiver):
        await send(connection, QUEUE, "a", "b")
        for delivery in await receiver.take(2):
            await receiver.settle(delivery, defer({"put": "aside"}))
        (found,) = await receive_deferred(connection, QUEUE, [1])
        assert id_of(found.data) == "a"
        assert application_properties(found.data) == {"put": "aside"}
        assert found.lock_token is not None
        assert found.lock_token in await renew_locks(connection, QUEUE, [found.lock_token])
        await settle_by_token(connection, QUEUE, found.lock_token, COMPLETE)
        with pytest.raises(LockLost):
            await settle_by_token(connection, QUEUE, found.lock_token, COMPLETE)
        with pytest.raises(RequestRefused):
            await receive_deferred(connection, QUEUE, [1, 2])
        (deleted,) = await receive_deferred(connection, QUEUE, [2], receive_and_delete=True)
        assert (id_of(deleted.data), deleted.lock_token) == ("b", None)
        assert await left(connection) == []


@pytest.mark.parametrize("by_token", [False, True])
async def test_a_dead_letter_has_its_reason(broker: EmbeddedBroker, by_token: bool) -> None:
    outcome = dead_letter("unreadable", "no such field", {"seen": "yes"})
    async with receiving(broker) as (connection, receiver):
        await send(connection, QUEUE, "a")
        (delivery,) = await receiver.take(1)
        if by_token:
            assert delivery.lock_token is not None
            await settle_by_token(connection, QUEUE, delivery.lock_token, outcome)
        else:
            await receiver.settle(delivery, outcome)
        assert await left(connection) == []
        dead = await opened(connection, DEAD)
        (letter,) = await dead.take(1)
        assert application_properties(letter.data) == {
            "DeadLetterReason": "unreadable",
            "DeadLetterErrorDescription": "no such field",
            "seen": "yes",
        }
        await dead.settle(letter, COMPLETE)
        assert await left(connection, DEAD) == []


async def test_a_released_message_is_free_at_once_and_was_not_counted(
    broker: EmbeddedBroker,
) -> None:
    async with receiving(broker) as (connection, receiver):
        await send(connection, QUEUE, "a")
        for _ in range(12):  # Beyond the delivery count at which a message is dead-lettered.
            (delivery,) = await receiver.take(1)
            await receiver.settle(delivery, RELEASE)
        (delivery,) = await receiver.take(1)
        await receiver.settle(delivery, COMPLETE)


async def test_credit_limits_what_comes_and_a_drain_ends_it(broker: EmbeddedBroker) -> None:
    async with receiving(broker) as (connection, receiver):
        await send(connection, QUEUE, *"abcde")
        receiver.link.grant(2)
        await until(lambda: len(receiver.arrived) == 2)
        await asyncio.sleep(0.1)
        assert (ids(receiver.arrived), receiver.link.credit) == (["a", "b"], 0)
        receiver.link.grant(10)
        await until(lambda: len(receiver.arrived) == 5)
        assert receiver.link.credit == 7
        assert await receiver.link.drain(PATIENCE_S) is True
        assert receiver.link.credit == 0
        await send(connection, QUEUE, "late")
        await asyncio.sleep(0.1)
        assert len(receiver.arrived) == 5
        receiver.link.grant(1)
        await until(lambda: len(receiver.arrived) == 6)


async def test_a_lock_that_ended_is_lost_and_one_that_is_renewed_is_not(
    broker: EmbeddedBroker,
) -> None:
    async with receiving(broker, "brief") as (connection, receiver):
        await send(connection, "brief", "a", "b")
        lost, kept = await receiver.take(2)
        assert kept.lock_token is not None
        for _ in range(3):
            await asyncio.sleep(2)
            until_utc = (await renew_locks(connection, "brief", [kept.lock_token]))[kept.lock_token]
            assert timedelta() < until_utc - datetime.now(UTC) <= timedelta(seconds=5.1)
        assert lost.lock_token is not None
        tokens = [lost.lock_token, kept.lock_token]
        assert list(await renew_locks(connection, "brief", tokens)) == [kept.lock_token]
        with pytest.raises(LockLost) as caught:
            await receiver.settle(lost, COMPLETE)
        assert caught.value.condition == conditions.MESSAGE_LOCK_LOST
        await receiver.settle(kept, COMPLETE)


async def test_received_and_deleted_needs_no_settlement(broker: EmbeddedBroker) -> None:
    async with receiving(broker, receive_and_delete=True) as (connection, receiver):
        await send(connection, QUEUE, "a", "b")
        taken = await receiver.take(2)
        assert [(one.settled, one.lock_token) for one in taken] == [(True, None)] * 2
        assert await left(connection) == []
        await receiver.link.close(PATIENCE_S)


async def test_peeking_locks_nothing(broker: EmbeddedBroker) -> None:
    async with receiving(broker) as (connection, receiver):
        await send(connection, QUEUE, "a", "b", "c")
        assert [id_of(data) for data in await peek(connection, QUEUE, 2, 1)] == ["b"]
        assert ids(await receiver.take(3)) == ["a", "b", "c"]
        assert await peek(connection, QUEUE, 4, 10) == []


# Sessions


async def test_a_session_by_its_id_has_state_and_a_lock_that_is_renewed(
    broker: EmbeddedBroker,
) -> None:
    async with receiving(broker, "sessions", session="s-1") as (connection, receiver):
        link = receiver.link
        assert link.session_id == "s-1"
        assert link.session_locked_until is not None
        assert link.session_locked_until > datetime.now(UTC)
        await send(connection, "sessions", "other", session="s-2")
        await send(connection, "sessions", "a", "b", session="s-1")
        first, second = await receiver.take(2)
        assert ids([first, second]) == ["a", "b"]
        assert await session_state(connection, link) is None
        await set_session_state(connection, link, b"half")
        assert await session_state(connection, link) == b"half"
        await set_session_state(connection, link, None)
        assert await session_state(connection, link) is None
        assert await renew_session_lock(connection, link) > datetime.now(UTC)
        await receiver.settle(first, defer())
        await receiver.settle(second, COMPLETE)
        numbers = [2]
        (found,) = await receive_deferred(connection, "sessions", numbers, session=link)
        assert found.lock_token is not None
        await settle_by_token(connection, "sessions", found.lock_token, COMPLETE, session=link)
        assert [
            id_of(data) for data in await peek(connection, "sessions", 1, 9, session_id="s-2")
        ] == ["other"]
        await link.close(PATIENCE_S)
        with pytest.raises(LockLost):
            await renew_session_lock(connection, link)


async def test_the_next_free_session_or_none(broker: EmbeddedBroker) -> None:
    async with connected(broker) as connection:
        await send(connection, "sessions", "a", session="s-1")
        first = await opened(connection, "sessions", session=NEXT_SESSION)
        assert first.link.session_id == "s-1"
        taken = Receiver(connection, "sessions", session="s-1")
        with pytest.raises(LinkEnded) as caught:
            await taken.link.open(PATIENCE_S)
        assert caught.value.condition == conditions.SESSION_TAKEN
        waits = Receiver(connection, "sessions", session=NEXT_SESSION)
        began = time.monotonic()
        with pytest.raises((LinkEnded, TimeoutError)) as ended:
            await waits.link.open(1.0)
        # On a busy machine the service's answer may come too late.
        assert getattr(ended.value, "condition", conditions.TIMEOUT) == conditions.TIMEOUT
        assert time.monotonic() - began < PATIENCE_S
        assert (taken.ended, waits.ended) == ([], [])
        # When it is closed, the next one gets it at once.
        next_one = Receiver(connection, "sessions", session=NEXT_SESSION)
        opening = asyncio.create_task(next_one.link.open(PATIENCE_S))
        await asyncio.sleep(0.1)
        await first.link.close(PATIENCE_S)
        await opening
        assert next_one.link.session_id == "s-1"
        assert ids(await next_one.take(1)) == ["a"]


async def test_a_queue_with_sessions_refuses_a_plain_link(broker: EmbeddedBroker) -> None:
    async with connected(broker) as connection:
        receiver = Receiver(connection, "sessions")
        with pytest.raises(LinkEnded) as caught:
            await receiver.link.open(PATIENCE_S)
        assert caught.value.condition == conditions.NOT_ALLOWED


# Ends


async def test_a_close_gives_everything_back_at_once(broker: EmbeddedBroker) -> None:
    async with receiving(broker) as (connection, receiver), connected(broker) as elsewhere:
        await send(connection, QUEUE, *map(str, range(200)))
        receiver.link.grant(500)
        await until(lambda: len(receiver.arrived) >= 50)
        other = await opened(elsewhere, QUEUE)
        began = time.monotonic()
        receiver.link.release_all(receiver.arrived)
        await receiver.link.close(PATIENCE_S)
        assert len(await other.take(200)) == 200
        assert time.monotonic() - began < 1.0
        assert receiver.ended == []


async def test_an_entity_that_is_deleted_ends_its_link(broker: EmbeddedBroker) -> None:
    async with receiving(broker) as (connection, receiver):
        await send(connection, QUEUE, "a", "b")
        one, two = await receiver.take(2)
        with administration(broker.connection_string()) as admin:
            await asyncio.to_thread(admin.delete_queue, QUEUE)
        await until(lambda: bool(receiver.ended))
        answers: list[Exception | None] = []
        receiver.link.settle(one, COMPLETE, answers.append)
        receiver.link.settle(two, COMPLETE, answers.append)
        assert [type(answer) for answer in answers] == [LinkEnded] * 2
        (error,) = receiver.ended
        assert isinstance(error, LinkEnded)
        assert error.condition == conditions.NOT_FOUND
        with pytest.raises((LinkEnded, RequestRefused)):
            await opened(connection, QUEUE)


async def test_a_refused_attach_says_why_and_the_next_one_opens(broker: EmbeddedBroker) -> None:
    async with connected(broker) as connection:
        condition = conditions.INTERNAL_ERROR
        broker.add_fault(Fault(kind="refuse_attach", entity=QUEUE, condition=condition, count=1))
        with pytest.raises(LinkEnded) as caught:
            await opened(connection, QUEUE)
        assert caught.value.condition == condition
        await opened(connection, QUEUE)


async def test_an_attach_that_hangs_ends_in_time(broker: EmbeddedBroker) -> None:
    async with connected(broker) as connection:
        broker.add_fault(Fault(kind="hang", entity=QUEUE))
        with pytest.raises(TimeoutError):
            await Receiver(connection, QUEUE).link.open(0.5)
        broker.clear_faults()
        receiver = await opened(connection, QUEUE)
        await send(connection, QUEUE, "a")
        assert ids(await receiver.take(1)) == ["a"]


async def test_a_connection_that_is_cut_ends_every_settlement_and_link_once(
    broker: EmbeddedBroker,
) -> None:
    async with connected(broker) as connection:
        await send(connection, QUEUE, *map(str, range(100)))
        receivers = [await opened(connection, QUEUE) for _ in range(3)]
        for receiver in receivers:
            receiver.link.grant(30)
        await until(lambda: all(len(one.arrived) == 30 for one in receivers))
        answers: list[Exception | None] = []
        broker.cut_off()
        for receiver in receivers:
            for delivery in receiver.arrived:
                receiver.link.settle(delivery, COMPLETE, answers.append)
        await until(lambda: len(answers) == 90 and all(one.ended for one in receivers))
        await asyncio.sleep(0.1)
        assert len(answers) == 90
        assert [[type(error) for error in one.ended] for one in receivers] == [[ConnectionLost]] * 3
        assert {type(answer) for answer in answers} <= {LinkEnded, type(None)}
        with pytest.raises(ConnectionLost):
            await opened(connection, QUEUE)
        broker.serve_again()
        await asyncio.sleep(0.3)
        again = await opened(connection, QUEUE)
        assert again.link.is_open
