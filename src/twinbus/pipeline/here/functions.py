"""The functions of Spark that make the columns of tables, for rows of this process.

`twinbus.pipeline.functions` chooses between these and Spark's.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import reduce
from typing import Any

from twinbus.pipeline.here.columns import (
    Aggregate,
    ByPlace,
    Column,
    Explode,
    RowNumber,
    Sight,
    Step,
    Values,
    When,
    Window,
    col,
    each,
    lit,
    named,
)
from twinbus.pipeline.here.hashing import xxhash64_of

__all__ = ["Window", "col"]


def when(condition: Column, value: object) -> When:
    return When((condition, lit(value)))


def explode(values: Column) -> Explode:
    return Explode(values)


def broadcast(rows: Any) -> Any:
    return rows


# Of one row.


def coalesce(*columns: str | Column) -> Column:
    def compute(sight: Sight) -> Values:
        found = named(columns[-1]).on(sight)
        for column in reversed(columns[:-1]):
            values = named(column).on(sight)
            found = [
                other if one is None else one for one, other in zip(values, found, strict=True)
            ]
        return found

    return Column(compute)


def _of_known(pick: Callable[[Iterable[Any]], Any]) -> Callable[..., Column]:
    def of_known(*columns: str | Column) -> Column:
        def picked(*values: Any) -> Any:
            known = [value for value in values if value is not None]
            return pick(known) if known else None

        return each(picked, *map(named, columns), nulls=True)

    return of_known


greatest = _of_known(max)
least = _of_known(min)


def _of_one(work: Callable[[Any], Any]) -> Callable[[str | Column], Column]:
    return lambda column: each(work, named(column))


lower = _of_one(str.lower)
floor = _of_one(math.floor)
ceil = _of_one(math.ceil)
size = _of_one(len)
array_sort = _of_one(sorted)
# As Spark computes it, with its errors.
log2 = _of_one(lambda number: math.log(number) / math.log(2) if number > 0 else None)


def pow(number: Column, exponent: Column) -> Column:  # noqa: A001 - Spark's name
    return each(math.pow, number, exponent)


def shiftright(number: Column, places: int) -> Column:
    return each(operator.rshift, number, places)


def contains(text: Column, words: Column) -> Column:
    return each(operator.contains, text, words)


def rlike(text: Column, pattern: Column) -> Column:
    return each(lambda one, found: re.search(found, one, re.ASCII) is not None, text, pattern)


def substring_index(text: str | Column, mark: str, count: int) -> Column:
    assert count == 1, count
    return each(lambda one: one.partition(mark)[0], named(text))


def regexp_replace(text: Column, pattern: str, words: str) -> Column:
    return each(lambda one: re.sub(pattern, words, one, flags=re.ASCII), text)


def regexp_extract(text: Column, pattern: str, number: int) -> Column:
    def part(one: str) -> str:
        found = re.search(pattern, one, re.ASCII)
        return "" if found is None else found[number] or ""

    return each(part, text)


def date_add(day: Column, days: Column) -> Column:
    return each(lambda one, more: one + timedelta(days=more), day, days)


def date_format(day: str | Column, form: str) -> Column:
    assert form == "yyyy-MM", form
    return each(lambda one: f"{one.year:04}-{one.month:02}", named(day))


def xxhash64(*columns: str | Column) -> Column:
    return each(lambda *texts: xxhash64_of(texts), *map(named, columns), nulls=True)


# Arrays, maps and structs.


def array(*columns: Column) -> Column:
    return each(lambda *values: [*values], *columns, nulls=True)


def create_map(*columns: Column) -> Column:
    return each(
        lambda *values: dict(zip(values[::2], values[1::2], strict=True)), *columns, nulls=True
    )


def struct(*columns: str | Column) -> Column:
    """Return a dict, whose order is that of its values."""
    fields = [named(column) for column in columns]
    return each(
        lambda *values: dict(zip((field.name for field in fields), values, strict=True)),
        *fields,
        nulls=True,
    )


def array_contains(values: Column, value: object) -> Column:
    # With a null among the others it is not known.
    return each(lambda many, one: one in many or (None if None in many else False), values, value)


def array_position(values: Column, value: object) -> Column:
    return each(lambda many, one: many.index(one) + 1 if one in many else 0, values, value)


def array_except(values: Column, others: Column) -> Column:
    return each(
        lambda many, but: [one for one in dict.fromkeys(many) if one not in but], values, others
    )


def get(values: Column, place: Column) -> Column:
    return each(lambda many, at: many[at] if 0 <= at < len(many) else None, values, place)


# Of several rows.


def _aggregate(step: Step) -> Callable[[str | Column], Aggregate]:
    return lambda column: Aggregate(
        named(column), lambda values: reduce(step, values) if values else None, step
    )


def _ordered(value: Any) -> Any:
    """Return what a value is ordered by: a struct by its fields, null before all others."""
    if not isinstance(value, dict):
        return value
    return tuple((field is not None, field) for field in value.values())


sum = _aggregate(operator.add)  # noqa: A001 - Spark's names, here and below
min = _aggregate(lambda one, other: other if _ordered(other) < _ordered(one) else one)  # noqa: A001
max = _aggregate(lambda one, other: other if _ordered(other) > _ordered(one) else one)  # noqa: A001
bit_or = _aggregate(operator.or_)


def last(column: str | Column, *, ignorenulls: bool) -> Aggregate:
    assert ignorenulls
    return _aggregate(lambda one, other: other)(column)


def count(column: str | Column) -> Aggregate:
    counted = lit(1) if isinstance(column, str) and column == "*" else named(column)
    return Aggregate(counted, len)


def count_if(condition: Column) -> Aggregate:
    return Aggregate(condition, lambda values: operator.countOf(values, True))


def count_distinct(column: str | Column) -> Aggregate:
    return Aggregate(named(column), lambda values: len(set(values)))


def collect_set(column: str | Column) -> Aggregate:
    return Aggregate(named(column), lambda values: [*dict.fromkeys(values)])


def collect_list(column: str | Column) -> Aggregate:
    return Aggregate(named(column), list)


def row_number() -> Column:
    return RowNumber(lambda sight: [])


def lag(column: str | Column) -> Column:
    return ByPlace(named(column), -1)


def lead(column: str | Column) -> Column:
    return ByPlace(named(column), 1)
