"""What makes a gold table additive: its parts are added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.ledgers import assert_rows
from twinbus.pipeline.tables import gold, schemas
from twinbus.pipeline.tables.tallies import tallied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RAISED = next(table for table in gold.gold_tables() if table.name == "raised")


def test_parts_are_added_up_and_what_came_to_nothing_is_left_out(spark: SparkSession) -> None:
    parts = [
        [(60, "p", "a", 2), (60, "p", "b", 1)],
        [(60, "p", "a", 3), (60, "q", "a", 1)],
        [(60, "p", "b", -1)],
    ]
    frames = [spark.createDataFrame(part, schemas.RAISED) for part in parts]
    assert_rows(gold.merged(RAISED, frames), [(60, "p", "a", 5), (60, "q", "a", 1)], schemas.RAISED)


def test_every_table_has_the_columns_of_its_schema(spark: SparkSession) -> None:
    records = spark.createDataFrame([], schemas.LEDGER)
    messages = spark.createDataFrame([], schemas.FATES)
    sources = gold.Sources(records, tallied(records, bucket_s=60), messages, messages)
    tables = gold.gold_tables()
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        whole = table.rows(sources)
        found = [(field.name, field.dataType) for field in whole.schema]
        assert found == [(field.name, field.dataType) for field in table.schema], table.name
        assert table.sums
        assert gold.merged(table, [whole]).columns == table.schema.fieldNames()
