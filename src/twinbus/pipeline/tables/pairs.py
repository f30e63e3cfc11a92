"""Which pair a record is about: the label of its primary, so that entities of one name stay apart.

A pair writes its name into its records, a syphon the backlog queue, whose path begins with the
label (SPEC 2), a consumer the namespace. A broker names its namespace in its own words, which may
be another name for the same: what it says counts for the pair that the clients name, where there is
one of them only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from twinbus.pipeline.tables.schemas import field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

LABEL: Final = "primary_label"

_BETWEEN: Final = "/x-servicebus-transfer/"
"""Between the label and the number of a backlog queue."""

_HOST_REST: Final = ".servicebus."
"""After the label in the host of a namespace, in every cloud of Azure."""

_SURE, _IS_UNSURE = "sure_labels", "is_unsure"


def label_of() -> Column:
    """The label of the primary that a record, or a tally, is about; "" where nothing tells it."""
    told = (
        F.substring_index("pair", "+", 1),
        _label_in("backlog_queue"),
        # In the broker's view a message of the backlog is in the backlog queue.
        _label_in("entity"),
        # A consumer may name it by its host.
        F.substring_index(F.lower("namespace"), _HOST_REST, 1),
    )
    return F.lower(F.coalesce(*told, F.lit(""))).alias(LABEL)


def is_labelled() -> Column:
    """Whether a record tells its pair by the label that all clients of the pair use."""
    return (field("view") == "client") & (label_of() != "")


def label_of_pair(pair: Column) -> Column:
    """The label of the primary in the name of a pair."""
    return F.lower(F.substring_index(pair, "+", 1)).alias(LABEL)


def joined(
    rows: DataFrame, keys: Sequence[str], is_sure: Column, *, otherwise: Column | None = None
) -> DataFrame:
    """The rows, those that are not sure of their label with that of the sure ones of one key.

    If the sure ones are of several pairs, a row that is not sure keeps the label that it has, or
    gets that of `otherwise`.
    """
    label, sure = F.col(LABEL), F.col(_SURE)
    one = F.when(F.array_contains(sure, label), label).when(
        F.size(sure) == 1, F.get(sure, F.lit(0))
    )
    found = one.otherwise(label if otherwise is None else otherwise)
    return _with_sure(rows, keys, is_sure).withColumn(LABEL, found).drop(_SURE)


def compared(rows: DataFrame, keys: Sequence[str], is_sure: Column) -> DataFrame:
    """The same for sums of both views, which must meet: nothing is compared with one half.

    If a row is not sure and the sure ones are of several pairs, all rows of the key lose the label.
    """
    label, sure = F.col(LABEL), F.col(_SURE)
    is_unsure = F.max(~F.array_contains(sure, label)).over(Window.partitionBy(*keys))
    found = F.when(~F.col(_IS_UNSURE), label).when(F.size(sure) == 1, F.get(sure, F.lit(0)))
    told = _with_sure(rows, keys, is_sure).withColumn(_IS_UNSURE, is_unsure)
    return told.withColumn(LABEL, found.otherwise(F.lit(""))).drop(_SURE, _IS_UNSURE)


def _with_sure(rows: DataFrame, keys: Sequence[str], is_sure: Column) -> DataFrame:
    label, of_key = F.col(LABEL), Window.partitionBy(*keys)
    sure = F.collect_set(F.when(is_sure, label)).over(of_key)
    # Where no client tells, any name is as good.
    named = F.collect_set(F.when(label != "", label)).over(of_key)
    return rows.withColumn(_SURE, F.when(F.size(sure) > 0, sure).otherwise(named))


def _label_in(column: str) -> Column:
    path = F.lower(column)
    return F.when(F.contains(path, F.lit(_BETWEEN)), F.substring_index(path, _BETWEEN, 1))
