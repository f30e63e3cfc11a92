"""Rules of a subscription: their limits, what they may cost, and how they are stored."""

from __future__ import annotations

import pytest

from tests.unit.broker.engine.test_topic import News, ids
from tests.unit.broker.fakes import incoming
from tests.unit.work import bounded_work
from twinbus.broker.descriptions import (
    CorrelationFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.topic import ACTION_RULES_MAX, RULE_BYTES_MAX
from twinbus.broker.filters.values import like_pattern
from twinbus.broker.refusals import ArgumentOutOfRange, QuotaExceeded


@pytest.fixture
def news() -> News:
    return News()


def with_action(number: int, expression: str = "SET x = 1") -> RuleDescription:
    return RuleDescription(name=f"r{number}", action=SqlAction(expression=expression))


def test_copies_that_the_quota_has_no_room_for_are_one_dead_letter() -> None:
    news = News(TopicDescription(max_size_mb=1, max_message_size_kb=1024))
    subscription = news.subscribe("s", *(with_action(number) for number in range(10)))
    news.topic.enqueue(incoming(message_id="small", body=bytes(20_000)), 0)
    news.topic.enqueue(incoming(message_id="large", body=bytes(200_000)), 0)
    assert ids(subscription) == ["small"] * 10
    assert ids(subscription.dead_letter) == ["large"]
    assert subscription.dead_letter is not None
    [dead] = subscription.dead_letter.peek(0, 1, 1)
    assert "maximum entity size" in str(dead.overrides)


def test_one_copy_that_an_action_makes_larger_needs_room_too() -> None:
    news = News(TopicDescription(max_size_mb=1, max_message_size_kb=1024))
    grows = ";".join(f"SET p{number} = a" for number in range(32))
    subscription = news.subscribe("s", with_action(0, grows))
    for number in range(3):
        news.topic.enqueue(
            incoming(message_id=str(number), properties={"a": "x" * (10_000, 60_000, 10)[number]}),
            0,
        )
    assert ids(subscription) == ["0", "2"]
    assert ids(subscription.dead_letter) == ["1"]
    assert subscription.size_bytes < 1024 * 1024


def test_rules_with_an_action_are_few(news: News) -> None:
    news.subscribe("s", *(with_action(number) for number in range(ACTION_RULES_MAX)))
    create, update = news.namespace.create_rule, news.namespace.update_rule
    with pytest.raises(QuotaExceeded, match=f"{ACTION_RULES_MAX} rules with an action"):
        create("news", "s", with_action(99), 0)
    create("news", "s", RuleDescription(name="plain"), 0)
    with pytest.raises(QuotaExceeded):
        update(
            "news", "s", RuleDescription(name="plain", action=SqlAction(expression="SET x=1")), 0
        )
    update("news", "s", with_action(0, "SET x = 2"), 0)


def test_new_ids_of_many_rules_hash_a_large_message_once(news: News) -> None:
    many = "; ".join(f"SET a{number} = newid()" for number in range(30))
    news.subscribe("s", *(with_action(number, many) for number in range(10)))
    with bounded_work(0.5):
        news.topic.enqueue(incoming(body=bytes(1_000_000), size_bytes=10), 0)


def test_the_rules_of_a_subscription_have_one_budget_for_a_message(news: News) -> None:
    """A LIKE of four million comparisons takes ten milliseconds, and there may be 2,000 rules."""
    heavy = SqlFilter(expression="t LIKE '%" + "a_" * 30 + "b%'")
    slow = news.subscribe("slow", *(RuleDescription(name=f"r{n}", filter=heavy) for n in range(99)))
    other = news.subscribe(
        "other", RuleDescription(name="r", filter=heavy), RuleDescription(name="t")
    )
    with bounded_work(1.0):
        news.topic.enqueue(incoming(message_id="1", properties={"t": "a" * 30_000}), 0)
    assert (ids(slow), ids(slow.dead_letter), ids(other)) == ([], ["1"], ["1"])


def test_the_patterns_of_many_rules_are_compiled_once(news: News) -> None:
    filters = (SqlFilter(expression=f"t LIKE '%a_{number}%'") for number in range(600))
    rules = (RuleDescription(name=f"r{n}", filter=each) for n, each in enumerate(filters))
    news.subscribe("s", *rules)
    before = like_pattern.cache_info().misses
    news.topic.enqueue(incoming(properties={"t": "x"}), 0)
    assert like_pattern.cache_info().misses == before


def test_a_subscription_has_as_many_rules_as_in_azure_and_no_more(news: News) -> None:
    news.subscribe("all")
    # One is there from the start.
    for number in range(1_999):
        news.namespace.create_rule("news", "all", RuleDescription(name=f"r{number}"), 0)
    with pytest.raises(QuotaExceeded, match="has 2000 rules, which is the limit"):
        news.namespace.create_rule("news", "all", RuleDescription(name="more"), 0)
    news.namespace.update_rule("news", "all", RuleDescription(name="r2"), 0)
    news.namespace.delete_rule("news", "all", "r1", 0)
    news.namespace.create_rule("news", "all", RuleDescription(name="more"), 0)


def correlation(name: str, *pairs: tuple[str, object]) -> RuleDescription:
    return RuleDescription(name=name, filter=CorrelationFilter(properties=pairs))


def test_a_rule_is_small(news: News) -> None:
    news.subscribe("s")
    for large in (
        correlation("r", ("a", "x" * RULE_BYTES_MAX)),
        correlation("r", ("a" * RULE_BYTES_MAX, 1)),
        correlation("r", *((f"a{number}", 1) for number in range(101))),
        RuleDescription(
            name="r", filter=SqlFilter(expression="a = @p", parameters=(("@p", b"x" * 20_000),))
        ),
    ):
        with pytest.raises(ArgumentOutOfRange, match="the limit is"):
            news.namespace.create_rule("news", "s", large, 0)
    with pytest.raises(ArgumentOutOfRange):
        news.namespace.create_subscription("news", "t", SubscriptionDescription(), 0, rule=large)


def test_rules_count_in_the_topic_s_memory() -> None:
    news = News(TopicDescription(max_size_mb=1))
    subscription = news.subscribe("s")
    large = CorrelationFilter(properties=(("a", "x" * 20_000),))
    for number in range(45):
        rule = RuleDescription(name=f"r{number}", filter=large)
        news.namespace.create_rule("news", "s", rule, 0)
    with pytest.raises(QuotaExceeded, match="and rules use that much memory"):
        news.namespace.create_rule("news", "s", RuleDescription(name="x", filter=large), 0)
    with pytest.raises(QuotaExceeded):
        news.namespace.send(news.topic, [incoming() for _ in range(30)], 0)
    assert ids(subscription) == []
    again = news.restarted().namespace.get_subscription("news", "s")
    assert again.rules_memory_bytes == subscription.rules_memory_bytes
    for number in range(45):
        news.namespace.delete_rule("news", "s", f"r{number}", 0)
    assert subscription.rules_memory_bytes < 4_000


def test_a_change_of_one_rule_writes_that_rule_and_a_restart_keeps_their_order(news: News) -> None:
    subscription = news.subscribe("s")
    names = [f"rule-{number * 7 % 10}" for number in range(10)]
    for name in names:
        news.namespace.create_rule("news", "s", correlation(name, ("a", 1)), 0)
    kept = news.journal.kept[subscription.entity_id]
    before = dict(kept.rules)
    news.namespace.update_rule("news", "s", correlation("rule-7", ("a", b"2")), 1)
    news.namespace.delete_rule("news", "s", "$Default", 1)
    changed = {name for name, record in before.items() if kept.rules.get(name) is not record}
    assert changed == {"rule-7", "$default"}
    assert kept.entity is not None
    assert "rules" not in kept.entity[2]
    again = news.restarted().namespace
    again.create_rule("news", "s", correlation("last", ("a", 1)), 2)
    found = again.get_subscription("news", "s")
    assert list(found.rules.values())[:-1] == list(subscription.rules.values())
    assert [rule.name for rule in found.rules.values()] == [*names, "last"]
