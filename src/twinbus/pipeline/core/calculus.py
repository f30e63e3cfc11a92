"""The `Calculus` of values in memory: rules with these need no Spark."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any


class PlainCalculus:
    """Every condition is a bool."""

    def no(self, condition: Any) -> bool:
        return not condition

    def choose(self, *cases: tuple[Any, Any], otherwise: Any = None) -> Any:
        return next((value for condition, value in cases if condition), otherwise)

    def is_known(self, value: Any) -> bool:
        return value is not None

    def known(self, *values: Any) -> Any:
        return next((value for value in values if value is not None), None)

    def one_of(self, value: Any, words: Collection[str]) -> bool:
        return value in words

    def least(self, *numbers: Any) -> Any:
        return min(numbers)

    def greatest(self, *numbers: Any) -> Any:
        return max(numbers)

    def share(self, number: Any, parts: Any) -> Any:
        return number // parts

    def begins(self, text: Any, words: str) -> bool:
        return text is not None and text.startswith(words)

    def ends(self, text: Any, words: str) -> bool:
        return text is not None and text.endswith(words)

    def contains(self, text: Any, words: str) -> bool:
        return text is not None and words in text

    def before(self, text: Any, mark: str) -> Any:
        return None if text is None else text.partition(mark)[0]

    def lower(self, text: Any) -> Any:
        return None if text is None else text.lower()

    def without(self, text: Any, pattern: str) -> Any:
        return None if text is None else _compiled(pattern).sub("", text)


@lru_cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # As in Java, whose case-insensitive patterns are about ASCII.
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


PLAIN: PlainCalculus = PlainCalculus()
