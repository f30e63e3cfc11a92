"""The Atom envelope of the administration API: entries, feeds and errors, and values as text.

Durations are ISO 8601 text on the wire and milliseconds inside; times are UTC text and unix
milliseconds; a rule's parameter is text with its XML schema type, and inside the value that AMQP
has for it, since rules come and go over AMQP too.

Pure. Written as text with the prefixes Azure uses, because some SDKs read prefixes and not
namespaces; read with the standard parser, after what it must never see was refused.
"""

from __future__ import annotations

import base64
import re
import uuid
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr

from twinbus.amqp.types import Described, Int, Symbol, Timestamp
from twinbus.broker.descriptions import UTC_TICKS
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.servicebus import names
from twinbus.servicebus.names import (
    DATE_MAX_MS,
    DATE_MIN_MS,
    EPOCH_TICKS,
    FOREVER_MS,
    TICKS_PER_MS,
)

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

CONTENT_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_CONTENT_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_CONTENT_TYPE = "application/xml; charset=utf-8"

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text_of(value: str) -> str:
    """`value` as XML text; characters that XML cannot carry become U+FFFD."""
    return escape(_NOT_XML.sub("\ufffd", value))


def tag(name: str, value: str) -> str:
    return f"<{name}>{text_of(value)}</{name}>"


def described(name: str, inner: str) -> str:
    """A description element, the root of what an entry carries."""
    return f'<{name} xmlns="{CONNECT}" xmlns:i="{INSTANCE}">{inner}</{name}>'


def render_entry(
    *, title: str, url: str, author: str, created_at_ms: int, updated_at_ms: int, content: str
) -> str:
    """One entity as an Atom entry: where it is, since when, and its description in XML."""
    return (
        f'<entry xmlns="{ATOM}">{tag("id", url)}<title type="text">{text_of(title)}</title>'
        f"{tag('published', render_time(created_at_ms))}"
        f"{tag('updated', render_time(updated_at_ms))}"
        f'<author>{tag("name", author)}</author><link rel="self" href={_attribute(url)}/>'
        f'<content type="application/xml">{content}</content></entry>'
    )


def render_feed(
    title: str, url: str, updated_at_ms: int, entries: list[str], next_url: str | None = None
) -> bytes:
    """The document that answers a list; clients request `next_url` for the next page.

    An empty feed is also Azure's answer for an entity that does not exist.
    """
    more = f'<link rel="next" href={_attribute(next_url)}/>' if next_url else ""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{text_of(title)}</title>{tag("id", url)}'
        f"{tag('updated', render_time(updated_at_ms))}"
        f'<link rel="self" href={_attribute(url)}/>{more}'
        f"{''.join(entries)}</feed>"
    ).encode()


def render_error(status: int, detail: str) -> bytes:
    return f"<Error><Code>{status}</Code>{tag('Detail', detail)}</Error>".encode()


MARKUP_MAX = 5_000
"""Tags and attributes of a body: it is parsed in one step of the loop, 4 us for each. One with all
that it may have, a filter of 100 properties, has some hundreds."""


def parse_entry(body: bytes) -> ET.Element:
    """The description element inside a request's entry; ArgumentInvalid when there is none."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ArgumentInvalid(
            "the request body is not UTF-8; send the Atom entry as UTF-8"
        ) from None
    if text.count("<") + text.count("=") > MARKUP_MAX:
        raise ArgumentInvalid(
            f"the request body has more than {MARKUP_MAX} tags and attributes; a description has"
            " some dozens"
        )
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ArgumentInvalid("the request body declares a document type, which is not accepted")
    try:
        root = ET.fromstring(text)  # noqa: S314 (no document type, so no entities to expand)
    except ET.ParseError as error:
        raise ArgumentInvalid(f"the request body is not well-formed XML: {error}") from None
    content = root.find(f"{{{ATOM}}}content")
    if root.tag != f"{{{ATOM}}}entry" or content is None or len(content) != 1:
        raise ArgumentInvalid(
            "the request body is not an Atom entry whose content holds one description"
        )
    return content[0]


def local_name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def child(element: ET.Element, name: str) -> ET.Element | None:
    return element.find(f"{{{CONNECT}}}{name}")


def child_text(element: ET.Element, name: str) -> str | None:
    """The text of a named child; None when it is missing or empty."""
    found = child(element, name)
    return None if found is None else found.text or None


def instance_type(element: ET.Element) -> str:
    """The `xsi:type` of an element without its prefix; empty when it has none."""
    return element.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def _attribute(value: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", value))


# Values

FOREVER_TEXT = "P10675199DT2H48M5.4775807S"

TIME_SPAN = Symbol(names.TIME_SPAN)
ZONELESS = Symbol(names.DATE_TIME)
"""Stands for a time that was given without a zone, and is given back so: AMQP's own timestamp is
always UTC, and a client compares what it gets with what it gave. Filters see the same moment."""
EXACT = Symbol(UTC_TICKS)
"""Stands for a time with more digits than the milliseconds of AMQP's timestamp."""

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS, _HOUR_MS, _MINUTE_MS = 86_400_000, 3_600_000, 60_000

_FOREVER_SLACK_MS = 1_000
"""Clients that keep durations as floats hand the largest one back a little short."""

_DURATION = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d+))?S)?)?"
)

_FRACTION = re.compile(r"\.(\d{1,7})", re.ASCII)

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
                number = parse_int(text, name)
                is_long = schema_type == "long" or not -INT32_MAX - 1 <= number <= INT32_MAX
                return number if is_long else Int(number)
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
        case Int():
            return "int", str(int(value))
        case int():
            return "long", str(int(value))
        case float():
            return "double", repr(float(value))
        case Described(descriptor=str(descriptor), value=int(ticks)) if descriptor == TIME_SPAN:
            return "duration", render_duration(ticks // TICKS_PER_MS)
        case Described(descriptor=str(descriptor), value=int(ticks)) if descriptor == ZONELESS:
            return "dateTime", _render_ticks(ticks)
        case Described(descriptor=str(descriptor), value=int(ticks)) if descriptor == EXACT:
            return "dateTime", _render_ticks(ticks) + "Z"
        case uuid.UUID():
            return "guid", str(value)
        case bytes():
            return "base64Binary", base64.b64encode(value).decode("ascii")
        case _:
            return "string", str(value)


def _parse_moment(text: str) -> object:
    moment = datetime.fromisoformat(text.strip())
    is_zoned = moment.tzinfo is not None
    at_ms = ((moment if is_zoned else moment.replace(tzinfo=UTC)) - _EPOCH) // _MS
    fraction = _FRACTION.search(text)
    # Python keeps six digits of a second, .NET has seven.
    rest = int(fraction[1].ljust(7, "0")) % TICKS_PER_MS if fraction else 0
    if is_zoned and not rest:
        return Timestamp(at_ms)
    ticks = at_ms * TICKS_PER_MS + rest + EPOCH_TICKS
    return Described(EXACT if is_zoned else ZONELESS, ticks)


def _render_ticks(ticks: int) -> str:
    at_ms, rest = divmod(ticks - EPOCH_TICKS, TICKS_PER_MS)
    if not rest:
        return _render_moment(at_ms)
    seconds, fraction_ms = divmod(at_ms, 1000)
    return f"{_render_moment(seconds * 1000)}.{fraction_ms:03d}{rest:04d}"


def _render_moment(at_ms: int) -> str:
    # AMQP timestamps reach further than the years 1 to 9999 that the administration API can write.
    at_ms = min(max(at_ms, DATE_MIN_MS), DATE_MAX_MS)
    moment = (_EPOCH + at_ms * _MS).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds")
