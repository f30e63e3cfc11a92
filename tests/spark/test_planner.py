"""The planner's simulation on Spark gives the figures of the one in a single process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.planning.outcomes_made_up import asked
from twinbus.pipeline.planner import simulate_on_spark
from twinbus.planning.simulation import BLOCK_YEARS, simulate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_gives_the_same_figures_in_any_number_of_tasks(spark: SparkSession) -> None:
    question = asked(years=3 * BLOCK_YEARS + 500)
    expected = simulate(question)
    assert simulate_on_spark(spark, question) == expected
    assert simulate_on_spark(spark, question, blocks_a_task=1) == expected
