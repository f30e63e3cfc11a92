"""Report documents as plain JSON values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any


def iso(at_ms: int | None) -> str | None:
    """A time in UTC as ISO 8601 says it, to the millisecond."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def day_of(at_ms: int) -> date:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def fields_as_json(whole: Any) -> dict[str, Any]:
    """A dataclass as a JSON object."""
    return {one.name: plain(getattr(whole, one.name)) for one in fields(whole)}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    match value:
        case Decimal() | StrEnum():
            return str(value)
        case date():
            return value.isoformat()
        case Mapping():
            return {key: plain(inner) for key, inner in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return {key: plain(inner) for key, inner in value._asdict().items()}
        case tuple() | list():
            return [plain(inner) for inner in value]
        case _ if is_dataclass(value):
            return fields_as_json(value)
        case _:
            return value
