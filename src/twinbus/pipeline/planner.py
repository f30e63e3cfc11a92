"""The planner's simulation on Spark, for more years than one process should take.

Each task simulates some blocks of years with `twinbus.planning.simulation`, and its totals come
back as bytes of numpy arrays. The figures are those of `simulate` in one process.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinbus.errors import TwinbusError
from twinbus.pipeline.spark.classic import failure_of, ship_package
from twinbus.planning.question import PlanQuestion, SettingOutcome
from twinbus.planning.simulation import (
    COLUMNS,
    DRAIN_BINS,
    BlockTotals,
    block_count,
    outcomes_of,
    simulate_blocks,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS_A_TASK: Final = 20
"""A task of fewer blocks mostly starts and ends."""

SCHEMA: Final = "id long, sums binary, peaks binary, drains binary"


class SimulationError(TwinbusError):
    """Spark gave up on the simulation; the text says why."""


def simulate_on_spark(
    spark: SparkSession, question: PlanQuestion, blocks_a_task: int = BLOCKS_A_TASK
) -> list[SettingOutcome]:
    """Return the outcome of each setting of the question, in their order."""
    ship_package(spark)
    blocks = block_count(question)
    tasks = spark.range(0, blocks, blocks_a_task, numPartitions=-(-blocks // blocks_a_task))
    task = partial(_simulate_batches, question, blocks_a_task)
    try:
        rows = tasks.mapInArrow(task, SCHEMA).collect()
    except Exception as error:  # the errors of Spark and of its gateway share no class
        raise SimulationError(f"Spark could not simulate: {failure_of(error)}") from error
    settings = len(question.settings)
    totals = BlockTotals.joined(
        BlockTotals(
            np.frombuffer(row["sums"]).reshape(-1, settings, COLUMNS),
            np.frombuffer(row["peaks"]).reshape(2, settings),
            np.frombuffer(zlib.decompress(row["drains"]), np.int32).reshape(settings, DRAIN_BINS),
        )
        for row in sorted(rows, key=lambda row: row["id"])
    )
    return outcomes_of(question, totals)


def _simulate_batches(
    question: PlanQuestion, blocks_a_task: int, batches: Iterator[Any]
) -> Iterator[Any]:
    """Simulate the blocks of each row, which names the first; runs in a task."""
    import pyarrow as pa  # type: ignore[import-untyped]

    blocks = range(block_count(question))
    for batch in batches:
        for first in batch.column(0).to_pylist():
            totals = simulate_blocks(question, blocks[first : first + blocks_a_task])
            columns = {
                "id": [first],
                "sums": [totals.sums.tobytes()],
                "peaks": [totals.peaks.tobytes()],
                # Mostly zeros.
                "drains": [zlib.compress(totals.drains.tobytes(), 1)],
            }
            yield pa.RecordBatch.from_pydict(columns)
