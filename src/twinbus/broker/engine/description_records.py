"""Descriptions as the store keeps them: JSON-ready records, and back.

A record written by a newer version may have keys that this one does not know; they are ignored, and
what a record lacks gets its default.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from twinbus.amqp.decoding import decode
from twinbus.amqp.encoding import encode
from twinbus.broker.descriptions import (
    AuthorizationRule,
    CorrelationFilter,
    FalseFilter,
    Filter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)

Record = dict[str, Any]

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)
T = TypeVar("T")

_FILTERS: dict[str, type[Any]] = {
    "sql": SqlFilter,
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
}
_PAIRS = ("parameters", "properties")
"""Fields that hold named values of any AMQP type."""

_PLAIN = (str, int, float, bool, type(None))


def description_record(description: object) -> Record:
    record = _plain_fields(description)
    rules = record.get("authorization_rules")
    if rules is not None:
        record["authorization_rules"] = [_access_record(rule) for rule in rules]
    return record


def read_description(kind: type[D], record: Record) -> D:
    known = _known(kind, record)
    if "authorization_rules" in known:
        known["authorization_rules"] = tuple(
            _read_access(entry) for entry in known["authorization_rules"]
        )
    return kind(**known)


def rule_record(rule: RuleDescription) -> Record:
    name = next(name for name, kind in _FILTERS.items() if isinstance(rule.filter, kind))
    return {
        "name": rule.name,
        "filter": {"kind": name, **_valued_fields(rule.filter)},
        "action": None if rule.action is None else _valued_fields(rule.action),
        "created_at_ms": rule.created_at_ms,
    }


def read_rule(record: Record) -> RuleDescription:
    kept = record["filter"]
    action = record.get("action")
    filter_: Filter = _read_valued(_FILTERS[kept["kind"]], kept)
    return RuleDescription(
        name=record["name"],
        filter=filter_,
        action=None if action is None else _read_valued(SqlAction, action),
        created_at_ms=record.get("created_at_ms", 0),
    )


def _plain_fields(value: Any) -> Record:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _known(kind: type[Any], record: Record) -> Record:
    return {field.name: record[field.name] for field in fields(kind) if field.name in record}


def _access_record(rule: AuthorizationRule) -> Record:
    return {**_plain_fields(rule), "rights": sorted(rule.rights)}


def _read_access(record: Record) -> AuthorizationRule:
    known = _known(AuthorizationRule, record)
    known["rights"] = frozenset(known.get("rights", ()))
    return AuthorizationRule(**known)


def _valued_fields(value: Any) -> Record:
    record = _plain_fields(value)
    for name in _PAIRS:
        if name in record:
            record[name] = [[key, _value_record(each)] for key, each in record[name]]
    return record


def _read_valued(kind: type[T], record: Record) -> T:
    known = _known(kind, record)
    for name in _PAIRS:
        if name in known:
            known[name] = tuple((key, _read_value(each)) for key, each in known[name])
    return kind(**known)


def _value_record(value: object) -> object:
    """JSON has fewer types than AMQP: values of the other types are kept in their AMQP encoding."""
    return value if type(value) in _PLAIN else {"amqp": encode(value).hex()}


def _read_value(kept: object) -> object:
    return decode(bytes.fromhex(kept["amqp"]))[0] if isinstance(kept, dict) else kept
