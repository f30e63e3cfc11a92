"""Tables of the time before Delta that are the only copy of records: a rebuild takes them over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.kept import stored_tables, write_lines
from tests.spark.ledgers import Line, diverted, moved, received, sent
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store import stream
from twinbus.pipeline.store.compaction import remove_raw
from twinbus.pipeline.store.layout import BRONZE, JOURNEYS, stored_schemas
from twinbus.pipeline.store.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # half a minute of Spark

FILES: list[list[Line]] = [
    [sent("a", pair="x+y"), received("a", 1), diverted("b", 2), diverted("waits", 3)],
    moved("b", 2, out_s=9)[1:],
]
PART = "batch=1-0a"


def test_old_tables_that_are_the_only_copy_are_taken_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, lines in enumerate(FILES):
        write_lines(tmp_path, f"p-{number}.jsonl", lines)
        stream.update(spark, tmp_path)
    store = stream.open_store(spark, tmp_path)
    before = store.latest()
    tables, records = stored_tables(store, before), store.read(BRONZE, before).collect()
    remove_raw(store, str(tmp_path))
    _make_old(store, tmp_path / "_tables")
    with pytest.raises(LedgerError, match="made by an earlier version of Twinbus"):
        stream.open_store(spark, tmp_path)
    after = stream.rebuild(spark, tmp_path)
    store = stream.open_store(spark, tmp_path)
    assert (after.batch, after.records) == (before.batch, before.records)
    assert stored_tables(store, after) == tables
    assert sorted(map(str, store.read(BRONZE, after).collect())) == sorted(map(str, records))
    assert not list(tmp_path.glob("_tables/*/batch=*"))
    # The files of the ledger that are left are in the tables, and the next one is not.
    write_lines(tmp_path, "p-2.jsonl", [received("waits", 20)])
    assert stream.update(spark, tmp_path).records == before.records + 1


def _make_old(store: TableStore, place: Path) -> None:
    """The same tables as versions before Delta kept them."""
    snapshot = store.latest()
    old = place.parent / "old"
    for table in stored_schemas():
        kind = table if table in {BRONZE, JOURNEYS} else f"sums-{table}"
        writer = store.read(table, snapshot).write
        writer = writer.partitionBy("day", "pair") if table == BRONZE else writer
        writer.parquet(str(old / kind / PART))
    (old / "commits").mkdir()
    told = {
        **{name: getattr(snapshot, name) for name in ("batch", "records", "set_aside", "gold")},
        "number": 1,
        "parts": {kind: [PART] for kind in (BRONZE, JOURNEYS, "sums")},
        "fan_out": snapshot.fan_out,
        "records_from": "",
        "format": 2,
    }
    (old / "commits" / "1.json").write_text(json.dumps(told))
    (old / "commits" / "0.json").write_text(json.dumps({**told, "number": 0, "parts": {}}))
    noted = old / "checkpoint" / "sources" / "0"
    noted.mkdir(parents=True)
    for name, batch in store.lake.taken().items():
        line = json.dumps({"path": f"file:///elsewhere/{name}", "batchId": batch})
        (noted / str(batch)).write_text(f"v1\n{line}")
    (old / "raw-removed").touch()
    shutil.rmtree(place)
    old.rename(place)
