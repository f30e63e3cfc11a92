"""The pair of a record: the label of its primary keeps entities of one name apart.

A pair writes its name into its records, a syphon the backlog queue, whose path begins with the
label, a consumer the namespace. A broker may use another name for its namespace: its records count
for the pair that clients name, if they name only one.
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
    """Return the label of the primary of a record or a tally; "" if no field has it."""
    labels = (
        F.substring_index("pair", "+", 1),
        _label_in("backlog_queue"),
        # In the broker's view a message of the backlog is in the backlog queue.
        _label_in("entity"),
        # A consumer may name it by its host.
        F.substring_index(F.lower("namespace"), _HOST_REST, 1),
    )
    return F.lower(F.coalesce(*labels, F.lit(""))).alias(LABEL)


def is_labelled() -> Column:
    """Return whether a record names its pair by the label that all its clients use."""
    return (field("view") == "client") & (label_of() != "")


def label_of_pair(pair: Column) -> Column:
    """Return the label of the primary in the name of a pair."""
    return F.lower(F.substring_index(pair, "+", 1)).alias(LABEL)


def joined(
    rows: DataFrame, keys: Sequence[str], is_sure: Column, *, otherwise: Column | None = None
) -> DataFrame:
    """Give rows with an unsure label the label of the sure rows of their key.

    If sure rows of a key have several labels, an unsure row keeps its own, or gets `otherwise`.
    """
    label, sure = F.col(LABEL), F.col(_SURE)
    one = F.when(F.array_contains(sure, label), label).when(
        F.size(sure) == 1, F.get(sure, F.lit(0))
    )
    found = one.otherwise(label if otherwise is None else otherwise)
    return _with_sure(rows, keys, is_sure).withColumn(LABEL, found).drop(_SURE)


def compared(rows: DataFrame, keys: Sequence[str], is_sure: Column) -> DataFrame:
    """Like `joined`, for sums of both views. Both views must get the same label.

    If a row is unsure and sure rows have several labels, all rows of the key lose their label.
    """
    label, sure = F.col(LABEL), F.col(_SURE)
    is_unsure = F.max(~F.array_contains(sure, label)).over(Window.partitionBy(*keys))
    found = F.when(~F.col(_IS_UNSURE), label).when(F.size(sure) == 1, F.get(sure, F.lit(0)))
    judged = _with_sure(rows, keys, is_sure).withColumn(_IS_UNSURE, is_unsure)
    return judged.withColumn(LABEL, found.otherwise(F.lit(""))).drop(_SURE, _IS_UNSURE)


def _with_sure(rows: DataFrame, keys: Sequence[str], is_sure: Column) -> DataFrame:
    label, of_key = F.col(LABEL), Window.partitionBy(*keys)
    sure = F.collect_set(F.when(is_sure, label)).over(of_key)
    # If no client names a label, any other does.
    named = F.collect_set(F.when(label != "", label)).over(of_key)
    return rows.withColumn(_SURE, F.when(F.size(sure) > 0, sure).otherwise(named))


def _label_in(column: str) -> Column:
    path = F.lower(column)
    return F.when(F.contains(path, F.lit(_BETWEEN)), F.substring_index(path, _BETWEEN, 1))
