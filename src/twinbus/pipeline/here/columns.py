"""Columns of rows in this process: the functions of Spark that the tables use, as Spark has them.

A column computes a list, one value for each row, from the lists of other columns. Null is None: an
operation on it gives None, conditions are true, false or unknown as in SQL, aggregates leave it
out. An aggregate has a value for each group of rows, or for each row that sees a `Window`.

Only what tables need is here, and `functions` has what makes columns.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import reduce
from itertools import accumulate, groupby
from typing import Any, Final, Protocol

Values = Sequence[Any]
Fold = Callable[[Values], Any]
Step = Callable[[Any, Any], Any]


class Sight(Protocol):
    """What a column is computed from: rows, or groups of rows."""

    memo: dict[int, tuple[Any, Values]]
    """Computed columns by their identity, each with its values."""

    def __len__(self) -> int: ...

    def values(self, name: str) -> Values: ...


class Column:
    """One value for each row, or for each group of rows."""

    __hash__ = object.__hash__

    def __init__(
        self,
        compute: Callable[[Any], Values],
        name: str = "",
        *,
        equal: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`equal` are pairs of columns that are equal where this condition holds."""
        self._compute, self.name, self.equal = compute, name, equal

    def on(self, sight: Sight) -> Values:
        """Return the values, computed once for each sight."""
        known = sight.memo.get(id(self))
        if known is None:
            # With the column: its identity stays its own.
            known = sight.memo[id(self)] = self, self._compute(sight)
        return known[1]

    def alias(self, *names: str) -> Column:
        return Column(self.on, names[0], equal=self.equal)

    def over(self, window: Window) -> Column:
        raise TypeError(f"{self.name or 'this column'} is no function of a window")

    def cast(self, kind: str) -> Column:
        return each(_CASTS[kind], self)

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        column = lit(other)
        are_plain = isinstance(self, OfRows) and isinstance(column, OfRows)
        names = ((self.name, column.name),) if are_plain else ()
        return Column(each(operator.eq, self, column).on, equal=names)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return each(operator.ne, self, other)

    def __lt__(self, other: object) -> Column:
        return each(operator.lt, self, other)

    def __le__(self, other: object) -> Column:
        return each(operator.le, self, other)

    def __gt__(self, other: object) -> Column:
        return each(operator.gt, self, other)

    def __ge__(self, other: object) -> Column:
        return each(operator.ge, self, other)

    def __add__(self, other: object) -> Column:
        return each(operator.add, self, other)

    def __radd__(self, other: object) -> Column:
        return each(operator.add, other, self)

    def __sub__(self, other: object) -> Column:
        return each(operator.sub, self, other)

    def __mul__(self, other: object) -> Column:
        return each(operator.mul, self, other)

    def __truediv__(self, other: object) -> Column:
        return each(operator.truediv, self, other)

    def __neg__(self) -> Column:
        return each(operator.neg, self)

    def __invert__(self) -> Column:
        return each(operator.not_, self)

    def __and__(self, other: object) -> Column:
        return Column(each(_and, self, other, nulls=True).on, equal=self.equal + lit(other).equal)

    def __or__(self, other: object) -> Column:
        return each(_or, self, other, nulls=True)

    def __getitem__(self, key: object) -> Column:
        return each(dict.get, self, key)

    def isNull(self) -> Column:  # noqa: N802 - Spark's name, here and below
        return each(lambda value: value is None, self, nulls=True)

    def isNotNull(self) -> Column:  # noqa: N802
        return each(lambda value: value is not None, self, nulls=True)

    def isin(self, *values: object) -> Column:
        if any(isinstance(value, Column) for value in values):
            return reduce(operator.or_, (self == value for value in values))
        words = frozenset(values)
        return each(words.__contains__, self)

    def between(self, least: object, most: object) -> Column:
        return (self >= least) & (self <= most)

    def startswith(self, words: str) -> Column:
        return each(str.startswith, self, words)

    def endswith(self, words: str) -> Column:
        return each(str.endswith, self, words)

    def rlike(self, pattern: str) -> Column:
        return each(lambda text: re.search(pattern, text, re.ASCII) is not None, self)

    def bitwiseAND(self, other: object) -> Column:  # noqa: N802
        return each(operator.and_, self, other)

    def bitwiseOR(self, other: object) -> Column:  # noqa: N802
        return each(operator.or_, self, other)

    def desc(self) -> Order:
        return Order(self, descending=True, nulls_last=True)

    def asc_nulls_last(self) -> Order:
        return Order(self, nulls_last=True)


class Order:
    """A column by which rows are ordered."""

    def __init__(
        self, column: Column, *, descending: bool = False, nulls_last: bool = False
    ) -> None:
        self._column, self._descending, self._nulls_last = column, descending, nulls_last

    def key(self, rows: Sight) -> tuple[Callable[[int], Any], bool]:
        """Return a key of the places of rows, and whether it is in descending order."""
        values = self._column.on(rows)
        # False is before True, and after it in descending order.
        null = self._nulls_last is not self._descending
        return (
            lambda place: (null, ()) if values[place] is None else (not null, values[place]),
            self._descending,
        )


def order_of(column: str | Column | Order) -> Order:
    return column if isinstance(column, Order) else Order(named(column))


def in_order(rows: Sight, places: Iterable[int], orders: Sequence[Order]) -> list[int]:
    """Return places of rows in order."""
    found = list(places)
    for order in reversed(orders):
        key, descending = order.key(rows)
        found.sort(key=key, reverse=descending)
    return found


class Aggregate(Column):
    """One value for all rows of a group, or for those that a row sees."""

    def __init__(self, operand: Column, fold: Fold, step: Step | None = None) -> None:
        """`fold` takes the values that are not null; `step` adds one to the result so far."""
        super().__init__(self._of_groups)
        self._operand, self._fold, self._step = operand, fold, step

    def _of_groups(self, groups: Any) -> Values:
        values = self._operand.on(groups.rows)
        return [self._folded(values, places) for places in groups.members]

    def _folded(self, values: Values, places: Iterable[int]) -> Any:
        return self._fold([one for place in places if (one := values[place]) is not None])

    def over(self, window: Window) -> Column:
        def compute(rows: Sight) -> Values:
            values, found = self._operand.on(rows), [None] * len(rows)
            for places, keys in window.partitions(rows):
                for place, value in zip(
                    places, self._seen(values, places, keys, window), strict=True
                ):
                    found[place] = value
            return found

        return Column(compute)

    def _seen(
        self, values: Values, places: Sequence[int], keys: Sequence[Any], window: Window
    ) -> Iterable[Any]:
        """Return the value that each row of a partition sees."""
        if not window.orders:
            return [self._folded(values, places)] * len(places)
        assert self._step is not None
        so_far = list(accumulate((values[place] for place in places), _skipping(self._step)))
        if window.until is not None:
            return [None] * -window.until + so_far[: len(so_far) + window.until]
        # Rows that are equal in order see each other.
        sizes = [len([*of_key]) for _, of_key in groupby(keys)]
        ends = accumulate(sizes)
        return [so_far[end - 1] for size, end in zip(sizes, ends, strict=True) for _ in range(size)]


class ByPlace(Column):
    """A value by the place of a row in its partition."""

    def __init__(self, operand: Column, offset: int) -> None:
        super().__init__(lambda sight: [])
        self._operand, self._offset = operand, offset

    def over(self, window: Window) -> Column:
        def compute(rows: Sight) -> Values:
            values, found = self._operand.on(rows), [None] * len(rows)
            for places, _ in window.partitions(rows):
                for number, place in enumerate(places):
                    there = number + self._offset
                    if 0 <= there < len(places):
                        found[place] = values[places[there]]
            return found

        return Column(compute)


class RowNumber(Column):
    """The number of a row in its partition, from 1."""

    def over(self, window: Window) -> Column:
        def compute(rows: Sight) -> Values:
            found = [0] * len(rows)
            for places, _ in window.partitions(rows):
                for number, place in enumerate(places, 1):
                    found[place] = number
            return found

        return Column(compute)


class Window:
    """Which rows a row sees: those of its partition, up to a place in their order."""

    unboundedPreceding: Final = -1 << 63  # noqa: N815

    def __init__(
        self,
        keys: Sequence[str | Column] = (),
        orders: Sequence[Order] = (),
        until: int | None = None,
    ) -> None:
        self._keys, self.orders, self.until = keys, orders, until
        """`until` counts from the row: 0 or less; None: up to the last row that is equal to it."""

    @staticmethod
    def partitionBy(*keys: str | Column) -> Window:  # noqa: N802
        return Window(keys)

    def orderBy(self, *columns: str | Column | Order) -> Window:  # noqa: N802
        return Window(self._keys, [*map(order_of, columns)])

    def rowsBetween(self, begin: int, end: int) -> Window:  # noqa: N802
        assert begin == self.unboundedPreceding, begin
        assert end <= 0, end
        return Window(self._keys, self.orders, end)

    def partitions(self, rows: Sight) -> Iterable[tuple[list[int], list[Any]]]:
        """Yield the places of the rows of each partition in order, with the keys of the order."""
        members = groups_of(rows, [named(key) for key in self._keys])
        order_keys = [order.key(rows)[0] for order in self.orders]
        for places in members.values():
            ordered = in_order(rows, places, self.orders)
            yield ordered, [tuple(key(place) for key in order_keys) for place in ordered]


def groups_of(rows: Sight, keys: Sequence[Column]) -> dict[tuple[Any, ...], list[int]]:
    """Return the places of rows by their keys; without keys all rows are one group."""
    if not keys:
        return {(): [*range(len(rows))]}
    members: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(zip(*(column.on(rows) for column in keys), strict=True)):
        members.setdefault(key, []).append(place)
    return members


class OfRows(Column):
    """A column that rows have, by its name."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda sight: sight.values(name), name)


def col(name: str) -> Column:
    return OfRows(name)


def lit(value: object) -> Column:
    if isinstance(value, Column):
        return value
    return Column(lambda sight: [value] * len(sight))


def named(column: str | Column) -> Column:
    """Return a column that may be given by its name."""
    return col(column) if isinstance(column, str) else column


def each(work: Callable[..., Any], *columns: object, nulls: bool = False) -> Column:
    """Return what a function makes of the values of a row; `nulls`: it takes null too."""
    of = [lit(column) for column in columns]

    def compute(sight: Sight) -> Values:
        if len(of) == 1:
            [values] = (column.on(sight) for column in of)
            return [None if one is None and not nulls else work(one) for one in values]
        if len(of) == 2 and not nulls:
            left, right = (column.on(sight) for column in of)
            return [
                None if one is None or other is None else work(one, other)
                for one, other in zip(left, right, strict=True)
            ]
        rows = zip(*(column.on(sight) for column in of), strict=True)
        return [None if not nulls and None in row else work(*row) for row in rows]

    return Column(compute)


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


class When(Column):
    """The value of the first case whose condition holds."""

    def __init__(self, *cases: tuple[Column, Column], otherwise: object = None) -> None:
        super().__init__(self._chosen)
        self._cases, self._otherwise = cases, lit(otherwise)

    def when(self, condition: Column, value: object) -> When:
        return When(*self._cases, (condition, lit(value)))

    def otherwise(self, value: object) -> Column:
        return When(*self._cases, otherwise=value)

    def _chosen(self, sight: Sight) -> Values:
        chosen = self._otherwise.on(sight)
        for condition, value in reversed(self._cases):
            of_case = zip(condition.on(sight), value.on(sight), chosen, strict=True)
            chosen = [one if holds else other for holds, one, other in of_case]
        return chosen


class Explode(Column):
    """A row for each value of an array, or for each entry of a map; of one name, or of two."""

    def __init__(self, values: Column, *names: str) -> None:
        super().__init__(values.on, names[0] if names else "")
        self.names = names

    def alias(self, *names: str) -> Explode:
        return Explode(self, *names)


def _skipping(step: Step) -> Step:
    def skip(so_far: Any, value: Any) -> Any:
        if so_far is None or value is None:
            return value if so_far is None else so_far
        return step(so_far, value)

    return skip


_CASTS: Final[dict[str, Callable[[Any], Any]]] = {
    "long": int,
    "int": int,
    "date": date.fromisoformat,
}
