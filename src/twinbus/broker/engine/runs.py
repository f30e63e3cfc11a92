"""Messages of one shape enqueued together: what holds for all of them is checked and done once."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from twinbus.broker.engine.limits import MESSAGE_BYTES
from twinbus.broker.journal import StoredMessage

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.messages.plain import PlainRun


def enqueue_run(queue: Queue, run: PlainRun, now_ms: int) -> list[StoredMessage]:
    """Enqueue messages as `Queue.enqueue` would, up to the first that it might refuse.

    Returns them as stored; `run` is cut to them. None is enqueued here if the queue treats each
    message by itself: with duplicate detection, sessions or forwarding.
    """
    states = queue.states
    if now_ms >= states.wake_ms:
        states.run_timers(now_ms)
    if (
        queue.is_deleted
        or queue.description.status != "Active"
        or states.has_more_memory
        or states.forwarding is not None
    ):
        run.cut(0)
        return []
    run.cut(_admitted(queue, run.sizes))
    if not run:
        return []
    queue.accessed_at_ms = now_ms
    return states.store_run(run, now_ms)


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
