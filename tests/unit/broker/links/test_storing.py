"""What one step stores was made ready in slices, and is right whatever came between them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.fakes import incoming
from tests.unit.broker.links.test_turns import EMPTY, TICKS_MAX, World, world
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.performatives import Accepted
from twinbus.amqp.types import Array
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.runs import ENCODED_AT_ONCE, TRIES
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.journal import EncodedRun, StoredMessage
from twinbus.broker.links import prepared
from twinbus.broker.links.context import TOKENS_AT_ONCE
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.servicebus.names import BATCH_MESSAGES_MAX


def encoding_noted(here: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages the store encodes in each call."""
    counts, encode = [], here.server.store.encode_run

    def noted(number: int, messages: list[StoredMessage], *rest: object) -> EncodedRun:
        counts.append(len(messages))
        return encode(number, messages, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(here.server.store, "encode_run", noted)
    return counts


async def test_a_batch_is_encoded_in_slices_and_stored_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as here:
        counts, greedy = encoding_noted(here, monkeypatch), await here.sender("big")
        greedy.put(EMPTY * BATCH_MESSAGES_MAX, is_batch=True)
        greedy.hand_over()
        await greedy.answered()
        assert here.held("big") == sum(counts) == BATCH_MESSAGES_MAX
        assert max(counts) == ENCODED_AT_ONCE


def parsing_noted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Callable[[], int]]:
    """How many messages were parsed when each step of a delivery was done, and are parsed now."""
    counts: list[int] = []
    parsed, steps = 0, prepared.Prepared.steps

    def noted(*given: Any) -> Incoming:
        nonlocal parsed
        parsed += 1
        return parse(*given)

    def noted_steps(*given: Any, **options: Any) -> Iterator[None]:
        for _ in steps(*given, **options):
            counts.append(parsed)
            yield

    monkeypatch.setattr(prepared, "parse", noted)
    monkeypatch.setattr(prepared.Prepared, "steps", noted_steps)
    return counts, lambda: parsed


async def test_a_batch_that_is_a_run_keeps_no_parsed_message() -> None:
    async with world() as here:
        greedy = await here.sender("big")
        greedy.put(EMPTY * BATCH_MESSAGES_MAX, is_batch=True)
        greedy.hand_over()
        for number in range(TICKS_MAX):
            if greedy.answers:
                break
            await greedy.tick()
            if number % 100 == 0:
                # The garbage collector would visit each of them.
                held = sum(type(each) is Incoming for each in gc.get_objects())
                assert held < 10 * prepared.PARSED_AT_ONCE
        assert here.held("big") == BATCH_MESSAGES_MAX


@pytest.mark.parametrize(
    "description", [{"max_size_mb": 1}, {"requires_duplicate_detection": True}]
)
async def test_a_batch_that_its_queue_does_not_take_as_a_run_is_parsed_in_slices(
    description: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as here:
        here.server.namespace.create_queue("small-one", QueueDescription(**description), 1)
        greedy = await here.sender("small-one")
        counts, parsed = parsing_noted(monkeypatch)
        greedy.put(EMPTY * BATCH_MESSAGES_MAX, is_batch=True)
        greedy.hand_over()
        await greedy.answered()
        assert max(after - before for before, after in pairwise(counts)) <= prepared.PARSED_AT_ONCE
        # No room for so many, or stored one by one.
        assert counts[-1] == parsed() >= BATCH_MESSAGES_MAX
        assert here.held("small-one") == BATCH_MESSAGES_MAX * ("max_size_mb" not in description)


@pytest.mark.parametrize("others", [1, TRIES - 1, TICKS_MAX])
async def test_a_batch_gets_the_next_numbers_though_others_send_between_its_slices(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as here:
        counts, greedy = encoding_noted(here, monkeypatch), await here.sender("big")
        other, sent = await here.sender("big"), 0
        greedy.put(EMPTY * 1_000, is_batch=True)
        greedy.hand_over()
        while not greedy.answers:
            if sent < others and len(counts) % 5 == 4:
                other.put()
                other.hand_over()
                await other.answered(sent := sent + 1)
            await greedy.tick()
        assert sent
        assert greedy.answers == [Accepted()]
        queue, store = here.server.namespace.get_queue("big"), here.server.store
        assert list(queue.messages) == list(range(1, 1_000 + sent + 1))
        [first, *_] = numbers = [
            n for n, each in queue.messages.items() if each.message_id != "one"
        ]
        assert numbers == list(range(first, first + 1_000))
        times = [each.enqueued_at_ms for each in queue.messages.values()]
        assert times == sorted(times)
        taken = queue.acquire(None, 2_000, here.server.now_ms())
        assert [each.message.sequence_number for each in taken] == list(queue.messages)
        [image] = [each for each in store.recover() if each.path == "big"]
        assert image.last_sequence_number == len(queue.messages) == len(image.messages)
        for number in numbers:
            message_id = queue.messages[number].message_id
            assert message_id is not None
            assert message_id.encode() in store.payload(queue.entity_id, number)


MANY = 1_000


def request(operation: str, **arguments: object) -> bytes:
    return encode_message(
        properties=Properties(message_id="1", reply_to="r"),
        application_properties={"operation": f"com.microsoft:{operation}"},
        value={name.replace("_", "-"): value for name, value in arguments.items()},
    )


def held_by_someone(queue: Queue, now_ms: int) -> list[UUID]:
    return [UUID(bytes_le=each.lock_token) for each in queue.acquire(None, MANY, now_ms)]


def deferred(queue: Queue, now_ms: int) -> list[int]:
    for each in queue.acquire(None, MANY, now_ms):
        queue.settle(each.lock_token, SettlementOutcome.DEFER, now_ms)
    return list(queue.messages)


REQUESTS: dict[str, Any] = {
    "peek": lambda *_: request("peek-message", from_sequence_number=0, message_count=MANY),
    "renew": lambda *on: request("renew-lock", lock_tokens=Array(held_by_someone(*on))),
    "settle": lambda *on: request(
        "update-disposition",
        disposition_status="completed",
        lock_tokens=Array(held_by_someone(*on)),
    ),
    "receive": lambda *on: request(
        "receive-by-sequence-number", sequence_numbers=Array(deferred(*on))
    ),
    "take": lambda *on: request(
        "receive-by-sequence-number",
        sequence_numbers=Array(deferred(*on)),
        receiver_settle_mode=0,
    ),
    "delete": lambda *_: request("batch-delete-messages", message_count=MANY),
}
LEFT = {"settle": 0, "take": 0, "delete": 0}


@pytest.mark.parametrize("what", REQUESTS)
async def test_a_send_is_answered_between_two_slices_of_a_request_about_many_messages(
    what: str,
) -> None:
    async with world() as here:
        queue, now_ms = here.server.namespace.get_queue("big"), here.server.now_ms()
        for _ in range(MANY):
            queue.enqueue(incoming(), now_ms)
        greedy, neighbour = await here.requester("big"), await here.sender("small")
        alone = await here.sender("small")
        alone.put()
        alone.hand_over()
        steps_alone = await alone.answered()
        greedy.put(REQUESTS[what](queue, now_ms))
        greedy.hand_over()
        neighbour.put()
        neighbour.hand_over()
        assert await neighbour.answered() <= steps_alone + 1
        assert not greedy.answers
        await greedy.answered()
        assert greedy.answers == [Accepted()]
        assert here.held("big") == LEFT.get(what, MANY)


@pytest.mark.parametrize("what", ["receive", "take"])
async def test_a_receive_by_number_gives_what_is_still_its_own_after_each_slice(what: str) -> None:
    async with world() as here:
        queue, now_ms = here.server.namespace.get_queue("big"), here.server.now_ms()
        for _ in range(MANY):
            queue.enqueue(incoming(), now_ms)
        greedy = await here.requester("big")
        greedy.put(REQUESTS[what](queue, now_ms))
        greedy.hand_over()
        while not queue.locked_count:
            await greedy.tick()
        # All locks end in the middle, as for a client whose turns come late.
        later_ms = here.server.now_ms() + 2 * queue.description.lock_duration_ms
        queue.run_timers(later_ms, MANY)
        left = len(queue.messages)
        await greedy.answered()
        assert greedy.answers == [Accepted()]
        assert here.held("big") == left
        assert not queue.locked_count


async def test_a_long_batch_without_ids_fetches_random_bytes_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched, urandom = [], os.urandom

    def noted(size_bytes: int) -> bytes:
        fetched.append(size_bytes)
        return urandom(size_bytes)

    async with world() as here:
        greedy = await here.sender("big")
        monkeypatch.setattr(os, "urandom", noted)
        greedy.put(EMPTY * BATCH_MESSAGES_MAX, is_batch=True)
        greedy.hand_over()
        await greedy.answered()
        # Each fetch releases the interpreter's lock: the writer wakes up, comes too late and waits
        # anew, for as long as one batch is read.
        assert len(fetched) <= BATCH_MESSAGES_MAX // TOKENS_AT_ONCE + 1
        messages = here.server.namespace.get_queue("big").messages.values()
        assert len({each.message_id for each in messages}) == BATCH_MESSAGES_MAX
