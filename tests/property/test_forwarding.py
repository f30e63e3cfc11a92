"""Queues that forward to each other in any pattern: no message is lost, none is doubled."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.fakes import World, incoming
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import LockedMessage, SettlementOutcome
from twinbus.broker.refusals import Refusal

ME = object()
NAMES = ["a", "b", "c"]
targets = st.none() | st.sampled_from([*NAMES, "nowhere"])


@given(
    routes=st.lists(st.tuples(targets, targets), min_size=3, max_size=3),
    steps=st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(["send", "schedule", "dead-letter", "wait", "close", "open", "crash"]),
        ),
        max_size=25,
    ),
)
def test_whatever_forwards_where_each_message_is_in_one_place(
    routes: list[tuple[str | None, str | None]], steps: list[tuple[str, str]]
) -> None:
    world = World()
    wanted = {
        name: QueueDescription(forward_to=onward, forward_dead_letters_to=dead)
        for name, (onward, dead) in zip(NAMES, routes, strict=True)
    }
    for name, description in wanted.items():
        world.namespace.create_queue(name, description, 0)
    now_ms, sent = 0, 0
    for name, step in steps:
        queue = world.namespace.get_queue(name)
        now_ms += 400
        if step in ("send", "schedule"):
            sent += _tries_to_send(queue, f"m{sent}", now_ms, step)
        elif step == "dead-letter":
            for delivery in _available(queue, now_ms):
                queue.settle(delivery.lock_token, SettlementOutcome.DEAD_LETTER, now_ms)
        elif step == "wait":
            world.namespace.run_timers(now_ms)
        elif step == "crash":
            world = world.restarted(now_ms)
        else:
            status = "Disabled" if step == "close" else "Active"
            description = QueueDescription(
                forward_to=wanted[name].forward_to,
                forward_dead_letters_to=wanted[name].forward_dead_letters_to,
                status=status,
            )
            world.namespace.update(name, description, now_ms)
        held: list[str | None] = []
        for each in world.namespace.queues():
            assert each.dead_letter is not None
            for part in (each, each.dead_letter):
                held += [message.message_id for message in part.messages.values()]
        assert Counter(held) == Counter(f"m{index}" for index in range(sent))
        on_disk = [
            message.message_id for image in world.journal.images() for message in image.messages
        ]
        assert Counter(on_disk) == Counter(held)


def _tries_to_send(queue: Queue, message_id: str, now_ms: int, step: str) -> bool:
    at_ms = now_ms + 900 if step == "schedule" else 0
    try:
        queue.enqueue(incoming(message_id=message_id, scheduled_for_ms=at_ms), now_ms)
    except Refusal:
        return False
    return True


def _available(queue: Queue, now_ms: int) -> list[LockedMessage]:
    try:
        return queue.acquire(ME, 2, now_ms)
    except Refusal:
        return []
