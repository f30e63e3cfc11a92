"""Polars and DuckDB read the tables without Twinbus: the code is what docs/tables.md shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pyspark
import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import diverted, moved, received, sent
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.spark.java import find_java
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.lake import TableChange
from twinbus.pipeline.store.stream import open_store, update
from twinbus.pipeline.tables.gold import BRONZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
LINES = [
    *(sent("a"), received("a", 1), sent("raised", 2, outcome="failed")),
    *(*moved("b", 3), diverted("waits", 4), diverted("other", 5, entity="news")),
    diverted("b", 6, pair="fabrikam+east"),
]
DELTA = {
    "4.0": "io.delta:delta-spark_2.13:4.0.0",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""Delta's jars for the versions of Spark that they support."""
MAVEN = "https://repo1.maven.org/maven2/"

SPARK = """
from pyspark.sql import SparkSession
settings = {{
    "spark.master": "local[1]",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.jars.packages": "{jars}",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}}
spark = SparkSession.builder.config(map=settings).getOrCreate()
"""

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
        [one.primary_label, one.entity, one.accepted, one.delivered, one.undecided]
        for one in report.entities
    )


def shown_for(tool: str) -> str:
    """The code of the page for one tool."""
    [code] = re.findall(rf"### {tool}\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)


@pytest.mark.parametrize(("tool", "rows"), [("Polars", "found.rows()"), ("DuckDB", "found")])
def test_another_tool_gives_the_conservation_of_the_report(
    ledger: Path, reported: list[list[object]], tool: str, rows: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=shown_for(tool), rows=rows)],
        cwd=ledger.parent,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    assert (
        json.loads(ran.stdout)
        == reported
        == [
            ["contoso", "news", 1, 0, 1],
            ["contoso", "orders", 3, 2, 1],
            ["fabrikam", "orders", 1, 0, 1],
        ]
    )


def delta_jars() -> str:
    """The jars for this Spark; skips where there are none, or no way to get them."""
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in DELTA:
        pytest.skip(f"Delta has no jars for Spark {version}; it has for {', '.join(DELTA)}")
    group, artifact, number = DELTA[version].split(":")
    place = f"{MAVEN}{group.replace('.', '/')}/{artifact}/{number}/{artifact}-{number}.pom"
    try:
        urlopen(place, timeout=10).close()
    except OSError as error:
        pytest.skip(f"Maven Central does not give Delta's jars: {error}")
    return DELTA[version]


def test_spark_reads_the_tables_with_the_jars_of_delta(
    ledger: Path, reported: list[list[object]]
) -> None:
    opening = SPARK.format(jars=delta_jars())
    code = opening + shown_for("Spark with the jars of Delta")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code, rows="found.collect()")],
        cwd=ledger.parent,
        env={**os.environ, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=500,
    )
    # What Ivy says of its downloads comes before.
    assert json.loads(ran.stdout.splitlines()[-1]) == reported
