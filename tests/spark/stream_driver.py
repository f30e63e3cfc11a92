"""Processes that keep tables up to date and die at a chosen point, for `test_stream`.

    python -m tests.spark.stream_driver LEDGER TABLE     with a Spark of its own, which dies with it
    python -m tests.spark.stream_driver PORT SECRET -    with the Spark that listens there

The second reads lines `[place, point, step]`, and forks a process for each that kills itself at the
point; it answers with the process's exit status. What they load is loaded once, and the JVM
outlives them. `step` is a file: a batch is written and its commit put there (the point `COMMIT`),
or a commit that is there is made. Without it a process takes a batch of a ledger.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.spark.java_options import QUICK_SETTINGS
from twinbus.pipeline.spark.session import spark_session
from twinbus.pipeline.store import stream
from twinbus.pipeline.store.lake import SETS, Lake
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.tables.gold import EXPECTATIONS, TABLE_COMMENTS, stored_schemas
from twinbus.pipeline.tables.quarantine import QUARANTINE

COMMIT = "commit begun"
PUBLISHED = "published"
STEPS = (
    (TableStore, "write", "{2} written"),
    (TableStore, "write_here", "{2} written"),
    (Lake, "_create", "{1} created"),
    (Lake, "_advance", "{1} committed"),
    (Lake, "_write_sets", f"{SETS} written"),
    (Lake, "_append", PUBLISHED),
)
"""What a batch does to the disk: a kill comes right after one of them."""

BY_SPARK = [table for table in stored_schemas() if table not in (QUARANTINE, EXPECTATIONS)]
WRITTEN = [f"{table} written" for table in BY_SPARK]
"""Points at which files are written that no version names."""
COMMITTED = [
    *(f"{table} {step}" for step in ("created", "committed") for table in stored_schemas()),
    *(f"{SETS} created", f"{SETS} written", PUBLISHED),
]
"""Points of a first batch after that, which need no Spark."""


def lake_at(tables: Path) -> Lake:
    """The tables, without Spark."""
    return Lake(
        str(tables),
        {name: schema.json() for name, schema in stored_schemas().items()},
        TABLE_COMMENTS,
    )


def die_at(point: str) -> None:
    """Have this process kill itself after a step."""

    def deadly(step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            result = step(*given, **named)
            if name.format(*given) == point:
                kill()
            return result

        return wrapped

    for owner, step, name in STEPS:
        setattr(owner, step, deadly(getattr(owner, step), name))


def kill() -> None:
    """`kill -9` of this process and of the JVM that it has started, if it has."""
    os.killpg(0, signal.SIGKILL)
    # It may take a moment, in which this thread must not go on.
    time.sleep(60)


def note_commit(step: Path) -> None:
    """Have this process note what it would commit, and kill itself instead."""

    def noted(lake: Lake, *given: Any) -> None:
        step.write_bytes(pickle.dumps(given))
        kill()

    setattr(Lake, "publish", noted)  # noqa: B010  (mypy does not let a method be assigned)


def kill_while_written(ledger: Path, table: str) -> None:
    """Lose the power while Spark writes a table: its files are there, and not all of them whole."""
    while not list((ledger / "_tables" / table).glob("*/_temporary")):
        time.sleep(0.001)
    kill()


def with_own_spark(ledger: Path, table: str) -> None:
    """Take one batch, and die while a table is written."""
    settings = {**QUICK_SETTINGS, "spark.sql.shuffle.partitions": "1"}
    with spark_session(master="local[2]", settings=settings) as spark:
        threading.Thread(target=kill_while_written, args=(ledger, table), daemon=True).start()
        stream.update(spark, ledger, files_max=1)


def connected(port: str, secret: str) -> Any:
    """A session of the Spark of another process."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_GATEWAY_PORT=port, PYSPARK_GATEWAY_SECRET=secret)
    start: Any = launch_gateway
    gateway = start()
    spark = gateway.jvm.org.apache.spark
    running = spark.api.java.JavaSparkContext.fromSparkContext(spark.SparkContext.getOrCreate())
    conf = SparkConf(_jconf=running.getConf())
    return SparkSession(SparkContext(conf=conf, gateway=gateway, jsc=running))


def work(port: str, secret: str, place: Path, point: str, step: Path | None) -> None:
    """What a forked process does; it does not live to see its end."""
    if step is not None and point != COMMIT:
        die_at(point)
        lake_at(place).publish(*pickle.loads(step.read_bytes()))
        return
    if step is not None:
        note_commit(step)
    die_at(point)
    stream.update(connected(port, secret), place, files_max=1)


def statuses(port: str, secret: str, orders: Iterator[str]) -> Iterator[int]:
    """The exit status of a process for each order."""
    for order in orders:
        place, point, step = json.loads(order)
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                work(port, secret, Path(place), point, Path(step) if step else None)
            finally:
                os._exit(1)
        yield os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(arguments: list[str]) -> None:
    if arguments[-1] != "-":
        with_own_spark(Path(arguments[0]), arguments[1])
        return
    for status in statuses(arguments[0], arguments[1], iter(sys.stdin)):
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
