"""Rule expressions compiled: SQL conditions of filters, SET and REMOVE statements of actions.

    condition  := and_term { OR and_term }             operand := term { (+ | -) term }
    and_term   := not_term { AND not_term }            term    := factor { (* | / | %) factor }
    not_term   := { NOT } predicate                    factor  := { + | - } atom
    predicate  := operand [ comparison ]               atom    := literal | property | @parameter
    comparison := = <> != < > <= >= operand                      | EXISTS(property) | newid()
                | IS [NOT] NULL                                  | property(operand) | p(operand)
                | [NOT] IN (operand, ...)                        | ( condition )
                | [NOT] LIKE operand [ESCAPE operand]
    actions    := { SET property = operand | REMOVE property } separated by ; or , or nothing

A recursive descent parser that returns closures, so an expression is read once and then only
called. Chains (a OR b OR c) become loops, so the depth of a call is bounded by that of brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakValueDictionary

from twinbus.broker.descriptions import EXPRESSION_LENGTH_MAX
from twinbus.broker.filters.closures import (
    PROPERTY_FIELDS,
    SYSTEM_PROPERTIES,
    Condition,
    Expression,
    FilterScope,
    Property,
    comparison,
    existence,
    likeness,
    literal_likeness,
    membership,
    named_reader,
    negation,
    null_test,
    reader,
    series,
    truth,
)
from twinbus.broker.filters.values import (
    INTEGER_MAX,
    FilterError,
    Matcher,
    Value,
    arithmetic,
    like_pattern,
    signed,
)
from twinbus.broker.refusals import ArgumentInvalid

KEYWORDS = frozenset("AND OR NOT LIKE ESCAPE IN IS NULL EXISTS TRUE FALSE SET REMOVE".split())


@dataclass(frozen=True, slots=True)
class SqlToken:
    """One word: a keyword in capitals, an operator, a name, or the content of a literal."""

    kind: str
    """keyword, name, quoted (a name in brackets or double quotes), string, number, parameter,
    operator or end."""
    text: str
    position: int
    """Of its first character, counted from 1."""

    def shown(self) -> str:
        """The token as an error text names it."""
        return "the end" if self.kind == "end" else repr(self.text)


_PATTERN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*)
    | (?P<parameter>@\w+)
    | (?P<string>'(?:[^']|'')*')
    | (?P<bracketed>\[(?:[^\]]|\]\])+\])
    | (?P<doubled>"(?:[^"]|"")+")
    | (?P<operator><>|!=|<=|>=|[=<>+\-*/%(),.;])
    """,
    re.VERBOSE,
)
_UNCLOSED = {"'": "a string's closing '", '"': 'a closing "', "[": "a closing ]"}


def tokenize(expression: str) -> list[SqlToken]:
    """The tokens of `expression`, the last of kind "end"; `ArgumentInvalid` at anything else."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ArgumentInvalid(
            f"The rule expression has {len(expression)} characters, the limit is "
            f"{EXPRESSION_LENGTH_MAX}; split it into several rules."
        )
    tokens: list[SqlToken] = []
    at = 0
    while at < len(expression):
        found = _PATTERN.match(expression, at)
        if found is None:
            character = expression[at]
            expected = _UNCLOSED.get(character, "an operator, a name or a literal")
            raise refused(expression, at + 1, expected, repr(character))
        if found.lastgroup != "space":
            tokens.append(_token(str(found.lastgroup), found.group(), at + 1))
        at = found.end()
    tokens.append(SqlToken("end", "", len(expression) + 1))
    return tokens


def _token(group: str, text: str, position: int) -> SqlToken:
    match group:
        case "name" if text.upper() in KEYWORDS:
            return SqlToken("keyword", text.upper(), position)
        case "string" | "bracketed" | "doubled":
            # A closing quote that belongs to the text is written twice.
            content = text[1:-1].replace(2 * text[-1], text[-1])
            return SqlToken("string" if group == "string" else "quoted", content, position)
        case "parameter":
            return SqlToken("parameter", text[1:].lower(), position)
    return SqlToken(group, text, position)


def refused(expression: str, position: int, expected: str, found: str) -> ArgumentInvalid:
    """The refusal of an expression: where, what was expected, and what stands there."""
    return ArgumentInvalid(
        f"At position {position} of the rule expression {expression!r}: expected {expected}, "
        f"found {found}."
    )


NESTING_MAX = 32
"""Brackets, NOTs and signs inside each other; keeps parser and closures off the recursion limit."""

STATEMENTS_MAX = 32
"""Of one action; Azure's limit."""


class Statement(NamedTuple):
    """SET target = value, or REMOVE target when `value` is None."""

    target: Property
    value: Expression | None


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CompiledFilter:
    """A filter's condition; only True takes the message, unknown does not."""

    test: Condition
    parameters: frozenset[str]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CompiledAction:
    statements: tuple[Statement, ...]
    parameters: frozenset[str]


_filters: WeakValueDictionary[str, CompiledFilter] = WeakValueDictionary()
_actions: WeakValueDictionary[str, CompiledAction] = WeakValueDictionary()
"""By expression, for as long as a subscription holds them: 150 KB each, counted by its quota."""


def compile_filter(expression: str) -> CompiledFilter:
    """The condition in `expression`; `ArgumentInvalid` with the position if it is not valid."""
    found = _filters.get(expression)
    if found is None:
        parser = _Parser(expression)
        test = parser.condition()
        parser.expect_end("AND, OR or the end")
        found = _filters[expression] = CompiledFilter(test, frozenset(parser.parameters))
    return found


def compile_action(expression: str) -> CompiledAction:
    """The statements in `expression`; `ArgumentInvalid` with the position if not valid."""
    found = _actions.get(expression)
    if found is None:
        parser = _Parser(expression)
        statements = tuple(parser.statements())
        found = _actions[expression] = CompiledAction(statements, frozenset(parser.parameters))
    return found


class _Node(NamedTuple):
    run: Expression
    at: SqlToken
    kind: str
    """value, condition, or either (a property may hold a boolean)."""
    literal: Value = None


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._next = 0
        self._depth = 0
        self.parameters: set[str] = set()

    @property
    def token(self) -> SqlToken:
        return self._tokens[self._next]

    def advance(self) -> SqlToken:
        token = self.token
        self._next += 1
        return token

    def is_next(self, *texts: str) -> bool:
        token = self.token
        return token.kind in ("operator", "keyword") and token.text in texts

    def is_call(self) -> bool:
        """Whether a bracket opens behind the next token (which is not the end)."""
        behind = self._tokens[self._next + 1]
        return behind.kind == "operator" and behind.text == "("

    def take(self, *texts: str) -> SqlToken | None:
        return self.advance() if self.is_next(*texts) else None

    def expect(self, text: str) -> SqlToken:
        token = self.take(text)
        if token is None:
            raise self.refused(text)
        return token

    def expect_end(self, expected: str) -> None:
        """Refuse the expression unless it ends here; `expected` is what could stand here."""
        if self.token.kind != "end":
            raise self.refused(expected)

    def refused(self, expected: str, token: SqlToken | None = None) -> ArgumentInvalid:
        """The refusal at `token`, by default the next one."""
        at = token or self.token
        return refused(self._expression, at.position, expected, at.shown())

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self.refused(f"at most {NESTING_MAX} levels of nesting")

    # Conditions.

    def condition(self) -> Condition:
        return self._as_condition(self._or())

    def _or(self) -> _Node:
        return self._series("OR", self._and)

    def _and(self) -> _Node:
        return self._series("AND", self._not)

    def _series(self, word: str, part: Callable[[], _Node]) -> _Node:
        first = part()
        if not self.is_next(word):
            return first
        terms = [self._as_condition(first)]
        while self.take(word):
            terms.append(self._as_condition(part()))
        return _Node(series(terms, decisive=word == "OR"), first.at, "condition")

    def _not(self) -> _Node:
        token = self.take("NOT")
        if token is None:
            return self._predicate()
        self._deeper()
        term = self._as_condition(self._not())
        self._depth -= 1
        return _Node(negation(term), token, "condition")

    def _as_condition(self, node: _Node) -> Condition:
        if node.kind == "value":
            raise self.refused("a condition", node.at)
        return truth(node.run)

    def _predicate(self) -> _Node:
        left = self._operand()
        if left.kind == "condition":
            return left
        subject = left.run
        test: Condition
        if sign := self.take("=", "<>", "!=", "<", ">", "<=", ">="):
            test = comparison(sign.text, subject, self._value(self._operand()))
        elif self.take("IS"):
            is_wanted = self.take("NOT") is None
            self.expect("NULL")
            test = null_test(subject, wanted=is_wanted)
        elif self.take("NOT"):
            if not self.is_next("IN", "LIKE"):
                raise self.refused("IN or LIKE")
            test = negation(self._in_or_like(subject))
        elif self.is_next("IN", "LIKE"):
            test = self._in_or_like(subject)
        else:
            return left
        return _Node(test, left.at, "condition")

    def _in_or_like(self, subject: Expression) -> Condition:
        if self.take("LIKE"):
            pattern = self._operand()
            escape = self._operand() if self.take("ESCAPE") else None
            matches = self._literal_pattern(pattern, escape)
            if matches is not None:
                return literal_likeness(subject, matches)
            return likeness(subject, self._value(pattern), self._value(escape) if escape else None)
        self.expect("IN")
        self.expect("(")
        choices = [self._value(self._operand())]
        while self.take(","):
            choices.append(self._value(self._operand()))
        self.expect(")")
        return membership(subject, choices)

    def _literal_pattern(self, pattern: _Node, escape: _Node | None) -> Matcher | None:
        """The matcher of a pattern that stands in the rule; None if only messages have it.

        Refuses at creation what every message would trip over.
        """
        for node in filter(None, (pattern, escape)):
            if node.literal is not None and not isinstance(node.literal, str):
                raise self.refused("a string", node.at)
        symbol = escape.literal if escape else ""
        if isinstance(pattern.literal, str) and isinstance(symbol, str):
            try:
                return like_pattern(pattern.literal, symbol)
            except FilterError as error:
                raise ArgumentInvalid(
                    f"At position {pattern.at.position} of the rule expression: {error.description}"
                ) from None
        return None

    # Values.

    def _value(self, node: _Node) -> Expression:
        if node.kind == "condition":
            raise self.refused("a value, not a condition", node.at)
        return node.run

    def _operand(self) -> _Node:
        return self._chain(self._term, "+", "-")

    def _term(self) -> _Node:
        return self._chain(self._factor, "*", "/", "%")

    def _chain(self, part: Callable[[], _Node], *signs: str) -> _Node:
        first = part()
        steps: list[tuple[str, Expression]] = []
        while token := self.take(*signs):
            steps.append((token.text, self._value(part())))
        if not steps:
            return first
        start = self._value(first)

        def run(scope: FilterScope) -> Value:
            value = start(scope)
            for sign, operand in steps:
                value = arithmetic(sign, value, operand(scope))
                scope.work.read(value)
            return value

        return _Node(run, first.at, "value")

    def _factor(self) -> _Node:
        token = self.take("+", "-")
        if token is None:
            return self._atom()
        self._deeper()
        operand = self._value(self._factor())
        self._depth -= 1
        sign = token.text
        return _Node(lambda scope: signed(sign, operand(scope)), token, "value")

    def _atom(self) -> _Node:
        token = self.token
        match token.kind, token.text:
            case "number", _:
                return self._literal(self._number(token), "value")
            case "string", text:
                return self._literal(text, "value")
            case "keyword", "TRUE" | "FALSE":
                return self._literal(token.text == "TRUE", "either")
            case "keyword", "NULL":
                return self._literal(None, "either")
            case "keyword", "EXISTS":
                return self._exists()
            case "operator", "(":
                return self._bracketed()
            case "parameter", name:
                self.advance()
                self.parameters.add(name)
                return _Node(lambda scope: scope.parameter(name), token, "either")
            case "name", _ if self.is_call():
                return self._function()
            case (("name" | "quoted"), _):
                return _Node(reader(self._property()), token, "either")
        raise self.refused("a value, a property or (")

    def _literal(self, value: Value, kind: str) -> _Node:
        return _Node(lambda _scope: value, self.advance(), kind, literal=value)

    def _number(self, token: SqlToken) -> Value:
        if not token.text.isdigit():
            return float(token.text)
        value = int(token.text)
        if value > INTEGER_MAX:
            raise self.refused(f"an integer up to {INTEGER_MAX}", token)
        return value

    def _bracketed(self) -> _Node:
        opening = self.advance()
        self._deeper()
        inner = self._or()
        self.expect(")")
        self._depth -= 1
        return _Node(inner.run, opening, inner.kind, inner.literal)

    def _exists(self) -> _Node:
        token = self.advance()
        self.expect("(")
        target = self._property()
        self.expect(")")
        return _Node(existence(target), token, "condition")

    def _function(self) -> _Node:
        token = self.advance()
        self.expect("(")
        name = token.text.lower()
        if name == "newid":
            self.expect(")")
            return _Node(lambda scope: scope.new_id(), token, "value")
        if name not in ("property", "p"):
            raise self.refused("newid(), property(name) or p(name)", token)
        self._deeper()
        which = self._value(self._operand())
        self._depth -= 1
        self.expect(")")
        return _Node(named_reader(which), token, "either")

    def _property(self) -> Property:
        first = self._name("a property name")
        if not self.take("."):
            return Property(is_system=False, name=first.text)
        second = self._name("a property name after the dot")
        match first.text.lower():
            case "user":
                return Property(is_system=False, name=second.text)
            case "sys":
                if second.text.lower() not in SYSTEM_PROPERTIES:
                    known = ", ".join(sorted(SYSTEM_PROPERTIES.values()))
                    raise self.refused(f"a system property ({known})", second)
                return Property(is_system=True, name=second.text.lower())
        raise self.refused("the scope sys or user (or [a name with dots])", first)

    def _name(self, expected: str) -> SqlToken:
        if self.token.kind in ("name", "quoted"):
            return self.advance()
        raise self.refused(expected)

    # Actions.

    def statements(self) -> list[Statement]:
        statements = [self._statement()]
        while True:
            while self.take(";", ","):
                pass
            if self.token.kind == "end":
                return statements
            if len(statements) == STATEMENTS_MAX:
                raise self.refused(f"at most {STATEMENTS_MAX} statements")
            statements.append(self._statement())

    def _statement(self) -> Statement:
        verb = self.take("SET", "REMOVE")
        if verb is None:
            raise self.refused("SET or REMOVE")
        at = self.token
        target = self._property()
        if target.is_system and target.name not in PROPERTY_FIELDS:
            known = ", ".join(sorted(SYSTEM_PROPERTIES[name] for name in PROPERTY_FIELDS))
            raise self.refused(f"a system property that an action may change ({known})", at)
        if verb.text == "REMOVE":
            return Statement(target, None)
        self.expect("=")
        return Statement(target, self._value(self._operand()))
