"""A small ledger that this process reads is what Spark reads: the same lines, sums and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from tests.spark.kept import Tables, as_rows, jobs_at_most, write_lines
from tests.spark.test_proof import any_ledger
from twinbus.pipeline.reports.ledger_records import FewRecords, ManyRecords
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.store import stream
from twinbus.pipeline.store.inspection import LedgerFolder
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, kept_tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from twinbus.pipeline.store.lake import DataFile

pytestmark = pytest.mark.spark


def test_any_records_are_summed_and_judged_as_spark_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = any_ledger(2, 500)
    for number, one in enumerate(lines):
        one["latency_us"] = number * 1_000
        one["error"] = [None, "", "MaxDeliveryCountExceeded", one.get("error")][number % 4]
    foreign = b'{"v":99,"at_ms":1,"operation":"send","process":"p"}\nno line\n\n{"v":1,"at_ms":17'
    half = (
        b'{"v":1,"at_ms":5,"operation":"send","process":"p","message_id":"\\ud800","entity":"a"}\n'
    )
    write_lines(tmp_path, "p-0.jsonl", lines[::2])
    write_lines(tmp_path, "p-1.jsonl.open", lines[1::2])
    (tmp_path / "q-0.jsonl").write_bytes(half + foreign)
    with (tmp_path / "p-1.jsonl.open").open("ab") as file:
        file.write(foreign)
    inspected, session = LedgerFolder(tmp_path).inspect({}), session_for_few(spark)
    few = FewRecords(session, PlaceFiles(str(tmp_path)), inspected, 60)
    many = ManyRecords(session, str(tmp_path), inspected, 60)
    assert few.rejected == many.rejected == {"torn": 1, "newer": 2, "foreign": 2}
    found, expected = rows_of(few), rows_of(many)
    many.close()
    assert found == expected
    assert all(len(rows) > 400 for rows in found.values())


def rows_of(read: FewRecords | ManyRecords) -> Tables:
    tallies = read.sources.tallies
    return as_rows(
        {
            "records": read.sources.records,
            "tallies": tallies.select(sorted(tallies.columns)),
            "journeys": read.journeys(),
            "fates": read.sources.messages,
        }
    )


def test_the_first_batch_of_a_small_ledger_is_what_spark_makes(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    lines = any_ledger(3, 400)
    write_lines(ledger, "p-0.jsonl", lines[::2])
    write_lines(ledger, "q-0.jsonl", lines[1::2])
    with mock.patch.object(stream, "few_batch", return_value=None):
        expected = stored(spark, ledger, tmp_path / "by_spark")
    with jobs_at_most(spark, 0):
        stream.update(spark, ledger, tmp_path / "here")
    assert stored(spark, ledger, tmp_path / "here") == expected


def stored(spark: SparkSession, ledger: Path, tables: Path) -> object:
    """The rows of an update, and what the log says of their files."""
    snapshot = stream.update(spark, ledger, tables)
    store = stream.open_store(spark, ledger, tables).for_few()
    names = (BRONZE, JOURNEYS, *(table.name for table in kept_tables()))
    rows = as_rows({name: store.read(name, snapshot).drop("taken_ms") for name in names})
    files = {name: [*map(told, store.lake.files(name, snapshot))] for name in names}
    return rows, files, snapshot.fan_out, snapshot.sum_parts, snapshot.records


def told(file: DataFile) -> object:
    return file.rows, file.bounds
