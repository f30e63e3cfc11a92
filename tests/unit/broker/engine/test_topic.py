"""Topics: who gets a copy, what becomes of those that cannot be placed, and forwarding."""

from __future__ import annotations

import pytest

from tests.unit.broker.fakes import World, incoming
from twinbus.amqp.message import decode_map
from twinbus.broker.descriptions import (
    CorrelationFilter,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SWEEP_FLOOR, SettlementOutcome
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.messages.incoming import parse
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import (
    EntityDisabled,
    MessageNotFound,
    QuotaExceeded,
)

ME = object()


class News(World):
    """A world with the topic `news`."""

    def __init__(self, description: TopicDescription | None = None) -> None:
        super().__init__()
        self.topic: Topic = self.namespace.create_topic(
            "news", description or TopicDescription(), 0
        )

    def subscribe(
        self,
        name: str,
        *rules: RuleDescription,
        description: SubscriptionDescription | None = None,
    ) -> Subscription:
        """A subscription with these rules, or one that takes everything."""
        settings = description or SubscriptionDescription()
        subscription = self.namespace.create_subscription("news", name, settings, 0)
        for rule in rules:
            self.namespace.create_rule("news", name, rule, 0)
        if rules:
            self.namespace.delete_rule("news", name, "$Default", 0)
        return subscription


@pytest.fixture
def news() -> News:
    return News()


def ids(queue: Queue | None, now_ms: int = 1) -> list[str | None]:
    assert queue is not None
    return [each.message_id for each in queue.peek(0, 100, now_ms)]


def properties(world: World, queue: Queue) -> list[dict[object, object]]:
    """Application properties of each message, as a receiver gets them."""
    found = []
    for message in queue.peek(0, 100, 1):
        payload = world.journal.payload(queue.entity_id, message.sequence_number)
        sections = parse(render(payload, message), str).sections
        raw = sections.application_properties
        found.append(decode_map(raw) if raw else {})
    return found


def test_each_subscription_whose_rules_match_gets_a_copy_of_its_own(news: News) -> None:
    everything = news.subscribe("everything")
    red = news.subscribe(
        "red", RuleDescription(name="r", filter=CorrelationFilter(properties=(("hue", "red"),)))
    )
    nothing = news.subscribe("nothing", RuleDescription(name="n", filter=FalseFilter()))
    news.topic.enqueue(incoming(message_id="1", properties={"hue": "red"}), 0)
    news.topic.enqueue(incoming(message_id="2", properties={"hue": "blue"}), 0)
    assert (ids(everything), ids(red), ids(nothing)) == (["1", "2"], ["1"], [])
    [delivery] = red.acquire(ME, 1, 1)
    red.settle(delivery.lock_token, SettlementOutcome.COMPLETE, 1)
    assert ids(everything) == ["1", "2"]


def test_rules_without_action_share_a_copy_and_each_action_makes_its_own(news: News) -> None:
    subscription = news.subscribe(
        "s",
        RuleDescription(name="plain", filter=SqlFilter(expression="1 = 1")),
        RuleDescription(name="plain2", filter=SqlFilter(expression="n > 0")),
        RuleDescription(
            name="b", filter=SqlFilter(expression="n > 0"), action=SqlAction(expression="SET x = 1")
        ),
        RuleDescription(
            name="c", filter=SqlFilter(expression="n > 9"), action=SqlAction(expression="SET x = 2")
        ),
    )
    news.topic.enqueue(incoming(properties={"n": 5}), 0)
    assert properties(news, subscription) == [{"n": 5}, {"n": 5, "x": 1}]


def test_an_action_does_not_change_how_long_a_message_lives() -> None:
    news = News(TopicDescription(default_ttl_ms=5000))
    subscription = news.subscribe(
        "s", RuleDescription(name="a", action=SqlAction(expression="SET x = 1"))
    )
    news.topic.enqueue(incoming(), 0)
    news.topic.enqueue(incoming(ttl_ms=70), 0)
    assert [each.expires_at_ms for each in subscription.peek(0, 10, 1)] == [5000, 70]


FAILING = RuleDescription(name="f", filter=SqlFilter(expression="n / 0 = 1"))


def test_a_rule_that_fails_sends_the_message_to_the_dead_letters(news: News) -> None:
    subscription = news.subscribe("s", FAILING)
    news.topic.enqueue(incoming(message_id="1", properties={"n": 1}), 0)
    assert (ids(subscription), ids(subscription.dead_letter)) == ([], ["1"])
    assert subscription.dead_letter is not None
    [dead] = subscription.dead_letter.peek(0, 1, 1)
    assert dead.overrides is not None
    assert dead.dead_letter_source == "news/Subscriptions/s"


def test_or_counts_as_not_matching_where_that_is_wanted(news: News) -> None:
    quiet = SubscriptionDescription(dead_letter_on_filter_error=False)
    subscription = news.subscribe("s", FAILING, description=quiet)
    news.topic.enqueue(incoming(properties={"n": 1}), 0)
    assert (ids(subscription), ids(subscription.dead_letter)) == ([], [])


def test_a_session_subscription_dead_letters_what_has_no_session(news: News) -> None:
    settings = SubscriptionDescription(requires_session=True)
    subscription = news.subscribe("s", description=settings)
    news.topic.enqueue(incoming(message_id="1"), 0)
    news.topic.enqueue(incoming(message_id="2", session_id="x"), 0)
    assert (ids(subscription), ids(subscription.dead_letter)) == (["2"], ["1"])


def test_a_disabled_subscription_keeps_what_is_published(news: News) -> None:
    subscription = news.subscribe("s", description=SubscriptionDescription(status="Disabled"))
    news.topic.enqueue(incoming(message_id="1"), 0)
    with pytest.raises(EntityDisabled):
        subscription.acquire(ME, 1, 1)
    news.namespace.update("news/Subscriptions/s", SubscriptionDescription(), 2)
    assert [each.message.message_id for each in subscription.acquire(ME, 1, 2)] == ["1"]


def test_the_topic_s_quota_counts_every_copy() -> None:
    news = News(TopicDescription(max_size_mb=1, max_message_size_kb=1024))
    news.subscribe("a")
    news.subscribe("b")
    news.topic.enqueue(incoming(size_bytes=400_000), 0)
    with pytest.raises(QuotaExceeded):
        news.topic.enqueue(incoming(size_bytes=300_000), 0)


def test_duplicates_are_dropped_at_the_topic() -> None:
    news = News(TopicDescription(requires_duplicate_detection=True))
    subscription = news.subscribe("s")
    for now_ms in (0, 1):
        news.topic.enqueue(incoming(message_id="1"), now_ms)
    assert ids(subscription) == ["1"]
    again = news.restarted().namespace
    again.get_topic("news").enqueue(incoming(message_id="1"), 2)
    assert ids(again.get_subscription("news", "s")) == ["1"]


class TestScheduled:
    def test_a_message_waits_in_the_topic_and_fans_out_at_its_time(self, news: News) -> None:
        kept = news.topic.enqueue(
            incoming(message_id="1", scheduled_for_ms=500, ttl_ms=90, properties={"n": 1}), 0
        )
        assert kept is not None
        assert (news.topic.scheduled_count, news.namespace.next_deadline_ms()) == (1, 500)
        late = news.subscribe("late", RuleDescription(name="r", filter=SqlFilter(expression="n=1")))
        news.namespace.run_timers(500)
        [message] = late.peek(0, 10, 500)
        assert (message.message_id, message.expires_at_ms) == ("1", 590)
        assert message.enqueued_sequence_number == kept.sequence_number
        assert (news.topic.scheduled_count, news.topic.size_bytes) == (0, 0)

    def test_it_survives_a_restart(self, news: News) -> None:
        news.subscribe("s")
        news.topic.enqueue(incoming(message_id="1", scheduled_for_ms=500), 0)
        again = news.restarted().namespace
        again.run_timers(600)
        assert ids(again.get_subscription("news", "s"), 600) == ["1"]

    def test_it_can_be_cancelled_until_then(self, news: News) -> None:
        subscription = news.subscribe("s")
        news.topic.enqueue(incoming(scheduled_for_ms=500), 0)
        news.topic.enqueue(incoming(message_id="2", scheduled_for_ms=500), 0)
        news.topic.cancel_scheduled([1], 499)
        with pytest.raises(MessageNotFound):
            news.topic.cancel_scheduled([2], 500)
        assert ids(subscription, 500) == ["2"]


class TestForwarding:
    def test_a_queue_s_messages_move_on_at_once(self) -> None:
        world = World()
        target = world.queue("target", QueueDescription())
        source = world.queue("source", QueueDescription(forward_to="Target"))
        source.enqueue(incoming(message_id="1"), 5)
        assert (ids(source), ids(target)) == ([], ["1"])
        [message] = target.peek(0, 1, 5)
        assert (message.enqueued_at_ms, message.enqueued_sequence_number) == (5, 1)
        assert (source.size_bytes, target.size_bytes) == (0, message.size_bytes)
        assert ids(world.restarted().namespace.get_queue("target")) == ["1"]

    def test_messages_wait_in_order_for_a_destination_that_takes_nothing(self) -> None:
        world = World()
        source = world.queue("source", QueueDescription(forward_to="target"))
        for name in ("1", "2"):
            source.enqueue(incoming(message_id=name), 0)
        assert ids(source) == ["1", "2"]
        target = world.queue("target", QueueDescription(status="SendDisabled"))
        world.namespace.run_timers(1_000)
        assert (ids(source, 1_000), ids(target, 1_000)) == (["1", "2"], [])
        world.namespace.update("target", QueueDescription(), 1_500)
        source.enqueue(incoming(message_id="3"), 1_600)
        assert world.namespace.next_deadline_ms() == 2_000
        world.namespace.run_timers(2_000)
        assert (ids(source, 2_000), ids(target, 2_000)) == ([], ["1", "2", "3"])

    def test_what_expires_behind_a_message_that_waits_is_not_kept(self) -> None:
        world = World()
        source = world.queue("source", QueueDescription(forward_to="missing"))
        source.enqueue(incoming(message_id="1"), 0)
        for now_ms in range(1, 2_001):
            world.namespace.run_timers(now_ms)
            source.enqueue(incoming(ttl_ms=1), now_ms)
        assert ids(source, 3_000) == ["1"]
        assert source.states.forwarding is not None
        assert source.states.forwarding.waiting <= 2 * SWEEP_FLOOR

    def test_waiting_messages_move_on_after_a_restart_or_a_new_setting(self) -> None:
        world = World()
        source = world.queue("source", QueueDescription())
        world.queue("target", QueueDescription())
        source.enqueue(incoming(message_id="1"), 0)
        world.namespace.update("source", QueueDescription(forward_to="target"), 1)
        assert ids(world.namespace.get_queue("target")) == ["1"]
        world.namespace.update("target", QueueDescription(status="Disabled"), 2)
        source.enqueue(incoming(message_id="2"), 3)
        world.namespace.update("target", QueueDescription(), 4)
        again = world.restarted().namespace
        again.run_timers(5)
        assert ids(again.get_queue("target"), 5) == ["1", "2"]

    def test_a_scheduled_message_moves_on_at_its_time(self) -> None:
        world = World()
        target = world.queue("target", QueueDescription())
        source = world.queue("source", QueueDescription(forward_to="target"))
        source.enqueue(incoming(scheduled_for_ms=100), 0)
        assert (source.scheduled_count, ids(target)) == (1, [])
        world.namespace.run_timers(100)
        assert (source.scheduled_count, len(ids(target))) == (0, 1)

    def test_a_message_that_will_never_be_taken_goes_to_the_dead_letters(self) -> None:
        world = World()
        world.queue("target", QueueDescription(requires_session=True))
        source = world.queue("source", QueueDescription(forward_to="target"))
        source.enqueue(incoming(message_id="1"), 0)
        source.enqueue(incoming(message_id="2", session_id="s"), 0)
        assert (ids(source), ids(source.dead_letter)) == ([], ["1"])
        assert ids(world.namespace.get_queue("target")) == ["2"]

    def test_a_cycle_ends_in_a_dead_letter_queue(self) -> None:
        world = World()
        one = world.queue("one", QueueDescription(forward_to="two"))
        two = world.queue("two", QueueDescription(forward_to="one"))
        one.enqueue(incoming(message_id="1"), 0)
        for now_ms in range(0, 10_000, 500):
            world.namespace.run_timers(now_ms)
        assert (ids(one), ids(two), ids(two.dead_letter)) == ([], [], [])
        [dead] = one.dead_letter.peek(0, 10, 1) if one.dead_letter else []
        assert (dead.overrides or {})["DeadLetterReason"] == "MaxTransferHopCountExceeded"

    def test_a_cycle_through_dead_letters_ends_too(self) -> None:
        world = World()
        world.queue("strict", QueueDescription(requires_session=True))
        loop = world.queue(
            "loop", QueueDescription(forward_to="strict", forward_dead_letters_to="loop")
        )
        loop.enqueue(incoming(message_id="1"), 0)
        for now_ms in range(0, 10_000, 500):
            world.namespace.run_timers(now_ms)
        assert (ids(loop), ids(loop.dead_letter)) == ([], ["1"])

    def test_what_ended_a_chain_is_not_sent_round_again_after_a_restart(self) -> None:
        world = World()
        world.queue("one", QueueDescription(forward_to="two", forward_dead_letters_to="two"))
        world.queue("two", QueueDescription(forward_to="one"))
        world.namespace.get_queue("one").enqueue(incoming(message_id="1"), 0)
        again = world.restarted()
        again.namespace.run_timers(10_000)
        assert again.namespace.next_deadline_ms() == 0
        parts = [each.namespace.resolve("one/$DeadLetterQueue") for each in (world, again)]
        before, after = (list(each.messages) for each in parts if isinstance(each, Queue))
        assert len(before) == 1
        assert after == before  # under the same number: it has not moved

    def test_a_queue_that_forwards_to_itself_loses_nothing(self) -> None:
        world = World()
        loop = world.queue("loop", QueueDescription(forward_to="loop"))
        for name in ("1", "2"):
            loop.enqueue(incoming(message_id=name), 0)
        for now_ms in range(0, 10_000, 500):
            world.namespace.run_timers(now_ms)
        assert (ids(loop), ids(loop.dead_letter)) == ([], ["1", "2"])

    def test_dead_letters_move_on_with_their_reason(self) -> None:
        world = World()
        morgue = world.queue("morgue", QueueDescription())
        source = world.queue("source", QueueDescription(forward_dead_letters_to="morgue"))
        source.enqueue(incoming(message_id="1"), 0)
        [delivery] = source.acquire(ME, 1, 0)
        source.settle(delivery.lock_token, SettlementOutcome.DEAD_LETTER, 0, reason="bad")
        assert (ids(source.dead_letter), ids(morgue)) == ([], ["1"])
        [message] = morgue.peek(0, 1, 0)
        assert message.overrides == {"DeadLetterReason": "bad"}
        assert (message.dead_letter_source, message.delivery_count) == ("source", 0)

    def test_a_subscription_forwards_and_a_topic_takes_it(self, news: News) -> None:
        archive = news.namespace.create_topic("archive", TopicDescription(), 0)
        news.namespace.create_subscription("archive", "all", SubscriptionDescription(), 0)
        news.subscribe("s", description=SubscriptionDescription(forward_to="archive"))
        news.topic.enqueue(incoming(message_id="1", properties={"n": 1}), 0)
        kept = news.namespace.get_subscription("archive", "all")
        assert (ids(kept), properties(news, kept)) == (["1"], [{"n": 1}])
        assert ids(news.namespace.get_subscription("news", "s")) == []
        assert archive.size_bytes == 0

    def test_a_queue_with_sessions_forwards_what_it_has_and_what_comes(self) -> None:
        world = World()
        target = world.queue("target", QueueDescription())
        source = world.queue("source", QueueDescription(requires_session=True))
        source.enqueue(incoming(message_id="1", session_id="s"), 0)
        forwarding = QueueDescription(requires_session=True, forward_to="target")
        world.namespace.update("source", forwarding, 1)
        world.namespace.run_timers(2)
        source.enqueue(incoming(message_id="2", session_id="s"), 3)
        assert (ids(source), ids(target)) == ([], ["1", "2"])

    def test_a_forwarded_duplicate_leaves_no_trace(self) -> None:
        world = World()
        target = world.queue("target", QueueDescription(requires_duplicate_detection=True))
        source = world.queue("source", QueueDescription(forward_to="target"))
        for _ in range(2):
            source.enqueue(incoming(message_id="1"), 0)
        assert (ids(source), ids(target)) == ([], ["1"])
        assert ids(world.restarted().namespace.get_queue("source")) == []


def test_copies_tell_their_first_number_and_that_they_were_scheduled(news: News) -> None:
    subscription = news.subscribe("all")
    news.topic.enqueue(incoming(message_id="now"), 0)
    news.topic.enqueue(incoming(message_id="later", scheduled_for_ms=500), 0)
    news.namespace.run_timers(500)
    now, later = subscription.peek(0, 9, 500)
    assert (now.enqueued_sequence_number, now.scheduled_for_ms) == (now.sequence_number, 0)
    assert later.scheduled_for_ms == 500
