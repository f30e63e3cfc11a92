"""The settings of queues, topics, subscriptions and rules, and the limits of each.

Plain frozen values with Azure Service Bus's defaults. Durations are whole milliseconds. The store
keeps descriptions as JSON-ready records: unknown keys are ignored, absent ones get their default.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from twinbus.amqp.decoding import decode
from twinbus.amqp.encoding import encode
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange
from twinbus.servicebus.names import (
    CHILD_NAME_MAX,
    DETECTION_MAX_S,
    ENTITY_NAME_MAX,
    ENTITY_NAME_RULE,
    FOREVER_MS,
    is_entity_name,
)

MAX_DELIVERY_COUNT_LIMIT = 2_147_483_647

EXPRESSION_LENGTH_MAX = 1024
"""Characters of a SQL filter or action; Azure's limit, which also bounds the parser's work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthorizationRule:
    """A shared access rule: each of its keys grants `rights`."""

    key_name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(default="", repr=False)
    rights: frozenset[str] = frozenset()
    """Of "Manage", "Send", "Listen"."""
    created_at_ms: int = 0
    modified_at_ms: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDescription:
    lock_duration_ms: int = 60_000
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_ttl_ms: int = FOREVER_MS
    dead_letter_on_expiration: bool = False
    duplicate_detection_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    """Active, Disabled, SendDisabled or ReceiveDisabled."""
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_kb: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    forward_scheme: str = "sb"
    """Of the addresses of both destinations, as the client wrote it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicDescription:
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    default_ttl_ms: int = FOREVER_MS
    duplicate_detection_window_ms: int = 600_000
    enable_batched_operations: bool = True
    status: str = "Active"
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = FOREVER_MS
    support_ordering: bool = True
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_kb: int = 256
    filtering_before_publishing: bool = False
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionDescription:
    lock_duration_ms: int = 60_000
    requires_session: bool = False
    default_ttl_ms: int = FOREVER_MS
    dead_letter_on_expiration: bool = False
    dead_letter_on_filter_error: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = FOREVER_MS
    forward_scheme: str = "sb"


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlFilter:
    expression: str
    parameters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueFilter:
    """Takes every message; the filter of a new subscription's `$Default` rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FalseFilter:
    """Takes no message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrelationFilter:
    """Takes a message whose named properties all equal these."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: tuple[tuple[str, object], ...] = ()


CORRELATION_FIELDS = tuple(f.name for f in fields(CorrelationFilter) if f.name != "properties")

Filter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter

FILTERS: dict[str, type[Filter]] = {
    "sql": SqlFilter,
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
}
"""The kinds of filters by their name in the store; XML names a filter by its class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlAction:
    """SET and REMOVE statements applied to a message that the rule's filter took."""

    expression: str
    parameters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleDescription:
    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_at_ms: int = 0


DEFAULT_RULE = "$Default"

UTC_TICKS = "twinbus:utc-ticks"
"""Descriptor of a time in a rule that AMQP has no type for: UTC in units of 100 ns. Never sent."""

Description = QueueDescription | TopicDescription | SubscriptionDescription

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS

RANGES: dict[str, tuple[int, int, str]] = {
    "lock_duration_ms": (5 * _SECOND_MS, 5 * _MINUTE_MS, "ms"),
    "max_delivery_count": (1, MAX_DELIVERY_COUNT_LIMIT, "deliveries"),
    "duplicate_detection_window_ms": (20 * _SECOND_MS, int(DETECTION_MAX_S) * _SECOND_MS, "ms"),
    "default_ttl_ms": (1, FOREVER_MS, "ms"),
    "auto_delete_on_idle_ms": (5 * _MINUTE_MS, FOREVER_MS, "ms"),
    "max_size_mb": (1, 81_920, "MB"),
    "max_message_size_kb": (1, 102_400, "KB"),
}
"""Azure's limits, but that Azure takes only some sizes from 1024 MB on; tests want small ones."""

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
USER_METADATA_LENGTH_MAX = 1024

UNCHANGEABLE = ("requires_session", "requires_duplicate_detection", "enable_partitioning")
"""What decides how messages are kept lasts as long as the entity, as in Azure."""


def check_settings(path: str, description: Description) -> None:
    """Refuse settings out of range, or that contradict each other."""
    present = {field.name for field in fields(description)}
    for name, (low, high, unit) in RANGES.items():
        if name not in present:
            continue
        value = getattr(description, name)
        if not low <= value <= high:
            raise ArgumentOutOfRange(
                f"{name} of {path!r} is {value} {unit}; it must be from {low} to {high}"
            )
    if description.status not in STATUSES:
        raise ArgumentInvalid(
            f"status of {path!r} is {description.status!r}; it must be one of {', '.join(STATUSES)}"
        )
    metadata = description.user_metadata or ""
    if len(metadata) > USER_METADATA_LENGTH_MAX:
        raise ArgumentOutOfRange(
            f"user_metadata of {path!r} has {len(metadata)} characters; "
            f"at most {USER_METADATA_LENGTH_MAX} are kept"
        )


def check_change(path: str, before: Description, after: Description) -> None:
    kind = type(before).__name__.removesuffix("Description")
    for name in UNCHANGEABLE:
        old, new = getattr(before, name, None), getattr(after, name, None)
        if old != new:
            what = (
                f"The value for the {name.title().replace('_', '')} property of an existing {kind}"
            )
            if name == "enable_partitioning":
                what = f"Partitioning cannot be changed for {kind}. It"
            raise ArgumentInvalid(
                f"{what} cannot be changed. For {path!r} it is {str(old).lower()}; delete the"
                " entity and create it again."
            )


_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RULE_NAME = re.compile(r"[A-Za-z0-9._$-]+")


def check_path(kind: str, path: str) -> None:
    _check_length(f"path of the {kind}", path, ENTITY_NAME_MAX)
    if not is_entity_name(path):
        raise ArgumentInvalid(f"{path!r} cannot be the path of a {kind}: {ENTITY_NAME_RULE}")


def check_name(kind: str, name: str) -> None:
    _check_length(f"name of the {kind}", name, CHILD_NAME_MAX)
    pattern = _RULE_NAME if kind == "rule" else _NAME
    # In a URL, "." and ".." would mean another path.
    if name in {".", ".."} or not pattern.fullmatch(name):
        raise ArgumentInvalid(
            f"{name!r} cannot be the name of a {kind}: use letters, digits, '.', '-' and '_', and "
            "not '.' or '..' alone"
        )


def _check_length(what: str, text: str, limit: int) -> None:
    if not 0 < len(text) <= limit:
        raise ArgumentOutOfRange(f"the {what} has {len(text)} characters, not 1 to {limit}")


Record = dict[str, Any]

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)
T = TypeVar("T")

_PAIRS = ("parameters", "properties")
"""Fields that hold named values of any AMQP type."""

_PLAIN = (str, int, float, bool, type(None))


def description_record(description: Description) -> Record:
    record = asdict(description)
    for rule in record.get("authorization_rules", ()):
        rule["rights"] = sorted(rule["rights"])
    return record


def read_description(kind: type[D], record: Record) -> D:
    known = _known(kind, record)
    if "authorization_rules" in known:
        known["authorization_rules"] = tuple(
            AuthorizationRule(**{**entry, "rights": frozenset(entry["rights"])})
            for entry in known["authorization_rules"]
        )
    return kind(**known)


def rule_record(rule: RuleDescription) -> Record:
    name = next(name for name, kind in FILTERS.items() if isinstance(rule.filter, kind))
    return {
        "name": rule.name,
        "filter": {"kind": name, **_valued_fields(rule.filter)},
        "action": None if rule.action is None else _valued_fields(rule.action),
        "created_at_ms": rule.created_at_ms,
    }


def rule_of_record(record: Record) -> RuleDescription:
    kept = record["filter"]
    action = record.get("action")
    filter_: Filter = _read_valued(FILTERS[kept["kind"]], kept)
    return RuleDescription(
        name=record["name"],
        filter=filter_,
        action=None if action is None else _read_valued(SqlAction, action),
        created_at_ms=record.get("created_at_ms", 0),
    )


def _known(kind: type[Any], record: Record) -> Record:
    return {field.name: record[field.name] for field in fields(kind) if field.name in record}


def _valued_fields(value: Any) -> Record:
    record = {field.name: getattr(value, field.name) for field in fields(value)}
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
