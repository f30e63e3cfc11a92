"""The `Calculus` of Spark's columns, for the rules of `core.rules`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from twinbus.pipeline import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column


class ColumnCalculus:
    """Conditions are columns of booleans without null."""

    def no(self, condition: Column) -> Column:
        return ~condition

    def choose(self, *cases: tuple[Column, Any], otherwise: Any = None) -> Column:
        (condition, value), *more = cases
        chosen = F.when(condition, F.lit(value))
        for condition, value in more:
            chosen = chosen.when(condition, F.lit(value))
        return chosen.otherwise(F.lit(otherwise))

    def is_known(self, value: Column) -> Column:
        return value.isNotNull()

    def known(self, *values: Any) -> Column:
        return F.coalesce(*map(F.lit, values))

    def one_of(self, value: Column, words: Collection[str]) -> Column:
        return value.isin(*words)

    def least(self, *numbers: Any) -> Column:
        return F.least(*map(F.lit, numbers))

    def greatest(self, *numbers: Any) -> Column:
        return F.greatest(*map(F.lit, numbers))

    def share(self, number: Column, parts: Column) -> Column:
        return F.floor(number / parts)

    def begins(self, text: Column, words: str) -> Column:
        return F.coalesce(text.startswith(words), F.lit(False))

    def ends(self, text: Column, words: str) -> Column:
        return F.coalesce(text.endswith(words), F.lit(False))

    def contains(self, text: Column, words: str) -> Column:
        return F.coalesce(F.contains(text, F.lit(words)), F.lit(False))

    def before(self, text: Column, mark: str) -> Column:
        return F.substring_index(text, mark, 1)

    def lower(self, text: Column) -> Column:
        return F.lower(text)

    def without(self, text: Column, pattern: str) -> Column:
        return F.regexp_replace(text, f"(?i){pattern}", "")


COLUMNS: Final = ColumnCalculus()


class ColumnsByName:
    """The columns of a row, as attributes: what rules read of a message."""

    def __getattr__(self, name: str) -> Column:
        return F.col(name)


MESSAGE_COLUMNS: Final[Any] = ColumnsByName()
