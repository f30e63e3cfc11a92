"""A Spark driver in a process of its own, to be killed: drains or updates, as lines of JSON say."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from tests.spark.java_options import QUICK_JAVA, QUICK_SETTINGS
from twinbus.ledger import LedgerError
from twinbus.options import SendAvailabilityOptions
from twinbus.pipeline.drain.drain import drain
from twinbus.pipeline.spark.classic import ship_package
from twinbus.pipeline.spark.session import spark_session
from twinbus.pipeline.store import increment, stream
from twinbus.syphon.core.pump import IntakeLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    **QUICK_SETTINGS,
    # On a cluster: an executor on each of two small workers, before anything is done.
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.enabled": "false",
    # Executors are killed and started again and again: each start counts.
    "spark.executor.extraJavaOptions": QUICK_JAVA,
}


def main(master: str) -> None:
    """Serve orders from standard input until it ends; one line of JSON for each."""
    with spark_session(master=master, settings=SETTINGS) as spark:
        is_bare = not spark.range(2, numPartitions=2).mapInArrow(_find, "place string").collect()
        ship_package(spark)
        places = spark.range(2, numPartitions=2).mapInArrow(_where, "place string").collect()
        _answer({"places": sorted({row["place"] for row in places}), "is_bare": is_bare})
        for line in sys.stdin:
            order = json.loads(line)
            _answer(_WORK[order["do"]](spark, order))


def _drained(spark: SparkSession, order: dict[str, Any]) -> dict[str, Any]:
    done = drain(
        spark,
        order["primary"],
        order["secondary"],
        order["queues"],
        ledger_directory=order["ledger"],
        shared=True,
        limits=IntakeLimits(messages=order["limit"]),
        options=SendAvailabilityOptions(session_order=order["session_order"]),
    )
    statistics = done.statistics()
    return {} if statistics is None else asdict(statistics)


def _updated(spark: SparkSession, order: dict[str, Any]) -> dict[str, Any]:
    # As with a ledger of many files and records: several tasks, and rows that move between them.
    with (
        mock.patch.multiple(stream, FEW_BYTES=0, TASK_BYTES=1),
        mock.patch.object(increment, "ONE_TASK_MAX", 0),
    ):
        try:
            done = stream.update(spark, order["ledger"], order["tables"], shared=order["shared"])
        except LedgerError as error:
            return {"error": str(error)}
    return {"batch": done.batch, "records": done.records}


_WORK: Final = {"drain": _drained, "update": _updated}


def _find(batches: Iterator[Any]) -> Iterator[Any]:
    """A row where an executor's Python has the package before anybody brought it."""
    pa: Any = importlib.import_module("pyarrow")
    for _ in batches:
        if importlib.util.find_spec("twinbus") is not None:
            yield pa.RecordBatch.from_pydict({"place": ["found"]})


def _where(batches: Iterator[Any]) -> Iterator[Any]:
    """Where an executor's Python has the package from."""
    pa: Any = importlib.import_module("pyarrow")
    task = importlib.import_module("twinbus.pipeline.drain.task")
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [task.__file__]})


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
