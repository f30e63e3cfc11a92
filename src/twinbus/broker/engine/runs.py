"""Messages of one shape enqueued together: what holds for all of them is checked and done once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from twinbus.broker.engine.limits import MESSAGE_BYTES
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.incoming import Incoming
from twinbus.broker.messages.plain import ID_BYTES_MAX, PlainRun

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue


def enqueue_run(queue: Queue, run: PlainRun, now_ms: int) -> list[StoredMessage]:
    """Enqueue messages as `Queue.enqueue` would, up to the first that it might refuse.

    Returns them as stored; `run` is cut to them. None is enqueued here if the queue treats each
    message by itself: with duplicate detection, sessions or forwarding.
    """
    run.cut(_admitted(queue, run.sizes) if _takes_runs(queue, now_ms) else 0)
    if not run:
        return []
    queue.accessed_at_ms = now_ms
    return queue.states.store_run(run, now_ms)


def enqueue_whole(queue: Queue, run: PlainRun, now_ms: int) -> list[StoredMessage]:
    """The same for all of these messages, or for none: the queue might refuse one of them."""
    if not _takes_runs(queue, now_ms) or _admitted(queue, run.sizes) < len(run):
        return []
    queue.accessed_at_ms = now_ms
    return queue.states.store_run(run, now_ms)


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


def _takes_runs(queue: Queue, now_ms: int) -> bool:
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
