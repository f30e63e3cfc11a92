"""What time does to the messages of a queue: expiry, schedules, and the memory for duplicates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.fakes import FakeJournal, World, incoming, numbers
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine import settlement
from twinbus.broker.engine.message_index import DuplicateHistory
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import Deadlines, SettlementOutcome
from twinbus.broker.journal import MessageState
from twinbus.broker.refusals import MessageLockLost, MessageNotFound

LOCK_MS = 10_000
PLAIN = QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=3)
ME = object()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def queue(world: World) -> Queue:
    return world.queue("orders", PLAIN)


def dead_letters(queue: Queue, now_ms: int) -> list[tuple[str | None, object]]:
    assert queue.dead_letter is not None
    found = queue.dead_letter.peek(0, 100, now_ms)
    return [(each.message_id, (each.overrides or {}).get("DeadLetterReason")) for each in found]


def acquire_one(queue: Queue, now_ms: int) -> bytes:
    [delivery] = queue.acquire(ME, 1, now_ms)
    return delivery.lock_token


def counts(queue: Queue) -> tuple[int, int, int, int]:
    return queue.active_count, queue.locked_count, queue.deferred_count, queue.scheduled_count


class TestTimeToLive:
    def test_an_expired_message_is_dropped(self, queue: Queue) -> None:
        queue.enqueue(incoming(ttl_ms=100), 0)
        queue.enqueue(incoming(), 0)
        assert queue.next_deadline_ms() == 100
        assert numbers(queue.peek(0, 10, 99)) == [1, 2]
        assert numbers(queue.peek(0, 10, 100)) == [2]
        assert dead_letters(queue, 100) == []

    def test_or_dead_lettered_where_that_is_wanted(self, world: World) -> None:
        queue = world.queue("q", QueueDescription(dead_letter_on_expiration=True))
        queue.enqueue(incoming(message_id="a", ttl_ms=100), 0)
        assert queue.acquire(ME, 1, 100) == []
        assert dead_letters(queue, 10**9) == [("a", "TTLExpiredException")]

    def test_the_queue_bounds_what_the_message_asks(self, world: World) -> None:
        queue = world.queue("q", QueueDescription(default_ttl_ms=1000))
        lives = [queue.enqueue(incoming(ttl_ms=ttl_ms), 5) for ttl_ms in (0, 10, 99_999)]
        assert [(m.ttl_ms, m.expires_at_ms) for m in lives if m] == [
            (1000, 1005), (10, 15), (1000, 1005),
        ]  # fmt: skip

    def test_a_locked_message_outlives_it_until_the_lock_ends(self, queue: Queue) -> None:
        queue.enqueue(incoming(ttl_ms=100), 0)
        queue.enqueue(incoming(ttl_ms=100), 0)
        first, second = queue.acquire(ME, 2, 50)
        queue.run_timers(200)
        assert counts(queue) == (2, 2, 0, 0)
        queue.settle(first.lock_token, SettlementOutcome.COMPLETE, 200)
        queue.settle(second.lock_token, SettlementOutcome.RELEASE, 200)
        assert (counts(queue), queue.acquire(ME, 1, 200)) == ((0, 0, 0, 0), [])

    def test_both_due_at_once_end_it_once(self, world: World) -> None:
        queue = world.queue(
            "q", QueueDescription(lock_duration_ms=LOCK_MS, dead_letter_on_expiration=True)
        )
        queue.enqueue(incoming(message_id="a", ttl_ms=100), 0)
        queue.acquire(ME, 1, 0)
        queue.run_timers(10**6)
        assert dead_letters(queue, 10**6) == [("a", "TTLExpiredException")]

    def test_a_deferred_message_expires_when_it_is_asked_for(self, queue: Queue) -> None:
        queue.enqueue(incoming(ttl_ms=100), 0)
        queue.settle(acquire_one(queue, 0), SettlementOutcome.DEFER, 0)
        queue.run_timers(1000)
        assert queue.deferred_count == 1
        with pytest.raises(MessageNotFound, match="expired"):
            queue.receive_by_sequence([1], ME, 1000)
        assert queue.deferred_count == 0

    def test_a_mass_of_expired_messages_is_cleared_in_slices(self, world: World) -> None:
        queue = world.queue("q", QueueDescription())
        for _ in range(2500):
            queue.enqueue(incoming(ttl_ms=10), 0)
        queue.enqueue(incoming(), 0)
        assert queue.acquire(ME, 1, 10) == []  # timers took 1000, the receive 1000
        assert len(queue.messages) == 501
        assert world.take_notified()[-1] == "q"
        assert queue.next_deadline_ms() == 10
        assert len(queue.acquire(ME, 1, 10)) == 1


def test_no_lock_outlives_its_time_behind_a_mass_of_timers(queue: Queue) -> None:
    for _ in range(1100):
        queue.enqueue(incoming(), 0)
    tokens = [each.lock_token for each in queue.acquire(ME, 1100, 0)]
    for token in (tokens[-1], tokens[0]):
        with pytest.raises(MessageLockLost):
            queue.settle(token, SettlementOutcome.COMPLETE, LOCK_MS)
    assert queue.active_count == 1100


class TestScheduled:
    def test_a_message_appears_at_its_time_under_a_new_number(
        self, world: World, queue: Queue
    ) -> None:
        queue.enqueue(incoming(message_id="later", scheduled_for_ms=500, ttl_ms=100), 0)
        queue.enqueue(incoming(message_id="now"), 0)
        assert (counts(queue), queue.next_deadline_ms()) == ((1, 0, 0, 1), 500)
        assert [m.state for m in queue.peek(0, 10, 499)] == [
            MessageState.SCHEDULED,
            MessageState.ACTIVE,
        ]
        world.take_notified()
        world.namespace.run_timers(500)
        assert world.take_notified() == ["orders"]
        [_, message] = queue.peek(0, 10, 500)
        assert (message.message_id, message.sequence_number) == ("later", 3)
        assert message.enqueued_sequence_number == 1
        assert (message.enqueued_at_ms, message.expires_at_ms) == (500, 600)

    def test_one_whose_time_has_passed_is_ready_at_once(self, queue: Queue) -> None:
        queue.enqueue(incoming(scheduled_for_ms=500), 500)
        assert len(queue.acquire(ME, 1, 500)) == 1

    def test_its_time_to_live_begins_when_it_appears(self, world: World, queue: Queue) -> None:
        queue.enqueue(incoming(scheduled_for_ms=500, ttl_ms=100), 0)
        late = world.restarted().namespace.get_queue("orders")
        assert numbers(late.peek(0, 1, 5_000)) == [2]
        assert late.peek(0, 1, 5_100) == []

    def test_cancelling_takes_all_or_none(self, queue: Queue) -> None:
        for _ in range(2):
            queue.enqueue(incoming(scheduled_for_ms=500), 0)
        with pytest.raises(MessageNotFound):
            queue.cancel_scheduled([1, 7], 0)
        assert queue.scheduled_count == 2
        queue.cancel_scheduled([1, 2], 0)
        assert queue.messages == {}
        queue.run_timers(1000)
        assert queue.acquire(ME, 1, 1000) == []

    def test_cancelling_too_late_changes_nothing(self, queue: Queue) -> None:
        queue.enqueue(incoming(scheduled_for_ms=500), 0)
        with pytest.raises(MessageNotFound):
            queue.cancel_scheduled([1], 500)
        assert len(queue.acquire(ME, 1, 500)) == 1

    def test_cancelling_too_late_behind_a_mass_of_timers_changes_nothing(
        self, queue: Queue
    ) -> None:
        for _ in range(1100):
            queue.enqueue(incoming(scheduled_for_ms=500), 0)
        with pytest.raises(MessageNotFound, match="has come"):
            queue.cancel_scheduled([1100], 500)


class TestDuplicates:
    WINDOW_MS = 20_000
    DETECTING = QueueDescription(
        requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_MS
    )

    def test_the_same_id_within_the_window_is_dropped(self, world: World) -> None:
        queue = world.queue("q", self.DETECTING)
        assert queue.enqueue(incoming(message_id="a"), 0) is not None
        assert queue.enqueue(incoming(message_id="a"), self.WINDOW_MS - 1) is None
        assert queue.enqueue(incoming(message_id="b"), self.WINDOW_MS - 1) is not None
        assert queue.enqueue(incoming(message_id="a"), self.WINDOW_MS) is not None
        assert queue.active_count == 3

    def test_ids_outlive_their_messages_and_restarts(self, world: World) -> None:
        queue = world.queue("q", self.DETECTING)
        queue.enqueue(incoming(message_id="a"), 0)
        queue.acquire(ME, 1, 0, settled=True)
        again = world.restarted().namespace.get_queue("q")
        assert again.enqueue(incoming(message_id="a"), 100) is None

    def test_old_ids_are_forgotten(self, world: World) -> None:
        queue = world.queue("q", self.DETECTING)
        queue.enqueue(incoming(message_id="a"), 0)
        world.namespace.run_timers(self.WINDOW_MS)
        [image] = [each for each in world.journal.images() if each.path == "q"]
        assert image.message_ids == {}

    def test_a_shorter_window_counts_at_once(self, world: World) -> None:
        queue = world.queue(
            "q",
            QueueDescription(
                requires_duplicate_detection=True, duplicate_detection_window_ms=600_000
            ),
        )
        queue.enqueue(incoming(message_id="a"), 0)
        world.namespace.update("q", self.DETECTING, 30_000)
        assert queue.enqueue(incoming(message_id="a"), 30_000) is not None

    def test_an_id_accepted_again_outlives_its_first_entry(self) -> None:
        journal = FakeJournal()
        history = DuplicateHistory(1, journal, window_ms=100)
        assert history.accept("a", 0)
        assert history.accept("a", 150)
        assert history.forget_old(150, 10) == 1
        assert (history.accept("a", 200), history.next_ms()) == (False, 250)
        assert history.forget_old(250, 10) == 1
        assert len(history) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 9), st.lists(st.integers(0, 99), max_size=4)),
            st.tuples(st.just("pop"), st.integers(1, 9), st.just([])),
        ),
        max_size=60,
    ),
    st.integers(0, 4),
)
def test_keys_come_out_when_they_are_due_and_once(
    steps: list[tuple[str, int, list[int]]], floor: int
) -> None:
    due: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settlement, "SWEEP_FLOOR", floor)
        deadlines: Deadlines[int] = Deadlines(lambda key: due.get(key, 0))
        for step, at_ms, keys in steps:
            if step == "add":
                due |= dict.fromkeys(keys, at_ms)
                if len(keys) > 1:
                    deadlines.add_all(at_ms, sorted(set(keys)))
                elif keys:
                    deadlines.add(at_ms, keys[0])
                continue
            assert deadlines.next_ms() == min(due.values(), default=0)
            while (key := deadlines.pop(at_ms)) is not None:
                assert due[key] == min(due.values()) <= at_ms
                del due[key]
            assert min(due.values(), default=at_ms + 1) > at_ms
            assert len(deadlines) >= len(due)
