"""Every gold table is additive: kept batch by batch it is what one pass over all would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.testing import assertDataFrameEqual

from tests.spark.ledgers import came_out, completed, diverted, forwarded, line, received, rows, sent
from twinbus.pipeline import conservation, gold, schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.ledgers import Line

pytestmark = pytest.mark.spark

EARLY: list[Line] = [
    sent("a", 0),
    diverted("b", 2),
    sent("c", 3, outcome="unknown"),
    line("state", None, 1, state="failed over", error="no success for 60 s"),
    # Its other half comes later, though it is the earlier one.
    forwarded("d", 80),
]
LATE: list[Line] = [
    diverted("d", 81),
    came_out("b", 70),
    forwarded("b", 70.5),
    completed("b", 71),
    received("a", 4),
    received("c", 9),
    line("send", "e", 90, outcome="failed"),
]


def ledger(spark: SparkSession, lines: list[Line]) -> DataFrame:
    return spark.createDataFrame(rows(lines), schemas.LEDGER)


@pytest.mark.parametrize("table", gold.gold_tables(), ids=lambda table: table.name)
def test_sums_of_batches_are_the_sums_of_all(spark: SparkSession, table: gold.GoldTable) -> None:
    early, late = ledger(spark, EARLY), ledger(spark, LATE)
    both = early.unionAll(late)
    if table.of_records is not None:
        parts = [table.of_records(early), table.of_records(late)]
        whole = table.of_records(both)
    else:
        assert table.of_journeys is not None
        before, after = (conservation.fates(part, None) for part in (early, both))
        parts = [table.of_journeys(before), gold.change(table, before, after)]
        whole = table.of_journeys(after)
    assert [(field.name, field.dataType) for field in whole.schema] == [
        (field.name, field.dataType) for field in table.schema
    ]
    assert whole.count() > 0
    assertDataFrameEqual(gold.merged(table, parts), whole, ignoreNullable=True)
