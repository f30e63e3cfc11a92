"""Erasure: nothing names the message afterwards, and what became of it still counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import came_out, completed, diverted, moved, received, sent
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest, ReportVerdict
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.removal import _new_id, erase
from twinbus.pipeline.store.stream import open_store, update
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS
from twinbus.pipeline.tables.journeys import is_erased_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECRET = 'jané "doe"'


def naming(ledger: Path, message_id: str) -> list[str]:
    """Files that hold the id, whatever they are."""
    forms = (message_id.encode(), b'jan\\u00e9 \\"doe\\"')
    files = [path for path in ledger.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(one in path.read_bytes() for one in forms))


def test_a_lost_message_is_forgotten_and_stays_lost(spark: SparkSession, tmp_path: Path) -> None:
    divert = diverted(SECRET, 1, error="of jane", trace_id="t", sequence_number=7, client="c")
    write_lines(tmp_path, "p-0.jsonl", [sent("a"), divert, received("a", 2)])
    # Completed in the backlog and never forwarded.
    write_lines(tmp_path, "p-1.jsonl", [*moved("b", 3), came_out(SECRET, 4), completed(SECRET, 4)])
    before = update(spark, tmp_path)
    store = open_store(spark, tmp_path).for_few()
    fates = store.lake.files("fates", before)
    assert "p-0.jsonl" in naming(tmp_path, SECRET)
    # Killed and begun again, it goes on with the same name.
    new_id = _new_id(PlaceFiles(str(tmp_path)), SECRET)
    done = erase(store, str(tmp_path), SECRET)
    assert (done.records_erased, done.raw_files_changed, done.snapshot.number) == (
        3,
        2,
        before.number + 1,
    )
    assert naming(tmp_path, SECRET) == naming(tmp_path, "of jane") == []
    assert "p-1.jsonl" in naming(tmp_path, new_id)
    rows = {
        table: sum(file.rows for file in store.lake.files(table, done.snapshot))
        for table in (BRONZE, JOURNEYS, "notable")
    }
    assert rows == {BRONZE: 9, JOURNEYS: 3, "notable": 1}
    there = {f"{path.parent.name}/{path.name}" for path in tmp_path.glob("*/bronze/*/*.parquet")}
    assert there == {file.path for file in store.lake.files(BRONZE, done.snapshot)}
    # Sums name no message, and the ledger's files are not taken again.
    assert store.lake.files("fates", done.snapshot) == fates
    with current_tables(spark, tmp_path) as tables:
        report = conservation_report(tables, ReportRequest(), None, in_brief=True)
    assert (report.verdict, report.total.accepted) == (ReportVerdict.BAD, 3)
    [lost] = report.messages
    assert (lost.fate, lost.message_id) == ("lost", new_id)
    assert is_erased_id(lost.message_id)
    # The change is signed off: no file looks changed.
    assert report.scope.missing == ()
    # What a rebuild reads tells the same.
    told = [json.loads(one) for one in (tmp_path / "p-1.jsonl").read_text().splitlines()]
    assert [one["operation"] for one in told if one["message_id"] == new_id] == [
        *("backlog_receive", "complete")
    ]
    # A file that is still written cannot be changed by anyone else.
    write_lines(tmp_path, "p-2.jsonl.open", [sent("a", 9)])
    latest = store.latest()
    with pytest.raises(LedgerError, match=r"a was not erased: p-2\.jsonl\.open names it and is"):
        erase(store, str(tmp_path), "a")
    assert store.latest() == latest
