"""A program that keeps tables up to date and dies at a chosen moment, for `test_stream_kill`.

    python -m tests.spark.stream_driver LEDGER MOMENT

MOMENT is how many steps of writing (a part or a commit) it survives; -1: it lives, and prints the
tables that the stream has kept and those of a batch.
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
from twinbus.pipeline.store.store import TableStore


def main(ledger: Path, moment: int) -> None:
    steps = 0

    def deadly(step: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*given: Any, **named: Any) -> None:
            nonlocal steps
            step(*given, **named)
            steps += 1
            if steps == moment:
                # Python and the JVM at once, as a machine that loses its power.
                os.killpg(0, signal.SIGKILL)

        return wrapped

    for name in ("write", "commit"):
        setattr(TableStore, name, deadly(getattr(TableStore, name)))
    settings = {**QUICK_START, "spark.sql.shuffle.partitions": "1"}
    with spark_session(master="local[2]", settings=settings) as spark:
        snapshot = stream.update(spark, ledger, files_max=1)
        store = stream.open_store(spark, ledger)
        kept = stored_tables(store, snapshot)
        batch = batch_tables(spark, list(read(ledger)))
        sys.stdout.write(json.dumps([snapshot.batch, kept, batch]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
