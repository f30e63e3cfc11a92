"""What one step stores was made ready in slices, and is right whatever came between them."""

from __future__ import annotations

import pytest

from tests.unit.broker.links.test_turns import EMPTY, TICKS_MAX, World, world
from twinbus.amqp.performatives import Accepted
from twinbus.broker.engine.runs import ENCODED_AT_ONCE, TRIES
from twinbus.broker.journal import EncodedRun, StoredMessage
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
