"""What rule expressions compile to: closures over a scope, and how they combine.

Conditions follow SQL's truth tables: True, False, and None for unknown.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from twinbus.broker.filters.values import (
    FilterError,
    Matcher,
    RuleWork,
    Value,
    equals,
    kind_of,
    like,
    orders,
)

SYSTEM_PROPERTIES = {
    name.lower(): name
    for name in (
        "ContentType", "CorrelationId", "Label", "MessageId", "PartitionKey", "ReplyTo",
        "ReplyToSessionId", "ScheduledEnqueueTimeUtc", "SessionId", "Size", "Subject",
        "TimeToLive", "To", "ViaPartitionKey",
    )
}  # fmt: skip
"""By lower-case name: those a message has when a topic's rules see it."""

PROPERTY_FIELDS = {
    "contenttype": "content_type",
    "correlationid": "correlation_id",
    "label": "subject",
    "messageid": "message_id",
    "replyto": "reply_to",
    "replytosessionid": "reply_to_group_id",
    "sessionid": "group_id",
    "subject": "subject",
    "to": "to",
}
"""System properties that are fields of the AMQP properties section: actions may set these."""


class FilterScope(Protocol):
    """What an expression may read."""

    def user(self, name: str) -> tuple[bool, Value]:
        """Whether the application property exists, and its value."""

    def system(self, name: str) -> Value:
        """A system property by its lower-case name."""

    def parameter(self, name: str) -> Value:
        """A parameter by its lower-case name without the @."""

    work: RuleWork
    """What the rules have cost so far."""

    def new_id(self) -> uuid.UUID:
        """A fresh id, for newid()."""


Expression = Callable[[FilterScope], Value]
Condition = Callable[[FilterScope], "bool | None"]


class Property(NamedTuple):
    """A property reference; the name of a system property is in lower case."""

    is_system: bool
    name: str


def series(terms: Sequence[Condition], *, decisive: bool) -> Condition:
    """OR (`decisive` is true) or AND: the first such term decides; else unknown if any term is."""

    def test(scope: FilterScope) -> bool | None:
        result: bool | None = not decisive
        for term in terms:
            outcome = term(scope)
            if outcome is decisive:
                return decisive
            if outcome is None:
                result = None
        return result

    return test


def negation(term: Condition) -> Condition:
    """NOT."""

    def test(scope: FilterScope) -> bool | None:
        outcome = term(scope)
        return None if outcome is None else not outcome

    return test


def truth(run: Expression) -> Condition:
    """A value used as a condition: a boolean property, parameter or literal."""

    def test(scope: FilterScope) -> bool | None:
        value = run(scope)
        if value is None or isinstance(value, bool):
            return value
        raise FilterError(f"A condition cannot be a {kind_of(value)}.")

    return test


def comparison(sign: str, left: Expression, right: Expression) -> Condition:
    """= <> != < > <= >=."""
    if sign == "=":
        return lambda scope: equals(left(scope), right(scope))
    if sign in ("<>", "!="):
        return negation(lambda scope: equals(left(scope), right(scope)))
    compare = orders(sign)
    return lambda scope: compare(left(scope), right(scope))


def null_test(operand: Expression, *, wanted: bool) -> Condition:
    """IS NULL when `wanted`, else IS NOT NULL; never unknown."""
    return lambda scope: (operand(scope) is None) is wanted


def membership(subject: Expression, choices: Sequence[Expression]) -> Condition:
    """IN."""

    def test(scope: FilterScope) -> bool | None:
        value = subject(scope)
        if value is None:
            return None
        result: bool | None = False
        for choice in choices:
            equal = equals(value, choice(scope))
            if equal:
                return True
            if equal is None:
                result = None
        return result

    return test


def likeness(subject: Expression, pattern: Expression, escape: Expression | None) -> Condition:
    """LIKE."""
    if escape is None:
        return lambda scope: like(subject(scope), pattern(scope), "", scope.work)
    return lambda scope: like(subject(scope), pattern(scope), escape(scope), scope.work)


def literal_likeness(subject: Expression, matches: Matcher) -> Condition:
    """LIKE with a pattern that stands in the rule: its matcher is made once."""

    def test(scope: FilterScope) -> bool | None:
        text = subject(scope)
        if text is None:
            return None
        if not isinstance(text, str):
            raise FilterError(f"LIKE needs strings, not a {kind_of(text)}.")
        return matches(text, scope.work)

    return test


def existence(target: Property) -> Condition:
    """EXISTS: a null application property exists, an absent one does not."""
    if target.is_system:
        return lambda scope: scope.system(target.name) is not None
    return lambda scope: scope.user(target.name)[0]


def reader(target: Property) -> Expression:
    name = target.name
    if target.is_system:
        return lambda scope: scope.system(name)
    return lambda scope: scope.user(name)[1]


def named_reader(which: Expression) -> Expression:
    """property(name): the value of the property that an expression names."""

    def run(scope: FilterScope) -> Value:
        name = which(scope)
        if name is None:
            return None
        if not isinstance(name, str):
            raise FilterError(f"property() needs a name, not a {kind_of(name)}.")
        prefix, _, rest = name.partition(".")
        if prefix.lower() == "sys" and rest.lower() in SYSTEM_PROPERTIES:
            return scope.system(rest.lower())
        return scope.user(rest if prefix.lower() == "user" and rest else name)[1]

    return run
