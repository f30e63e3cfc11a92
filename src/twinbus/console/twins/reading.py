"""Reads entities by the administration API, as the settings that are compared with a twin's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from azure.core.exceptions import HttpResponseError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    QueueProperties,
    RuleProperties,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)

from twinbus.client.administration import BUSY, BUSY_WAITS_S
from twinbus.pairing.core.twin_plan import Entities
from twinbus.pairing.core.twin_settings import UNREADABLE, Kind, TwinRule, TwinSettings
from twinbus.pairing.sdk.administration import CALLS_AT_ONCE
from twinbus.servicebus.names import FOREVER_MS, entity_address

T = TypeVar("T")

_ALWAYS: Final = ("1=1", "1 = 1")

_CORRELATED: Final = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


@dataclass(frozen=True, slots=True)
class Held:
    """Messages in a twin; of a topic those of all its subscriptions."""

    waiting: int = 0
    """Active, locked, scheduled and deferred."""
    dead_lettered: int = 0


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again after a pause while the namespace throttles."""
    for wait_s in BUSY_WAITS_S:
        try:
            return await call()
        except HttpResponseError as error:
            if error.status_code not in BUSY:
                raise
        await asyncio.sleep(wait_s)
    return await call()


async def read_entities(client: ServiceBusAdministrationClient) -> dict[str, TwinSettings]:
    """Return all queues and topics by path in lower case, the topics without subscriptions."""

    async def queues() -> list[TwinSettings]:
        return [_queue(one) async for one in client.list_queues()]

    async def topics() -> list[TwinSettings]:
        return [_topic(one) async for one in client.list_topics()]

    found = [*await patiently(queues), *await patiently(topics)]
    return {one.name.lower(): one for one in found}


async def with_subscriptions(
    client: ServiceBusAdministrationClient, entities: Entities
) -> dict[str, TwinSettings]:
    """Return the entities, the topics with their subscriptions and rules."""
    gate = asyncio.Semaphore(CALLS_AT_ONCE)

    async def whole(entity: TwinSettings) -> TwinSettings:
        if entity.kind is not Kind.TOPIC:
            return entity
        async with gate:
            return await read_subscriptions(client, entity)

    found = await asyncio.gather(*map(whole, entities.values()))
    return dict(zip(entities, found, strict=True))


async def read_subscriptions(
    client: ServiceBusAdministrationClient, topic: TwinSettings
) -> TwinSettings:
    async def listed() -> list[SubscriptionProperties]:
        return [one async for one in client.list_subscriptions(topic.name)]

    found = {}
    for one in await patiently(listed):
        rules = await read_rules(client, topic.name, one.name)
        texts = {rule.name.lower(): rule_text(rule) for rule in rules}
        found[one.name.lower()] = replace(_subscription(one), rules=texts)
    return replace(topic, subscriptions=found)


async def read_rules(
    client: ServiceBusAdministrationClient, topic: str, subscription: str
) -> list[RuleProperties]:
    async def listed() -> list[RuleProperties]:
        return [one async for one in client.list_rules(topic, subscription)]

    return await patiently(listed)


async def held_by(client: ServiceBusAdministrationClient, twin: TwinSettings) -> Held:
    """Return how many messages a queue, or all subscriptions of a topic, hold."""
    found: list[Any]
    if twin.kind is Kind.QUEUE:
        found = [await patiently(lambda: client.get_queue_runtime_properties(twin.name))]
    else:

        async def listed() -> list[Any]:
            return [one async for one in client.list_subscriptions_runtime_properties(twin.name)]

        found = await patiently(listed)
    dead = sum(one.dead_letter_message_count or 0 for one in found)
    total = sum(one.total_message_count or 0 for one in found)
    return Held(max(0, total - dead), dead)


def _queue(found: QueueProperties) -> TwinSettings:
    return TwinSettings(
        kind=Kind.QUEUE,
        requires_session=bool(found.requires_session),
        dead_letter_on_expiration=bool(found.dead_lettering_on_message_expiration),
        lock_duration_ms=_ms(found.lock_duration, 60_000),
        max_delivery_count=found.max_delivery_count,
        forward_to=_path(found.forward_to),
        forward_dead_letters_to=_path(found.forward_dead_lettered_messages_to),
        **_common(found),
        **_stored(found),
    )


def _topic(found: TopicProperties) -> TwinSettings:
    return TwinSettings(kind=Kind.TOPIC, **_common(found), **_stored(found))


def _subscription(found: SubscriptionProperties) -> TwinSettings:
    on_filter_error = found.dead_lettering_on_filter_evaluation_exceptions
    return TwinSettings(
        kind=Kind.SUBSCRIPTION,
        requires_session=bool(found.requires_session),
        dead_letter_on_expiration=bool(found.dead_lettering_on_message_expiration),
        dead_letter_on_filter_error=bool(on_filter_error),
        lock_duration_ms=_ms(found.lock_duration, 60_000),
        max_delivery_count=found.max_delivery_count,
        forward_to=_path(found.forward_to),
        forward_dead_letters_to=_path(found.forward_dead_lettered_messages_to),
        **_common(found),
    )


def _common(found: QueueProperties | TopicProperties | SubscriptionProperties) -> dict[str, Any]:
    """Settings of all three kinds."""
    return {
        "name": found.name,
        "user_metadata": found.user_metadata or "",
        "default_ttl_ms": _ms(found.default_message_time_to_live, FOREVER_MS),
        "auto_delete_on_idle_ms": _ms(found.auto_delete_on_idle, FOREVER_MS),
        "status": str(getattr(found.status, "value", found.status) or "Active"),
    }


def _stored(found: QueueProperties | TopicProperties) -> dict[str, Any]:
    """Settings of what stores messages under its own quota."""
    return {
        "requires_duplicate_detection": bool(found.requires_duplicate_detection),
        "duplicate_detection_window_ms": _ms(found.duplicate_detection_history_time_window, 0)
        or None,
        "max_size_mb": found.max_size_in_megabytes,
        "max_message_size_kb": found.max_message_size_in_kilobytes or None,
        "enable_partitioning": bool(found.enable_partitioning),
    }


def _ms(value: Any, default: int) -> int:
    return value // timedelta(milliseconds=1) if isinstance(value, timedelta) else default


def _path(address: str | None) -> str | None:
    return entity_address(address) if address else None


def rule_text(rule: RuleProperties) -> TwinRule:
    """Return a rule as texts that are equal if the rules do the same."""
    action = rule.action
    does = ""
    if action is not None and action.sql_expression:
        does = f"{action.sql_expression.strip()!r}{_values(action.parameters)}"
    return TwinRule(rule.name, _filter_text(rule.filter), does)


def _filter_text(found: object) -> str:
    if isinstance(found, FalseRuleFilter):
        return "false"
    if isinstance(found, TrueRuleFilter):
        return "true"
    if isinstance(found, SqlRuleFilter):
        expression = (found.sql_expression or "").strip()
        if expression in _ALWAYS:
            return "true"
        return f"{expression!r}{_values(found.parameters)}"
    if isinstance(found, CorrelationRuleFilter):
        fields = {name: getattr(found, name) for name in _CORRELATED}
        given = {name: value for name, value in fields.items() if value is not None}
        properties = _values(found.properties)
        return f"correlation{_values(given)}{' properties' if properties else ''}{properties}"
    return UNREADABLE


def _values(values: Any) -> str:
    texts = [f"{name}={value!r}" for name, value in sorted((values or {}).items())]
    return f" ({', '.join(texts)})" if texts else ""
