"""A Spark driver in a process of its own, to be killed: drains when a line of JSON says so."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from twinbus.options import SendAvailabilityOptions
from twinbus.pipeline.drain.drain import drain
from twinbus.pipeline.spark.session import QUICK_START, spark_session
from twinbus.pipeline.spark.shipping import ship_package
from twinbus.syphon.core.pump import IntakeLimits

SETTINGS = {
    **QUICK_START,
    # Executors are killed and started again and again: each start counts.
    "spark.executor.extraJavaOptions": QUICK_START["spark.driver.extraJavaOptions"],
}


def main(master: str) -> None:
    """Serve orders from standard input until it ends; one line of JSON for each."""
    with spark_session(master=master, settings=SETTINGS) as spark:
        ship_package(spark)
        places = spark.range(2, numPartitions=2).mapInArrow(_where, "place string").collect()
        _answer({"places": sorted({row["place"] for row in places})})
        for line in sys.stdin:
            order = json.loads(line)
            done = drain(
                spark,
                order["primary"],
                order["secondary"],
                order["queues"],
                ledger_directory=order["ledger"],
                limits=IntakeLimits(messages=order["limit"]),
                options=SendAvailabilityOptions(session_order=order["session_order"]),
            )
            statistics = done.statistics()
            _answer({} if statistics is None else asdict(statistics))


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
