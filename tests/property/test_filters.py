"""Any expression, any message: compiled filters agree with a plain interpreter, or both refuse."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.message import Properties, decode_map, encode_message
from twinbus.broker.descriptions import EXPRESSION_LENGTH_MAX, RuleDescription, SqlAction, SqlFilter
from twinbus.broker.filters.rules import apply_action, matches, validate
from twinbus.broker.filters.values import FilterError, RuleWork, like
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.refusals import ArgumentInvalid, Refusal

NAMES = ["a", "b", "c", "missing"]

texts = st.text(st.sampled_from("ab%_'"), max_size=4)
literals = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.just(0.5), texts)
messages = st.dictionaries(st.sampled_from(NAMES[:3]), literals)

values = st.recursive(
    st.one_of(
        st.tuples(st.just("literal"), literals),
        st.tuples(st.just("property"), st.sampled_from(NAMES)),
    ),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "/", "%"]), inner, inner),
    max_leaves=4,
)
conditions = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), values, values),
        st.tuples(st.just("IN"), values, st.lists(values, min_size=1, max_size=3)),
        st.tuples(st.just("LIKE"), values, texts),
        st.tuples(st.just("NULL?"), values),
        st.tuples(st.just("EXISTS"), st.sampled_from(NAMES)),
    ),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner), st.tuples(st.just("NOT"), inner)
    ),
    max_leaves=5,
)


SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Mismatch(Exception):
    """The operation has no meaning for these operands."""


def incoming(user: dict[str, Any]) -> Incoming:
    wire = encode_message(
        properties=Properties(message_id="m"), application_properties=user, data=b""
    )
    return parse(wire, lambda: "assigned")


def written(node: Any) -> str:
    """The SQL text of a tree, fully bracketed."""
    match node:
        case "literal", None:
            return "NULL"
        case "literal", bool(value):
            return "TRUE" if value else "FALSE"
        case "literal", str(value):
            return quoted(value)
        case "literal", value:
            return str(value)
        case "property", name:
            return str(name)
        case "IN", left, choices:
            return f"({written(left)} IN ({', '.join(map(written, choices))}))"
        case "LIKE", left, pattern:
            return f"({written(left)} LIKE {quoted(pattern)})"
        case "NULL?", left:
            return f"({written(left)} IS NULL)"
        case "EXISTS", name:
            return f"EXISTS({name})"
        case "NOT", inner:
            return f"(NOT {written(inner)})"
        case sign, left, right:
            return f"({written(left)} {sign} {written(right)})"
    raise AssertionError(node)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def value_of(node: Any, user: dict[str, Any]) -> Any:
    match node:
        case "literal", value:
            return value
        case "property", name:
            return user.get(name)
        case sign, left, right:
            return operated(sign, value_of(left, user), value_of(right, user))
    raise AssertionError(node)


def operated(sign: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if sign == "+" and "str" in (kind(left), kind(right)):
        return shown(left) + shown(right)
    if kind(left) != "number" or kind(right) != "number":
        raise Mismatch
    whole = isinstance(left, int) and isinstance(right, int)
    if sign in "/%":
        if right == 0:
            if whole:
                raise Mismatch
            return (
                float("nan") if sign == "%" or left == 0 else float("inf") * (1 if left > 0 else -1)
            )
        quotient = left / right
        if sign == "/":
            return int(quotient) if whole else quotient
        return left - right * int(quotient)
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def truth_of(node: Any, user: dict[str, Any]) -> bool | None:
    match node:
        case "AND", left, right:
            first = truth_of(left, user)
            if first is False:
                return False
            second = truth_of(right, user)
            return False if second is False else None if None in (first, second) else True
        case "OR", left, right:
            first = truth_of(left, user)
            if first is True:
                return True
            second = truth_of(right, user)
            return True if second is True else None if None in (first, second) else False
        case "NOT", inner:
            result = truth_of(inner, user)
            return None if result is None else not result
        case "EXISTS", name:
            return name in user
        case "NULL?", left:
            return value_of(left, user) is None
        case "IN", left, choices:
            return member(value_of(left, user), choices, user)
        case "LIKE", left, pattern:
            subject = value_of(left, user)
            if subject is None:
                return None
            if not isinstance(subject, str):
                raise Mismatch
            return wildcard(subject, pattern)
        case sign, left, right:
            return compared(sign, value_of(left, user), value_of(right, user))
    raise AssertionError(node)


def member(subject: Any, choices: list[Any], user: dict[str, Any]) -> bool | None:
    if subject is None:
        return None
    unknown = False
    for choice in choices:
        outcome = compared("=", subject, value_of(choice, user))
        if outcome:
            return True
        unknown = unknown or outcome is None
    return None if unknown else False


def compared(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if kind(left) != kind(right) or (kind(left) == "bool" and sign not in ("=", "<>")):
        raise Mismatch
    return bool(SIGNS[sign](left, right))


def wildcard(text: str, pattern: str) -> bool:
    """LIKE by trying every way to place the percent signs."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(wildcard(text[cut:], pattern[1:]) for cut in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and wildcard(text[1:], pattern[1:])


@given(conditions, messages)
def test_a_compiled_condition_means_what_it_says(tree: Any, user: dict[str, Any]) -> None:
    expression = written(tree)
    if len(expression) > EXPRESSION_LENGTH_MAX:
        return
    rule = RuleDescription(name="r", filter=SqlFilter(expression=expression))
    validate(rule)
    try:
        expected: bool | str = truth_of(tree, user) is True
    except Mismatch:
        expected = "error"
    try:
        actual: bool | str = matches(rule, incoming(user))
    except FilterError:
        actual = "error"
    assert actual == expected, expression


@given(st.text(st.sampled_from("ab%_!"), max_size=12), st.text(st.sampled_from("ab%_"), max_size=8))
def test_like_agrees_with_exhaustive_search(text: str, pattern: str) -> None:
    assert like(text, pattern, "", RuleWork()) is wildcard(text, pattern)


words = st.sampled_from(
    "a sys.Label [x y] user.b 'text' 1 2.5 1e3 @p = <> != < >= + - * / % ( ) , ; . AND OR NOT LIKE "
    "ESCAPE IN IS NULL EXISTS TRUE FALSE SET REMOVE newid() property( ' [ \" ?".split(" ")
)


@given(st.one_of(st.text(max_size=40), st.lists(words, max_size=15).map(" ".join)), messages)
def test_any_text_is_a_rule_or_refused_with_a_position(text: str, user: dict[str, Any]) -> None:
    parameters = (("p", 1),)
    for rule in (
        RuleDescription(name="r", filter=SqlFilter(expression=text, parameters=parameters)),
        RuleDescription(name="r", action=SqlAction(expression=text, parameters=parameters)),
    ):
        refused = refusal_of(ArgumentInvalid, validate, rule)
        if refused is not None:
            assert re.search(r"At position \d+ of the rule expression", refused)
        else:
            refusal_of(FilterError, matches, rule, incoming(user))
            refusal_of(FilterError, apply_action, rule, incoming(user))


def refusal_of(refused: type[Refusal], call: Callable[..., object], *given: Any) -> str | None:
    """What the call was refused with; any other exception fails the test."""
    try:
        call(*given)
    except refused as refusal:
        return refusal.description
    return None


assignments = st.lists(
    st.tuples(st.sampled_from(NAMES), st.one_of(st.none(), st.integers(0, 9), texts)), max_size=6
)


@given(assignments, messages)
def test_an_action_leaves_a_message_that_reads_as_its_statements_say(
    statements: list[tuple[str, Any]], user: dict[str, Any]
) -> None:
    expected = dict(user)
    lines = ["REMOVE nobody"]
    for name, value in statements:
        if value is None:
            expected.pop(name, None)
            lines.append(f"REMOVE {name}")
        else:
            is_text = isinstance(expected.get(name), str)
            is_fraction = isinstance(expected.get(name), float)
            kept = float(value) if is_fraction and isinstance(value, int) else value
            expected[name] = str(value) if is_text else kept
            lines.append(f"SET {name} = {written(('literal', value))}")
    rule = RuleDescription(name="r", action=SqlAction(expression="; ".join(lines)))
    validate(rule)
    after = apply_action(rule, incoming(user))
    assert decode_map(after.sections.application_properties) == expected
    assert after.payload == incoming(expected).payload
