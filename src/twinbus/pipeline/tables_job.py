"""The tables' jobs for `spark-submit`, or by itself as `python -m twinbus.pipeline.tables_job`.

    spark-submit --master URL "$(python -m twinbus.pipeline.tables_job --where)" update LEDGER

    update     take the ledger's files that were ended since the last time
    follow     go on doing so until stopped
    rebuild    make the tables anew from the ledger's files
    compact    write many small parts as few
    retain     remove what is older than --days
    status     say what the tables hold

A ledger and its tables are directories that all executors reach, or Hadoop URLs. Each verb prints
one line of JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Spark runs this file as a script, and then its directory is the first to be searched for modules.
if __name__ == "__main__" and sys.path and Path(sys.path[0]) == Path(__file__).resolve().parent:
    del sys.path[0]

import argparse
import json
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TablesTask", "main", "perform"]

WRONG_USE: Final = 2
STOPPED: Final = 130

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TablesTask:
    """What is to be done with the tables of a ledger."""

    verb: str
    ledger: str
    tables: str | None = None
    days: int | None = None
    remove_raw: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.where:
        print(Path(__file__).resolve())
        return 0
    if asked.verb is None or asked.ledger is None:
        return _wrong("say what to do with which ledger: update LEDGER; --help shows all")
    if (asked.days is not None) != (asked.verb == "retain"):
        return _wrong("retain needs --days N, and nothing else takes it")
    if asked.days is not None and asked.days < 1:
        return _wrong(f"--days is {asked.days}, at least 1: today is always kept")
    if asked.remove_raw and asked.verb != "compact":
        return _wrong("--remove-raw is for compact")
    from twinbus.errors import TwinbusError
    from twinbus.pipeline.spark.failure_text import spark_in_words
    from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session

    task = TablesTask(
        verb=asked.verb,
        ledger=asked.ledger,
        tables=asked.tables,
        days=asked.days,
        remove_raw=asked.remove_raw,
    )
    try:
        with (
            spark_in_words(),
            spark_session(master=asked.master or LOCAL_MASTER, announce=_say) as spark,
        ):
            print(json.dumps(perform(spark, task, _say)), flush=True)
    except TwinbusError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        return STOPPED
    return 0


def perform(spark: SparkSession, task: TablesTask, say: Callable[[str], None]) -> Document:
    """Do it; what came of it, as a document."""
    from twinbus.pipeline.store import stream

    if task.verb == "update":
        return _told(stream.update(spark, task.ledger, task.tables))
    if task.verb == "rebuild":
        return _told(stream.rebuild(spark, task.ledger, task.tables))
    if task.verb == "follow":
        return _follow(spark, task, say)
    store = stream.open_store(spark, task.ledger, task.tables)
    if task.verb == "compact":
        return _compact(store, task, say)
    if task.verb == "retain":
        return _retain(store, task, say)
    assert task.verb == "status", task.verb
    return _status(store)


def _follow(spark: SparkSession, task: TablesTask, say: Callable[[str], None]) -> Document:
    from twinbus.pipeline.store.stream import follow, open_store

    stop = threading.Event()
    before = [signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGTERM, signal.SIGINT)]
    try:
        follow(
            spark,
            task.ledger,
            task.tables,
            stop=stop,
            announce=lambda done: say(f"batch {done.batch}: {done.records:,} records in all"),
        )
    finally:
        for one, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(one, handler)
    return _told(open_store(spark, task.ledger, task.tables).latest())


def _compact(store: Any, task: TablesTask, say: Callable[[str], None]) -> Document:
    from twinbus.pipeline.store.compaction import compact, remove_raw

    done = compact(store, announce=say)
    removed = remove_raw(store) if task.remove_raw else None
    return {
        **_told(done.snapshot),
        "parts_before": done.parts_before,
        "parts_after": done.parts_after,
        "raw_files_removed": None if removed is None else len(removed),
    }


def _retain(store: Any, task: TablesTask, say: Callable[[str], None]) -> Document:
    from twinbus.pipeline.store.retention import retain

    assert task.days is not None
    done = retain(store, task.days, announce=say)
    return {
        **_told(done.snapshot),
        "first_day_kept": done.before.isoformat(),
        "records_removed": done.records_removed,
        "journeys_removed": done.journeys_removed,
        "journeys_open": done.journeys_open,
    }


def _status(store: Any) -> Document:
    from twinbus.pipeline.store.increment import kept_tables
    from twinbus.pipeline.store.store import SUMS

    snapshot = store.latest()
    kinds = {}
    for kind, parts in snapshot.parts.items():
        places = [f"{SUMS}-{table.name}" for table in kept_tables()] if kind == SUMS else [kind]
        sizes = [store.size_of(place, part) for place in places for part in parts]
        kinds[kind] = {
            "parts": len(parts),
            "files": sum(size.files for size in sizes),
            "bytes": sum(size.size_bytes for size in sizes),
        }
    return {**_told(snapshot), "place": store.place, "kinds": kinds}


def _told(snapshot: Any) -> Document:
    return {
        "commit": snapshot.number,
        "batch": snapshot.batch,
        "records": snapshot.records,
        "set_aside": dict(snapshot.set_aside),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tables_job",
        description="Keep the tables of a ledger with Spark.",
        epilog="Example: tables_job retain hdfs://host/ledger --days 90",
        allow_abbrev=False,
    )
    verbs = ("update", "follow", "rebuild", "compact", "retain", "status")
    parser.add_argument("verb", nargs="?", choices=verbs, help="what to do")
    parser.add_argument("ledger", nargs="?", metavar="LEDGER", help="directory or Hadoop URL")
    parser.add_argument(
        "--tables", metavar="PLACE", help="where the tables are; default: LEDGER/_tables"
    )
    parser.add_argument("--days", type=int, metavar="N", help="retain: days to keep")
    parser.add_argument(
        "--remove-raw",
        action="store_true",
        help="compact: remove the ledger's files whose records the tables hold",
    )
    parser.add_argument("--master", help="Spark's master, without spark-submit; default: local")
    parser.add_argument("--where", action="store_true", help="print the path of this script")
    return parser


def _say(line: str) -> None:
    print(f"twinbus: {line}", file=sys.stderr, flush=True)


def _wrong(line: str) -> int:
    _say(line)
    return WRONG_USE


if __name__ == "__main__":
    sys.exit(main())
