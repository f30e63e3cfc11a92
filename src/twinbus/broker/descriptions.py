"""The settings of queues, topics, subscriptions and rules, and the limits of each.

Plain frozen values with Azure Service Bus's defaults. Durations are whole milliseconds;
`FOREVER_MS` stands for Azure's largest duration and is never added to a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange

FOREVER_MS = 922_337_203_685_477
"""TimeSpan.MaxValue (10,675,199 days), which Azure prints as P10675199DT2H48M5.4775807S."""

TIME_MIN_MS, TIME_MAX_MS = -62_135_596_800_000, 253_402_300_799_999
"""First and last millisecond of the years 1 to 9999, as System.DateTime has them in Azure."""

TICKS_PER_MS = 10_000
EPOCH_TICKS = 621_355_968_000_000_000
"""1970-01-01 in .NET ticks of 100 ns since the year 1."""

MAX_DELIVERY_COUNT_LIMIT = 2_147_483_647


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


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlFilter:
    """A SQL condition over a message's properties."""

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

Description = QueueDescription | TopicDescription | SubscriptionDescription

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_DAY_MS = 24 * 60 * _MINUTE_MS

RANGES: dict[str, tuple[int, int, str]] = {
    "lock_duration_ms": (5 * _SECOND_MS, 5 * _MINUTE_MS, "ms"),
    "max_delivery_count": (1, MAX_DELIVERY_COUNT_LIMIT, "deliveries"),
    "duplicate_detection_window_ms": (20 * _SECOND_MS, 7 * _DAY_MS, "ms"),
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
    """Refuse a change of what must stay."""
    for name in UNCHANGEABLE:
        old, new = getattr(before, name, None), getattr(after, name, None)
        if old != new:
            raise ArgumentInvalid(
                f"{name} of {path!r} is {old} and cannot be changed; delete the entity and create "
                "it again"
            )
