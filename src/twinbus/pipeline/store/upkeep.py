"""The upkeep of a ledger's tables, one function for each kind of task of `twinbus ledger`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from twinbus.pipeline.store import lineage, stream
from twinbus.pipeline.store.compaction import compact, files_of_kinds, remove_raw
from twinbus.pipeline.store.inspection import LedgerFolder, close_writer, writers_document
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.quarantine import rows_of_lines
from twinbus.pipeline.store.removal import erase, retain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLLOW_S: Final = 10.0
"""Time between two updates of `follow`: a ledger ends a file every few minutes."""

SHOWN_MAX: Final = 20
"""Rejected lines that a status shows, the last ones."""

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TablesTask:
    """One operation on the tables of a ledger."""

    verb: str
    ledger: str
    tables: str | None = None
    days: int | None = None
    remove_raw: bool = False
    message_id: str | None = None
    shared: bool = False
    """Local paths are directories that all machines of the cluster mount."""


def status(ledger: str, tables: str | None = None) -> Document:
    """Return what the tables of a ledger hold, and the findings on its files; without Spark."""
    store = stream.open_store(None, ledger, tables)
    snapshot = store.latest()
    kinds = {
        kind: {"files": len(files), "bytes": sum(file.size_bytes for file in files)}
        for kind, files in files_of_kinds(store, snapshot).items()
    }
    inspected = LedgerFolder(ledger).inspect(stream.taken_files(store))
    return {
        **_snapshot_document(snapshot),
        "place": store.place,
        "quarantine": rows_of_lines(store, snapshot)[-SHOWN_MAX:],
        "kinds": kinds,
        "ledger": writers_document(inspected),
    }


def show(ledger: str, tables: str | None, message_id: str) -> Document:
    """Return the lines that tell of a message; without Spark."""
    return lineage.show(stream.open_store(None, ledger, tables), ledger, message_id)


def close(ledger: str, tables: str | None, process: str, reason: str, *, user: str) -> Document:
    """Record that nothing is missing where a process stopped without an end; without Spark."""
    store = stream.open_store(None, ledger, tables)
    inspected = LedgerFolder(ledger).inspect(stream.taken_files(store))
    name = close_writer(ledger, inspected, process, reason, user=user)
    return {"process": process, "reason": reason, "user": user, "file": name}


def perform(spark: SparkSession, task: TablesTask, say: Callable[[str], None]) -> Document:
    place, shared = (spark, task.ledger, task.tables), task.shared
    if task.verb == "update":
        return _snapshot_document(stream.update(*place, say=say, shared=shared))
    if task.verb == "rebuild":
        return _snapshot_document(stream.rebuild(*place, shared=shared))
    store = stream.open_store(*place, shared=shared)
    if task.verb == "compact":
        done = _document(compact(store, announce=say))
        removed = remove_raw(store, task.ledger) if task.remove_raw else None
        return {**done, "raw_files_removed": None if removed is None else len(removed)}
    if task.verb == "retain":
        assert task.days is not None
        return _document(retain(store, task.days, announce=say))
    assert task.verb == "erase", task.verb
    assert task.message_id is not None
    return _document(erase(store, task.ledger, task.message_id, announce=say))


def follow(
    spark: SparkSession, task: TablesTask, stop: threading.Event, say: Callable[[str], None]
) -> Document:
    """Update the tables as files of the ledger end, until `stop` is set; return the last state."""
    place, shared = (spark, task.ledger, task.tables), task.shared

    def announce(done: Snapshot) -> None:
        say(f"batch {done.batch}: {done.records:,} records in all")

    while not stop.is_set():
        stream.update(*place, announce=announce, say=say, shared=shared)
        stop.wait(FOLLOW_S)
    return _snapshot_document(stream.open_store(*place, shared=shared).latest())


def _document(done: Any) -> Document:
    """Return the result of a change of the tables, with the state of the tables after it."""
    results = {one.name: getattr(done, one.name) for one in fields(done) if one.name != "snapshot"}
    return {**_snapshot_document(done.snapshot), **results}


def _snapshot_document(snapshot: Snapshot) -> Document:
    return {
        "commit": snapshot.number,
        "batch": snapshot.batch,
        "records": snapshot.records,
        "rejected": dict(snapshot.rejected),
    }
