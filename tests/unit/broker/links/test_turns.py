"""One client's input is handled in slices, and other clients come between them.

The clock of these tests moves with each look at it, so a slice is so many steps of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager

import pytest

from tests.unit.broker.fakes import facts
from tests.unit.broker.links.joined import JoinedClient, ticks_of
from twinbus.amqp.connection import EMPTY_FRAME, QUIET_FRAMES_MAX
from twinbus.amqp.events import Disposed, Event
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import SenderLink
from twinbus.amqp.message import BATCH_FORMAT, Properties, encode_message
from twinbus.amqp.performatives import Accepted, Flow, Rejected, Source, Target
from twinbus.amqp.types import Symbol, Timestamp, UInt
from twinbus.broker.admin.api import AdminRequest, respond
from twinbus.broker.descriptions import (
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.links.peer import SLICES_TOGETHER
from twinbus.broker.links.requests import ITEMS_MAX, SCHEDULE
from twinbus.broker.links.sending import STORED_AT_ONCE
from twinbus.broker.links.turns import PREPARING_MAX, SLICE_S, Turns
from twinbus.broker.sas import ALL_RIGHTS, Grant
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore
from twinbus.servicebus.names import BATCH_MESSAGES_MAX

EMPTY = b"\x00\x53\x75\xa0\x00"
"""A message without any section, in a batch."""

STEPS = 2
"""Steps of a slice."""

TICKS_MAX = 5_000
LATER = encode_message(
    message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(10**13)}, data=b""
)
ONE = encode_message(properties=Properties(message_id="one"), data=b"body")


class World:
    def __init__(self) -> None:
        self.server = BrokerServer("b", MemoryStore(), [])
        self._now = 0.0
        self.server.turns = Turns(self.server.loop, self._clock)
        for path in ("big", "small"):
            self.server.namespace.create_queue(path, QueueDescription(), 1)

    def _clock(self) -> float:
        self._now += 1.001 * SLICE_S / STEPS
        return self._now

    async def sender(self, address: str, *, hears: bool = False) -> Sender:
        client = JoinedClient(self.server)
        await client.exchange()
        session = client.connection.begin()
        await client.exchange()
        link = session.attach_sender("out", source=Source(), target=Target(address=address))
        if hears:
            session.attach_receiver(
                "in", source=Source(address=address), target=Target(address="r")
            )
        await client.exchange()
        return Sender(client, link)

    async def requester(self, path: str) -> Sender:
        """A client that sends requests to the management node of an entity."""
        return await self.sender(f"{path}/$management", hears=True)

    def held(self, path: str) -> int:
        return len(self.server.namespace.get_queue(path).messages)


class Sender:
    def __init__(self, client: JoinedClient, link: SenderLink) -> None:
        self.client = client
        self.link = link
        self.answers: list[object] = []

    def put(self, payload: bytes = ONE, *, is_batch: bool = False, settled: bool = False) -> None:
        form = BATCH_FORMAT if is_batch else 0
        self.link.send(payload, b"t", settled=settled, message_format=form)

    def hand_over(self) -> None:
        """Let all that was put arrive in one read."""
        self.client.peer.data_received(self.client.connection.take_output(1))

    async def tick(self) -> None:
        self._note(await self.client.exchange(1, waits=False))

    async def answered(self, count: int = 1) -> int:
        """Wait for so many answers; return how many steps of the loop that took."""
        for number in range(TICKS_MAX):
            if len(self.answers) >= count:
                return number
            await self.tick()
        raise AssertionError(f"{len(self.answers)} of {count} sends were answered")

    def _note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Disposed):
                self.answers += [event.state] * (event.last - event.first + 1)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.server.close()


async def test_a_send_is_answered_between_two_slices_of_a_batch() -> None:
    async with world() as here:
        greedy, neighbour = await here.sender("big"), await here.sender("small")
        alone = await here.sender("small")
        alone.put()
        alone.hand_over()
        steps_alone = await alone.answered()
        greedy.put(EMPTY * BATCH_MESSAGES_MAX, is_batch=True)
        greedy.hand_over()
        neighbour.put()
        neighbour.hand_over()
        assert await neighbour.answered() <= steps_alone + 1
        assert here.held("big") == 0
        seen = set()
        while not greedy.answers:
            seen.add(here.held("big"))
            await greedy.tick()
        # Whole or not at all, at any moment.
        assert seen == {0, BATCH_MESSAGES_MAX}
        assert greedy.answers == [Accepted()]
        assert not greedy.client.transport.is_paused
        assert greedy.client.peer.budgets.held_bytes.used < len(EMPTY) * BATCH_MESSAGES_MAX


async def test_nothing_more_is_read_from_a_client_that_waits_for_its_turn() -> None:
    async with world() as here:
        greedy = await here.sender("big")
        before = greedy.client.peer.budgets.held_bytes.used
        greedy.put(EMPTY * 1_000, is_batch=True)
        greedy.hand_over()
        assert greedy.client.transport.is_paused
        assert greedy.client.peer.budgets.held_bytes.used >= before + 1_000 * len(EMPTY)
        # TLS and WebSockets may hand over what they have all the same: it comes in its order.
        greedy.put()
        greedy.hand_over()
        await greedy.answered(2)
        assert here.held("big") == 1_001
        last = facts(here.server.namespace.get_queue("big"), here.server.now_ms())[-1]
        assert "one" in str(last)
        assert greedy.client.peer.budgets.held_bytes.used == before


async def test_a_send_is_answered_between_many_small_ones_of_one_read() -> None:
    async with world() as here:
        greedy, neighbour = await here.sender("big"), await here.sender("small")
        for number in range(5_000):
            greedy.link.credit = 1
            greedy.put(encode_message(properties=Properties(message_id=f"{number}"), data=b""))
        greedy.hand_over()
        neighbour.put()
        neighbour.hand_over()
        await neighbour.answered()
        assert 0 < here.held("big") < 5_000
        await greedy.answered(5_000)
        queue = here.server.namespace.get_queue("big")
        ids = [message.message_id for message in queue.messages.values()]
        assert ids == [str(number) for number in range(5_000)]


async def test_a_send_is_answered_between_two_slices_of_a_request_that_schedules_many() -> None:
    async with world() as here:
        greedy, neighbour = await here.requester("big"), await here.sender("small")
        alone = await here.sender("small")
        alone.put()
        alone.hand_over()
        steps_alone = await alone.answered()
        queue = here.server.namespace.get_queue("big")
        greedy.put(scheduling([LATER] * ITEMS_MAX))
        greedy.hand_over()
        neighbour.put()
        neighbour.hand_over()
        assert await neighbour.answered() <= steps_alone + 1
        assert queue.scheduled_count == 0
        seen = set()
        while not greedy.answers:
            seen.add(queue.scheduled_count)
            await greedy.tick()
        # Whole or not at all, at any moment.
        assert seen == {0, ITEMS_MAX}
        assert greedy.answers == [Accepted()]


@pytest.mark.parametrize("bad", [b"\x00\x53\x75\xa0\x05", None, 7])
async def test_a_long_request_with_a_bad_message_schedules_none(bad: object) -> None:
    async with world() as here:
        greedy = await here.requester("big")
        for messages in ([bad, *[LATER] * 1_000], [*[LATER] * 1_000, bad]):
            greedy.put(scheduling(messages))
            greedy.put(scheduling([LATER]))
        greedy.hand_over()
        await greedy.answered(4)
        # They were taken in their order: the good ones are there.
        assert here.server.namespace.get_queue("big").scheduled_count == 2


async def test_a_long_request_that_cannot_be_read_is_refused() -> None:
    async with world() as here:
        greedy = await here.requester("big")
        greedy.put(scheduling([LATER] * 1_000)[:-1])
        greedy.hand_over()
        await greedy.answered()
        assert isinstance(greedy.answers[0], Rejected)
        assert here.server.namespace.get_queue("big").scheduled_count == 0


def scheduling(messages: list[object]) -> bytes:
    return encode_message(
        properties=Properties(message_id="1", reply_to="r"),
        application_properties={"operation": SCHEDULE},
        value={"messages": [{"message": each} for each in messages]},
    )


def sql(name: str, expression: str) -> RuleDescription:
    return RuleDescription(name=name, filter=SqlFilter(expression=expression))


def with_rules(here: World, count: int) -> None:
    namespace = here.server.namespace
    namespace.create_topic("t", TopicDescription(), 1)
    namespace.create_subscription("t", "s", SubscriptionDescription(), 1, rule=sql("r", "1=0"))
    for number in range(count):
        namespace.create_rule("t", "s", sql(f"r{number}", f"kind = 'k{number}'"), 1)


async def test_a_send_is_answered_while_the_rules_of_a_topic_are_evaluated() -> None:
    async with world() as here:
        with_rules(here, 1_000)
        greedy, neighbour = await here.sender("t"), await here.sender("small")
        matching = {"kind": "k999"}
        greedy.put(encode_message(application_properties=matching, data=b""))
        greedy.hand_over()
        neighbour.put()
        neighbour.hand_over()
        await neighbour.answered()
        subscription = here.server.namespace.get_subscription("t", "s")
        assert not greedy.answers
        assert not subscription.messages
        await greedy.answered()
        assert len(subscription.messages) == 1


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_rule_that_changes_between_two_slices_is_evaluated_as_it_is_then(
    *, is_taken: bool
) -> None:
    async with world() as here:
        with_rules(here, 1_000)
        namespace, greedy = here.server.namespace, await here.sender("t")
        greedy.put(encode_message(application_properties={"kind": "k7"}, data=b""))
        greedy.hand_over()
        await greedy.tick()
        namespace.delete_rule("t", "s", "r7", 1)
        if is_taken:
            namespace.create_rule("t", "s", sql("late", "kind = 'k7'"), 1)
        await greedy.answered()
        assert len(namespace.get_subscription("t", "s").messages) == int(is_taken)


async def test_a_batch_of_more_messages_than_the_limit_is_refused_whole() -> None:
    async with world() as here:
        greedy = await here.sender("big")
        greedy.put(EMPTY * (BATCH_MESSAGES_MAX + 1), is_batch=True)
        greedy.hand_over()
        await greedy.answered()
        [answer] = greedy.answers
        assert isinstance(answer, Rejected)
        assert answer.error is not None
        assert answer.error.condition == "amqp:link:message-size-exceeded"
        assert str(BATCH_MESSAGES_MAX) in str(answer.error.description)
        assert here.held("big") == 0


@pytest.mark.parametrize("bad", [b"\x00\x53\x75", b"\x00\x53\x77\x40", b"\x00\x53\x75\xa0\x01\x00"])
async def test_a_batch_that_cannot_be_read_to_its_end_is_refused_whole(bad: bytes) -> None:
    async with world() as here:
        greedy = await here.sender("big")
        greedy.put(EMPTY * 500 + bad, is_batch=True)
        greedy.hand_over()
        await greedy.answered()
        assert isinstance(greedy.answers[0], Rejected)
        assert here.held("big") == 0


async def test_a_batch_whose_queue_is_deleted_between_two_slices_is_dropped() -> None:
    async with world() as here:
        greedy = await here.sender("big")
        greedy.put(EMPTY * 1_000, is_batch=True)
        greedy.hand_over()
        here.server.namespace.delete("big", 1)
        here.server.namespace.create_queue("big", QueueDescription(), 1)
        for _ in range(TICKS_MAX):
            if not greedy.client.transport.is_paused:
                break
            await greedy.tick()
        assert not greedy.client.transport.is_paused
        assert here.held("big") == 0
        assert not greedy.answers


async def test_what_a_client_sent_before_it_hung_up_is_handled() -> None:
    async with world() as here:
        greedy = await here.sender("big")
        greedy.put(EMPTY * 1_000, is_batch=True, settled=True)
        greedy.hand_over()
        greedy.client.peer.connection_lost(None)
        assert greedy.client.peer in here.server.peers
        for _ in range(TICKS_MAX):
            if greedy.client.peer not in here.server.peers:
                break
            await asyncio.sleep(0)
        assert greedy.client.peer not in here.server.peers
        assert here.held("big") == 1_000
        assert here.server.admission.budgets.held_bytes.used == 0


async def test_a_connection_that_is_cut_off_leaves_nothing_to_do() -> None:
    async with world() as here:
        clients = [await here.sender("big") for _ in range(PREPARING_MAX)]
        for each in clients:
            each.put(EMPTY * 1_000, is_batch=True)
            each.hand_over()
        await asyncio.sleep(0)
        for each in clients:
            each.client.peer.drop()
            each.client.peer.connection_lost(None)
        late = await here.sender("big")
        late.put(EMPTY * 1_000, is_batch=True)
        late.hand_over()
        await late.answered()
        assert here.held("big") == 1_000


async def test_few_batches_are_worked_out_at_a_time_and_all_of_them_in_the_end() -> None:
    async with world() as here:
        clients = [await here.sender("big") for _ in range(3 * PREPARING_MAX)]
        for each in clients:
            each.put(EMPTY * 200, is_batch=True)
            each.hand_over()
        most = 0
        while len(here.server.turns):
            most = max(most, here.server.turns.preparing)
            await asyncio.sleep(0)
        assert most == PREPARING_MAX
        assert here.server.turns.preparing == 0
        assert here.held("big") == 3 * PREPARING_MAX * 200


async def test_an_error_in_a_later_slice_ends_its_connection_and_no_other() -> None:
    async with world() as here:
        greedy, neighbour = await here.sender("big"), await here.sender("small")
        greedy.put(EMPTY * 1_000, is_batch=True)
        greedy.hand_over()

        def broken(*_: object) -> None:
            raise RuntimeError("planted")

        here.server.namespace.send_whole = broken  # type: ignore[method-assign, assignment]
        for _ in range(TICKS_MAX):
            if greedy.client.transport.is_aborted:
                break
            await greedy.tick()
        assert greedy.client.transport.is_aborted
        neighbour.put()
        neighbour.hand_over()
        await neighbour.answered()


async def test_no_slice_comes_before_a_step_that_hands_changes_to_the_writer() -> None:
    server, turns = BrokerServer("b", MemoryStore(), []), 6
    found: list[bool] = []

    def slice_of_one() -> bool:
        found.append(server._tick_scheduled or server.commit.is_due)
        server.wake()
        return len(found) < turns

    server.turns.wait(slice_of_one)
    server.wake()
    for _ in range(TICKS_MAX):
        await asyncio.sleep(0)
        if len(found) == turns:
            break
    await server.close()
    assert found == [False] * turns


async def test_no_slice_runs_beside_a_writer_that_computes() -> None:
    loop, slices = asyncio.get_running_loop(), 0
    waiting: list[Callable[[], None]] = []
    computes = True

    def once_packed(go_on: Callable[[], None]) -> bool:
        if computes:
            waiting.append(go_on)
        return computes

    def slice_of_one() -> bool:
        nonlocal slices
        slices += 1
        return slices < 3

    turns = Turns(loop, once_packed=once_packed)
    turns.wait(slice_of_one)
    for _ in range(5):
        await asyncio.sleep(0)
    # It does not even look again before it is called.
    assert (slices, len(waiting)) == (0, 1)
    computes = False
    waiting.pop()()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (slices, len(turns)) == (3, 0)


async def test_what_is_only_worked_out_costs_no_tick() -> None:
    async with world() as here:
        greedy, ticks = await here.sender("big"), ticks_of(here.server)
        greedy.put(EMPTY * BATCH_MESSAGES_MAX, is_batch=True)
        greedy.hand_over()
        steps = await greedy.answered()
        assert len(ticks) <= 2
        assert steps > 100


async def test_many_small_sends_of_one_read_are_answered_together() -> None:
    async with world() as here:
        greedy, count = await here.sender("big"), 1_000
        for number in range(count):
            greedy.link.credit = 1
            greedy.put(encode_message(application_properties={"number": number}, data=b""))
        ticks = ticks_of(here.server)
        greedy.hand_over()
        await greedy.answered(count)
        slices = count / STORED_AT_ONCE / STEPS
        assert len(ticks) <= slices / SLICES_TOGETHER + 2


@pytest.mark.parametrize(
    "frame",
    [EMPTY_FRAME, encode_frame(0, Flow(incoming_window=UInt(9), next_outgoing_id=UInt(0)))],
    ids=["empty frames", "flows"],
)
async def test_frames_that_bring_no_event_are_handled_in_turns(frame: bytes) -> None:
    async with world() as here:
        client = (await here.sender("big")).client
        turns = 0

        def neighbour() -> bool:
            nonlocal turns
            turns += 1
            return client.peer.has_unread

        client.peer.data_received(frame * 1_000)
        here.server.turns.wait(neighbour)
        for _ in range(TICKS_MAX):
            if not client.peer.has_unread:
                break
            await asyncio.sleep(0)
        assert turns >= 1_000 / QUIET_FRAMES_MAX / STEPS - 2
        assert not client.transport.is_closed


async def test_a_list_of_entities_is_worked_out_in_slices_and_each_client_has_its_turn() -> None:
    count, turns_between = 100, 0
    world = World()
    for number in range(count):
        world.server.namespace.create_queue(f"q{number}", QueueDescription(), 1)
    request = AdminRequest(
        method="GET", raw_path="/$Resources/queues", query={}, headers={"host": "localhost"}
    )
    grant = Grant(path="", rights=ALL_RIGHTS, expires_at_s=1e12, rule_name="manager")
    listing = asyncio.create_task(respond(world.server, request, grant))

    def take_turn() -> bool:
        nonlocal turns_between
        turns_between += not listing.done()
        return not listing.done()

    await asyncio.sleep(0)
    world.server.turns.wait(take_turn)
    answer = await listing
    # 100 is also the size of a page.
    assert (answer.status, answer.body.count(b"<entry ")) == (200, count)
    assert count // STEPS <= turns_between <= count


async def test_work_in_turns_raises_its_error_and_ends_with_who_waits_for_it() -> None:
    world, steps = World(), 0

    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("it failed")

    def endless() -> Generator[None, None, None]:
        nonlocal steps
        while True:
            steps += 1
            yield

    with pytest.raises(ValueError, match="it failed"):
        await world.server.turns.done(failing())
    waiting = asyncio.create_task(world.server.turns.done(endless()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)
    assert 0 < steps <= 2 * STEPS
    assert len(world.server.turns) == 0
