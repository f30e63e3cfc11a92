"""Memory and credits: what is counted covers what is used, and too much is refused in time."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.fakes import World, facts, incoming
from twinbus.amqp.budgets import value_bytes
from twinbus.amqp.types import Array, Described, Symbol
from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.limits import MESSAGE_BYTES, CreditAccount
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SWEEP_FLOOR, SettlementOutcome, Timetable
from twinbus.broker.refusals import QuotaExceeded, ServerBusy

ME = object()
MEGABYTE = 1024 * 1024
FULL = r"The maximum entity size has been reached or exceeded for Queue: 'q'\. Size of entity in "
COUNT = 700
"""Right after the tables of CPython have grown, when each place in them costs most."""
PLAIN = QueueDescription()
SMALL = QueueDescription(max_size_mb=1)
SESSIONS = QueueDescription(max_size_mb=1, requires_session=True)
UNIQUE = QueueDescription(max_size_mb=1, requires_duplicate_detection=True)


class NoDisk:
    """A journal that keeps nothing, so that all memory in use is the engine's."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: b""


def send(queue: Queue, **fields: Any) -> None:
    queue.enqueue(incoming(**fields), 0)


def lock(queue: Queue) -> bytes:
    [delivery] = queue.acquire(ME, 1, 0)
    return delivery.lock_token


def send_and_lock(queue: Queue, number: int) -> None:
    send(queue, ttl_ms=1_000_000 + number)
    lock(queue)


def send_and_defer(queue: Queue, number: int) -> None:
    send(queue)
    changes: dict[str, object] = {f"key-{number}": number, "list": Array([f"text-{number}"] * 3)}
    queue.settle(lock(queue), SettlementOutcome.DEFER, 0, overrides=changes)


def send_and_bury(queue: Queue, number: int) -> None:
    send(queue)
    text = f"it was number {number}"
    queue.settle(lock(queue), SettlementOutcome.DEAD_LETTER, 0, reason=text, description=text)


def send_and_complete(queue: Queue, number: int) -> None:
    send(queue, message_id=f"number-{number}")
    queue.settle(lock(queue), SettlementOutcome.COMPLETE, 0)


def set_state(queue: Queue, number: int) -> None:
    name, holder = f"session-{number}", object()
    queue.sessions.accept(name, holder, 0)
    queue.sessions.set_state(name, f"{number:0100}".encode(), 0, holder=holder)
    queue.sessions.release_holder(holder, 0)


HELD: dict[str, tuple[QueueDescription, Callable[[Queue, int], None]]] = {
    "plain": (PLAIN, lambda queue, _: send(queue)),
    "locked with a time to live": (PLAIN, send_and_lock),
    "scheduled": (PLAIN, lambda queue, number: send(queue, scheduled_for_ms=1_000 + number)),
    "long id": (PLAIN, lambda queue, number: send(queue, message_id=f"{number:0127}\N{SNOWMAN}")),
    "deferred with properties": (PLAIN, send_and_defer),
    "dead letters": (PLAIN, send_and_bury),
    "one session each": (
        QueueDescription(requires_session=True),
        lambda queue, number: send(queue, session_id=f"session-{number}"),
    ),
    "session states": (QueueDescription(requires_session=True), set_state),
    "remembered ids": (QueueDescription(requires_duplicate_detection=True), send_and_complete),
}


@pytest.mark.parametrize("held", HELD)
def test_what_is_counted_covers_what_is_used_and_is_no_more_than_four_times_it(held: str) -> None:
    description, put = HELD[held]
    world = World()
    namespace = BrokerNamespace(
        "test", NoDisk(), world.namespace._factory.context.tokens,
        notify=lambda _: None, deleted=lambda _: None,
    )  # fmt: skip
    queue = namespace.create_queue("q", description, 0)
    put(queue, 0)
    gc.collect()
    counted = -queue.states.memory_bytes
    tracemalloc.start()
    try:
        for number in range(1, COUNT + 1):
            put(queue, number)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted += queue.states.memory_bytes
    assert used <= counted <= 4 * used


def fill(put: Callable[[int], object]) -> int:
    """Call `put` until it is refused for lack of room; return how often it worked."""
    for number in range(MEGABYTE):
        try:
            put(number)
        except QuotaExceeded:
            return number
    raise AssertionError("nothing was refused")


def test_small_messages_are_refused_when_their_memory_reaches_the_quota() -> None:
    world = World()
    queue = world.queue("q", SMALL)
    count = fill(lambda _: send(queue))
    assert MEGABYTE // (2 * MESSAGE_BYTES) < count <= MEGABYTE // MESSAGE_BYTES
    assert len(queue.messages) == count
    assert queue.size_bytes < MEGABYTE / 4
    again = world.restarted().namespace.get_queue("q")
    assert again.states.memory_bytes == queue.states.memory_bytes
    with pytest.raises(QuotaExceeded, match=FULL):
        send(again)
    queue.settle(lock(queue), SettlementOutcome.COMPLETE, 0)
    send(queue)


def test_a_batch_whose_memory_is_too_much_is_refused_whole() -> None:
    world = World()
    queue = world.queue("q", SMALL)
    batch = [incoming() for _ in range(MEGABYTE // MESSAGE_BYTES + 1)]
    with pytest.raises(QuotaExceeded):
        world.namespace.send(queue, batch, 0)
    assert not queue.messages


def test_remembered_ids_are_refused_at_the_quota_and_freed_after_the_window() -> None:
    queue = World().queue("q", UNIQUE)
    count = fill(lambda number: send_and_complete(queue, number))
    assert count > 1_000
    assert not queue.messages
    window_ms = UNIQUE.duplicate_detection_window_ms
    for now_ms in range(window_ms, window_ms + 10):
        queue.run_timers(now_ms)
    assert queue.states.memory_bytes == 0
    queue.enqueue(incoming(), window_ms + 10)


def test_session_states_are_refused_at_the_quota_and_freed_when_deleted() -> None:
    world = World()
    queue = world.queue("q", SESSIONS)
    content = b"x" * 10_000
    queue.sessions.accept("first", ME, 0)
    queue.sessions.set_state("first", content, 0, holder=ME)

    def put(number: int) -> None:
        queue.sessions.accept(f"s{number}", ME, 0)
        queue.sessions.set_state(f"s{number}", content, 0, holder=ME)

    count = fill(put)
    assert MEGABYTE // 20_000 < count < MEGABYTE // 10_000
    assert queue.sessions.state(f"s{count}") is None
    again = world.restarted().namespace.get_queue("q")
    assert len(again.sessions.ids()) == count + 1
    with pytest.raises(QuotaExceeded, match="session states"):
        queue.sessions.set_state("first", content * 2, 0, holder=ME)
    queue.sessions.set_state("first", None, 0, holder=ME)
    queue.sessions.set_state(f"s{count}", content, 0, holder=ME)


def test_changed_properties_are_refused_at_the_quota_and_the_lock_stays() -> None:
    world = World()
    queue = world.queue("q", SMALL)
    send(queue)
    token = lock(queue)
    before = facts(queue, 0)
    changes: dict[str, object] = {"list": ["x"] * 20_000}
    for outcome in (SettlementOutcome.ABANDON, SettlementOutcome.DEAD_LETTER):
        with pytest.raises(QuotaExceeded):
            queue.settle(token, outcome, 0, overrides=changes)
    assert facts(queue, 0) == before
    queue.settle(token, SettlementOutcome.ABANDON, 0, overrides={"a": 1})
    queue.settle(lock(queue), SettlementOutcome.COMPLETE, 0)
    assert queue.states.memory_bytes == 0


def test_a_topic_answers_for_the_memory_of_its_subscriptions() -> None:
    namespace = World().namespace
    topic = namespace.create_topic("news", TopicDescription(max_size_mb=1), 0)
    settings = SubscriptionDescription(requires_session=True)
    namespace.create_subscription("news", "a", settings, 0)
    namespace.create_subscription("news", "b", SubscriptionDescription(), 0)
    count = fill(lambda _: topic.enqueue(incoming(session_id="s"), 0))
    assert MEGABYTE // (4 * MESSAGE_BYTES) < count <= MEGABYTE // (2 * MESSAGE_BYTES)
    subscription = namespace.get_subscription("news", "a")
    subscription.sessions.accept("s", ME, 0)
    with pytest.raises(QuotaExceeded, match="for Topic: 'news'"):
        subscription.sessions.set_state("s", b"x" * 10_000, 0, holder=ME)
    assert subscription.dead_letter is not None
    with pytest.raises(QuotaExceeded, match="for Topic: 'news'"):
        subscription.dead_letter.states.require_room(10_000)


def test_every_part_of_a_value_counts() -> None:
    parts = [{"k": "x" * 1000}, ["x" * 1000], Described(Symbol("d"), "x" * 1000), "x" * 1000]
    assert all(value_bytes(part) > 1000 for part in parts)
    assert value_bytes(parts) > 4000


def test_a_second_has_its_credits_and_the_next_has_them_again() -> None:
    account = CreditAccount(3)
    for _ in range(3):
        account.require(1, 10_200)
    with pytest.raises(ServerBusy, match=r"Error code: 50009\. Please wait 2 seconds"):
        account.require(1, 10_999)
    assert (account.throttled, account.wait_ms(10_999)) == (1, 1)
    account.require(1, 11_000)
    assert account.left(11_999) == 2


def test_an_overdraft_is_missing_later_and_quiet_seconds_are_not_saved() -> None:
    account = CreditAccount(10)
    account.require(25, 1_000)
    with pytest.raises(ServerBusy):
        account.require(1, 2_500)
    assert account.left(3_000) == 5
    assert account.left(60_000) == 10


def test_a_clock_that_is_set_back_does_not_stop_the_namespace() -> None:
    account = CreditAccount(1)
    account.require(1, 50_000)
    account.require(1, 20_000)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), max_size=60))
def test_no_more_is_taken_than_the_seconds_gave_and_one_overdraft(
    requests: list[tuple[int, int]],
) -> None:
    per_s, now_ms, taken = 20, 1_000, 0
    account = CreditAccount(per_s)
    for wait_ms, cost in requests:
        now_ms += wait_ms
        try:
            account.require(cost, now_ms)
            taken += cost
        except ServerBusy:
            assert account.left(now_ms) < 1
    assert taken < per_s * (now_ms // 1000) + 40


def test_a_deleted_queue_leaves_memory_though_something_was_due_in_it_next_year() -> None:
    world = World()
    queue = world.queue("q", PLAIN)
    send(queue, scheduled_for_ms=365 * 86_400_000)
    known = weakref.ref(queue)
    world.namespace.delete("q", 1)
    del queue
    gc.collect()
    assert known() is None


def test_a_timetable_keeps_no_times_that_an_earlier_one_replaced() -> None:
    table: Timetable[str] = Timetable()
    for due_ms in range(50 * SWEEP_FLOOR, 0, -1):
        table.arm("q", due_ms)
    assert len(table) <= 2 * SWEEP_FLOOR
    assert table.next_ms() == 1
    assert table.take_due(1) == ["q"]
    assert table.next_ms() == 0
