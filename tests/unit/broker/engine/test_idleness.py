"""Entities that nobody uses are deleted at their time, and used ones are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.broker.fakes import World, incoming
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.engine.queue import Queue

ME = object()
IDLE_MS = 300_000
QUEUE = QueueDescription()
IDLE = replace(QUEUE, auto_delete_on_idle_ms=IDLE_MS)
BORN_MS = 50
END_MS = BORN_MS + IDLE_MS


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def queue(world: World) -> Queue:
    return world.namespace.create_queue("tmp", IDLE, BORN_MS)


def test_an_idle_queue_is_deleted_at_its_time(world: World, queue: Queue) -> None:
    world.namespace.run_timers(END_MS - 1)
    assert world.namespace.get_queue("tmp") is queue
    assert world.namespace.next_deadline_ms() == END_MS
    world.namespace.run_timers(END_MS)
    assert world.deleted == ["tmp/$DeadLetterQueue", "tmp"]


def test_any_use_puts_it_off(world: World, queue: Queue) -> None:
    assert queue.dead_letter is not None
    queue.enqueue(incoming(), 1_000)
    queue.acquire(ME, 1, 2_000, settled=True)
    queue.dead_letter.peek(0, 1, 3_000)
    world.namespace.run_timers(END_MS)
    assert world.namespace.next_deadline_ms() == IDLE_MS + 3_000
    world.namespace.run_timers(IDLE_MS + 3_000)
    assert "tmp" in world.deleted


def test_links_locks_and_scheduled_messages_are_use(world: World, queue: Queue) -> None:
    world.in_use.add("tmp")
    world.namespace.run_timers(END_MS)
    world.in_use.clear()
    queue.enqueue(incoming(scheduled_for_ms=3 * IDLE_MS), END_MS)
    world.namespace.run_timers(END_MS + IDLE_MS)
    assert world.deleted == []
    world.namespace.run_timers(3 * IDLE_MS)
    world.namespace.run_timers(4 * IDLE_MS)
    assert "tmp" in world.deleted


def test_a_subscription_nobody_receives_from_goes_though_its_topic_is_busy(
    world: World,
) -> None:
    world.namespace.create_topic("News", TopicDescription(), BORN_MS)
    settings = SubscriptionDescription(auto_delete_on_idle_ms=IDLE_MS)
    world.namespace.create_subscription("news", "tmp", settings, BORN_MS)
    world.namespace.get_topic("news").enqueue(incoming(), END_MS - 1)
    world.namespace.run_timers(END_MS)
    assert "News/Subscriptions/tmp" in world.deleted


@pytest.mark.parametrize("told_ms", [0, 10 * IDLE_MS])
def test_a_restart_begins_the_count_anew(world: World, queue: Queue, told_ms: int) -> None:
    again = world.restarted(told_ms)
    again.namespace.run_timers(10 * IDLE_MS)
    again.namespace.run_timers(11 * IDLE_MS - 1)
    assert (again.deleted, queue.is_deleted) == ([], False)
    again.namespace.run_timers(11 * IDLE_MS)
    assert "tmp" in again.deleted


def test_a_new_setting_counts_at_once(world: World, queue: Queue) -> None:
    world.namespace.update("tmp", QUEUE, 60)
    world.namespace.run_timers(10 * IDLE_MS)
    assert (world.deleted, queue.description) == ([], QUEUE)
    assert world.namespace.next_deadline_ms() == 0
