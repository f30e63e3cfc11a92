"""Guarded and twin receivers on two real namespaces: both sides, outages, settlement, closing."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import AutoLockRenewer, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.contract import pairs
from tests.contract.pairs import bodies, drain, embedded, locked_count, nothing_left, until
from tests.official_sdk import administration, async_administration, async_client
from tests.silence.proxy import SilentProxy
from twinbus import EmbeddedBroker
from twinbus.pairing.receiving import watchdog
from twinbus.pairing.receiving.receiver import PairedReceiver
from twinbus.servicebus.twins import DIVERTED, SECONDARY_BIT, DivertMark

pytestmark = pytest.mark.contract

PRIMARY, SECONDARY = "contoso", "contoso-dr"
MARK = "twinbus-twin-of:contoso"
WAIT_S = 20.0
"""How long a message that is there may take on a busy machine."""

broker = embedded(queues=())
paired = partial(pairs.paired, attempt_timeout=5.0)
twinned = partial(paired, twins=["orders", "news"])


@pytest.fixture(autouse=True)
def entities(broker: EmbeddedBroker) -> None:
    for side in (PRIMARY, SECONDARY):
        mark: dict[str, Any] = {"user_metadata": MARK} if side is SECONDARY else {}
        short: dict[str, Any] = {"lock_duration": timedelta(seconds=30), **mark}
        with administration(broker.connection_string(side)) as admin:
            admin.create_queue("orders", **short)
            admin.create_queue("sessions", requires_session=True, **short)
            admin.create_topic("news", **mark)
            admin.create_subscription("news", "readers")


async def put(
    broker: EmbeddedBroker, side: str, *texts: str, queue: str = "orders", **fields: Any
) -> None:
    async with async_client(broker.connection_string(side)) as client:
        sender = client.get_queue_sender(queue)
        if queue == "news":
            sender = client.get_topic_sender(queue)
        async with sender:
            await sender.send_messages([ServiceBusMessage(text, **fields) for text in texts])


@asynccontextmanager
async def receiving(
    broker: EmbeddedBroker, make: Any = twinned, queue: str = "orders", **options: Any
) -> AsyncIterator[PairedReceiver]:
    async with make(broker) as pair:
        options.setdefault("guard", make is paired)
        async with pair.get_queue_receiver(queue, **options) as receiver:
            yield receiver


async def lock_for(broker: EmbeddedBroker, side: str, seconds: int) -> None:
    async with async_administration(broker.connection_string(side)) as admin:
        queue = await admin.get_queue("orders")
        queue.lock_duration = timedelta(seconds=seconds)
        await admin.update_queue(queue)


async def taken(receiver: Any, count: int) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    ends = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < ends, f"{bodies(found)} of {count}; {receiver.status()}"
        found += await receiver.receive_messages(count - len(found), max_wait_time=2)
    return found


async def complete(receiver: Any, messages: Iterable[Any]) -> None:
    await asyncio.gather(*(receiver.complete_message(message) for message in messages))


async def left(broker: EmbeddedBroker, side: str, queue: str = "orders") -> list[str]:
    return bodies(await drain(broker.connection_string(side), queue))


async def test_both_sides_are_read_and_each_message_is_settled_on_its_own(
    broker: EmbeddedBroker,
) -> None:
    await put(broker, PRIMARY, "a", "b")
    await put(broker, SECONDARY, "c", "d")
    async with nothing_left(), receiving(broker) as receiver:
        found = await taken(receiver, 4)
        assert sorted(bodies(found)) == ["a", "b", "c", "d"]
        twins = [m for m in found if (m.sequence_number or 0) & SECONDARY_BIT]
        assert sorted(bodies(twins)) == ["c", "d"]
        await complete(receiver, found)
        with pytest.raises(MessageAlreadySettled):
            await receiver.complete_message(found[0])
    assert await left(broker, PRIMARY) == []
    assert await left(broker, SECONDARY) == []


async def test_a_guarded_receiver_reads_only_the_primary(broker: EmbeddedBroker) -> None:
    await put(broker, PRIMARY, "a")
    await put(broker, SECONDARY, "foreign")
    async with receiving(broker, paired) as receiver:
        await complete(receiver, await taken(receiver, 1))
        assert await receiver.receive_messages(max_wait_time=0.5) == []
        assert list(receiver.status().sides) == ["primary"]
    assert await left(broker, SECONDARY) == ["foreign"]


async def test_without_guard_and_twin_a_pair_gives_the_sdks_receiver(
    broker: EmbeddedBroker,
) -> None:
    async with paired(broker) as pair, pair.get_queue_receiver("orders") as receiver:
        assert type(receiver) is ServiceBusReceiver


async def test_a_namesake_without_the_mark_is_never_read(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with async_administration(broker.connection_string(SECONDARY)) as admin:
        queue = await admin.get_queue("orders")
        queue.user_metadata = "twinbus-twin-of:fabrikam"
        await admin.update_queue(queue)
    await put(broker, PRIMARY, "a")
    await put(broker, SECONDARY, "foreign")
    async with receiving(broker) as receiver:
        assert bodies(await taken(receiver, 1)) == ["a"]
        assert await receiver.receive_messages(max_wait_time=1) == []
        assert receiver.status().sides["secondary"].delivered == 0
    assert "is not read: it is missing, or its UserMetadata is not" in caplog.text
    assert await left(broker, SECONDARY) == ["foreign"]


async def test_the_primary_may_be_down_at_the_start_and_come_later(broker: EmbeddedBroker) -> None:
    await put(broker, PRIMARY, "p")
    await put(broker, SECONDARY, "t")
    broker.cut_off(PRIMARY)
    async with nothing_left(), receiving(broker) as receiver:
        assert bodies(await taken(receiver, 1)) == ["t"]
        assert receiver.status().sides["primary"].state == "reconnecting"
        broker.serve_again(PRIMARY)
        found = await taken(receiver, 1)
        assert bodies(found) == ["p"]
        await receiver.complete_message(found[0])


@pytest.mark.parametrize("prefetch", [0, 20])
async def test_a_primary_that_is_killed_and_comes_back_is_received_from_again(
    broker: EmbeddedBroker, prefetch: int
) -> None:
    async with receiving(broker, prefetch_count=prefetch) as receiver:
        for round_number in range(2):
            await put(broker, PRIMARY, f"p{round_number}")
            found = await taken(receiver, 1)
            await complete(receiver, found)
            broker.cut_off(PRIMARY)
            await put(broker, SECONDARY, f"t{round_number}")
            found += await taken(receiver, 1)
            await receiver.complete_message(found[-1])
            broker.serve_again(PRIMARY)
            assert bodies(found) == [f"p{round_number}", f"t{round_number}"]
        assert receiver.status().sides["primary"].reopened == 2


async def test_a_message_is_settled_by_its_token_when_its_link_is_gone(
    broker: EmbeddedBroker,
) -> None:
    await put(broker, PRIMARY, "a")
    async with receiving(broker, paired) as receiver:
        (found,) = await taken(receiver, 1)
        side = receiver._inbox.sides[0]
        link = side.link
        assert link is not None
        side.connection.drop("a test")
        await until(lambda: side.link not in (None, link))
        await receiver.complete_message(found)
        assert await receiver.peek_messages(sequence_number=1) == []


async def test_deferred_messages_are_received_from_the_side_that_has_them(
    broker: EmbeddedBroker,
) -> None:
    await put(broker, PRIMARY, "p")
    await put(broker, SECONDARY, "t")
    async with receiving(broker) as receiver:
        found = await taken(receiver, 2)
        numbers = [message.sequence_number or 0 for message in found]
        for message in found:
            await receiver.defer_message(message)
        again = await receiver.receive_deferred_messages(numbers)
        assert sorted(bodies(again)) == ["p", "t"]
        assert {message.sequence_number for message in again} == set(numbers)
        await complete(receiver, again)
        with pytest.raises(ServiceBusError):
            await receiver.receive_deferred_messages(numbers)


async def test_abandoned_and_dead_lettered_messages(broker: EmbeddedBroker) -> None:
    await put(broker, SECONDARY, "t")
    async with receiving(broker) as receiver:
        (found,) = await taken(receiver, 1)
        await receiver.abandon_message(found)
        (found,) = await taken(receiver, 1)
        assert found.delivery_count == 1
        await receiver.dead_letter_message(found, "why", "what for")
    async with receiving(broker, sub_queue="deadletter") as receiver:
        (found,) = await taken(receiver, 1)
        assert (found.dead_letter_reason, found.dead_letter_error_description) == (
            "why",
            "what for",
        )
        await receiver.complete_message(found)


@pytest.mark.parametrize("first", [PRIMARY, SECONDARY])
async def test_a_second_copy_is_completed_and_not_handed_out(
    broker: EmbeddedBroker, first: str
) -> None:
    since_ms = time.time_ns() // 1_000_000
    mark = {DIVERTED: DivertMark("contoso", since_ms).text()}

    async def send(side: str) -> None:
        properties = mark if side is SECONDARY else None
        await put(broker, side, "x", message_id="7", application_properties=properties)

    async with receiving(broker) as receiver:
        await send(first)
        await complete(receiver, await taken(receiver, 1))
        await send(SECONDARY if first is PRIMARY else PRIMARY)
        await put(broker, PRIMARY, "y", message_id="8")
        assert bodies(await taken(receiver, 1)) == ["y"]
        assert await receiver.receive_messages(max_wait_time=0.5) == []
        assert receiver.status().second_copies == 1
        # The same id once more: the completed copy has been used.
        await send(SECONDARY if first is PRIMARY else PRIMARY)
        assert bodies(await taken(receiver, 1)) == ["x"]


async def test_a_call_that_waits_gets_the_message_behind_a_second_copy(
    broker: EmbeddedBroker,
) -> None:
    mark: Any = {DIVERTED: DivertMark("contoso", time.time_ns() // 1_000_000).text()}
    async with receiving(broker) as receiver:
        await put(broker, SECONDARY, "x", message_id="7", application_properties=mark)
        await complete(receiver, await taken(receiver, 1))
        waiting = asyncio.ensure_future(anext(receiver))
        await asyncio.sleep(0.1)
        # The copy uses up the credit of the call.
        await put(broker, PRIMARY, "x", message_id="7")
        await put(broker, PRIMARY, "y", message_id="8")
        async with asyncio.timeout(WAIT_S):
            assert bodies([await waiting]) == ["y"]


async def test_a_copy_after_answered_attempts_is_handed_out(broker: EmbeddedBroker) -> None:
    async with receiving(broker) as receiver:
        await put(broker, PRIMARY, "x", message_id="7")
        await complete(receiver, await taken(receiver, 1))
        properties: Any = {DIVERTED: DivertMark("contoso").text()}
        await put(broker, SECONDARY, "x", message_id="7", application_properties=properties)
        assert bodies(await taken(receiver, 1)) == ["x"]


@pytest.mark.parametrize("closes", ["receiver", "pair"])
@pytest.mark.parametrize("prefetch", [0, 1_000])
async def test_a_second_after_its_close_nothing_is_locked(
    broker: EmbeddedBroker, prefetch: int, closes: str
) -> None:
    await put(broker, PRIMARY, *(f"p{number}" for number in range(200)))
    await put(broker, SECONDARY, *(f"t{number}" for number in range(200)))
    async with twinned(broker) as pair:
        receiver: Any = pair.get_queue_receiver("orders", prefetch_count=prefetch)
        await complete(receiver, await taken(receiver, 2))
        if prefetch == 50:
            await until(lambda: receiver.status().buffered >= 50)
        # With 1,000 the others are on their way now.
        await (receiver if closes == "receiver" else pair).close()
        await asyncio.sleep(1)
        assert [locked_count(broker, side) for side in (PRIMARY, SECONDARY)] == [0, 0]
    counts = [len(await left(broker, side)) for side in (PRIMARY, SECONDARY)]
    assert sum(counts) == 398


async def test_without_prefetch_what_arrives_after_a_call_is_free_for_others(
    broker: EmbeddedBroker,
) -> None:
    async with receiving(broker, paired) as receiver:
        assert await receiver.receive_messages(max_message_count=5, max_wait_time=0.2) == []
        await put(broker, PRIMARY, "a", "b")
        assert sorted(await left(broker, PRIMARY)) == ["a", "b"]


@pytest.mark.parametrize("prefetch", [0, 10])
async def test_a_connection_that_is_half_open_is_found_and_replaced(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    monkeypatch.setattr(watchdog, "SILENT_LEAST_S", 1.0)
    monkeypatch.setattr(watchdog, "SPREAD_S", 0.0)
    # The broker may give the message to the dead connection first, until its lock ends.
    await lock_for(broker, PRIMARY, 5)
    port = broker.port(PRIMARY)
    async with SilentProxy(port) as proxy:
        through = broker.connection_string(PRIMARY).replace(f":{port}", f":{proxy.port}")
        make = partial(paired, primary=through)
        async with receiving(broker, make, guard=True, prefetch_count=prefetch) as receiver:
            await put(broker, PRIMARY, "before")
            await complete(receiver, await taken(receiver, 1))
            proxy.fall_silent()
            await put(broker, PRIMARY, "after")
            found = await taken(receiver, 1)
            assert bodies(found) == ["after"]
            await complete(receiver, found)
            assert receiver.status().sides["primary"].reopened == 1


async def test_the_flow_goes_on_when_the_primary_is_killed(broker: EmbeddedBroker) -> None:
    """Sends and receives of one pair through an outage: nothing lost, nothing twice."""
    received: list[str] = []

    async def receive(receiver: PairedReceiver) -> None:
        async for message in receiver:
            # Counted when it is settled: the primary is killed as soon as ten are.
            await receiver.complete_message(message)
            received.append(str(message))

    async with (
        twinned(broker, failover_interval=0.5, ping_primary_interval=1) as pair,
        pair.get_queue_sender("orders") as sender,
        cast("Any", pair.get_queue_receiver("orders")) as receiver,
    ):
        consumer = asyncio.create_task(receive(receiver))
        for number in range(30):
            await sender.send_messages(ServiceBusMessage(str(number)), timeout=30)
            if number == 9:
                await until(lambda: len(received) == 10)
                broker.cut_off(PRIMARY)
            if number == 19:
                # During the outage.
                await until(lambda: len(received) == 20)
                broker.serve_again(PRIMARY)
        await until(lambda: len(set(received)) == 30, what=received)
        status = receiver.status()
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)
    assert sorted(map(int, received)) == list(range(30))
    assert status.sides["secondary"].delivered >= 10
    assert await left(broker, PRIMARY) == await left(broker, SECONDARY) == []


async def test_a_processor_reads_both_sides_through_an_outage(broker: EmbeddedBroker) -> None:
    handled: list[str] = []

    async def handle(message: ServiceBusReceivedMessage) -> None:
        handled.append(str(message))

    async with twinned(broker) as pair, pair.process("orders", handle, concurrency=4):
        await put(broker, PRIMARY, "a", "b")
        await until(lambda: len(handled) == 2)
        broker.cut_off(PRIMARY)
        await put(broker, SECONDARY, "c", "d")
        await until(lambda: len(handled) == 4)
        broker.serve_again(PRIMARY)
        await put(broker, PRIMARY, "e")
        await until(lambda: len(handled) == 5)
    assert sorted(handled) == ["a", "b", "c", "d", "e"]
    assert await left(broker, PRIMARY) == await left(broker, SECONDARY) == []


async def test_a_cancelled_call_loses_nothing(broker: EmbeddedBroker) -> None:
    async with receiving(broker, paired) as receiver:
        for _ in range(5):
            call = asyncio.create_task(receiver.receive_messages(10, max_wait_time=30))
            await put(broker, PRIMARY, "a")
            call.cancel()
            result = (await asyncio.gather(call, return_exceptions=True))[0]
            if not isinstance(result, BaseException):
                await complete(receiver, result)
            else:
                await complete(receiver, await taken(receiver, 1))
        assert await receiver.peek_messages(sequence_number=1) == []


async def test_iteration_ends_after_max_wait_time(broker: EmbeddedBroker) -> None:
    await put(broker, PRIMARY, "a", "b", "c")
    async with receiving(broker, paired, max_wait_time=1) as receiver:
        found = []
        async for message in receiver:
            found.append(str(message))
            await receiver.complete_message(message)
        assert found == ["a", "b", "c"]


async def test_messages_that_were_received_and_deleted(broker: EmbeddedBroker) -> None:
    await put(broker, PRIMARY, "a")
    await put(broker, SECONDARY, "b")
    async with receiving(broker, receive_mode="receiveanddelete") as receiver:
        found = await taken(receiver, 2)
        assert sorted(bodies(found)) == ["a", "b"]
        with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
            await receiver.complete_message(found[0])
    assert await left(broker, PRIMARY) == []


async def test_peeking_shows_both_sides_and_goes_on_where_it_was(broker: EmbeddedBroker) -> None:
    await put(broker, PRIMARY, "a", "b")
    await put(broker, SECONDARY, "c")
    async with receiving(broker) as receiver:
        first = await receiver.peek_messages(1)
        rest = await receiver.peek_messages(10)
        assert (bodies(first), bodies(rest)) == (["a"], ["b", "c"])
        number = rest[-1].sequence_number or 0
        assert bodies(await receiver.peek_messages(5, sequence_number=number)) == ["c"]
        with pytest.raises(ValueError, match="peeked"):
            await receiver.complete_message(first[0])


async def test_the_sdks_lock_renewer_keeps_the_locks_of_both_sides(broker: EmbeddedBroker) -> None:
    for side in (PRIMARY, SECONDARY):
        await lock_for(broker, side, 5)
        await put(broker, side, side)
    async with AutoLockRenewer() as renewer, receiving(broker, auto_lock_renewer=renewer) as one:
        found = await taken(one, 2)
        await asyncio.sleep(7)
        await complete(one, found)


async def test_a_lost_lock_is_the_sdks_error(broker: EmbeddedBroker) -> None:
    await lock_for(broker, PRIMARY, 5)
    await put(broker, PRIMARY, "a")
    async with receiving(broker, paired) as receiver:
        (found,) = await taken(receiver, 1)
        await asyncio.sleep(5.5)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(found)
        found._expiry = None
        found.raw_amqp_message.annotations.pop(b"x-opt-locked-until")  # type: ignore[union-attr]
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(found)
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(found)
        (again,) = await taken(receiver, 1)
        assert again.delivery_count == 1


async def test_a_missing_queue_raises_when_the_receiver_is_opened(broker: EmbeddedBroker) -> None:
    async with nothing_left(), paired(broker) as pair:
        with pytest.raises(MessagingEntityNotFoundError):
            async with pair.get_queue_receiver("ghost", guard=True):
                pass


async def test_a_closed_receiver_refuses_calls(broker: EmbeddedBroker) -> None:
    async with paired(broker) as pair:
        receiver: Any = pair.get_queue_receiver("orders", guard=True)
        await put(broker, PRIMARY, "a")
        (message,) = await taken(receiver, 1)  # opened by the first call, as the SDK's
        assert str(pickle.loads(pickle.dumps(message))) == "a"  # our own
        with pytest.warns(DeprecationWarning, match="message"):
            assert message.message.delivery_tag is not None
        await receiver.close()
        await receiver.close()
        with pytest.raises(ValueError, match="shutdown"):
            await receiver.receive_messages()
        with pytest.raises(ValueError, match="shutdown"):
            await receiver.complete_message(message)
        with pytest.raises(ValueError, match="max_wait_time"):
            pair.get_queue_receiver("orders", guard=True, max_wait_time=0)


async def test_a_guarded_session(broker: EmbeddedBroker) -> None:
    await put(broker, PRIMARY, "a", "b", queue="sessions", session_id="s")
    async with paired(broker) as pair, AutoLockRenewer() as renewer:
        next_one: dict[str, Any] = {"session_id": NEXT_AVAILABLE_SESSION, "guard": True}
        options = {**next_one, "auto_lock_renewer": renewer}
        async with pair.get_queue_receiver("sessions", **options) as receiver:
            assert receiver.session.session_id == "s"
            assert receiver.session.locked_until_utc is not None
            await receiver.session.set_state("so far")
            assert await receiver.session.get_state() == b"so far"
            assert await receiver.session.renew_lock() > receiver.session.locked_until_utc - (
                timedelta(seconds=1)
            )
            found = await taken(receiver, 2)
            assert bodies(found) == ["a", "b"]
            with pytest.raises(TypeError):
                await receiver.renew_message_lock(found[0])
            other = pair.get_queue_receiver("sessions", guard=True, session_id="s")
            with pytest.raises(SessionCannotBeLockedError):
                await other.__aenter__()
            await complete(receiver, found)
        with pytest.raises(OperationTimeoutError):
            async with pair.get_queue_receiver("sessions", **next_one, max_wait_time=1):
                pass
        number: Any = 1
        with pytest.raises(ServiceBusError, match="a session id is a string"):
            async with pair.get_queue_receiver("sessions", guard=True, session_id=number):
                pass


async def test_a_session_is_lost_with_unsettled_messages_and_opened_again_without(
    broker: EmbeddedBroker,
) -> None:
    await put(broker, PRIMARY, "a", queue="sessions", session_id="s")
    async with paired(broker) as pair:
        guarded: Any = pair.get_queue_receiver("sessions", guard=True, session_id="s")
        async with guarded as receiver:
            (found,) = await taken(receiver, 1)
            await receiver.complete_message(found)
            receiver._inbox.sides[0].connection.drop("a test")
            await put(broker, PRIMARY, "b", queue="sessions", session_id="s")
            (found,) = await taken(receiver, 1)
            receiver._inbox.sides[0].connection.drop("a test")
            await until(lambda: receiver._inbox.sides[0].has_ended)
            with pytest.raises(SessionLockLostError):
                await receiver.complete_message(found)
            with pytest.raises(SessionLockLostError):
                await receiver.receive_messages(max_wait_time=1)
        async with pair.get_queue_receiver("sessions", guard=True, session_id="s") as receiver:
            assert bodies(await taken(receiver, 1)) == ["b"]


async def test_a_lock_of_a_session_that_ends_while_a_call_waits_ends_the_call_without_an_error(
    broker: EmbeddedBroker,
) -> None:
    await put(broker, PRIMARY, "a", "b", queue="sessions", session_id="s")
    options: dict[str, Any] = {"session_id": "s", "guard": True, "max_wait_time": 2}
    async with paired(broker) as pair:
        get = partial(pair.get_queue_receiver, "sessions", receive_mode="receiveanddelete")
        guarded: Any = get(**options)
        async with guarded as receiver:
            found = []
            async for message in receiver:
                found.append(message)
                receiver.session.locked(datetime.now(UTC) + timedelta(seconds=1))
            assert bodies(found) == ["a", "b"]
            with pytest.raises(SessionLockLostError):
                await receiver.receive_messages(max_wait_time=1)


async def test_sessions_of_an_entity_with_a_twin(broker: EmbeddedBroker) -> None:
    await put(broker, SECONDARY, "t", queue="sessions", session_id="s")
    make = partial(paired, twins=["sessions"], twins_with_sessions=True)
    async with make(broker) as pair:
        next_one: dict[str, Any] = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 10}
        async with cast("Any", pair.get_queue_receiver("sessions", **next_one)) as receiver:
            assert receiver.session.session_id == "s"
            assert list(receiver.status().sides) == ["secondary"]
            (first,) = await taken(receiver, 1)
            await receiver.complete_message(first)
        await put(broker, PRIMARY, "p", queue="sessions", session_id="s")
        await put(broker, SECONDARY, "u", queue="sessions", session_id="s")
        async with cast("Any", pair.get_queue_receiver("sessions", session_id="s")) as receiver:
            found = await taken(receiver, 2)
            assert sorted(bodies(found)) == ["p", "u"]
            await receiver.session.renew_lock()
            await complete(receiver, found)
    async with twinned(broker) as pair:
        guarded: Any = pair.get_queue_receiver("sessions", guard=True, session_id="s")
        async with guarded as receiver:
            assert list(receiver.status().sides) == ["primary"]


async def test_subscriptions_of_a_topic_with_a_twin(broker: EmbeddedBroker) -> None:
    await put(broker, PRIMARY, "p", queue="news")
    await put(broker, SECONDARY, "t", queue="news")
    async with (
        twinned(broker) as pair,
        pair.get_subscription_receiver("news", "readers") as receiver,
    ):
        found = await taken(receiver, 2)
        assert sorted(bodies(found)) == ["p", "t"]
        await complete(receiver, found)
        status = pair.status()
        assert [one.path for one in status.receivers.values()] == ["news/Subscriptions/readers"]
        assert "receiver of news/Subscriptions/readers" in str(status)
    assert await left(broker, PRIMARY, "news/Subscriptions/readers") == []
