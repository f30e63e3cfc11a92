"""Small tables for tests of `lake`, and a process that adds to them beside others.

python -m tests.unit.pipeline.store.lake_writer PLACE NAME CHANGES
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pa_fs  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from twinbus.pipeline.store.lake import CommitConflict, DataFile, Lake, Snapshot, TableChange

TABLES = ("records", "sums")
COLUMN = {"name": "id", "type": "string", "nullable": False, "metadata": {}}
SCHEMAS = dict.fromkeys(TABLES, json.dumps({"type": "struct", "fields": [COLUMN]}))


def lake_at(place: Path | str) -> Lake:
    return Lake(str(place), SCHEMAS)


def write_file(place: Path | str, table: str, part: str, ids: list[str]) -> DataFile:
    """A Parquet file of a table, as Spark would have written it: no version names it."""
    if "://" not in str(place):
        Path(place, table).mkdir(parents=True, exist_ok=True)
    files, path = pa_fs.PyFileSystem(DeltaStorageHandler(f"{place}/{table}")), f"{part}/0.parquet"
    pq.write_table(pa.table({"id": ids}), path, filesystem=files)
    return DataFile(path, files.get_file_info(path).size, len(ids), int(time.time() * 1000))


def ids_at(place: Path | str, snapshot: Snapshot | None = None) -> dict[str, list[str]]:
    """What a reader sees: the rows of every table at the versions that a set names."""
    tables = lake_at(place)
    named = snapshot or tables.latest()
    found = {}
    for table in TABLES:
        rows = DeltaTable(f"{place}/{table}", version=named.versions[table]).to_pyarrow_table()
        found[table] = sorted(rows["id"].to_pylist())
        assert sum(one.rows for one in tables.files(table, named)) == len(found[table])
    return found


def both(*ids: str) -> dict[str, list[str]]:
    return {table: sorted(ids) for table in TABLES}


def add(place: Path | str, before: Snapshot, part: str, ids: list[str]) -> Snapshot:
    """One batch: the same ids to every table."""
    changes = {table: TableChange([write_file(place, table, part, ids)]) for table in TABLES}
    after = replace(before, batch=before.batch + 1, records=before.records + len(ids))
    return lake_at(place).publish(before, after, changes, {f"{part}.jsonl": ""})


def check_two_processes(place: Path | str, changes: int) -> None:
    """Two processes that commit beside each other lose and double nothing."""
    writer = [sys.executable, "-m", "tests.unit.pipeline.store.lake_writer", str(place)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([*writer, name, str(changes)], env=environment) for name in ("x", "y")
    ]
    assert [one.wait(120) for one in running] == [0, 0]
    assert ids_at(place) == both(*(f"{name}{number}" for name in "xy" for number in range(changes)))
    assert lake_at(place).latest().number == 2 * changes - 1


def main(place: str, name: str, changes: int) -> None:
    for number in range(changes):
        for attempt in range(1000):
            try:
                add(
                    place,
                    lake_at(place).latest(),
                    f"{name}-{number}-{attempt}",
                    [f"{name}{number}"],
                )
                break
            except CommitConflict:
                time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
