"""Fields of records as columns; days and shorter spans of time are in UTC, in any session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

DAY_MS: Final = 86_400_000

_LEFT_OUT: Final = {"outcome": "ok", "view": "client"}


def field(name: str) -> Column:
    """A text field of a record, with what it means where it is left out."""
    return F.coalesce(F.col(name), F.lit(_LEFT_OUT.get(name, ""))).alias(name)


def day_of(at_ms: Column) -> Column:
    """The day in UTC."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(at_ms / DAY_MS).cast("int"))


def bucket_of(at_ms: Column, bucket_s: int) -> Column:
    """The beginning of the `bucket_s` seconds that a time falls into, in unix seconds."""
    return F.floor(at_ms / (1000 * bucket_s)) * bucket_s
