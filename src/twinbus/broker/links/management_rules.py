"""Rules of a subscription over its `$management` node, in the described types Azure gives them."""

from __future__ import annotations

from typing import Any

from twinbus.amqp.types import Described, ULong
from twinbus.broker.descriptions import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.engine.topic import Subscription
from twinbus.broker.filters.values import to_amqp, to_value
from twinbus.broker.links.management_request import (
    INT_MAX,
    Body,
    ManagementContext,
    ManagementRequest,
    page,
    text_of,
)
from twinbus.broker.refusals import ArgumentInvalid, NotAllowed
from twinbus.broker.sas import LISTEN

_RULE_DESCRIPTION = 0x1370_0000_004
_EMPTY_ACTION = 0x1370_0000_005
_SQL_ACTION = 0x1370_0000_006
_SQL_FILTER = 0x13_7000_0006
_TRUE_FILTER = 0x13_7000_0007
_FALSE_FILTER = 0x13_7000_0008
_CORRELATION_FILTER = 0x13_7000_0009


def add_rule(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    subscription = _subscription(context)
    wanted = request.table("rule-description")
    rule = RuleDescription(
        name=request.text("rule-name"),
        filter=_filter(wanted),
        action=_action(wanted),
        created_at_ms=now_ms,
    )
    context.namespace.create_rule(subscription.topic_path, subscription.name, rule, now_ms)
    return {}


def remove_rule(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    subscription = _subscription(context)
    name = request.text("rule-name")
    context.namespace.delete_rule(subscription.topic_path, subscription.name, name, now_ms)
    return {}


def enumerate_rules(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    subscription = _subscription(context)
    rules = page(
        context.namespace.rules(subscription.topic_path, subscription.name),
        request.integer("skip", 0, minimum=0),
        request.integer("top", INT_MAX, minimum=0),
    )
    return {"rules": [{"rule-description": _described(rule)} for rule in rules]} if rules else None


def _subscription(context: ManagementContext) -> Subscription:
    # Azure asks no more than Listen for rules here, unlike in its administration API.
    context.require(LISTEN)
    entity = context.namespace.resolve(context.address)
    if not isinstance(entity, Subscription):
        raise NotAllowed(f"{entity.path!r} has no rules; only a subscription has.")
    return entity


def _filter(wanted: dict[str, Any]) -> Filter:
    sql, correlation = wanted.get("sql-filter"), wanted.get("correlation-filter")
    if sql is not None and correlation is not None:
        raise ArgumentInvalid("A rule has a sql-filter or a correlation-filter, not both.")
    if sql is not None:
        return SqlFilter(expression=_expression(sql, "sql-filter"))
    if correlation is None:
        return TrueFilter()
    table = _table(correlation, "correlation-filter")
    fields = {field: text_of(table.get(field.replace("_", "-"))) for field in CORRELATION_FIELDS}
    properties = _table(table.get("properties") or {}, "properties of the correlation-filter")
    return CorrelationFilter(**fields, properties=tuple(properties.items()))


def _action(wanted: dict[str, Any]) -> SqlAction | None:
    action = wanted.get("sql-rule-action")
    return None if action is None else SqlAction(expression=_expression(action, "sql-rule-action"))


def _expression(entry: object, name: str) -> str:
    text = text_of(_table(entry, name).get("expression"))
    if text is None:
        raise ArgumentInvalid(f"The {name} needs an expression, which is a string.")
    return text


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentInvalid(f"The {name} must be a map, not a {type(value).__name__}.")
    return {str(key): entry for key, entry in value.items()}


def _described(rule: RuleDescription) -> Described:
    action = (
        _list(_EMPTY_ACTION, [])
        if rule.action is None
        else _list(_SQL_ACTION, [rule.action.expression])
    )
    return _list(_RULE_DESCRIPTION, [_described_filter(rule.filter), action, rule.name])


def _described_filter(filter_: Filter) -> Described:
    match filter_:
        case TrueFilter():
            return _list(_TRUE_FILTER, [])
        case FalseFilter():
            return _list(_FALSE_FILTER, [])
        case SqlFilter():
            return _list(_SQL_FILTER, [filter_.expression])
        case CorrelationFilter():
            # The order of the described list is that of the fields.
            fields = [getattr(filter_, field) for field in CORRELATION_FIELDS]
            properties = {name: to_amqp(to_value(value)) for name, value in filter_.properties}
            return _list(_CORRELATION_FILTER, [*fields, properties])


def _list(descriptor: int, fields: list[Any]) -> Described:
    return Described(ULong(descriptor), fields)
