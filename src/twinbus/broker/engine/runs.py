"""Messages of one shape enqueued together: what holds for all of them is checked and done once.

A long run is made ready in steps, as the records that its queue will store (`encode_ahead`), while
nothing changes. To store it, its records then only enter the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.broker.engine.limits import MESSAGE_BYTES
from twinbus.broker.engine.message_states import MessageStates
from twinbus.broker.journal import EncodedRun, StoredMessage
from twinbus.broker.messages.incoming import Incoming
from twinbus.broker.messages.plain import ID_BYTES_MAX, PlainRun

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue

ENCODED_AT_ONCE: Final = 32
"""Messages of one step: a quarter of a slice (`links.turns.SLICE_S`)."""

TRIES: Final = 3
"""The records hold numbers. If others store messages in the queue meanwhile, they are made again;
after so many times they are made when the run is stored."""


class RunAhead(NamedTuple):
    """The records of a run, as long as the queue gives the next message the first number."""

    states: MessageStates
    first: int
    ttl_ms: int
    messages: list[StoredMessage]
    encoded: list[EncodedRun]

    def holds(self) -> bool:
        return self.states.last_sequence_number + 1 == self.first


def enqueue_run(queue: Queue, run: PlainRun, now_ms: int) -> list[StoredMessage]:
    """Enqueue messages as `Queue.enqueue` would, up to the first that it might refuse.

    Returns them as stored; `run` is cut to them. None is enqueued here if the queue treats each
    message by itself: with duplicate detection, sessions or forwarding.
    """
    run.cut(_admitted(queue, run.sizes) if takes_runs(queue, now_ms) else 0)
    if not run:
        return []
    queue.accessed_at_ms = now_ms
    return queue.states.store_run(run, now_ms)


def enqueue_whole(queue: Queue, run: PlainRun, now_ms: int) -> list[StoredMessage]:
    """The same for all of these messages, or for none: the queue might refuse one of them."""
    if not takes_whole(queue, run, now_ms):
        return []
    queue.accessed_at_ms = now_ms
    states, ahead = queue.states, run.ahead
    if (
        not isinstance(ahead, RunAhead)
        or ahead.states is not states
        or not ahead.holds()
        or ahead.ttl_ms != states.ttl_of(run.ttl_ms)
    ):
        return states.store_run(run, now_ms)
    last_number = ahead.messages[-1].sequence_number
    states.journal.put_encoded(states.entity_id, ahead.encoded, last_number)
    states.place_run(ahead.messages)
    return ahead.messages


def encode_ahead(
    queue: Queue, run: PlainRun, now_ms: Callable[[], int]
) -> Generator[None, None, None]:
    """Make the records that `enqueue_whole` will store for a run, in steps; nothing changes."""
    for _ in range(TRIES):
        if not takes_runs(queue, now_ms()):
            return
        ahead = yield from _encoded(queue.states, run, now_ms())
        if ahead.holds():
            run.ahead = ahead
            return


def _encoded(states: MessageStates, run: PlainRun, now_ms: int) -> Generator[None, None, RunAhead]:
    """The records of a run, or of its first part if the queue has given its number away."""
    first, ttl_ms = states.last_sequence_number + 1, states.ttl_of(run.ttl_ms)
    ahead = RunAhead(states, first, ttl_ms, [], [])
    for place in range(0, len(run), ENCODED_AT_ONCE):
        part = run.part(place, place + ENCODED_AT_ONCE)
        messages = states.messages_of(part, first + place, now_ms)
        encoded = states.journal.encode_run(
            states.entity_id, messages, part.ids, part.prefix, part.rests
        )
        ahead.messages.extend(messages)
        ahead.encoded.append(encoded)
        yield
        if not ahead.holds():
            break
    return ahead


def extend_run(run: PlainRun, messages: Sequence[Incoming]) -> bool:
    """Add parsed messages to a run; false if one differs in more than its id and bytes."""
    ttl_ms, add_id, add_text = run.ttl_ms, run.ids.append, run.message_ids.append
    add_rest, add_size = run.rests.append, run.sizes.append
    for incoming in messages:
        message_id = incoming.message_id
        if (
            message_id is None
            or incoming.session_id is not None
            or incoming.is_ping
            or incoming.scheduled_for_ms
            or incoming.ttl_ms != ttl_ms
            or len(raw_id := message_id.encode()) > ID_BYTES_MAX
        ):
            return False
        add_id(raw_id)
        add_text(message_id)
        add_rest(incoming.payload)
        add_size(incoming.size_bytes)
    return True


def takes_runs(queue: Queue, now_ms: int) -> bool:
    """Whether the queue treats no message by itself, and takes messages at all."""
    states = queue.states
    if now_ms >= states.wake_ms:
        states.run_timers(now_ms)
    return (
        not queue.is_deleted
        and queue.description.status == "Active"
        and not states.has_more_memory
        and states.forwarding is None
    )


def takes_whole(queue: Queue, run: PlainRun, now_ms: int) -> bool:
    """Whether `enqueue_whole` would store these messages."""
    return takes_runs(queue, now_ms) and _admitted(queue, run.sizes) == len(run)


def _admitted(queue: Queue, sizes: list[int]) -> int:
    """How many of these messages find room, as `Queue.admit` reckons it."""
    states, quota_bytes = queue.states, queue.quota_bytes
    index = states.index
    held_bytes, held, extra_bytes = index.size_bytes, len(index.messages), index.extra_bytes
    if states.dead_letter is not None and (dead := states.dead_letter.index).messages:
        held_bytes += dead.size_bytes
        held += len(dead.messages)
        extra_bytes += dead.extra_bytes
    room_bytes, most_bytes = quota_bytes - held_bytes, queue.max_message_bytes
    count = max(0, min(len(sizes), (quota_bytes - extra_bytes) // MESSAGE_BYTES - held))
    if sum(sizes) <= room_bytes and max(sizes, default=0) <= most_bytes:
        return count
    sums = accumulate(sizes)
    for place, size, total in zip(range(count), sizes, sums, strict=False):
        if size > most_bytes or total > room_bytes:
            return place
    return count
