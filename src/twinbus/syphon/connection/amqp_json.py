"""Converts AMQP values to JSON.

Values without a JSON form become objects: bytes are {"base64": ...}, a described value is
{"described": descriptor, "value": ...}. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.types import Decimal, Described, Timestamp

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_json(value: object) -> Any:
    """Return a decoded AMQP value in a form that `json.dumps` accepts."""
    match value:
        case None | bool():
            return value
        case Timestamp():
            return iso_time(int(value))
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case str():
            return str(value)
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case UUID():
            return str(value)
        case Decimal():
            return {"decimal": value.data.hex()}
        case Described():
            return {"described": as_json(value.descriptor), "value": as_json(value.value)}
        case list():
            return [as_json(item) for item in value]
        case dict():
            return {_key(key): as_json(item) for key, item in value.items()}
    return repr(value)


def iso_time(unix_ms: int) -> str:
    """Return a time as text; a number out of the range of dates stays a number."""
    moment = as_time(unix_ms)
    return str(unix_ms) if moment is None else moment.isoformat(timespec="milliseconds")


def as_time(unix_ms: int | None) -> datetime | None:
    """Return a time; None for None and for a number out of the range of dates."""
    if unix_ms is None:
        return None
    try:
        return EPOCH + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return None


def _key(key: object) -> str:
    return str(key) if isinstance(key, (str, int)) else str(as_json(key))
