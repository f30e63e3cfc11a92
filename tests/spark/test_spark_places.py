"""A ledger at a URL that only Spark's own file system reaches: delta-rs gets copies of logs."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.spark.kept import stored_tables, write_lines
from tests.spark.ledgers import completed, diverted, moved, received, sent
from twinbus.ledger import LedgerError
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.spark.hadoop import hadoop_files
from twinbus.pipeline.store import upkeep
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.removal import erase
from twinbus.pipeline.store.stream import open_store, update
from twinbus.pipeline.store.table_logs import CarriedLogs
from twinbus.pipeline.store.upkeep import TablesTask

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # above a minute of Spark

FILES = {
    "p-0.jsonl": [sent("a"), received("a", 1), *moved("b", 2), diverted("waits", 6)],
    "p-1.jsonl": [*moved("c", 7), diverted("gone", 11), completed("gone", 12)],
}
RECORDS = sum(map(len, FILES.values()))
URL = "viewfs://lake/disk"


@pytest.fixture(scope="module")
def there(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that is at URL: one for all tests, as Hadoop keeps what it has opened."""
    directory = tmp_path_factory.mktemp("there")
    spark.conf.set("fs.viewfs.mounttable.lake.link./disk", f"file://{directory}")
    return directory


def test_files_are_read_and_made_as_in_a_directory(spark: SparkSession, there: Path) -> None:
    (at := there / "files").mkdir()
    files, carrier = PlaceFiles(f"{URL}/files"), hadoop_files(f"{URL}/files")
    assert carrier is not None
    content = bytes(range(256)) * 10_000
    files.put("deep/er/large", content)
    assert files.content("deep/er/large") == b"".join(files.pieces("deep/er/large")) == content
    assert (at / "deep" / "er" / "large").read_bytes() == content
    (at / "packed.gz").write_bytes(gzip.compress(content))
    assert files.content("packed.gz") == content
    carrier.add("deep/1.json", b"one")
    with pytest.raises(FileExistsError):
        carrier.add("deep/1.json", b"two")
    assert files.content("deep/1.json") == b"one"
    files.put("deep/1.json", b"three")
    assert files.content("deep/1.json") == b"three"
    assert sorted(files.below("deep")) == ["deep/1.json", "deep/er/large"]
    assert sorted(files.directories()) == ["deep"]
    assert (files.remove("deep"), files.remove("deep"), files.exists("deep")) == (
        *(True, False, False),
    )
    assert files.names("nowhere") == []
    with pytest.raises(LedgerError, match=r"cannot be used: .*FileNotFoundException"):
        files.content("nowhere")


def test_tables_and_reports_are_those_of_a_directory(
    spark: SparkSession, there: Path, tmp_path: Path
) -> None:
    at_url, kept = f"{URL}/ledger", []
    for ledger, place in ((str(tmp_path / "here"), tmp_path / "here"), (at_url, there / "ledger")):
        tables = []
        for name, lines in FILES.items():
            write_lines(place, name, lines)
            tables.append(stored_tables(open_store(spark, ledger), update(spark, ledger)))
        with current_tables(spark, ledger) as current:
            total = conservation_report(current, ReportRequest(), None).total
        for verb in ("compact", "rebuild"):
            done = upkeep.perform(spark, TablesTask(verb=verb, ledger=ledger), lambda line: None)
            assert done["records"] == RECORDS, verb
            store = open_store(spark, ledger)
            tables.append(stored_tables(store, store.latest()))
        assert erase(open_store(spark, ledger), ledger, "b").records_erased == 4
        kept.append((tables, total))
    assert kept[0] == kept[1]
    assert isinstance(open_store(spark, at_url).lake._logs, CarriedLogs)
    # The logs are at the place, as delta-rs reads them where it can.
    stored = DeltaTable(str(there / "ledger" / "_tables" / "bronze")).to_pyarrow_table()
    assert stored.num_rows == RECORDS
    assert "b" not in stored["message_id"].to_pylist()
