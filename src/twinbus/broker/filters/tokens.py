"""The words of a rule expression, each with the place it stands at."""

from __future__ import annotations

import re
from dataclasses import dataclass

from twinbus.broker.refusals import ArgumentInvalid

EXPRESSION_LENGTH_MAX = 1024
"""Characters of a filter or action; Azure's limit, which also bounds the parser's work."""

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
    """The tokens of `expression`, the last of kind "end"; `ArgumentInvalid` at what is none."""
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
        case "string":
            return SqlToken("string", text[1:-1].replace("''", "'"), position)
        case "bracketed":
            return SqlToken("quoted", text[1:-1].replace("]]", "]"), position)
        case "doubled":
            return SqlToken("quoted", text[1:-1].replace('""', '"'), position)
        case "parameter":
            return SqlToken("parameter", text[1:].lower(), position)
    return SqlToken(group, text, position)


def refused(expression: str, position: int, expected: str, found: str) -> ArgumentInvalid:
    """The refusal of an expression: where, what was expected, and what stands there."""
    return ArgumentInvalid(
        f"At position {position} of the rule expression {expression!r}: expected {expected}, "
        f"found {found}."
    )


class TokenStream:
    """An expression's tokens, taken one after the other."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._next = 0

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
        """Take this operator or keyword, or refuse the expression."""
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
