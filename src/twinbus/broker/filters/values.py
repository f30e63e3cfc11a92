"""Values and operators of rule expressions: C#'s operators under SQL's three-valued logic.

Azure Service Bus binds operators as C# does, so a comparison of a string with a number is an error
of the message at hand, not false. `None` is SQL's unknown: an absent property, or NULL. Whatever
touches an unknown is unknown.
"""

from __future__ import annotations

import math
import operator
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeGuard

from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.broker import descriptions
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.servicebus import names
from twinbus.servicebus.names import (
    DATE_MAX_MS,
    DATE_MIN_MS,
    EPOCH_TICKS,
    FOREVER_MS,
    TICKS_PER_MS,
)

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
"""System.Int64, in which Azure computes."""

TEXT_LENGTH_MAX = 65_536
"""Characters that a concatenation may reach: more would not fit into a message's properties."""

PATTERN_LENGTH_MAX = 1024
"""Characters of a LIKE pattern: as many as an expression may have, for one from a property too."""

WILDCARD_WORK_MAX = 2**22
"""Comparisons to find a piece with wildcards: some ten milliseconds. Other pieces need few."""

RULE_WORK_MAX = 2**25
"""Work of all rules of a subscription for one message: a unit is one comparison of a character, a
few nanoseconds, so this is a tenth of a second. Rules need no more than the right to listen, and
the messages are those of others. Two thousand rules with a short LIKE need a tenth of it."""

COMPILE_WORK = 300
"""Units for each character of a LIKE pattern that is not a literal of the rule."""

COPY_SHARE = 8
"""Characters that are read, searched for a plain text or copied in the time of one unit."""

LONG_TEXT = 256
"""Characters from which on the reading of a text counts."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RuleWork:
    """What the rules of one subscription have cost for one message."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units = 0

    def spend(self, units: int) -> None:
        self.units += units
        if self.units > RULE_WORK_MAX:
            raise FilterError(
                f"The rules of the subscription need more than {RULE_WORK_MAX} comparisons for this"
                " message; use fewer LIKEs, shorter patterns or shorter texts."
            )

    def read(self, text: Value) -> None:
        """Count a value that an operation reads or makes; only a long text costs something."""
        if type(text) is str and len(text) > LONG_TEXT:
            self.spend(len(text) // COPY_SHARE)


class FilterError(ArgumentInvalid):
    """A rule that cannot be evaluated against this message; its subscription decides what then."""


@dataclass(frozen=True, order=True, slots=True)
class Instant:
    """A point in time, unix milliseconds."""

    ms: int


@dataclass(frozen=True, order=True, slots=True)
class Duration:
    """A length of time in milliseconds."""

    ms: int


Matcher = Callable[[str, RuleWork], bool]
"""Whether a text is like the matcher's pattern."""

Value = bool | int | float | str | bytes | uuid.UUID | Instant | Duration | None


def to_value(raw: object) -> Value:
    """What an expression sees of a property or parameter; a type it cannot handle is unknown."""
    if type(raw) in _KINDS:
        return raw  # type: ignore[return-value]
    match raw:
        case Timestamp():
            return Instant(int(raw))
        case int():
            return int(raw)
        case float():
            return float(raw)
        case str():
            return str(raw)
        case datetime():
            aware = raw if raw.tzinfo else raw.replace(tzinfo=UTC)
            return Instant((aware - _EPOCH) // timedelta(milliseconds=1))
        case timedelta():
            return Duration(raw // timedelta(milliseconds=1))
        case Described():
            return _from_described(raw)
    return None


def _from_described(raw: Described) -> Value:
    """The .NET types that AMQP lacks travel as described values."""
    match str(raw.descriptor), raw.value:
        case names.TIME_SPAN, int(ticks):
            return Duration(ticks // TICKS_PER_MS)
        case ((names.DATE_TIME | descriptions.UTC_TICKS), int(ticks)):
            return Instant((ticks - EPOCH_TICKS) // TICKS_PER_MS)
        case "com.microsoft:uri", str(text):
            return str(text)  # It may be a symbol.
    return None


def to_amqp(value: Value) -> object:
    match value:
        case Instant(ms):
            return Timestamp(ms)
        case Duration(ms):
            return Described(Symbol(names.TIME_SPAN), ms * TICKS_PER_MS)
    return value


_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    uuid.UUID: "guid",
    bytes: "binary",
    Instant: "time",
    Duration: "duration",
    type(None): "null",
}


def kind_of(value: Value) -> str:
    """The name of a value's kind; two values can be compared when theirs are the same."""
    return _KINDS[type(value)]


def equals(left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    pair = _matched(left, right)
    if pair is None:
        raise _unfit("=", left, right)
    return bool(pair[0] == pair[1])


def same(left: Value, right: Value) -> bool:
    """Equality without errors, for correlation filters: another kind is simply another value."""
    if left is None or right is None:
        return left is right
    pair = _matched(left, right)
    return pair is not None and bool(pair[0] == pair[1])


def _matched(left: Value, right: Value) -> tuple[Value, Value] | None:
    if kind_of(left) == kind_of(right):
        return left, right
    # A guid is written as a string in every expression, there being no guid literal.
    if isinstance(left, uuid.UUID) and isinstance(right, str):
        return str(left), right.strip("{}").lower()
    if isinstance(left, str) and isinstance(right, uuid.UUID):
        return left.strip("{}").lower(), str(right)
    return None


_ORDERED = {"number", "string", "time", "duration"}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
}  # fmt: skip
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def orders(sign: str) -> Callable[[Value, Value], bool | None]:
    """The comparison written `sign`: < <= > >=."""
    holds = _COMPARISONS[sign]

    def compare(left: Value, right: Value) -> bool | None:
        if left is None or right is None:
            return None
        if kind_of(left) != kind_of(right) or kind_of(left) not in _ORDERED:
            raise _unfit(sign, left, right)
        return bool(holds(left, right))

    return compare


def _unfit(sign: str, left: Value, right: Value) -> FilterError:
    return FilterError(
        f"Operator {sign} cannot be applied to a {kind_of(left)} and a {kind_of(right)}."
    )


def arithmetic(sign: str, left: Value, right: Value) -> Value:
    """`left sign right` for + - * / %."""
    if left is None or right is None:
        return None
    if sign == "+" and (isinstance(left, str) or isinstance(right, str)):
        return _joined(to_text(left), to_text(right))
    if not (_is_number(left) and _is_number(right)):
        raise _unfit(sign, left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _integer(sign, left, right)
    return _floating(sign, float(left), float(right))


def signed(sign: str, value: Value) -> Value:
    """`+ value` or `- value`."""
    if value is None:
        return None
    if not _is_number(value):
        raise FilterError(f"Operator {sign} cannot be applied to a {kind_of(value)}.")
    if sign == "+":
        return value
    return -value if isinstance(value, float) else _in_range(-value)


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(sign: str, left: int, right: int) -> int:
    if sign in "/%":
        if right == 0:
            raise FilterError(f"Division by zero in {left} {sign} 0.")
        # C# truncates toward zero where Python floors.
        quotient = abs(left) // abs(right)
        quotient = -quotient if (left < 0) != (right < 0) else quotient
        return _in_range(quotient if sign == "/" else left - quotient * right)
    return _in_range(_OPERATORS[sign](left, right))


def _in_range(value: int) -> int:
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise FilterError("The result of an operation does not fit into 64 bits.")
    return value


def _floating(sign: str, left: float, right: float) -> float:
    if sign in _OPERATORS:
        return float(_OPERATORS[sign](left, right))
    if sign == "/":
        if right != 0.0:
            return left / right
        if left == 0.0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    if right == 0.0 or math.isinf(left):
        return math.nan
    return math.fmod(left, right)


def _joined(left: str, right: str) -> str:
    if len(left) + len(right) > TEXT_LENGTH_MAX:
        raise FilterError(
            f"A concatenation of {len(left) + len(right)} characters is over the limit of "
            f"{TEXT_LENGTH_MAX}."
        )
    return left + right


def to_text(value: Value) -> str:
    """A known value as text, the way C# prints it."""
    match value:
        case bool():
            return "True" if value else "False"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case bytes():
            raise FilterError("A binary property cannot be used as text.")
        case Instant(ms):
            return _time_text(ms)
        case Duration(ms):
            return _duration_text(ms)
    return str(value)


def _time_text(ms: int) -> str:
    # AMQP's times reach further than the calendar. They can be compared, but have no date.
    if not DATE_MIN_MS <= ms <= DATE_MAX_MS:
        raise FilterError(
            f"A time of {ms} ms since 1970 cannot be used as text: it is not in the years 1 to 9999"
            f" ({DATE_MIN_MS} to {DATE_MAX_MS} ms)."
        )
    return (_EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _duration_text(ms: int) -> str:
    if abs(ms) > FOREVER_MS:
        raise FilterError(
            f"A duration of {ms} ms cannot be used as text: the longest is {FOREVER_MS} ms."
        )
    return str(timedelta(milliseconds=ms))


def like(text: Value, pattern: Value, escape: Value, work: RuleWork) -> bool | None:
    if text is None or pattern is None or escape is None:
        return None
    for operand in (text, pattern, escape):
        if not isinstance(operand, str):
            raise FilterError(f"LIKE needs strings, not a {kind_of(operand)}.")
    pattern = str(pattern)
    work.spend(COMPILE_WORK * len(pattern))
    return like_pattern(pattern, str(escape))(str(text), work)


@lru_cache(maxsize=512)
def like_pattern(pattern: str, escape: str) -> Matcher:
    """A matcher for one LIKE pattern; `FilterError` if pattern or escape is malformed.

    The pattern is cut at its percent signs and the pieces are found from left to right, each as
    early as it can be: no backtracking.
    """
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise FilterError(
            f"A LIKE pattern has {len(pattern)} characters, at most {PATTERN_LENGTH_MAX}."
        )
    head, *rest = [_Piece(items) for items in _cut(pattern, escape)]
    if not rest:
        return lambda text, _: len(text) == head.length and head.is_at(text, 0)
    *middle, tail = rest

    def matches(text: str, work: RuleWork) -> bool:
        if not head.is_at(text, 0):
            return False
        end = head.length
        for piece in middle:
            end = piece.end_after(text, end, work)
            if end < 0:
                return False
        start = len(text) - tail.length
        return start >= end and tail.is_at(text, start)

    return matches


class _Piece:
    """Characters of a pattern that stand side by side; each takes one character of the text."""

    __slots__ = ("_regex", "_text", "length")

    def __init__(self, items: list[str | None]) -> None:
        """None stands for any character."""
        self.length = len(items)
        self._text = "".join(item or "_" for item in items)
        self._regex = None
        if None in items:
            source = "".join("." if item is None else re.escape(item) for item in items)
            self._regex = re.compile(source, re.DOTALL)

    def is_at(self, text: str, start: int) -> bool:
        if self._regex is None:
            return text.startswith(self._text, start)
        return self._regex.match(text, start) is not None

    def end_after(self, text: str, start: int, work: RuleWork) -> int:
        """Where the piece ends when it is found at `start` or later; -1: nowhere."""
        if self._regex is None:
            # Linear, whatever the piece: CPython searches a long text for it in two ways.
            work.spend(len(text) // COPY_SHARE)
            found = text.find(self._text, start)
            return found + self.length if found >= 0 else -1
        if len(text) * self.length > WILDCARD_WORK_MAX:
            raise FilterError(
                f"LIKE would compare {self.length} characters with wildcards at each of"
                f" {len(text)} places; shorten the pattern or the text."
            )
        work.spend(len(text) * self.length)
        match = self._regex.search(text, start)
        return match.end() if match is not None else -1


def _cut(pattern: str, escape: str) -> list[list[str | None]]:
    """The pieces between the pattern's percent signs; None stands for an underscore."""
    if len(escape) > 1:
        raise FilterError(f"ESCAPE takes one character, not {escape!r}.")
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            literal = next(characters, None)
            if literal is None:
                raise FilterError(f"The LIKE pattern {pattern!r} ends in its escape character.")
            pieces[-1].append(literal)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces
