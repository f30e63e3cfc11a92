"""A program that keeps tables up to date and dies at a chosen point, for `test_stream_kill`.

    python -m tests.spark.stream_driver LEDGER BATCH POINT

It kills itself after the step POINT of the batch (`points`); "": it lives, and prints the tables
that it has kept and those of a batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.kept import batch_tables, stored_tables
from twinbus.ledger import read
from twinbus.pipeline.spark.session import QUICK_START, spark_session
from twinbus.pipeline.store import stream
from twinbus.pipeline.store.lake import Lake
from twinbus.pipeline.store.layout import stored_schemas
from twinbus.pipeline.store.store import TableStore

PUBLISHED = "published"


def points() -> list[str]:
    """Every step of a batch, from its first write to the set that makes it count."""
    tables = list(stored_schemas())
    return [
        *(f"{table} written" for table in tables),
        *(f"{table} committed" for table in tables),
        PUBLISHED,
    ]


def main(ledger: Path, batch: int, point: str) -> None:
    done = 0

    def deadly(step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal done
            result = step(*given, **named)
            if done == batch and name.format(*given) == point:
                # Python and the JVM at once, as a machine that loses its power.
                os.killpg(0, signal.SIGKILL)
            done += name == PUBLISHED
            return result

        return wrapped

    for owner, step, name in (
        (TableStore, "write", "{2} written"),
        (Lake, "_advance", "{1} committed"),
        (Lake, "_append", PUBLISHED),
    ):
        setattr(owner, step, deadly(getattr(owner, step), name))
    settings = {**QUICK_START, "spark.sql.shuffle.partitions": "1"}
    with spark_session(master="local[2]", settings=settings) as spark:
        snapshot = stream.update(spark, ledger, files_max=1)
        store = stream.open_store(spark, ledger)
        kept = stored_tables(store, snapshot)
        batch_rows = batch_tables(spark, list(read(ledger)))
        sys.stdout.write(json.dumps([snapshot.batch, kept, batch_rows]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
