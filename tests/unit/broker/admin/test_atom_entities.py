"""Entities and rules as XML: what is written can be read, and nonsense is refused by name."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
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
    local_name,
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
    AUTHORIZATION_RULES_MAX,
    PARTITION_MB_MAX,
    RuntimeInfo,
    entity_path,
    read_rule,
    read_settings,
    write_entity,
    write_rule,
)
from twinbus.broker.descriptions import (
    EXPRESSION_LENGTH_MAX,
    AuthorizationRule,
    CorrelationFilter,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    rule_of_record,
    rule_record,
)
from twinbus.broker.filters.values import to_value
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange
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


typed_values = (
    st.booleans()
    | xml_text
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | st.uuids()
    | st.integers(-(2**45), 2**47).map(Timestamp)
    | st.integers(0, 3_155_378_975_999_999_999).map(
        lambda ticks: Described(ZONELESS, ticks // 10_000 * 10_000)
    )
    | st.integers(0, 2**40).map(lambda ms: Described(TIME_SPAN, ms * 10_000))
)


durations_ms = st.integers(0, 10**12) | st.just(FOREVER_MS)
counts = st.integers(0, 2**31 - 1)
statuses = st.sampled_from(["Active", "Disabled", "SendDisabled", "ReceiveDisabled"])
paths = st.none() | st.from_regex(r"[a-z0-9]+(/[a-z0-9]+)?", fullmatch=True)
metadata = st.none() | xml_text.filter(bool)
rules = st.lists(
    st.builds(
        AuthorizationRule,
        key_name=st.from_regex(r"[a-z]+", fullmatch=True),
        primary_key=st.from_regex(r"[A-Za-z0-9+/]+=", fullmatch=True),
        secondary_key=st.from_regex(r"[A-Za-z0-9+/]*", fullmatch=True),
        rights=st.frozensets(st.sampled_from(["Manage", "Send", "Listen"]), min_size=1),
        created_at_ms=st.just(NOW_MS),
        modified_at_ms=st.just(NOW_MS),
    ),
    max_size=3,
    unique_by=lambda rule: rule.key_name,
).map(tuple)
queues = st.builds(
    QueueDescription,
    lock_duration_ms=durations_ms,
    max_size_mb=st.integers(PARTITION_MB_MAX + 1, 81_920),
    requires_session=st.booleans(),
    requires_duplicate_detection=st.booleans(),
    default_ttl_ms=durations_ms,
    status=statuses,
    dead_letter_on_expiration=st.booleans(),
    duplicate_detection_window_ms=durations_ms,
    max_delivery_count=counts,
    enable_batched_operations=st.booleans(),
    forward_to=paths,
    forward_dead_letters_to=paths,
    user_metadata=metadata,
    auto_delete_on_idle_ms=durations_ms,
    enable_partitioning=st.booleans(),
    enable_express=st.booleans(),
    authorization_rules=rules,
)
topics = st.builds(
    TopicDescription,
    max_size_mb=st.integers(PARTITION_MB_MAX + 1, 81_920),
    requires_duplicate_detection=st.booleans(),
    default_ttl_ms=durations_ms,
    duplicate_detection_window_ms=durations_ms,
    status=statuses,
    enable_batched_operations=st.booleans(),
    user_metadata=metadata,
    support_ordering=st.booleans(),
    auto_delete_on_idle_ms=durations_ms,
    enable_partitioning=st.booleans(),
    enable_express=st.booleans(),
    filtering_before_publishing=st.booleans(),
    authorization_rules=rules,
)
subscriptions = st.builds(
    SubscriptionDescription,
    lock_duration_ms=durations_ms,
    requires_session=st.booleans(),
    default_ttl_ms=durations_ms,
    dead_letter_on_expiration=st.booleans(),
    status=statuses,
    dead_letter_on_filter_error=st.booleans(),
    max_delivery_count=counts,
    enable_batched_operations=st.booleans(),
    forward_to=paths,
    forward_dead_letters_to=paths,
    user_metadata=metadata,
    auto_delete_on_idle_ms=durations_ms,
)


@given(queues)
def test_a_queue_survives_being_written_and_read(queue: QueueDescription) -> None:
    element = parse_entry(entry_of(write_entity(queue, HELD, AUTHORITY)))
    assert read_settings(element, QueueDescription(), NOW_MS) == queue
    assert read_settings(element, queue, NOW_MS) == queue


@given(topics)
def test_a_topic_survives_being_written_and_read(topic: TopicDescription) -> None:
    element = parse_entry(entry_of(write_entity(topic, HELD, AUTHORITY)))
    assert read_settings(element, TopicDescription(), NOW_MS) == topic


@given(subscriptions)
def test_a_subscription_survives_being_written_and_read(
    subscription: SubscriptionDescription,
) -> None:
    element = parse_entry(entry_of(write_entity(subscription, HELD, AUTHORITY)))
    assert read_settings(element, SubscriptionDescription(), NOW_MS) == subscription


def test_an_empty_description_is_all_defaults() -> None:
    assert (
        read_settings(description("QueueDescription>"), QueueDescription(), NOW_MS)
        == QueueDescription()
    )


def test_an_update_keeps_what_it_does_not_name_but_ends_forwarding_and_metadata() -> None:
    present = QueueDescription(max_delivery_count=3, forward_to="a", user_metadata="m")
    asked = description("QueueDescription><LockDuration>PT5S</LockDuration>")
    assert read_settings(asked, present, NOW_MS) == QueueDescription(
        max_delivery_count=3, lock_duration_ms=5_000
    )


@pytest.mark.parametrize(
    ("asked_mb", "is_partitioned", "is_premium", "held_mb"),
    [
        (1_024, True, False, 16_384),
        (5_120, True, False, 81_920),
        (16_384, True, False, 16_384),
        (1_024, False, False, 1_024),
        (1_024, True, True, 1_024),
    ],
)
def test_a_partitioned_entity_is_as_large_as_its_16_partitions(
    asked_mb: int, is_partitioned: bool, is_premium: bool, held_mb: int
) -> None:
    asked = description(
        f"TopicDescription><MaxSizeInMegabytes>{asked_mb}</MaxSizeInMegabytes>"
        f"<EnablePartitioning>{str(is_partitioned).lower()}</EnablePartitioning>"
    )
    held = read_settings(asked, TopicDescription(), NOW_MS, is_premium=is_premium)
    assert held.max_size_mb == held_mb
    again = parse_entry(entry_of(write_entity(held, HELD, AUTHORITY)))
    assert read_settings(again, held, NOW_MS, is_premium=is_premium) == held


@pytest.mark.parametrize(
    ("version", "has_size", "has_counts", "has_times"),
    [
        ("2017-04", False, False, True),
        ("2021-05", True, False, False),
        ("2024-05", True, True, False),
    ],
)
def test_a_version_of_the_api_is_not_given_what_came_later(
    version: str, has_size: bool, has_counts: bool, has_times: bool
) -> None:
    rule = AuthorizationRule(key_name="k", primary_key="a", rights=frozenset({"Send"}))
    topic = TopicDescription(authorization_rules=(rule,))
    written = write_entity(topic, HELD, AUTHORITY, version)
    assert ("<MaxMessageSizeInKilobytes>" in written) is has_size
    assert ("<SqlFilterCount>" in written) is has_counts
    assert ("<CorrelationFilterCount>" in written) is has_counts
    assert ("<ModifiedTime>" in written) is has_times


def test_an_entity_that_nobody_used_was_accessed_in_the_year_1() -> None:
    unused = replace(HELD, accessed_at_ms=0)
    assert "<AccessedAt>0001-01-01T00:00:00</AccessedAt>" in write_entity(
        QueueDescription(), unused, AUTHORITY
    )


def test_a_changed_authorization_rule_keeps_when_it_was_created() -> None:
    old = AuthorizationRule(
        key_name="k", primary_key="a", rights=frozenset({"Send"}), created_at_ms=1, modified_at_ms=1
    )
    asked = parse_entry(
        entry_of(write_entity(QueueDescription(authorization_rules=(old,)), HELD, AUTHORITY))
    )
    changed = read_settings(asked, QueueDescription(authorization_rules=(old,)), NOW_MS)
    assert [(rule.created_at_ms, rule.modified_at_ms) for rule in changed.authorization_rules] == [
        (1, NOW_MS)
    ]


def rule_xml(name: str = "k", key: str = "a", right: str = "Send") -> str:
    return (
        f"<AuthorizationRule><Rights><AccessRights>{right}</AccessRights></Rights>"
        f"<KeyName>{name}</KeyName><PrimaryKey>{key}</PrimaryKey></AuthorizationRule>"
    )


@pytest.mark.parametrize(
    ("inner", "word"),
    [
        ("<MaxDeliveryCount>many</MaxDeliveryCount>", "MaxDeliveryCount"),
        ("<LockDuration>60</LockDuration>", "LockDuration"),
        ("<RequiresSession>perhaps</RequiresSession>", "RequiresSession"),
        (
            "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>",
            "MaxMessageSizeInKilobytes",
        ),
        (f"<AuthorizationRules>{rule_xml(name='')}</AuthorizationRules>", "KeyName"),
        (f"<AuthorizationRules>{rule_xml(key='')}</AuthorizationRules>", "PrimaryKey"),
        (f"<AuthorizationRules>{rule_xml(right='Fly')}</AuthorizationRules>", "Fly"),
        (f"<AuthorizationRules>{rule_xml() * 2}</AuthorizationRules>", "same KeyName"),
        (
            "<AuthorizationRules>"
            + "".join(rule_xml(name=f"k{n}") for n in range(AUTHORIZATION_RULES_MAX + 1))
            + "</AuthorizationRules>",
            str(AUTHORIZATION_RULES_MAX),
        ),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(inner: str, word: str) -> None:
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange), match=word):
        read_settings(description(f"QueueDescription>{inner}"), QueueDescription(), NOW_MS)


def test_forwarding_is_a_path_inside_and_an_address_outside() -> None:
    assert entity_path("sb://contoso.servicebus.windows.net/a/b") == "a/b"
    assert entity_path("sb://localhost:5672/a%20b/") == "a b"
    assert entity_path("orders") == "orders"
    written = write_entity(QueueDescription(forward_to="a/b"), HELD, AUTHORITY)
    assert "<ForwardTo>sb://localhost:5672/a/b</ForwardTo>" in written


@pytest.mark.parametrize(
    ("put", "scheme"),
    [("https://h/b", "https"), ("SB://h/b", "sb"), ("b", "sb"), ("x://h/b", "sb")],
)
@pytest.mark.parametrize("name", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
def test_forwarding_comes_back_with_the_scheme_that_was_put(
    name: str, put: str, scheme: str
) -> None:
    asked = description(f"SubscriptionDescription><{name}>{put}</{name}>")
    held = read_settings(asked, SubscriptionDescription(), NOW_MS)
    written = write_entity(held, HELD, AUTHORITY)
    assert f"<{name}>{scheme}://{AUTHORITY}/b</{name}>" in written


# Rules


@pytest.mark.parametrize(
    ("schema_type", "text"),
    [
        ("int", "12"),
        ("long", "12"),
        ("dateTime", "2026-11-18T00:17:39.0316031Z"),
        ("dateTime", "2026-11-18T00:17:39.031Z"),
        ("dateTime", "2026-11-18T00:17:39Z"),
        ("dateTime", "2026-11-18T00:17:39.0316031"),
        ("dateTime", "0001-01-01T00:00:00.0000001Z"),
    ],
)
def test_a_typed_value_comes_back_as_it_was_put(schema_type: str, text: str) -> None:
    value = parse_typed(schema_type, text, "p")
    assert render_typed(value) == (schema_type, text)
    rule = RuleDescription(name="r", filter=SqlFilter(expression="1=1", parameters=(("p", value),)))
    kept = rule_of_record(json.loads(json.dumps(rule_record(rule))))
    assert isinstance(kept.filter, SqlFilter)
    assert render_typed(kept.filter.parameters[0][1]) == (schema_type, text)


def test_a_rule_sees_a_time_of_100_ns_in_milliseconds() -> None:
    exact = parse_typed("dateTime", "2026-11-18T00:17:39.0316031Z", "p")
    assert to_value(exact) == to_value(parse_typed("dateTime", "2026-11-18T00:17:39.031Z", "p"))


pairs = st.lists(
    st.tuples(xml_text.filter(bool), typed_values), max_size=3, unique_by=lambda pair: pair[0]
).map(tuple)
expressions = xml_text.filter(bool)
filters = (
    st.just(TrueFilter())
    | st.just(FalseFilter())
    | st.builds(SqlFilter, expression=expressions, parameters=pairs)
    | st.builds(
        CorrelationFilter,
        correlation_id=metadata,
        message_id=metadata,
        to=metadata,
        reply_to=metadata,
        label=metadata,
        session_id=metadata,
        reply_to_session_id=metadata,
        content_type=metadata,
        properties=pairs,
    )
)


@given(
    st.builds(
        RuleDescription,
        name=st.just("r"),
        filter=filters,
        action=st.none() | st.builds(SqlAction, expression=expressions, parameters=pairs),
        created_at_ms=st.just(NOW_MS),
    )
)
def test_a_rule_survives_being_written_and_read(rule: RuleDescription) -> None:
    assert read_rule(parse_entry(entry_of(write_rule(rule))), "r", NOW_MS) == rule


def test_a_rule_without_filter_takes_everything() -> None:
    rule = read_rule(description("RuleDescription>"), "r", NOW_MS)
    assert rule == RuleDescription(name="r", filter=TrueFilter(), created_at_ms=NOW_MS)


LONG_EXPRESSION = "x" * (EXPRESSION_LENGTH_MAX + 1)
PAIR_WITHOUT_VALUE = "<Properties><P><Key>a</Key></P></Properties>"


@pytest.mark.parametrize(
    ("inner", "word"),
    [
        ('<Filter i:type="LuckyFilter"/>', "LuckyFilter"),
        ('<Filter i:type="SqlFilter"/>', "expression"),
        ('<Action i:type="RunProgram"/>', "RunProgram"),
        (
            f'<Filter i:type="SqlFilter"><SqlExpression>{LONG_EXPRESSION}</SqlExpression></Filter>',
            str(EXPRESSION_LENGTH_MAX),
        ),
        (f'<Filter i:type="CorrelationFilter">{PAIR_WITHOUT_VALUE}</Filter>', "Value"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(inner: str, word: str) -> None:
    with pytest.raises((ArgumentInvalid, ArgumentOutOfRange), match=word):
        read_rule(description(f"RuleDescription>{inner}"), "r", NOW_MS)


def test_the_description_element_is_told_by_its_local_name() -> None:
    assert local_name(description("QueueDescription>")) == "QueueDescription"


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
    assert rule_of_record(json.loads(json.dumps(rule_record(rule)))) == rule
    assert to_value(value) is not None
