"""The text and the values of a Config.json, each mistake with its path in the file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from twinbus.broker.refusals import Refusal

MISTAKES_MAX: Final = 20
"""Mistakes that are reported at once."""


class ConfigMistakes(ValueError):
    """What is wrong in the file, a line for each mistake."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


_LOOSE: Final = re.compile(
    r'"(?:\\.|[^"\\])*+"'  # a text, in which nothing is a comment
    r"|//[^\n]*|/\*.*?\*/"
    r"|,(?=(?:\s|//[^\n]*\n|/\*.*?\*/)*+[}\]])",
    re.DOTALL,
)


def _strict(text: str) -> str:
    """The text without comments and trailing commas, which .NET's reader of settings allows.

    Blanks stand for them, so that errors name the right line and column.
    """

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _LOOSE.sub(blank, text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key in made if sum(key == other for other, _ in pairs) > 1)
        raise ConfigMistakes([f"the key {twice!r} occurs twice in one object"])
    return made


def document_of(text: str) -> object:
    """The value of the text; ConfigMistakes if it is no JSON."""
    try:
        return json.loads(_strict(text), object_pairs_hook=_once)
    except ConfigMistakes:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigMistakes([f"this is not JSON: {error}"]) from None


class ConfigValues:
    """Takes values of the expected kind, and notes what is wrong."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []

    def require_none(self) -> None:
        """Raise ConfigMistakes if there was a mistake."""
        if self.mistakes:
            more = len(self.mistakes) - MISTAKES_MAX
            rest = [f"and {more} more"] if more > 0 else []
            raise ConfigMistakes(self.mistakes[:MISTAKES_MAX] + rest)

    def wrong(self, at: str, text: str) -> None:
        self.mistakes.append(f"{at}: {text}")

    def mapping(self, value: object, at: str, known: str) -> dict[str, Any]:
        """An object with no other keys than the known ones."""
        if not isinstance(value, dict):
            self.wrong(at or "the file", f"must be an object, not {kind_of(value)}")
            return {}
        names = known.split()
        for key in value:
            if key in names:
                continue
            alike = next((name for name in names if name.lower() == key.lower()), None)
            advice = f"write {alike}" if alike else f"known: {', '.join(names)}"
            self.wrong(f"{at}.{key}".strip("."), f"is unknown here; {advice}")
        return value

    def items(self, value: object, at: str) -> list[tuple[str, Any]]:
        """The elements of a list, each with its place."""
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(at, f"must be a list, not {kind_of(value)}")
            return []
        return [(f"{at}[{index}]", one) for index, one in enumerate(value)]

    def text(self, value: object, at: str) -> str:
        if isinstance(value, str) and value:
            return value
        problem = "is missing" if value is None else f"must be a text, not {kind_of(value)}"
        self.wrong(at, "must not be empty" if value == "" else problem)
        return ""

    def checked(self, at: str, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except Refusal as refusal:
            self.wrong(at, refusal.description)
            return None


def kind_of(value: object) -> str:
    kinds: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: str(value).lower(),
        type(None): "null",
    }
    return kinds.get(type(value), "a number")
