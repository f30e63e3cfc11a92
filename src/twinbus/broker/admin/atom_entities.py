"""Queues, topics, subscriptions and rules as XML: what a request asks for, and what exists.

Pure. A table names each setting, its field and its kind; reading and writing both follow it. The
engine checks whether a value is in range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element

from twinbus.broker.admin.atom import (
    COUNTS,
    SCHEMA,
    child,
    child_text,
    described,
    instance_type,
    parse_bool,
    parse_duration,
    parse_int,
    parse_typed,
    render_duration,
    render_time,
    render_typed,
    tag,
    text_of,
)
from twinbus.broker.descriptions import (
    CORRELATION_FIELDS,
    EXPRESSION_LENGTH_MAX,
    FILTERS,
    AuthorizationRule,
    CorrelationFilter,
    Description,
    Filter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange

RIGHTS = ("Manage", "Send", "Listen")

AUTHORIZATION_RULES_MAX = 12
"""Shared access rules of one entity, as in Azure."""


class SettingType(NamedTuple):
    read: Callable[[str, str], object]
    """Takes the text of an element and its name."""
    write: Callable[[Any, str], str]
    """Takes the value and the beginning of forwarding URIs: scheme and host."""
    is_cleared_when_absent: bool = False
    """Clients end forwarding by leaving the element out; other kinds then stay as they were."""


_DURATION = SettingType(parse_duration, lambda value, _: render_duration(value))
_INT = SettingType(parse_int, lambda value, _: str(value))
_BOOL = SettingType(parse_bool, lambda value, _: "true" if value else "false")
_WORD = SettingType(lambda text, _: text, lambda value, _: str(value))
_TEXT = SettingType(lambda text, _: text or None, lambda value, _: str(value), True)
_PATH = SettingType(
    lambda text, _: entity_path(text) or None, lambda value, at: f"{at}/{value}", True
)
"""A path inside, the URI of the entity outside."""
_RULES = "AuthorizationRules"
"""Has a reader and a writer of its own, not those of its kind."""
_MESSAGE_SIZE = "MaxMessageSizeInKilobytes"

_SETTINGS = {
    "LockDuration": ("lock_duration_ms", _DURATION),
    "MaxSizeInMegabytes": ("max_size_mb", _INT),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _BOOL),
    "RequiresSession": ("requires_session", _BOOL),
    "DefaultMessageTimeToLive": ("default_ttl_ms", _DURATION),
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiration", _BOOL),
    "DeadLetteringOnFilterEvaluationExceptions": ("dead_letter_on_filter_error", _BOOL),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_ms", _DURATION),
    "MaxDeliveryCount": ("max_delivery_count", _INT),
    "EnableBatchedOperations": ("enable_batched_operations", _BOOL),
    "FilteringMessagesBeforePublishing": ("filtering_before_publishing", _BOOL),
    _RULES: ("authorization_rules", _WORD),
    "Status": ("status", _WORD),
    "ForwardTo": ("forward_to", _PATH),
    "UserMetadata": ("user_metadata", _TEXT),
    "SupportOrdering": ("support_ordering", _BOOL),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", _DURATION),
    "EnablePartitioning": ("enable_partitioning", _BOOL),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_letters_to", _PATH),
    "EnableExpress": ("enable_express", _BOOL),
    _MESSAGE_SIZE: ("max_message_size_kb", _INT),
}
"""Field of the description and kind, by name of the element."""

_ORDERS: dict[type, list[str]] = {
    QueueDescription: """LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession
        DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
        DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations
        AuthorizationRules Status ForwardTo UserMetadata AutoDeleteOnIdle EnablePartitioning
        ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes""".split(),
    TopicDescription: """DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection
        DuplicateDetectionHistoryTimeWindow EnableBatchedOperations
        FilteringMessagesBeforePublishing AuthorizationRules Status UserMetadata SupportOrdering
        AutoDeleteOnIdle EnablePartitioning EnableExpress MaxMessageSizeInKilobytes""".split(),
    SubscriptionDescription: """LockDuration RequiresSession DefaultMessageTimeToLive
        DeadLetteringOnMessageExpiration DeadLetteringOnFilterEvaluationExceptions
        MaxDeliveryCount EnableBatchedOperations Status ForwardTo UserMetadata
        ForwardDeadLetteredMessagesTo AutoDeleteOnIdle""".split(),
}
"""The settings of each description, in the order of the service."""

FORWARDING = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
FORWARD_SCHEMES = frozenset({"sb", "https", "http", "amqp", "amqps"})

PARTITIONS = 16
PARTITION_MB_MAX = 5_120
"""An entity with partitioning has so many of them, and each has the size that was asked for."""

EARLIER, LATEST = "2021-05", "2024-05"
"""Versions of the administration API, which are dates: what came new is not given to older ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeInfo:
    created_at_ms: int
    updated_at_ms: int
    accessed_at_ms: int
    size_bytes: int = 0
    message_count: int = 0
    active_count: int = 0
    dead_letter_count: int = 0
    scheduled_count: int = 0
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription)


def read_settings(element: Element, present: _D, now_ms: int, *, is_premium: bool = False) -> _D:
    """The settings that an element asks for; `present` has the settings before."""
    wanted: dict[str, Any] = {}
    for name in _ORDERS[type(present)]:
        field, kind = _SETTINGS[name]
        found = child(element, name)
        if found is None:
            if kind.is_cleared_when_absent:
                wanted[field] = None
        elif name == _RULES:
            known = {rule.key_name: rule for rule in getattr(present, field)}
            wanted[field] = _read_rules(found, known, now_ms)
        else:
            wanted[field] = kind.read(found.text or "", name)
    scheme = _forward_scheme(element)
    if scheme is not None:
        wanted["forward_scheme"] = scheme
    settings = replace(present, **wanted)
    if is_premium:
        return settings
    _refuse_other_tiers(settings)
    return _partitioned(settings)


def write_entity(
    description: Description, runtime: RuntimeInfo, authority: str, api_version: str = LATEST
) -> str:
    """The element of a queue, topic or subscription, which has the name of its description.

    `authority` is the host:port of forwarding URIs.
    """
    held: dict[str, object] = {"SizeInBytes": runtime.size_bytes}
    match description:
        case QueueDescription():
            held["MessageCount"] = runtime.message_count
            held |= {"IsAnonymousAccessible": "false", "SupportOrdering": "true"}
        case TopicDescription():
            held |= {
                "IsAnonymousAccessible": "false",
                "SubscriptionCount": runtime.subscription_count,
                "EnableSubscriptionPartitioning": "false",
            }
            if api_version >= LATEST:
                held["SqlFilterCount"] = runtime.sql_filter_count
                held["CorrelationFilterCount"] = runtime.correlation_filter_count
        case SubscriptionDescription():
            held = {"MessageCount": runtime.message_count}
    facts = "".join(tag(name, str(value)) for name, value in held.items())
    settings = _write_settings(description, authority, api_version)
    return described(type(description).__name__, settings + facts + _write_runtime(runtime))


def write_namespace(name: str, sku: str, times: RuntimeInfo) -> str:
    """The NamespaceInfo element; `sku` is the tier."""
    return described(
        "NamespaceInfo",
        tag("CreatedTime", render_time(times.created_at_ms))
        + tag("MessagingSKU", sku)
        + tag("ModifiedTime", render_time(times.updated_at_ms))
        + tag("Name", name)
        + tag("NamespaceType", "Messaging"),
    )


def entity_path(address: str) -> str:
    """The path in an address such as sb://host/orders; a plain path stays as it is."""
    try:
        parts = urlsplit(address)
    except ValueError:
        raise ArgumentInvalid(
            f"{address[:200]!r} is no address of an entity; expected one like sb://host/orders"
        ) from None
    path = unquote(parts.path) if parts.netloc else address
    return path.strip("/")


def _read_rules(
    element: Element, known: dict[str, AuthorizationRule], now_ms: int
) -> tuple[AuthorizationRule, ...]:
    rules = [_read_rule(each, known, now_ms) for each in element]
    if len(rules) > AUTHORIZATION_RULES_MAX:
        raise ArgumentOutOfRange(
            f"an entity has at most {AUTHORIZATION_RULES_MAX} authorization rules, not {len(rules)}"
        )
    names = [rule.key_name for rule in rules]
    if len(set(names)) != len(names):
        raise ArgumentInvalid("two authorization rules of the entity have the same KeyName")
    return tuple(rules)


def _read_rule(
    element: Element, known: dict[str, AuthorizationRule], now_ms: int
) -> AuthorizationRule:
    name, key = child_text(element, "KeyName"), child_text(element, "PrimaryKey")
    if name is None or key is None:
        raise ArgumentInvalid(
            f"the authorization rule {name or 'without KeyName'!r} needs a KeyName and a PrimaryKey"
        )
    rights_element = child(element, "Rights")
    rights = [each.text or "" for each in rights_element] if rights_element is not None else []
    if not rights or not set(rights) <= set(RIGHTS):
        raise ArgumentInvalid(
            f"the authorization rule {name!r} has the rights {rights}; "
            f"give some of {', '.join(RIGHTS)}"
        )
    before = known.get(name)
    return AuthorizationRule(
        key_name=name,
        primary_key=key,
        secondary_key=child_text(element, "SecondaryKey") or "",
        rights=frozenset(rights),
        created_at_ms=before.created_at_ms if before else now_ms,
        modified_at_ms=now_ms,
    )


def _forward_scheme(element: Element) -> str | None:
    """The scheme of the addresses that messages are forwarded to; None: there is none."""
    for name in FORWARDING:
        scheme, separator, _ = (child_text(element, name) or "").strip().partition("://")
        if separator and scheme.lower() in FORWARD_SCHEMES:
            return scheme.lower()
    return None


def _partitioned(settings: _D) -> _D:
    """As Azure reports an entity with partitioning: as large as all its partitions together."""
    if isinstance(settings, SubscriptionDescription):
        return settings
    if not settings.enable_partitioning or settings.max_size_mb > PARTITION_MB_MAX:
        return settings
    return replace(settings, max_size_mb=settings.max_size_mb * PARTITIONS)


def _refuse_other_tiers(settings: _D) -> None:
    standard_kb = QueueDescription().max_message_size_kb
    size_kb = getattr(settings, "max_message_size_kb", standard_kb)
    if size_kb != standard_kb:
        raise ArgumentInvalid(
            f"MaxMessageSizeInKilobytes is {size_kb}, but a Standard namespace takes messages of "
            f"{standard_kb} KB; leave it out"
        )


def _write_settings(description: Description, authority: str, api_version: str) -> str:
    is_old = api_version < EARLIER
    destination = f"{getattr(description, 'forward_scheme', 'sb')}://{authority}"
    parts = []
    for name in _ORDERS[type(description)]:
        field, kind = _SETTINGS[name]
        value = getattr(description, field)
        if name == _RULES:
            rules = "".join(_write_rule(rule, has_times=is_old) for rule in value)
            parts.append(f"<{name}>{rules}</{name}>")
        elif value is not None and not (is_old and name == _MESSAGE_SIZE):
            parts.append(tag(name, kind.write(value, destination)))
    return "".join(parts)


def _write_rule(rule: AuthorizationRule, *, has_times: bool) -> str:
    rights = "".join(tag("AccessRights", right) for right in RIGHTS if right in rule.rights)
    times = tag("CreatedTime", render_time(rule.created_at_ms))
    times += tag("ModifiedTime", render_time(rule.modified_at_ms))
    return (
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        f"{tag('ClaimType', 'SharedAccessKey')}{tag('ClaimValue', 'None')}<Rights>{rights}</Rights>"
        f"{times if has_times else ''}{tag('KeyName', rule.key_name)}"
        f"{tag('PrimaryKey', rule.primary_key)}{tag('SecondaryKey', rule.secondary_key)}"
        "</AuthorizationRule>"
    )


NEVER = "0001-01-01T00:00:00"
"""When an entity was accessed that nobody has accessed yet, as Azure writes it."""


def _write_runtime(runtime: RuntimeInfo) -> str:
    counts = (
        ("ActiveMessageCount", runtime.active_count),
        ("DeadLetterMessageCount", runtime.dead_letter_count),
        ("ScheduledMessageCount", runtime.scheduled_count),
        ("TransferMessageCount", 0),
        ("TransferDeadLetterMessageCount", 0),
    )
    details = "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in counts)
    return (
        tag("CreatedAt", render_time(runtime.created_at_ms))
        + tag("UpdatedAt", render_time(runtime.updated_at_ms))
        + tag(
            "AccessedAt", render_time(runtime.accessed_at_ms) if runtime.accessed_at_ms else NEVER
        )
        + f'<CountDetails xmlns:d2p1="{COUNTS}">{details}</CountDetails>'
        + tag("EntityAvailabilityStatus", "Available")
    )


_COMPATIBILITY_LEVEL = "20"

_FILTER_TYPES: dict[str, type[Any]] = {each.__name__: each for each in FILTERS.values()}

_CORRELATION_ELEMENTS = [(field.title().replace("_", ""), field) for field in CORRELATION_FIELDS]
"""Name of the element and field: `CorrelationId` for `correlation_id`."""


def read_rule(element: Element, name: str, now_ms: int) -> RuleDescription:
    """The rule that a RuleDescription element asks for, under the name its address gave."""
    return RuleDescription(
        name=name,
        filter=_read_filter(child(element, "Filter")),
        action=_read_action(child(element, "Action")),
        created_at_ms=now_ms,
    )


def write_rule(rule: RuleDescription) -> str:
    return described(
        "RuleDescription",
        _write_filter(rule.filter)
        + _write_action(rule.action)
        + tag("CreatedAt", render_time(rule.created_at_ms))
        + tag("Name", rule.name),
    )


def _read_filter(element: Element | None) -> Filter:
    if element is None:
        return TrueFilter()
    match instance_type(element):
        case "SqlFilter":
            return SqlFilter(**_read_sql(element, "SQL filter"))
        case "CorrelationFilter":
            named = {field: child_text(element, name) for name, field in _CORRELATION_ELEMENTS}
            return CorrelationFilter(**named, properties=_read_pairs(child(element, "Properties")))
        case name if name in _FILTER_TYPES:
            plain: Filter = _FILTER_TYPES[name]()
            return plain
        case other:
            raise ArgumentInvalid(
                f"the filter type {other[:60]!r} is unknown; use {', '.join(_FILTER_TYPES)}"
            )


def _read_action(element: Element | None) -> SqlAction | None:
    match "" if element is None else instance_type(element):
        case "" | "EmptyRuleAction":
            return None
        case "SqlRuleAction":
            assert element is not None
            return SqlAction(**_read_sql(element, "SQL action"))
        case other:
            raise ArgumentInvalid(
                f"the action type {other[:60]!r} is unknown; use SqlRuleAction or EmptyRuleAction"
            )


def _read_sql(element: Element, what: str) -> dict[str, Any]:
    parameters = _read_pairs(child(element, "Parameters"))
    return {"expression": _read_expression(element, what), "parameters": parameters}


def _read_expression(element: Element, what: str) -> str:
    expression = child_text(element, "SqlExpression") or ""
    if not expression.strip():
        raise ArgumentInvalid(f"a {what} without an expression; give SqlExpression")
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ArgumentOutOfRange(
            f"a {what} has at most {EXPRESSION_LENGTH_MAX} characters, not {len(expression)}"
        )
    return expression


def _read_pairs(element: Element | None) -> tuple[tuple[str, object], ...]:
    """Key and typed value of each pair, whatever the pairs are called: SDKs differ in that."""
    if element is None:
        return ()
    pairs: dict[str, object] = {}
    for pair in element:
        key, value = child_text(pair, "Key"), child(pair, "Value")
        if key is None or value is None:
            raise ArgumentInvalid("a parameter of a rule needs both Key and Value")
        if key in pairs:
            raise ArgumentInvalid(f"the parameter {key!r} of a rule is given twice")
        pairs[key] = parse_typed(
            instance_type(value) or "string", value.text or "", f"parameter {key!r}"
        )
    return tuple(pairs.items())


def _write_filter(rule_filter: Filter) -> str:
    name = type(rule_filter).__name__
    if isinstance(rule_filter, SqlFilter):
        return _sql("Filter", name, rule_filter.expression, rule_filter.parameters)
    if not isinstance(rule_filter, CorrelationFilter):
        return _sql("Filter", name, "1=1" if isinstance(rule_filter, TrueFilter) else "1=0", ())
    named = "".join(
        tag(name, value)
        for name, field in _CORRELATION_ELEMENTS
        if (value := getattr(rule_filter, field)) is not None
    )
    pairs = _write_pairs("Properties", rule_filter.properties)
    return f'<Filter i:type="CorrelationFilter">{named}{pairs}</Filter>'


def _write_action(action: SqlAction | None) -> str:
    if action is None:
        # SDKs read the action without checking that there is one.
        return '<Action i:type="EmptyRuleAction"/>'
    return _sql("Action", "SqlRuleAction", action.expression, action.parameters)


def _sql(
    name: str, schema_type: str, expression: str, parameters: tuple[tuple[str, object], ...]
) -> str:
    return (
        f'<{name} i:type="{schema_type}">{tag("SqlExpression", expression)}'
        f"{tag('CompatibilityLevel', _COMPATIBILITY_LEVEL)}"
        f"{_write_pairs('Parameters', parameters)}</{name}>"
    )


def _write_pairs(name: str, pairs: tuple[tuple[str, object], ...]) -> str:
    if not pairs:
        return ""
    return f"<{name}>{''.join(_write_pair(key, value) for key, value in pairs)}</{name}>"


def _write_pair(key: str, value: object) -> str:
    schema_type, text = render_typed(value)
    return (
        f"<KeyValueOfstringanyType>{tag('Key', key)}"
        f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{schema_type}">{text_of(text)}</Value>'
        "</KeyValueOfstringanyType>"
    )
