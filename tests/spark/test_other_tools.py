"""Polars and DuckDB read the tables without Twinbus: the code is what docs/tables.md shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import diverted, moved, received, sent
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.lake import TableChange
from twinbus.pipeline.store.layout import BRONZE
from twinbus.pipeline.store.stream import open_store, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
LINES = [
    *(sent("a"), received("a", 1), sent("raised", 2, outcome="failed")),
    *(*moved("b", 3), diverted("waits", 4), diverted("other", 5, entity="news")),
]
PROGRAM = """
import json, sys
sys.modules["twinbus"] = None
{code}
print(json.dumps(sorted(map(list, {rows}))))
"""


@pytest.fixture(scope="module")
def ledger(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with tables of two batches, the second of which was never published."""
    place = tmp_path_factory.mktemp("lake") / "ledger"
    write_lines(place, "p-0.jsonl", LINES)
    update(spark, place)
    store = open_store(spark, place)
    snapshot = store.latest()
    for table in (BRONZE, "fates"):
        [file, *_] = store.lake.files(table, snapshot)
        # A process that died before its set: a reader of the newest version would see this.
        store.lake._advance(table, snapshot, TableChange((), [file]))
    return place


@pytest.fixture(scope="module")
def reported(spark: SparkSession, ledger: Path) -> list[list[object]]:
    """What the report says of each entity."""
    with current_tables(spark, ledger) as tables:
        report = conservation_report(tables, ReportRequest(), None, in_brief=True)
    return sorted(
        [one.entity, one.accepted, one.delivered, one.undecided] for one in report.entities
    )


@pytest.mark.parametrize(("tool", "rows"), [("Polars", "found.rows()"), ("DuckDB", "found")])
def test_another_tool_gives_the_conservation_of_the_report(
    ledger: Path, reported: list[list[object]], tool: str, rows: str
) -> None:
    [code] = re.findall(rf"### {tool}\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code, rows=rows)],
        cwd=ledger.parent,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    assert json.loads(ran.stdout) == reported == [["news", 1, 0, 1], ["orders", 3, 2, 1]]
