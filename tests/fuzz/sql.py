"""Rules from a grammar of SQL, applied to messages with properties of any type."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzz.part import Part
from tests.fuzz.values import ANY_VALUE
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.types import Described, Symbol
from twinbus.broker.descriptions import RuleDescription, SqlAction, SqlFilter
from twinbus.broker.filters.rules import apply_action, matches, validate
from twinbus.broker.messages.incoming import parse
from twinbus.broker.refusals import Refusal

_names = st.sampled_from(
    (
        *("n", "t", "w", "[n]", '"t"', "user.n", "sys.Label", "sys.TimeToLive", "sys.Size"),
        *("sys.ScheduledEnqueueTimeUtc", "sys.MessageId", "sys.nothing", "@p", "@missing"),
    )
)
_literals = st.sampled_from(
    (
        *("1", "0", "9223372036854775807", "9223372036854775808", "1e308", "1e999", "0.5", ".5"),
        *("'x'", "''", "'it''s'", "'%_%'", "N'x'", "NULL", "TRUE", "'\U0001f600'", "0x1f"),
    )
)
_values = st.recursive(
    st.one_of(_names, _literals),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/%"), inner),
        st.builds("-{}".format, inner),
        st.just("newid()"),
        st.builds("p({})".format, inner),
    ),
    max_leaves=5,
)
_conditions = st.recursive(
    st.one_of(
        st.builds(
            "{} {} {}".format, _values, st.sampled_from(("=", "<>", "!=", "<", ">=")), _values
        ),
        st.builds("{} LIKE {} ESCAPE {}".format, _values, _values, _values),
        st.builds("{} NOT LIKE {}".format, _values, _values),
        st.builds("{} IN ({}, {})".format, _values, _values, _values),
        st.builds("{} IS NOT NULL".format, _names),
        st.builds("EXISTS({})".format, _names),
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(("AND", "OR", "and")), inner),
        st.builds("NOT {}".format, inner),
        st.builds("{} -- {}".format, inner, inner),
    ),
    max_leaves=5,
)
_tokens = st.lists(
    st.one_of(_names, _literals, st.sampled_from((*"()+-*/%<>=.,;[]'\"@", "LIKE", "IN"))),
    max_size=12,
).map(" ".join)
expressions = st.one_of(_conditions, _conditions, _tokens, st.text(max_size=12))
_statements = st.one_of(
    st.builds("SET {} = {}".format, _names, _values), st.builds("REMOVE {}".format, _names), _tokens
)
actions = st.lists(_statements, min_size=1, max_size=3).map("; ".join)
_properties = st.dictionaries(st.sampled_from(("n", "t", "w", "N")), ANY_VALUE, max_size=3)
_parameters = st.sampled_from(((), (("@p", 5),), (("p", "x"), ("@P", None))))
rules = st.tuples(
    expressions, st.one_of(st.none(), actions), _parameters, _properties, st.booleans()
)


def check(given: tuple[str, str | None, tuple[Any, ...], dict[str, Any], bool]) -> None:
    """A rule is refused, or each message meets it or has an error of its own."""
    expression, action, parameters, properties, has_label = given
    rule = RuleDescription(
        name="r",
        filter=SqlFilter(expression=expression, parameters=parameters),
        action=None if action is None else SqlAction(expression=action, parameters=parameters),
    )
    try:
        validate(rule)
    except Refusal:
        return
    wire = encode_message(
        properties=Properties(message_id="m", subject="x" if has_label else None),
        application_properties=properties,
        data=b"",
    )
    incoming = parse(wire, str)
    try:
        matches(rule, incoming)
        changed = apply_action(rule, incoming)
    except Refusal:
        return
    assert changed.message_id is not None
    assert parse(changed.wire, str).message_id == changed.message_id


FINDS = (
    # A uri as a symbol, which no table of kinds knew.
    ("w = 'x'", None, (), {"w": Described(Symbol("com.microsoft:uri"), Symbol("s"))}, False),
)
SQL = Part("sql", rules, check, finds=FINDS, short=60, round=400)
