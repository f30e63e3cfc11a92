"""Erasure: nothing names the message afterwards, and all else is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import diverted, moved, received, sent
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.erasure import erase
from twinbus.pipeline.store.layout import BRONZE, JOURNEYS
from twinbus.pipeline.store.stream import open_store, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECRET = 'jané "doe"'


def naming(ledger: Path, message_id: str) -> list[str]:
    """Files that hold the id, whatever they are."""
    forms = (message_id.encode(), b'jan\\u00e9 \\"doe\\"')
    files = [path for path in ledger.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(one in path.read_bytes() for one in forms))


def test_a_message_is_forgotten_and_the_others_are_not(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path, "p-0.jsonl", [sent("a"), diverted(SECRET, 1), received("a", 2)])
    write_lines(tmp_path, "p-1.jsonl", [*moved("b", 3)])
    before = update(spark, tmp_path)
    store = open_store(spark, tmp_path).for_few()
    fates = store.lake.files("fates", before)
    assert "p-0.jsonl" in naming(tmp_path, SECRET)
    done = erase(store, str(tmp_path), SECRET)
    assert (done.records, done.raw_files, done.snapshot.number) == (1, 1, before.number + 1)
    assert naming(tmp_path, SECRET) == []
    rows = {
        table: sum(file.rows for file in store.lake.files(table, done.snapshot))
        for table in (BRONZE, JOURNEYS, "notable")
    }
    assert rows == {BRONZE: 6, JOURNEYS: 2, "notable": 0}
    there = {f"{path.parent.name}/{path.name}" for path in tmp_path.glob("*/bronze/*/*.parquet")}
    assert there == {file.path for file in store.lake.files(BRONZE, done.snapshot)}
    # Sums name no message, and the ledger's files are not taken again.
    assert store.lake.files("fates", done.snapshot) == fates
    assert update(spark, tmp_path) == done.snapshot
    assert (tmp_path / "p-0.jsonl").read_text().count("\n") == 2
    # A file that is still written cannot be changed by anyone else.
    write_lines(tmp_path, "p-2.jsonl.open", [sent("a", 9)])
    with pytest.raises(LedgerError, match=r"but p-2\.jsonl\.open is still being written"):
        erase(store, str(tmp_path), "a")
    assert store.latest().number == done.snapshot.number + 1
