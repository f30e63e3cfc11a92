"""Rules against messages: what Azure's SQL filters, correlation filters and actions do."""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.work import bounded_work
from twinbus.amqp.message import (
    Header,
    Properties,
    decode_map,
    decode_properties,
    encode_message,
)
from twinbus.amqp.types import Described, Float32, Int, Symbol, Timestamp, ULong
from twinbus.broker.descriptions import (
    EXPRESSION_LENGTH_MAX,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
)
from twinbus.broker.filters.rules import apply_action, matches, validate
from twinbus.broker.filters.sql import NESTING_MAX, STATEMENTS_MAX
from twinbus.broker.filters.values import FilterError
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.refusals import ArgumentInvalid

NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)
NOON_MS = 1_699_963_200_000
GUID = uuid.UUID("0f8fad5b-d9cb-469f-a165-70867728950e")

ORDER = {
    "quantity": Int(5),
    "price": 2.5,
    "ratio": Float32(0.5),
    "color": "red",
    "Express": True,
    "nothing": None,
    "placed": Timestamp(NOON_MS),
    "window": Described(Symbol("com.microsoft:timespan"), 36_000_000_000),
    "guid": GUID,
    "a-b": "dashed",
    "o'clock": 1,
    "big": ULong(2**64 - 1),
    "blob": b"\x01",
}


def message(user: dict[str, Any] | None = None, **properties: Any) -> Incoming:
    wire = encode_message(
        header=Header(ttl=60_000),
        properties=Properties(**{"message_id": "m-1", **properties}),
        message_annotations={"x-opt-partition-key": "pk", "x-opt-via-partition-key": "via"},
        application_properties=ORDER if user is None else user,
        data=b"body",
    )
    return parse(wire, lambda: "assigned")


def takes(expression: str, incoming: Incoming | None = None, /, **parameters: Any) -> bool:
    rule = RuleDescription(
        name="r", filter=SqlFilter(expression=expression, parameters=tuple(parameters.items()))
    )
    validate(rule)
    return matches(rule, incoming or message())


@pytest.mark.parametrize(
    "expression",
    [
        "1=1",
        "TRUE",
        "quantity = 5",
        "QUANTITY = 5.0 and Color = 'red'",
        'user.quantity > 4 AND user.[quantity] <= 5 AND "quantity" < 6',
        "quantity <> 4 AND quantity != 4",
        "express AND NOT express = FALSE",
        "color LIKE 'r%' AND color LIKE '_e_' AND color NOT LIKE 'R%'",
        "color IN ('blue', 'red') AND quantity NOT IN (1, 2)",
        "color = 'blue' OR quantity = 5 AND express",
        "NOT (color = 'blue' OR quantity = 4)",
        "missing IS NULL AND nothing IS NULL AND color IS NOT NULL",
        "EXISTS(nothing) AND NOT EXISTS(missing) AND EXISTS(sys.MessageId)",
        "NOT EXISTS(sys.To)",
        "missing = 1 OR color = 'red'",
        "quantity + 1 * 2 = 7 AND (quantity + 1) * 2 = 12",
        "-quantity = 0 - 5 AND +quantity = 5 AND - - quantity = 5 AND +big = big",
        "7 / 2 = 3 AND -7 / 2 = -3 AND -7 % 2 = -1 AND 7.0 / 2 = 3.5",
        "price / 0 > 1e300 AND ratio = .5 AND 5e-1 = 0.5",
        "color + '-' + quantity = 'red-5' AND 'x' + TRUE = 'xTrue'",
        "[a-b] = 'dashed' AND [o'clock] = 1",
        "color <> 'it''s'",
        "property('color') = 'red' AND p('sys.messageid') = 'm-1' AND P('User.color') = 'red'",
        "property(nothing) IS NULL",
        "guid = '0F8FAD5B-D9CB-469F-A165-70867728950E' AND '{' + guid + '}' = guid",
        "big > 9223372036854775807",
        "newid() <> newid()",
        "sys.MessageId = 'm-1' AND sys.PartitionKey = 'pk' AND sys.ViaPartitionKey = 'via'",
        "sys.Size > 50 AND sys.TimeToLive IS NOT NULL AND sys.ScheduledEnqueueTimeUtc IS NULL",
    ],
)
def test_conditions_that_hold(expression: str) -> None:
    assert takes(expression) is True


@pytest.mark.parametrize(
    "expression",
    [
        "FALSE",
        "NULL",
        "missing = 1",
        "NOT missing = 1",
        "missing <> 1",
        "missing = missing",
        "nothing = NULL",
        "missing + 1 > 0 OR -missing < 0",
        "missing LIKE '%' OR NOT missing LIKE '%'",
        "missing IN (1, 2) OR missing NOT IN (1, 2)",
        "quantity NOT IN (1, missing)",
        "missing = 1 AND color = 'red'",
        "express AND missing",
        "color = 'Red'",
        "color LIKE 'e'",
        "price % 0 = 0 OR price % 0 <> price % 0 AND FALSE",
    ],
)
def test_conditions_that_are_false_or_unknown_take_nothing(expression: str) -> None:
    assert takes(expression) is False


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("color = 5", "Operator = cannot be applied to a string and a number."),
        ("express > FALSE", "Operator > cannot be applied to a boolean and a boolean."),
        ("color - 1 = 0", "Operator - cannot be applied to a string and a number."),
        ("-color = 0", "Operator - cannot be applied to a string."),
        ("quantity / 0 = 1", "Division by zero in 5 / 0."),
        ("9223372036854775807 + quantity > 0", "does not fit into 64 bits"),
        ("quantity LIKE '5'", "LIKE needs strings, not a number."),
        ("color AND express", "A condition cannot be a string."),
        ("color LIKE color ESCAPE (color + 'x')", "ESCAPE takes one character, not 'redx'."),
        ("property(quantity) = 1", "property() needs a name, not a number."),
        ("blob + 'x' = 'y'", "A binary property cannot be used as text."),
    ],
)
def test_an_operator_that_csharp_would_not_bind_is_an_error(expression: str, text: str) -> None:
    with pytest.raises(FilterError) as caught:
        takes(expression)
    assert text in caught.value.description


def test_what_decides_already_keeps_the_error_from_happening() -> None:
    assert takes("quantity = 5 OR color = 5") is True
    assert takes("quantity = 4 AND color = 5") is False


def test_like_escapes_its_wildcards() -> None:
    assert takes("d LIKE '50!%' ESCAPE '!'", message({"d": "50%"}))
    assert not takes("d LIKE '50!%' ESCAPE '!'", message({"d": "505"}))
    assert takes(r"d LIKE 'a\_b%' ESCAPE '\'", message({"d": "a_bc"}))
    assert not takes(r"d LIKE 'a\_b%' ESCAPE '\'", message({"d": "axbc"}))
    assert takes("d LIKE '%b%b'", message({"d": "ab\nb"}))
    assert not takes("d LIKE '%ab%ab%'", message({"d": "aab"}))


def test_a_hostile_like_pattern_is_not_slow() -> None:
    # A backtracking matcher would need longer than the universe has existed.
    assert not takes(f"d LIKE '{'%a' * 400}%b'", message({"d": "a" * 30_000}))


WORK_S_PER_KIB = 0.005


@pytest.mark.parametrize(
    "pattern",
    ["%" + "a" * 1000 + "b%", "%" + "a" * 30_000 + "b%", "%" + "a_" * 500 + "b%", "a" * 60_000],
    ids=["a long piece", "longer than an expression", "with wildcards", "no percent sign"],
)
def test_a_hostile_like_pattern_from_a_property_is_not_slow(pattern: str) -> None:
    hostile = message({"d": "a" * 60_000, "p": pattern})
    size_kib = (60_000 + len(pattern)) / 1024
    with bounded_work(WORK_S_PER_KIB * size_kib), suppress(FilterError):
        assert not takes("d LIKE p", hostile)


def test_like_refuses_work_without_bound_and_says_why() -> None:
    with pytest.raises(FilterError, match="1500 characters, at most 1024"):
        takes("d LIKE p", message({"d": "a", "p": "a" * 1500}))
    with pytest.raises(FilterError, match="1000 characters with wildcards at each of 60000"):
        takes("d LIKE p", message({"d": "a" * 60_000, "p": "%" + "a_" * 500 + "%"}))


def test_parameters_are_named_with_and_without_at_and_keep_their_types() -> None:
    later: Any = {"@When": NOON + timedelta(seconds=1)}
    assert takes("quantity = @Q AND placed < @when", q=5, **later)
    assert takes("placed = @when", when=NOON.replace(tzinfo=None))
    assert takes("window = @w", w=timedelta(hours=1))
    assert takes("sys.TimeToLive = @t", t=timedelta(minutes=1))
    assert takes("express = @flag", flag=True)
    assert not takes("quantity = @q", q=6)


def test_system_properties_come_from_the_message() -> None:
    incoming = message(
        to="t", subject="s", reply_to="r", correlation_id=GUID, content_type=Symbol("c"),
        group_id="g", reply_to_group_id="rg",
    )  # fmt: skip
    assert takes(
        "sys.To='t' AND sys.Label='s' AND sys.Subject='s' AND sys.ReplyTo='r' AND "
        f"sys.CorrelationId='{GUID}' AND sys.ContentType='c' AND sys.SessionId='g' AND "
        "sys.ReplyToSessionId='rg'",
        incoming,
    )


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("", "position 1 of the rule expression '': expected a value, a property or (, found the "),
        ("quantity =", "position 11"),
        ("quantity 5", "'quantity 5': expected AND, OR or the end, found '5'"),
        ("a = 1 = 2", "position 7"),
        ("a IS 5", "expected NULL, found '5'"),
        ("a NOT 5", "expected IN or LIKE, found '5'"),
        ("a IN ()", "position 7"),
        ("a IN (1", "expected ), found the end"),
        ("(a = 1", "expected ), found the end"),
        ("'open", "position 1"),
        ("[open", "expected a closing ]"),
        ("a ? 1", "position 3"),
        ("5", "expected a condition, found '5'"),
        ("a = 1 AND 'x'", "position 11"),
        ("(a = 1) + 1 = 2", "expected a value, not a condition"),
        ("1 + EXISTS(a) = 2", "position 5"),
        ("sys.Nope = 1", "position 5"),
        ("other.name = 1", "expected the scope sys or user"),
        ("sys.5 = 1", "position 4"),
        ("fn(a) = 1", "expected newid(), property(name) or p(name), found 'fn'"),
        ("a LIKE 5", "expected a string, found '5'"),
        ("a LIKE 'x' ESCAPE 'yz'", "ESCAPE takes one character"),
        ("a LIKE 'x!' ESCAPE '!'", "ends in its escape character"),
        ("a = 9223372036854775808", "expected an integer up to 9223372036854775807"),
        ("AND = 1", "position 1"),
        ("(" * (NESTING_MAX + 1) + "1=1" + ")" * 99, f"at most {NESTING_MAX} levels"),
        ("NOT " * (NESTING_MAX + 1) + "TRUE", f"at most {NESTING_MAX} levels"),
        ("-" * (NESTING_MAX + 1) + "1 = 1", f"at most {NESTING_MAX} levels"),
        ("a = 1" + " " * EXPRESSION_LENGTH_MAX, f"the limit is {EXPRESSION_LENGTH_MAX}"),
        ("a = @p", "uses @p, which has no value"),
    ],
)  # fmt: skip
def test_a_bad_expression_is_refused_with_place_and_expectation(expression: str, text: str) -> None:
    with pytest.raises(ArgumentInvalid) as caught:
        takes(expression)
    assert not isinstance(caught.value, FilterError)
    assert text in caught.value.description


def test_long_chains_are_no_deep_recursion() -> None:
    assert takes(" OR ".join(["color='x'"] * 60 + ["1=1"]))
    assert takes("+".join(["1"] * 400) + "=400")


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        (CorrelationFilter(label="s", correlation_id="c"), True),
        (CorrelationFilter(label="S"), False),
        (CorrelationFilter(to="t"), False),
        (CorrelationFilter(message_id="m-1", session_id="g", content_type="x"), True),
        (CorrelationFilter(properties=(("quantity", 5), ("COLOR", "red"))), True),
        (CorrelationFilter(properties=(("quantity", "5"),)), False),
        (CorrelationFilter(properties=(("missing", None),)), False),
        (CorrelationFilter(properties=(("placed", NOON), ("guid", str(GUID)))), True),
        (FalseFilter(), False),
    ],
)
def test_a_correlation_filter_wants_every_named_property(filter_: Any, expected: bool) -> None:
    incoming = message(subject="s", correlation_id="c", group_id="g", content_type=Symbol("x"))
    assert matches(RuleDescription(name="r", filter=filter_), incoming) is expected


def test_an_empty_correlation_filter_is_refused() -> None:
    with pytest.raises(ArgumentInvalid, match="'odd' is empty"):
        validate(RuleDescription(name="odd", filter=CorrelationFilter()))


def act(expression: str, incoming: Incoming, **parameters: object) -> Incoming:
    action = SqlAction(expression=expression, parameters=tuple(parameters.items()))
    rule = RuleDescription(name="r", action=action)
    validate(rule)
    return apply_action(rule, incoming)


def user_of(incoming: Incoming) -> dict[str, Any]:
    return decode_map(incoming.sections.application_properties)


def test_a_rule_without_an_action_leaves_the_very_message() -> None:
    incoming = message()
    assert apply_action(RuleDescription(name="r"), incoming) is incoming


def test_an_action_sets_and_removes_in_order_on_a_copy() -> None:
    before = message({"a": 1, "Keep": "x", "gone": 1})
    statements = "SET b = a + 1; SET A = b * 10, SET c = @p REMOVE GONE; REMOVE never;"
    after = act(statements, before, p="v")
    assert user_of(after) == {"a": 20, "Keep": "x", "b": 2, "c": "v"}
    assert user_of(before) == {"a": 1, "Keep": "x", "gone": 1}
    assert after.sections.body == before.sections.body
    assert after.sections.message_annotations == before.sections.message_annotations
    assert (after.message_id, after.ttl_ms) == ("m-1", 60_000)
    assert after.size_bytes != before.size_bytes


def test_an_action_changes_system_properties_and_what_follows_from_them() -> None:
    after = act(
        "SET sys.Label = 'l'; SET sys.SessionId = 'g' + 1; SET sys.MessageId = 'new' REMOVE sys.To",
        message(to="t", content_type=Symbol("c")),
    )
    properties = decode_properties(after.sections.properties)
    assert (properties.subject, properties.group_id, properties.to) == ("l", "g1", None)
    assert (after.session_id, after.message_id, after.content_type) == ("g1", "new", "c")
    assert act("SET sys.ContentType = 'json'", message()).content_type == "json"


def test_set_keeps_text_and_fractions_what_they_were_and_removing_the_last_empties() -> None:
    after = act("SET t = 5; SET f = 2; SET n = missing", message({"t": "x", "f": 0.5, "n": 1}))
    assert user_of(after) == {"t": "5", "f": 2.0, "n": None}
    assert type(user_of(after)["f"]) is float
    assert act("REMOVE only", message({"only": 1})).sections.application_properties == b""


def test_times_and_durations_survive_an_action() -> None:
    after = user_of(act("SET p2 = placed; SET w2 = window; SET g2 = guid", message()))
    assert (after["p2"], after["w2"], after["g2"]) == (NOON_MS, ORDER["window"], GUID)
    assert type(after["p2"]) is Timestamp


def test_a_removed_message_id_is_kept_since_every_message_has_one() -> None:
    assert act("REMOVE sys.MessageId", message()).message_id == "m-1"


def test_new_ids_differ_within_and_between_messages_but_replay_alike() -> None:
    first = user_of(act("SET x = newid(); SET y = newid()", message({})))
    other = user_of(act("SET x = newid()", message({}, message_id="m-2")))
    assert len({first["x"], first["y"], other["x"]}) == 3
    assert user_of(act("SET x = newid()", message({})))["x"] == first["x"]


def test_what_the_engine_decided_about_the_message_stays() -> None:
    incoming = message({})
    incoming.scheduled_for_ms, incoming.ttl_ms = 0, 7
    after = act("SET a = 1", incoming)
    assert (after.scheduled_for_ms, after.ttl_ms) == (0, 7)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("", "expected SET or REMOVE, found the end"),
        ("DROP a", "position 1"),
        ("SET a 5", "expected =, found '5'"),
        ("SET a = 1 = 2", "position 11"),
        ("SET a = (1 = 1)", "expected a value, not a condition"),
        ("SET sys.TimeToLive = 1", "that an action may change"),
        ("REMOVE sys.Size", "that an action may change"),
        ("SET a = @p", "uses @p, which has no value"),
        ("SET a = 1;" * (STATEMENTS_MAX + 1), f"at most {STATEMENTS_MAX} statements"),
    ],
)
def test_a_bad_action_is_refused(expression: str, text: str) -> None:
    with pytest.raises(ArgumentInvalid) as caught:
        act(expression, message())
    assert text in caught.value.description


def test_a_value_that_amqp_cannot_carry_is_an_error_of_this_message() -> None:
    with pytest.raises(FilterError, match="cannot be sent"):
        act("SET x = big", message())


def test_a_uri_that_travels_as_a_symbol_is_a_text() -> None:
    link = message({"link": Described(Symbol("com.microsoft:uri"), Symbol("sb://x"))})
    assert takes("link = 'sb://x' AND link LIKE 'sb%'", link)
