"""Entities through the official administration client, over plain HTTP against a real broker.

The broker is whole (listener, HTTP, engine, group commit) with its store in memory.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.official_sdk import administration
from twinbus.broker.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.contract

Admin = Any
"""The SDK's client; its optional fields would need a check each before a test may look at them."""

FOREVER = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581)


@pytest.fixture
def admin() -> Iterator[Admin]:
    with (
        EmbeddedBroker("contoso") as embedded,
        administration(embedded.connection_string()) as client,
    ):
        yield client


def test_a_new_queue_has_the_defaults_of_azure(admin: Admin) -> None:
    created = admin.create_queue("orders")
    assert dict(created) == dict(admin.get_queue("orders"))
    assert created.lock_duration == timedelta(minutes=1)
    assert created.max_delivery_count == 10
    assert created.max_size_in_megabytes == 1024
    assert created.default_message_time_to_live == FOREVER
    assert created.auto_delete_on_idle == FOREVER
    assert created.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert (created.status, created.availability_status) == ("Active", "Available")
    assert (created.requires_session, created.requires_duplicate_detection) == (False, False)
    assert (created.forward_to, created.user_metadata) == (None, None)
    assert not created.authorization_rules


def test_every_setting_of_a_queue_comes_back(admin: Admin) -> None:
    admin.create_topic("target/one")
    settings: dict[str, Any] = {
        "lock_duration": timedelta(seconds=13), "max_delivery_count": 14,
        "default_message_time_to_live": timedelta(minutes=11, milliseconds=250),
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "auto_delete_on_idle": timedelta(minutes=10), "max_size_in_megabytes": 3072,
        "dead_lettering_on_message_expiration": True, "enable_batched_operations": False,
        "requires_duplicate_detection": True, "enable_express": True, "enable_partitioning": True,
        "user_metadata": "<who & why>",
    }  # fmt: skip
    admin.create_queue("a/b.c-d_e", forward_to="target/one", **settings)
    queue = admin.get_queue("a/b.c-d_e")
    settings["max_size_in_megabytes"] *= 16  # Of 16 partitions, as Azure reports them.
    assert {name: getattr(queue, name) for name in settings} == settings
    assert queue.forward_to.endswith("/target/one")
    assert queue.name == "a/b.c-d_e"


def test_a_queue_is_updated_in_part_and_back_to_no_forwarding(
    admin: Admin,
) -> None:
    admin.create_queue("target")
    queue = admin.create_queue("orders", user_metadata="kept", max_delivery_count=3)
    queue.forward_to = "target"
    queue.forward_dead_lettered_messages_to = "target"
    admin.update_queue(queue)
    queue = admin.get_queue("orders")
    assert queue.forward_to.endswith("/target")
    assert queue.forward_dead_lettered_messages_to.endswith("/target")
    admin.update_queue(
        queue, forward_to=None, forward_dead_lettered_messages_to=None, lock_duration="PT30S"
    )
    queue = admin.get_queue("orders")
    assert (queue.forward_to, queue.forward_dead_lettered_messages_to) == (None, None)
    assert (queue.user_metadata, queue.max_delivery_count) == ("kept", 3)
    assert queue.lock_duration == timedelta(seconds=30)
    assert queue.default_message_time_to_live == FOREVER


def test_names_differ_by_more_than_letter_case(admin: Admin) -> None:
    admin.create_queue("Orders")
    with pytest.raises(ResourceExistsError):
        admin.create_queue("oRDERS")
    with pytest.raises(ResourceExistsError):
        admin.create_topic("orders")
    assert [queue.name for queue in admin.list_queues()] == ["Orders"]
    admin.delete_queue("ORDERS")
    assert list(admin.list_queues()) == []


def test_what_is_not_there_is_not_found(admin: Admin) -> None:
    queue = admin.create_queue("orders")
    admin.create_topic("events")
    for missing in (
        lambda: admin.get_queue("nothing"),
        lambda: admin.get_queue(""),
        lambda: admin.get_queue_runtime_properties("nothing"),
        lambda: admin.get_topic("nothing"),
        lambda: admin.get_subscription("events", "nothing"),
        lambda: admin.get_subscription("nothing", "nothing"),
        lambda: admin.get_rule("events", "nothing", "$Default"),
        lambda: admin.delete_queue("nothing"),
        lambda: admin.delete_topic("nothing"),
        lambda: admin.delete_subscription("events", "nothing"),
        lambda: list(admin.list_subscriptions("nothing")),
        lambda: list(admin.list_rules("events", "nothing")),
        lambda: admin.create_subscription("nothing", "s"),
    ):
        with pytest.raises(ResourceNotFoundError):
            missing()
    queue.name = "another"
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(queue)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lock_duration": timedelta(days=25)}, "lock_duration"),
        ({"max_delivery_count": 0}, "max_delivery_count"),
        ({"max_message_size_in_kilobytes": 1024}, "MaxMessageSizeInKilobytes"),
        ({"forward_to": "nowhere"}, "nowhere"),
        ({"default_message_time_to_live": "PT0S"}, "default_ttl_ms"),
        ({"status": "Sleepy"}, "Sleepy"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_name(
    admin: Admin, settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(HttpResponseError, match=word) as refused:
        admin.create_queue("orders", **settings)
    assert refused.value.status_code == 400
    assert list(admin.list_queues()) == []


@pytest.mark.parametrize("name", ["", "/", "a//b", "x" * 261, "spaced name", "$Resources"])
def test_a_name_that_cannot_be_is_refused(admin: Admin, name: str) -> None:
    with pytest.raises(HttpResponseError) as refused:
        admin.create_queue(name)
    assert refused.value.status_code == 400


def test_a_name_of_260_characters_is_taken(admin: Admin) -> None:
    admin.create_queue("x" * 260)
    assert admin.get_queue("x" * 260).name == "x" * 260


def test_what_lasts_as_long_as_the_queue_cannot_be_updated(
    admin: Admin,
) -> None:
    queue = admin.create_queue("orders")
    for name, words in (
        ("requires_session", "RequiresSession property of an existing Queue cannot be changed"),
        ("requires_duplicate_detection", "RequiresDuplicateDetection property of an existing"),
        ("enable_partitioning", "Partitioning cannot be changed for Queue"),
    ):
        with pytest.raises(HttpResponseError, match=words) as refused:
            admin.update_queue(queue, **{name: True})
        assert refused.value.status_code == 400
    assert admin.get_queue("orders").requires_session is False


def test_authorization_rules_of_an_entity_are_kept_replaced_and_cleared(
    admin: Admin,
) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None",
        key_name="owner", primary_key="owner-key", secondary_key="spare",
        rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
    )  # fmt: skip
    queue = admin.create_queue("orders", authorization_rules=[rule])
    assert [each.key_name for each in queue.authorization_rules] == ["owner"]
    assert sorted(queue.authorization_rules[0].rights) == ["Listen", "Manage", "Send"]
    assert queue.authorization_rules[0].primary_key == "owner-key"
    rule.rights = [AccessRights.LISTEN]
    queue.authorization_rules = [rule]
    admin.update_queue(queue)
    assert admin.get_queue("orders").authorization_rules[0].rights == ["Listen"]
    admin.update_queue(admin.get_queue("orders"), authorization_rules=[])
    assert not admin.get_queue("orders").authorization_rules


# Lists


def test_lists_come_in_order_of_names_and_page_by_page(
    admin: Admin,
) -> None:
    names = sorted(f"queue-{number:02d}" for number in range(25))
    for name in reversed(names):
        admin.create_queue(name)
    assert [queue.name for queue in admin.list_queues(max_page_size=7)] == names
    assert [queue.name for queue in admin.list_queues(max_page_size=25)] == names
    assert [queue.name for queue in admin.list_queues(start_index=20)] == names[20:]
    assert [each.name for each in admin.list_queues_runtime_properties()] == names
    assert list(admin.list_topics()) == []
    for page in ({"start_index": -1}, {"max_page_size": -1}):
        with pytest.raises(HttpResponseError) as refused:
            list(admin.list_queues(**page))
        assert refused.value.status_code == 400


# Topics, subscriptions, rules


def test_a_topic_and_its_subscriptions(admin: Admin) -> None:
    admin.create_queue("target")
    topic = admin.create_topic(
        "events", default_message_time_to_live=timedelta(hours=1), support_ordering=False
    )
    assert (topic.default_message_time_to_live, topic.support_ordering) == (
        timedelta(hours=1),
        False,
    )
    admin.update_topic(topic, max_size_in_megabytes=2048)
    assert admin.get_topic("events").max_size_in_megabytes == 2048
    for name in ("south", "north"):
        admin.create_subscription("events", name, lock_duration=timedelta(seconds=30))
    with pytest.raises(ResourceExistsError):
        admin.create_subscription("events", "North")
    listed = list(admin.list_subscriptions("events"))
    assert [subscription.name for subscription in listed] == ["north", "south"]
    assert listed[0].lock_duration == timedelta(seconds=30)
    north = admin.get_subscription("events", "north")
    admin.update_subscription("events", north, forward_to="target", max_delivery_count=2)
    north = admin.get_subscription("events", "north")
    assert north.forward_to.endswith("/target")
    assert north.max_delivery_count == 2
    assert admin.get_topic_runtime_properties("events").subscription_count == 2
    admin.delete_subscription("events", "south")
    admin.delete_topic("events")
    assert list(admin.list_topics()) == []


def test_rules_keep_their_filters_actions_and_typed_values(
    admin: Admin,
) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    values: dict[str, Any] = {
        "text": "a < b", "int": 2, "long": 2**31 + 2, "bool": False, "double": 1.5,
        "time": datetime(2020, 7, 5, 11, 12, 13),  # noqa: DTZ001 (what the SDK's users give)
        "span": timedelta(days=1, hours=2, minutes=3),
    }  # fmt: skip
    parameters = {f"@{name}": value for name, value in values.items()}
    admin.create_rule(
        "events", "all", "correlation", filter=CorrelationRuleFilter(label="new", properties=values)
    )
    admin.create_rule(
        "events", "all", "sql",
        filter=SqlRuleFilter("size > @int AND name = @text", parameters=parameters),
        action=SqlRuleAction("SET at = @time", parameters=parameters),
    )  # fmt: skip
    admin.create_rule("events", "all", "never", filter=FalseRuleFilter())
    correlation = admin.get_rule("events", "all", "correlation")
    assert isinstance(correlation.filter, CorrelationRuleFilter)
    assert (correlation.filter.label, correlation.filter.to) == ("new", None)
    assert correlation.filter.properties == values
    assert correlation.action is None
    sql = admin.get_rule("events", "all", "sql")
    assert isinstance(sql.filter, SqlRuleFilter)
    assert sql.filter.sql_expression == "size > @int AND name = @text"
    assert sql.filter.parameters == parameters
    assert sql.action.parameters == parameters
    listed = {rule.name: type(rule.filter) for rule in admin.list_rules("events", "all")}
    assert listed == {
        "$Default": TrueRuleFilter, "correlation": CorrelationRuleFilter,
        "never": FalseRuleFilter, "sql": SqlRuleFilter,
    }  # fmt: skip
    counted = admin.get_topic_runtime_properties("events")
    assert (counted.sql_filter_count, counted.correlation_filter_count) == (3, 1)


def test_rules_are_replaced_deleted_and_refused(admin: Admin) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    admin.delete_rule("events", "all", "$Default")
    rule = admin.create_rule("events", "all", "low", filter=SqlRuleFilter("priority = 'low'"))
    with pytest.raises(ResourceExistsError):
        admin.create_rule("events", "all", "Low")
    admin.update_rule("events", "all", rule, filter=CorrelationRuleFilter(correlation_id="7"))
    assert admin.get_rule("events", "all", "low").filter.correlation_id == "7"
    with pytest.raises(HttpResponseError) as refused:
        admin.create_rule("events", "all", "bad", filter=SqlRuleFilter("priority = = 'low'"))
    assert refused.value.status_code == 400
    rule.name = "other"
    with pytest.raises(ResourceNotFoundError):
        admin.update_rule("events", "all", rule)
    assert [each.name for each in admin.list_rules("events", "all")] == ["low"]
