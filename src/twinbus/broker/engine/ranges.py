"""Settings that an entity cannot have, refused with the limit, the value and the name."""

from __future__ import annotations

from dataclasses import fields

from twinbus.broker.descriptions import (
    FOREVER_MS,
    MAX_DELIVERY_COUNT_LIMIT,
    Description,
)
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange

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
