"""The functions of `twinbus.pipeline` for notebooks and jobs, and the notebook that uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.notebook import NOTEBOOK, code_cells, printed_in, run
from tests.spark.kept import write_lines
from tests.spark.ledgers import diverted, moved, received, sent
from twinbus import pipeline
from twinbus.ledger import LedgerError
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.tables.gold import TABLE_COMMENTS, stored_schemas
from twinbus.pipeline.tables.schemas import LEDGER

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LINES = [*(sent("a"), received("a", 1)), *moved("b", 2), diverted("waits", 4)]


def test_the_public_names_load_spark_only_when_they_are_used() -> None:
    assert sorted(pipeline.__all__) == [
        *("Frames", "conservation", "read_ledger", "read_tables", "start_session", "update"),
    ]
    program = "import sys, twinbus.pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipeline.nothing  # type: ignore[attr-defined]


def test_tables_are_frames_of_the_callers_session_with_comments(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    write_lines(ledger, "p-0.jsonl", LINES)
    session = session_for_few(spark)
    with pytest.raises(LedgerError, match="there are no tables at"):
        pipeline.read_tables(session, ledger)
    tables = pipeline.update(session, ledger)
    assert tables.keys() == TABLE_COMMENTS.keys()
    for name, schema in stored_schemas().items():
        found = [(one.name, one.dataType, one.metadata) for one in tables[name].schema]
        assert found == [(one.name, one.dataType, one.metadata) for one in schema]
        stored = DeltaTable(str(ledger / "_tables" / name))
        assert stored.metadata().description == TABLE_COMMENTS[name]
        assert all(one.metadata.get("comment") for one in stored.schema().fields), name
    sets = DeltaTable(str(ledger / "_tables" / "sets"))
    assert all(one.metadata.get("comment") for one in sets.schema().fields)
    assert sets.metadata().description
    # A view of a frame is found by the session that the caller has.
    tables["fates"].createOrReplaceTempView("fates")
    [row] = session.sql("SELECT sum(accepted), sum(delivered) FROM fates").collect()
    assert tuple(row) == (3, 2)
    [balance] = pipeline.conservation(pipeline.read_tables(session, ledger)).collect()
    counts = (balance.accepted, balance.delivered, balance.undecided, balance.lost)
    assert (balance.destination, *counts) == ("orders", 3, 2, 1, 0)


def test_records_are_those_of_whole_lines_whatever_is_asked_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path, "p-0.jsonl", [*LINES, sent("odd", size_bytes="many")])
    records = pipeline.read_ledger(spark, tmp_path)
    assert records.schema.fieldNames() == LEDGER.fieldNames()
    # The fault of the last line is in a column that this does not read.
    assert records.select("operation").count() == len(LINES)
    records.unpersist()


@pytest.mark.soak  # a quarter of a minute of processor time
def test_the_notebook_shows_what_it_prints(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TWINBUS_LEDGER", raising=False)
    document = json.loads(NOTEBOOK.read_text())
    assert run(document) == printed_in(document), "run: python -m tests.notebook"
    numbers = [cell["execution_count"] for cell in code_cells(document)]
    assert numbers == list(range(1, len(numbers) + 1))
    source = "\n".join("".join(cell["source"]) for cell in code_cells(document))
    imported = [line for line in source.splitlines() if "import" in line and "twinbus" in line]
    assert imported == [
        "from twinbus.pipeline import conservation, read_ledger, start_session, update"
    ]
