"""What goes wrong with one message or one entity stays there: others go on, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.fakes import World, incoming
from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.broker.descriptions import (
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.message_states import FAILED_RETRY_MS
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import ERROR_DESCRIPTION, REASON
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.links.dispatch import Dispatcher
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore

ME = object()
FAR = Timestamp(2**62)
"""A time far past the year 9999, which AMQP can carry and a calendar cannot."""

AS_TEXT = RuleDescription(name="text", filter=SqlFilter(expression="at + '' <> 'x'"))
SETS_TEXT = RuleDescription(name="set", action=SqlAction(expression="SET sys.Label = at"))
QUIET = SubscriptionDescription(dead_letter_on_filter_error=False)


class News(World):
    """A topic whose first and last subscription take all, the middle one by `rule`."""

    def __init__(
        self, rule: RuleDescription = AS_TEXT, middle: SubscriptionDescription | None = None
    ) -> None:
        super().__init__()
        self.namespace.create_topic("news", TopicDescription(requires_duplicate_detection=True), 0)
        for name in ("a", "b", "c"):
            settings = (middle if name == "b" else None) or SubscriptionDescription()
            first = rule if name == "b" else None
            self.namespace.create_subscription("news", name, settings, 0, rule=first)


def topic(world: World) -> Topic:
    return world.namespace.get_topic("news")


def part(world: World, name: str) -> Subscription:
    return world.namespace.get_subscription("news", name)


def ids(queue: Queue | None, now_ms: int) -> list[str | None]:
    assert queue is not None
    return [each.message_id for each in queue.peek(0, 100, now_ms)]


def held(world: World, now_ms: int) -> tuple[list[str | None], ...]:
    """Ids in a, b, the dead letters of b, and c."""
    middle = part(world, "b")
    queues = (part(world, "a"), middle, middle.dead_letter, part(world, "c"))
    return tuple(ids(queue, now_ms) for queue in queues)


@pytest.mark.parametrize("rule", [AS_TEXT, SETS_TEXT], ids=["filter", "action"])
@pytest.mark.parametrize("due_ms", [0, 500], ids=["sent", "scheduled"])
@pytest.mark.parametrize("crash", [False, True], ids=["running", "restarted"])
def test_a_time_without_a_date_reaches_every_subscription_or_its_dead_letters(
    rule: RuleDescription, due_ms: int, crash: bool
) -> None:
    world: World = News(rule)
    sent = incoming(message_id="1", scheduled_for_ms=due_ms, properties={"at": FAR})
    world.namespace.send(topic(world), [sent], 0)
    if crash:
        world = world.restarted()
    world.namespace.run_timers(500)
    assert held(world, 500) == (["1"], [], ["1"], ["1"])
    assert topic(world).scheduled_count == 0
    dead_letters = part(world, "b").dead_letter
    assert dead_letters is not None
    [dead] = dead_letters.peek(0, 1, 500)
    told = dead.overrides or {}
    assert told[REASON] == "FilterException"
    assert str(2**62) in str(told[ERROR_DESCRIPTION])
    assert "9999" in str(told[ERROR_DESCRIPTION])
    assert held(world.restarted(500), 500) == (["1"], [], ["1"], ["1"])
    assert world.failures == []


def test_where_dead_letters_are_not_wanted_it_does_not_match() -> None:
    world = News(middle=QUIET)
    sent = incoming(message_id="1", scheduled_for_ms=500, properties={"at": FAR})
    world.namespace.send(topic(world), [sent], 0)
    world.namespace.run_timers(500)
    assert held(world, 500) == (["1"], [], [], ["1"])


@pytest.mark.parametrize(
    ("at", "expression", "is_taken"),
    [
        (FAR, "at > @day", True),
        (Timestamp(-(2**63)), "at < @day", True),
        (FAR, "at = @day", False),
        (Described(Symbol("com.microsoft:datetime-offset"), 2**63 - 1), "at > @day", True),
    ],
)
def test_times_without_a_date_are_compared_as_all_others(
    at: object, expression: str, is_taken: bool
) -> None:
    day = (("@day", Timestamp(1_700_000_000_000)),)
    world = News(RuleDescription(name="r", filter=SqlFilter(expression=expression, parameters=day)))
    world.namespace.send(topic(world), [incoming(message_id="1", properties={"at": at})], 0)
    assert held(world, 1) == (["1"], ["1"] if is_taken else [], [], ["1"])


class Broken(RuntimeError):
    """What a mistake of ours would raise."""


def breaks(*_: object, **__: object) -> None:
    raise Broken("broken")


def test_a_rule_that_breaks_unexpectedly_counts_as_failed_and_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = News(RuleDescription(name="r", filter=SqlFilter(expression="at = 1")))

    def asked(rule: RuleDescription, *_: object) -> bool:
        if rule.name == "r":
            breaks()
        return True

    monkeypatch.setattr("twinbus.broker.engine.topic.matches", asked)
    world.namespace.send(topic(world), [incoming(message_id="1")], 0)
    assert held(world, 1) == (["1"], [], ["1"], ["1"])
    assert [(path, str(error)) for path, _, error in world.failures] == [
        ("news/Subscriptions/b", "broken")
    ]


class TestScheduled:
    """A message leaves the schedule when every subscription has it."""

    def world(self) -> News:
        world = News(RuleDescription(name="all"))
        sent = incoming(message_id="1", scheduled_for_ms=500)
        world.namespace.send(topic(world), [sent], 0)
        world.journal.broken = {part(world, "b").entity_id}
        world.namespace.run_timers(500)
        return world

    def test_the_others_have_it_once_and_it_is_tried_again(self) -> None:
        world = self.world()
        assert held(world, 500) == (["1"], [], [], ["1"])
        assert topic(world).scheduled_count == 1
        again_ms = 500 + FAILED_RETRY_MS
        assert world.namespace.next_deadline_ms() == again_ms
        world.journal.broken.clear()
        world.namespace.run_timers(again_ms)
        assert held(world, again_ms) == (["1"], ["1"], [], ["1"])
        assert topic(world).scheduled_count == 0
        assert held(world.restarted(again_ms), again_ms) == (["1"], ["1"], [], ["1"])
        assert [path for path, _, _ in world.failures] == ["news"]

    def test_a_restart_before_that_loses_nothing(self) -> None:
        before = self.world()
        before.journal.broken.clear()
        after = before.restarted(600)
        after.namespace.run_timers(600)
        assert {*ids(part(after, "a"), 600), *ids(part(after, "b"), 600)} == {"1"}
        assert ids(part(after, "b"), 600) == ["1"]


def test_a_sender_that_is_told_of_a_failure_can_send_again() -> None:
    world = News(RuleDescription(name="all"))
    world.journal.broken = {part(world, "b").entity_id}
    with pytest.raises(RuntimeError, match="broken"):
        world.namespace.send(topic(world), [incoming(message_id="1")], 0)
    world.journal.broken.clear()
    world.namespace.send(topic(world), [incoming(message_id="1")], 1)
    assert ids(part(world, "b"), 1) == ["1"]
    assert ids(part(world.restarted(2), "b"), 2) == ["1"]


class TestTimers:
    def test_a_queue_that_fails_does_not_hold_up_the_timers_of_others(self) -> None:
        world = World()
        queues = [world.queue(name, QueueDescription()) for name in ("a", "b", "c")]
        for queue in queues:
            queue.enqueue(incoming(message_id=queue.path, scheduled_for_ms=100), 0)
        world.journal.broken = {queues[0].entity_id}
        world.namespace.run_timers(100)
        assert [queue.active_count for queue in queues] == [0, 1, 1]
        assert [path for path, _, _ in world.failures] == ["a"]
        world.journal.broken.clear()
        world.namespace.run_timers(100 + FAILED_RETRY_MS)
        assert [queue.active_count for queue in queues] == [1, 1, 1]

    def test_a_message_that_fails_does_not_hold_up_the_others_of_its_queue(self) -> None:
        world = World()
        settings = QueueDescription(dead_letter_on_expiration=True, max_delivery_count=1)
        queue = world.queue("q", settings)
        for name in ("locked", "expired", "scheduled"):
            is_scheduled, is_expired = name == "scheduled", name == "expired"
            queue.enqueue(
                incoming(
                    message_id=name,
                    scheduled_for_ms=60_000 if is_scheduled else 0,
                    ttl_ms=60_000 if is_expired else 0,
                ),
                0,
            )
            if name == "locked":
                assert len(queue.acquire(ME, 1, 0)) == 1
        unread = world.journal.unreadable = {(queue.entity_id, 1), (queue.entity_id, 2)}
        world.namespace.run_timers(60_000)
        assert queue.active_count == 3
        assert [path for path, _, _ in world.failures] == ["q", "q"]
        ready = world.restarted().namespace.get_queue("q").states.ready()
        assert [each.message_id for each in ready] == ["locked", "expired", "scheduled"]
        unread.clear()
        world.namespace.run_timers(60_000 + FAILED_RETRY_MS)
        assert ids(queue.dead_letter, 70_000) == ["expired"]
        assert [each.message.message_id for each in queue.acquire(ME, 9, 70_000)] == [
            "locked", "scheduled",
        ]  # fmt: skip

    def test_a_session_whose_messages_cannot_be_put_back_is_free_again(self) -> None:
        world = World()
        settings = QueueDescription(requires_session=True, max_delivery_count=1)
        queue = world.queue("q", settings)
        queue.enqueue(incoming(message_id="1", session_id="s"), 0)
        queue.sessions.accept("s", ME, 0)
        assert len(queue.acquire(ME, 1, 0, session_id="s")) == 1
        world.journal.unreadable = {(queue.entity_id, 1)}
        world.namespace.run_timers(60_000)
        assert [path for path, _, _ in world.failures] == ["q"]
        assert queue.sessions.accept("s", object(), 60_000) is not None

    def test_an_idle_entity_that_cannot_be_deleted_does_not_keep_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World()
        idle_ms = 300_000
        for name in ("a", "b"):
            settings = QueueDescription(auto_delete_on_idle_ms=idle_ms)
            world.namespace.create_queue(name, settings, 1)
        delete = world.namespace._delete

        def fails_for_a(entity: Queue, now_ms: int) -> None:
            if entity.path == "a":
                breaks()
            delete(entity, now_ms)

        monkeypatch.setattr(world.namespace, "_delete", fails_for_a)
        world.namespace.run_timers(1 + idle_ms)
        assert [queue.path for queue in world.namespace.queues()] == ["a"]
        assert [path for path, _, _ in world.failures] == ["a"]
        monkeypatch.undo()
        world.namespace.run_timers(1 + idle_ms + FAILED_RETRY_MS)
        assert world.namespace.queues() == []


class TestForwarding:
    def test_a_time_without_a_date_does_not_stop_it(self) -> None:
        world = News()
        source = world.queue("source", QueueDescription(forward_to="news"))
        for name, at in (("1", FAR), ("2", Timestamp(5))):
            source.enqueue(incoming(message_id=name, properties={"at": at}), 0)
        assert held(world, 1) == (["1", "2"], ["2"], ["1"], ["1", "2"])
        assert ids(source, 1) == []
        assert held(world.restarted(1), 1) == (["1", "2"], ["2"], ["1"], ["1", "2"])

    def test_what_the_destination_breaks_on_goes_to_the_dead_letters(self) -> None:
        world = World()
        target = world.queue("target", QueueDescription())
        source = world.queue("source", QueueDescription(forward_to="target"))
        world.journal.broken = {target.entity_id}
        source.enqueue(incoming(message_id="1"), 0)
        assert (ids(source, 0), ids(source.dead_letter, 0)) == ([], ["1"])
        assert [(path, str(error)) for path, _, error in world.failures] == [("source", "broken")]
        world.journal.broken.clear()
        source.enqueue(incoming(message_id="2"), 1)
        assert ids(target, 1) == ["2"]
        again = world.restarted(2).namespace
        assert ids(again.get_queue("source").dead_letter, 2) == ["1"]

    def test_what_cannot_be_read_now_waits_in_its_place(self) -> None:
        world = World()
        target = world.queue("target", QueueDescription(requires_duplicate_detection=True))
        source = world.queue("source", QueueDescription(forward_to="target"))
        world.journal.unreadable = {(source.entity_id, 1)}
        for name in ("1", "2"):
            source.enqueue(incoming(message_id=name), 0)
        assert (ids(source, 0), ids(source.dead_letter, 0)) == (["1", "2"], [])
        assert [path for path, _, _ in world.failures] == ["source"]
        world.journal.unreadable = set()
        world.namespace.run_timers(1_000)
        assert (ids(source, 1_000), ids(target, 1_000)) == ([], ["1", "2"])


class TestServer:
    """The shell logs what the engine reports, counts it, and goes on."""

    @staticmethod
    async def serve() -> tuple[int, list[int]]:
        """Failures counted, and the active messages of two queues whose timers were due."""
        server = BrokerServer("b", MemoryStore(), [])
        now_ms = server.now_ms()
        queues = [server.namespace.create_queue(name, QueueDescription(), now_ms) for name in "ab"]
        for queue in queues:
            queue.enqueue(incoming(scheduled_for_ms=now_ms + 20), now_ms)
        queues[0].states.activate = breaks
        server.now_ms = lambda: now_ms + 20  # type: ignore[method-assign]
        server._on_timer()
        await server.close()
        return server.engine_failures, [queue.active_count for queue in queues]

    def test_a_failed_timer_is_logged_and_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        assert asyncio.run(self.serve()) == (1, [0, 1])
        [record] = [each for each in caplog.records if each.levelname == "ERROR"]
        assert record.getMessage() == "b: a: could not enqueue a message: Broken('broken')"
        assert record.exc_info is not None

    def test_a_queue_whose_deliveries_fail_does_not_keep_others_from_theirs(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        world = World()
        queues = [world.queue(name, QueueDescription()) for name in ("a", "b", "c")]
        served: list[str] = []

        class Link:
            session_id = None
            can_take = False

            def __init__(self, queue: Queue) -> None:
                self.queue = queue

            def deliver(self, limit: int, now_ms: int) -> int:
                if self.queue.path == "b":
                    breaks()
                served.append(self.queue.path)
                return 0

        dispatcher = Dispatcher(lambda: None)
        for queue in queues:
            dispatcher.add(Link(queue))  # type: ignore[arg-type]
            dispatcher.ready(queue)
        dispatcher.run(1)
        assert sorted(served) == ["a", "c"]
        assert [each.getMessage() for each in caplog.records] == [
            "b: its messages could not be delivered"
        ]
