"""The administration API's XML: values and envelopes survive the trip, nonsense is refused."""

from __future__ import annotations

import json
import uuid
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.broker.admin.atom import (
    ATOM,
    FOREVER_TEXT,
    TIME_SPAN,
    ZONELESS,
    parse_duration,
    parse_entry,
    parse_typed,
    render_duration,
    render_entry,
    render_error,
    render_feed,
    render_time,
    render_typed,
)
from twinbus.broker.admin.atom_entities import (
    RuntimeInfo,
)
from twinbus.broker.descriptions import RuleDescription, SqlFilter, read_rule, rule_record
from twinbus.broker.filters.values import to_value
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.servicebus.names import FOREVER_MS

NOW_MS = 1_700_000_000_123
HELD = RuntimeInfo(created_at_ms=NOW_MS, updated_at_ms=NOW_MS, accessed_at_ms=NOW_MS)
AUTHORITY = "localhost:5672"

xml_text = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff")
).map(str.strip)


def entry_of(content: str, title: str = "orders") -> bytes:
    return render_entry(
        title=title,
        url="http://localhost/orders",
        author="contoso",
        created_at_ms=NOW_MS,
        updated_at_ms=NOW_MS,
        content=content,
    ).encode()


def description(xml: str) -> ET.Element:
    """The description element, in the Service Bus namespace, of a few inner elements."""
    name, _, inner = xml.partition(">")
    connect = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    instance = "http://www.w3.org/2001/XMLSchema-instance"
    return parse_entry(entry_of(f'<{name} xmlns="{connect}" xmlns:i="{instance}">{inner}</{name}>'))


# Values


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT0S", 0),
        ("PT30S", 30_000),
        ("PT1M", 60_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P14D", 14 * 86_400_000),
        ("P2W", 14 * 86_400_000),
        ("PT0.0015S", 1),
        ("PT300S", 300_000),
        (FOREVER_TEXT, FOREVER_MS),
        ("P10675199DT2H48M5.477S", FOREVER_MS),
        ("P20000000D", FOREVER_MS),
    ],
)
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert parse_duration(text, "LockDuration") == duration_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "30", "-PT5S", "PT5", "P1S", "PT" + "9" * 20 + "S"]
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ArgumentInvalid, match="LockDuration"):
        parse_duration(text, "LockDuration")


@given(st.integers(0, FOREVER_MS - 1001) | st.just(FOREVER_MS))
def test_every_duration_survives_being_written_and_read(duration_ms: int) -> None:
    assert parse_duration(render_duration(duration_ms), "x") == duration_ms


def test_times_are_utc_with_seven_decimals() -> None:
    assert render_time(NOW_MS) == "2023-11-14T22:13:20.1230000Z"


TICKS_AT_YEAR_10000 = 3_155_378_976_000_000_000

typed_values = (
    st.booleans()
    | xml_text
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | st.uuids()
    | st.integers(-(2**45), 2**47).map(Timestamp)
    | st.integers(0, TICKS_AT_YEAR_10000 - 1).map(
        lambda ticks: Described(ZONELESS, ticks // 10_000 * 10_000)
    )
    | st.integers(0, 2**40).map(lambda ms: Described(TIME_SPAN, ms * 10_000))
)


@given(typed_values)
def test_a_rules_parameter_keeps_its_type_and_value(value: object) -> None:
    schema_type, text = render_typed(value)
    read = parse_typed(schema_type, text, "parameter")
    assert read == value
    assert type(read) is type(value)


def test_values_that_came_over_amqp_are_written_with_their_meaning() -> None:
    assert render_typed(Timestamp(0)) == ("dateTime", "1970-01-01T00:00:00Z")
    assert render_typed(Described(Symbol("com.microsoft:timespan"), 10_000_000)) == (
        "duration",
        "PT1S",
    )
    assert render_typed(2**31) == ("long", "2147483648")
    assert render_typed(uuid.UUID(int=1))[0] == "guid"


@pytest.mark.parametrize(
    ("schema_type", "text"),
    [
        ("int", "two"),
        ("long", str(2**63)),
        ("boolean", "maybe"),
        ("double", "x"),
        ("dateTime", "now"),
        ("guid", "1"),
        ("duration", "soon"),
        ("base64Binary", "%"),
        ("anyURI", "sb://x"),
    ],
)
def test_a_parameter_whose_text_is_not_of_its_type_is_refused(schema_type: str, text: str) -> None:
    with pytest.raises(ArgumentInvalid, match="parameter '@p'"):
        parse_typed(schema_type, text, "parameter '@p'")


# Envelope


def test_an_entry_can_be_read_back_whatever_the_texts_are() -> None:
    content = "<Thing>1 &lt; 2</Thing>"
    root = ET.fromstring(entry_of(content, title='a<b>&"\x00'))
    assert root.findtext(f"{{{ATOM}}}title") == 'a<b>&"\ufffd'
    assert parse_entry(entry_of(content)).text == "1 < 2"


def test_a_feed_has_one_link_at_the_end_and_two_before_it() -> None:
    last = ET.fromstring(render_feed("Queues", "http://h/?$skip=0&$top=2", NOW_MS, []))
    more = ET.fromstring(render_feed("Queues", "http://h/", NOW_MS, [], "http://h/?$skip=2&$top=2"))
    assert [link.get("rel") for link in last.findall(f"{{{ATOM}}}link")] == ["self"]
    assert [link.get("href") for link in more.findall(f"{{{ATOM}}}link")][
        1
    ] == "http://h/?$skip=2&$top=2"


def test_an_error_carries_code_and_detail() -> None:
    root = ET.fromstring(render_error(409, "'a' & 'b' exist"))
    assert (root.tag, root.findtext("Code"), root.findtext("Detail")) == (
        "Error",
        "409",
        "'a' & 'b' exist",
    )


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "well-formed"),
        (b"<entry", "well-formed"),
        (b"\xff\xfe<\x00", "UTF-8"),
        (b"<entry/>", "Atom entry"),
        (b'<entry xmlns="http://www.w3.org/2005/Atom"><content/></entry>', "Atom entry"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><entry/>', "document type"),
    ],
)
def test_a_body_that_is_no_entry_is_refused(body: bytes, word: str) -> None:
    with pytest.raises(ArgumentInvalid, match=word):
        parse_entry(body)


@given(st.binary(max_size=200))
def test_no_body_does_anything_but_parse_or_be_refused(body: bytes) -> None:
    with pytest.raises(ArgumentInvalid):
        parse_entry(body)


def test_times_with_and_without_zone_are_given_back_as_they_were_given() -> None:
    for text in ("2020-07-05T11:12:13", "2020-07-05T11:12:13Z", "2020-07-05T11:12:13.250"):
        assert render_typed(parse_typed("dateTime", text, "x")) == ("dateTime", text)
    elsewhere = parse_typed("dateTime", "2020-07-05T11:12:13.2500000+02:00", "x")
    assert render_typed(elsewhere) == ("dateTime", "2020-07-05T09:12:13.250Z")


@given(typed_values)
def test_a_rules_parameter_survives_the_store_and_a_filter_knows_it(value: object) -> None:
    sql = SqlFilter(expression="a=@p", parameters=(("@p", value),))
    rule = RuleDescription(name="r", filter=sql)
    assert read_rule(json.loads(json.dumps(rule_record(rule)))) == rule
    assert to_value(value) is not None
