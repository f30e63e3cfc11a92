"""Rows of this process, with what the tables need of Spark's DataFrame."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.types import Row

from twinbus.pipeline.here.columns import (
    Column,
    Explode,
    Order,
    Values,
    col,
    groups_of,
    in_order,
    lit,
    named,
    order_of,
)
from twinbus.pipeline.here.functions import coalesce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Columns = dict[str, Values]


def frame_of(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return rows of this process in the place of a frame of Spark."""
    there = list(rows)
    return frame_of_columns({name: [row.get(name) for row in there] for name in names})


def frame_of_columns(values: Mapping[str, Values]) -> DataFrame:
    return cast("DataFrame", Rows(dict(values)))


class Rows:
    """Columns of one length. Every method returns new rows at once."""

    def __init__(self, values: Columns, name: str = "") -> None:
        """`name` is the alias by which a condition of a join distinguishes the sides."""
        self._values, self._name = values, name
        self._size = len(next(iter(values.values()), ()))
        self.memo: dict[int, tuple[Column, Values]] = {}

    sparkSession: Final = None  # noqa: N815 - Spark's name

    def __len__(self) -> int:
        return self._size

    def values(self, name: str) -> Values:
        """Return the values of a column, or of a field of a column of structs."""
        if name in self._values:
            return self._values[name]
        column, _, field = name.rpartition(".")
        return [one[field] for one in self._values[column]]

    @property
    def columns(self) -> list[str]:
        return [*self._values]

    def collect(self) -> list[Row]:
        row = Row(*self._values)
        return [row(*values) for values in zip(*self._values.values(), strict=True)]

    def count(self) -> int:
        return len(self)

    def select(self, *columns: str | Column) -> Rows:
        found: Columns = {}
        exploded: Explode | None = None
        for number, column in enumerate(map(named, columns)):
            if isinstance(column, Explode):
                exploded = column
                found |= dict.fromkeys(column.names, ())
            else:
                found[column.name or f"_{number}"] = column.on(self)
        return Rows(found) if exploded is None else self._exploded(found, exploded)

    def _exploded(self, found: Columns, column: Explode) -> Rows:
        entries = [one.items() if isinstance(one, dict) else one for one in column.on(self)]
        places = [place for place, of_row in enumerate(entries) for _ in of_row]
        flat = [one for of_row in entries for one in of_row]
        new = [flat] if len(column.names) == 1 else [*zip(*flat, strict=True)] or [(), ()]
        found |= dict(zip(column.names, new, strict=True))
        return Rows(
            {
                name: values if name in column.names else _at(values, places)
                for name, values in found.items()
            }
        )

    def withColumns(self, columns: Mapping[str, Column]) -> Rows:  # noqa: N802 - Spark's names
        return Rows({**self._values, **{name: one.on(self) for name, one in columns.items()}})

    def withColumn(self, name: str, column: Column) -> Rows:  # noqa: N802
        return self.withColumns({name: column})

    def withColumnRenamed(self, old: str, new: str) -> Rows:  # noqa: N802
        return Rows({new if name == old else name: one for name, one in self._values.items()})

    def drop(self, *names: str) -> Rows:
        return Rows({name: one for name, one in self._values.items() if name not in names})

    def where(self, condition: Column) -> Rows:
        holds = condition.on(self)
        return self._of([place for place, one in enumerate(holds) if one])

    def _of(self, places: Sequence[int]) -> Rows:
        return Rows({name: _at(values, places) for name, values in self._values.items()})

    def distinct(self) -> Rows:
        members = groups_of(self, [col(name) for name in self._values])
        return self._of([places[0] for places in members.values()])

    def limit(self, most: int) -> Rows:
        return Rows({name: values[:most] for name, values in self._values.items()})

    def orderBy(self, *columns: str | Column | Order) -> Rows:  # noqa: N802
        return self._of(in_order(self, range(len(self)), [*map(order_of, columns)]))

    def fillna(self, value: Mapping[str, Any]) -> Rows:
        return self.withColumns({name: coalesce(name, lit(one)) for name, one in value.items()})

    def groupBy(self, *keys: str | Column) -> GroupedRows:  # noqa: N802
        return GroupedRows(self, [*map(named, keys)])

    def agg(self, *columns: Column) -> Rows:
        return self.groupBy().agg(*columns)

    def union(self, other: Rows) -> Rows:
        both = zip(self._values.items(), other._values.values(), strict=True)
        return Rows({name: [*one, *more] for (name, one), more in both})

    unionAll = union  # noqa: N815

    def unionByName(self, other: Rows) -> Rows:  # noqa: N802
        assert self._values.keys() == other._values.keys()
        return Rows({name: [*one, *other._values[name]] for name, one in self._values.items()})

    def alias(self, name: str) -> Rows:
        return Rows(self._values, name)

    def crossJoin(self, other: Rows) -> Rows:  # noqa: N802
        return self._beside(
            other, [(one, more) for one in range(len(self)) for more in range(len(other))]
        )

    def join(self, other: Rows, on: str | Sequence[str] | Column, how: str = "inner") -> Rows:
        if isinstance(on, Column):
            return self._join_where(other, on, how)
        keys = [on] if isinstance(on, str) else [*on]
        pairs = self._equal(other, keys, keys)
        if how in {"left_semi", "left_anti"}:
            return self._with_match(pairs, is_matched=how == "left_semi")
        if how in {"left", "full"}:
            matched = {one for one, _ in pairs}
            pairs += [(place, None) for place in range(len(self)) if place not in matched]
        if how == "full":
            matched = {more for _, more in pairs}
            pairs += [(None, place) for place in range(len(other)) if place not in matched]
        left = self._placed([one for one, _ in pairs])
        right = other._placed([more for _, more in pairs])
        # A row of one side only has the key of that side.
        for key in keys:
            both = zip(left[key], right.pop(key), strict=True)
            left[key] = [more if one is None else one for one, more in both]
        assert not left.keys() & right.keys(), left.keys() & right.keys()
        first = {key: left.pop(key) for key in keys}
        return Rows({**first, **left, **right})

    def _join_where(self, other: Rows, condition: Column, how: str) -> Rows:
        """Join by a condition: of the rows that are equal where it says so, those that meet it."""
        mine, others = self._qualified(), other._qualified()
        keys = [
            pair if pair[0] in mine else pair[::-1]
            for pair in condition.equal
            if (pair[0] in mine and pair[1] in others) or (pair[1] in mine and pair[0] in others)
        ]
        left, right = Rows(mine), Rows(others)
        pairs = left._equal(right, [one for one, _ in keys], [more for _, more in keys])
        beside = right._placed([more for _, more in pairs])
        both = Rows({**beside, **left._placed([one for one, _ in pairs])})
        met = [pair for pair, holds in zip(pairs, condition.on(both), strict=True) if holds]
        if how == "left_anti":
            return self._with_match(met, is_matched=False)
        assert how == "inner", how
        return self._beside(other, met)

    def _qualified(self) -> Columns:
        """Return the columns by their names, and by their names after that of the rows."""
        if not self._name:
            return self._values
        return {
            **self._values,
            **{f"{self._name}.{name}": values for name, values in self._values.items()},
        }

    def _equal(self, other: Rows, mine: Sequence[str], others: Sequence[str]) -> list[Any]:
        """Return the places of rows that are equal in some columns, in pairs."""
        there = groups_of(other, [col(name) for name in others])
        return [
            (place, match)
            for key, places in groups_of(self, [col(name) for name in mine]).items()
            # Null equals nothing.
            if None not in key
            for place in places
            for match in there.get(key, ())
        ]

    def _with_match(self, pairs: Iterable[Any], *, is_matched: bool) -> Rows:
        matched = {one for one, _ in pairs}
        return self._of([one for one in range(len(self)) if (one in matched) is is_matched])

    def _beside(self, other: Rows, pairs: Sequence[Any]) -> Rows:
        left = self._placed([one for one, _ in pairs])
        right = other._placed([more for _, more in pairs])
        assert not left.keys() & right.keys(), left.keys() & right.keys()
        return Rows({**left, **right})

    def _placed(self, places: Sequence[int | None]) -> Columns:
        return {
            name: [None if place is None else values[place] for place in places]
            for name, values in self._values.items()
        }

    # Spark's are about where and when rows are computed.

    def persist(self) -> Rows:
        return self

    def unpersist(self) -> Rows:
        return self

    def localCheckpoint(self) -> Rows:  # noqa: N802
        return self

    def repartition(self, *columns: str) -> Rows:
        return self

    def coalesce(self, partitions: int) -> Rows:
        return self


class GroupedRows:
    """Rows in groups, from which aggregates are computed."""

    def __init__(self, rows: Rows, keys: Sequence[Column]) -> None:
        found = groups_of(rows, keys)
        self.rows, self.members = rows, [*found.values()]
        of_key = [*zip(*found, strict=True)] or [()] * len(keys)
        self._keys: Columns = dict(zip((key.name for key in keys), of_key, strict=True))
        self.memo: dict[int, tuple[Column, Values]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def values(self, name: str) -> Values:
        return self._keys[name]

    def agg(self, *columns: Column) -> Rows:
        return Rows({**self._keys, **{one.name: one.on(self) for one in columns}})


def _at(values: Values, places: Sequence[int]) -> Values:
    if not places:
        return ()
    if len(places) == 1:
        return (values[places[0]],)
    found: Values = operator.itemgetter(*places)(values)
    return found
