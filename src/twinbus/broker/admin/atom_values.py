"""Values as the administration API writes them: durations, times, and typed values of rules.

Pure. Durations are ISO 8601 text on the wire and milliseconds inside; times are UTC text and unix
milliseconds; a rule's parameter is text with its XML schema type, and inside the value that AMQP
has for it, since rules come and go over AMQP too.
"""

from __future__ import annotations

import base64
import re
import uuid
from datetime import UTC, datetime, timedelta

from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.broker.descriptions import (
    EPOCH_TICKS,
    FOREVER_MS,
    TICKS_PER_MS,
    TIME_MAX_MS,
    TIME_MIN_MS,
)
from twinbus.broker.refusals import ArgumentInvalid

FOREVER_TEXT = "P10675199DT2H48M5.4775807S"

TIME_SPAN = Symbol("com.microsoft:timespan")
ZONELESS = Symbol("com.microsoft:datetime-offset")
"""Stands for a time that was given without a zone, and is given back so: AMQP's own timestamp is
always UTC, and a client compares what it gets with what it gave. Filters see the same moment."""

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS, _HOUR_MS, _MINUTE_MS = 86_400_000, 3_600_000, 60_000

_FOREVER_SLACK_MS = 1_000
"""Clients that keep durations as floats hand the largest one back a little short."""

_DURATION = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d+))?S)?)?"
)

_DIGITS_MAX = 15
"""Digits of one number in a duration; more is beyond every limit, whatever the unit."""

INT32_MAX = 2_147_483_647
INT64_MAX = 9_223_372_036_854_775_807


def parse_duration(text: str, name: str) -> int:
    """Milliseconds of an ISO 8601 duration such as PT30S or P1DT2H; `name` is for the refusal."""
    match = _DURATION.fullmatch(text.strip())
    if (
        match is None
        or text.strip()[-1] in "PT"
        or len(max(match.groups(""), key=len)) > _DIGITS_MAX
    ):
        raise ArgumentInvalid(
            f"{name} is {text[:60]!r}, which is no ISO 8601 duration; write it like PT30S or P1DT2H"
        )
    years, months, weeks, days, hours, minutes, seconds = (
        int(number) for number in match.groups("0")[:7]
    )
    whole_days = years * 365 + months * 30 + weeks * 7 + days
    fraction_ms = int((match.group(8) or "").ljust(3, "0")[:3])
    total_ms = (
        whole_days * _DAY_MS
        + hours * _HOUR_MS
        + minutes * _MINUTE_MS
        + seconds * 1000
        + fraction_ms
    )
    return FOREVER_MS if total_ms >= FOREVER_MS - _FOREVER_SLACK_MS else total_ms


def render_duration(duration_ms: int) -> str:
    """The ISO 8601 text of a duration; the largest one as Azure prints it."""
    if duration_ms >= FOREVER_MS:
        return FOREVER_TEXT
    days, rest_ms = divmod(duration_ms, _DAY_MS)
    hours, rest_ms = divmod(rest_ms, _HOUR_MS)
    minutes, rest_ms = divmod(rest_ms, _MINUTE_MS)
    seconds, fraction_ms = divmod(rest_ms, 1000)
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if fraction_ms:
        time += f"{seconds}.{fraction_ms:03d}".rstrip("0") + "S"
    elif seconds:
        time += f"{seconds}S"
    if not days and not time:
        return "PT0S"
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


def render_time(at_ms: int) -> str:
    """UTC text of a unix time in milliseconds, as Azure prints it (seven decimals)."""
    seconds, fraction_ms = divmod(at_ms, 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction_ms:03d}0000Z"


def parse_bool(text: str, name: str) -> bool:
    """True or False from XML's true, false, 1, 0 in any letter case."""
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise ArgumentInvalid(f"{name} is {text[:60]!r}; write true or false")


def parse_int(text: str, name: str) -> int:
    """A whole number of at most 64 bits."""
    try:
        number = int(text)
    except ValueError:
        number = INT64_MAX + 1
    if abs(number) > INT64_MAX:
        raise ArgumentInvalid(f"{name} is {text[:60]!r}, which is no whole number of 64 bits")
    return number


def parse_typed(schema_type: str, text: str, name: str) -> object:
    """The value of a rule's parameter, from its XML schema type (no prefix) and text."""
    try:
        match schema_type:
            case "string":
                return text
            case (
                "int" | "long" | "short" | "byte" | "unsignedInt" | "unsignedShort" | "unsignedByte"
            ):
                return parse_int(text, name)
            case "boolean":
                return parse_bool(text, name)
            case "double" | "float" | "decimal":
                return float(text)
            case "dateTime":
                return _parse_moment(text)
            case "duration":
                return Described(TIME_SPAN, parse_duration(text, name) * TICKS_PER_MS)
            case "guid":
                return uuid.UUID(text.strip())
            case "base64Binary":
                return base64.b64decode(text, validate=True)
    except ValueError:
        raise ArgumentInvalid(f"{name} is {text[:60]!r}, which is no {schema_type}") from None
    raise ArgumentInvalid(
        f"{name} has the type {schema_type[:60]!r}; use string, int, long, boolean, double, "
        "dateTime, duration, guid or base64Binary"
    )


def render_typed(value: object) -> tuple[str, str]:
    """XML schema type (without prefix) and text of a rule's parameter."""
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case Timestamp():
            return "dateTime", _render_moment(int(value)) + "Z"
        case int():
            return ("int" if -INT32_MAX - 1 <= value <= INT32_MAX else "long"), str(int(value))
        case float():
            return "double", repr(float(value))
        case Described(descriptor=str(descriptor), value=int(ticks)) if descriptor == TIME_SPAN:
            return "duration", render_duration(ticks // TICKS_PER_MS)
        case Described(descriptor=str(descriptor), value=int(ticks)) if descriptor == ZONELESS:
            return "dateTime", _render_moment((ticks - EPOCH_TICKS) // TICKS_PER_MS)
        case uuid.UUID():
            return "guid", str(value)
        case bytes():
            return "base64Binary", base64.b64encode(value).decode("ascii")
        case _:
            return "string", str(value)


def _parse_moment(text: str) -> object:
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is not None:
        return Timestamp((moment - _EPOCH) // _MS)
    at_ms = (moment.replace(tzinfo=UTC) - _EPOCH) // _MS
    return Described(ZONELESS, at_ms * TICKS_PER_MS + EPOCH_TICKS)


def _render_moment(at_ms: int) -> str:
    # AMQP timestamps reach further than the years 1 to 9999 that the administration API can write.
    at_ms = min(max(at_ms, TIME_MIN_MS), TIME_MAX_MS)
    moment = (_EPOCH + at_ms * _MS).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds")
