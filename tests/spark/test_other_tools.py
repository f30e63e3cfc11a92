"""The tables for others: functions for notebooks and jobs, Spark Connect, Polars and DuckDB."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pyarrow as pa  # type: ignore[import-untyped]
import pyspark
import pytest
from deltalake import DeltaTable

from tests import outage_story as story
from tests.notebook import NOTEBOOK, code_cells, printed_in, run
from tests.spark import java_options
from tests.spark.connect_client import told
from tests.spark.kept import stored_tables, write_lines
from tests.spark.ledgers import completed, diverted, forwarded, line, moved, received, sent
from twinbus import pipeline
from twinbus.ledger import LedgerError
from twinbus.pipeline.spark import session
from twinbus.pipeline.spark.java import find_java
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.store.lake import TableChange
from twinbus.pipeline.store.stream import open_store, rebuild, update
from twinbus.pipeline.tables.gold import BRONZE, NOTABLE, TABLE_COMMENTS, stored_schemas
from twinbus.pipeline.tables.schemas import LEDGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
SPEC = PAGE.parents[1] / "spec"
SQL = (SPEC / "conservation.sql").read_text()
NAMED = (SPEC / "notable.sql").read_text()
LINES = [
    *(sent("a"), received("a", 1), sent("raised", 2, outcome="failed")),
    *(*moved("b", 3), diverted("waits", 4), diverted("other", 5, entity="news")),
    diverted("b", 6, pair="fabrikam+east"),
    *(diverted("dead", 7), line("dead_letter", "dead", 8, cause="syphon")),
    *(diverted("gone", 9), completed("gone", 10)),
    # A syphon of no pair, and a receiver: the namespace or the queue names the primary.
    diverted("home", 11),
    forwarded("home", 12, pair=None, backlog_queue="contoso/x-servicebus-transfer/3"),
    *(diverted("seen", 13), received("seen", 14, pair=None, namespace="contoso")),
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
    "{java}": "{quick}",
    "spark.sql.shuffle.partitions": "1",
    # Delta reads each log with 50 tasks: 17 tables took 117 s of processor time, 36 s with these.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.jars.packages": "{jars}",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}}
spark = SparkSession.builder.config(map=settings).getOrCreate()
"""

PROGRAM = """
import json, sys
sys.modules["twinbus"] = None
SQL = {sql!r}
{code}
print(json.dumps(sorted(map(list, {rows}))))
"""
AND_THEN = """
counted = [*found]
SQL = {sql!r}
{code}
"""


@pytest.fixture(scope="module")
def ledger(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with tables of two batches, the second of which was never published."""
    place = tmp_path_factory.mktemp("lake") / "ledger"
    write_lines(place, "p-0.jsonl", LINES)
    update(spark, place)
    store = open_store(spark, place)
    snapshot = store.latest()
    [file] = store.lake.files(NOTABLE.name, snapshot)
    [lost] = (row for row in store.lake.rows(NOTABLE.name, file) if row["fate"] == "lost")
    # A message that was lost after one batch, and is not after another.
    late = [{**lost, "message_id": "late", "messages": messages} for messages in (1, -1)]
    files = [
        store.lake.write_rows(NOTABLE.name, f"0-late{number}/0.parquet", [row])
        for number, row in enumerate(late)
    ]
    snapshot = store.lake.publish(snapshot, snapshot, {NOTABLE.name: TableChange(files)})
    for table in (BRONZE, "fates"):
        [file, *_] = store.lake.files(table, snapshot)
        # A process that died before its set: a reader of the newest version would see this.
        store.lake._advance(table, snapshot, TableChange((), [file]))
    return place


@pytest.fixture(scope="module")
def reported(spark: SparkSession, ledger: Path) -> list[list[object]]:
    """What the tables say of each entity, in the columns of the page's SQL."""
    columns = "primary_label destination accepted delivered dead_lettered lost undecided".split()
    tables = pipeline.read_tables(session_for_few(spark), ledger)
    return sorted(map(list, pipeline.conservation(tables).select(*columns).collect()))


@pytest.fixture(scope="module")
def named(spark: SparkSession, ledger: Path) -> list[list[object]]:
    """The messages that a report may name, which are those of reports."""
    columns = "primary_label destination message_id fate messages".split()
    tables = pipeline.read_tables(session_for_few(spark), ledger)
    found = sorted(map(list, tables["notable"].select(*columns).collect()))
    assert [row[2] for row in found if row[3] == "lost"] == ["gone"]
    return found


def shown_for(tool: str) -> str:
    """The code of the page for one tool."""
    [code] = re.findall(rf"### {tool}\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)


@pytest.mark.parametrize("tool", ["Polars", "DuckDB"])
def test_another_tool_gives_the_conservation_of_the_report(
    ledger: Path, reported: list[list[object]], named: list[list[object]], tool: str
) -> None:
    code = shown_for(tool)
    # The same code for the messages that a report may name.
    code += AND_THEN.format(sql=NAMED, code=code.replace("bronze", NOTABLE.name))
    rows = "[(0, *row) for row in counted] + [(1, *row) for row in found]"
    program = PROGRAM.format(sql=SQL, code=code, rows=rows)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ledger.parent,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    found = json.loads(ran.stdout)
    assert [row[1:] for row in found if row[0] == 1] == named
    assert (
        [row[1:] for row in found if row[0] == 0]
        == reported
        == [
            ["contoso", "news", 1, 0, 0, 0, 1],
            ["contoso", "orders", 7, 4, 1, 1, 1],
            ["fabrikam", "orders", 1, 0, 0, 0, 1],
        ]
    )


def test_spark_gives_the_same_rows_for_the_same_sql(
    spark: SparkSession, ledger: Path, reported: list[list[object]], named: list[list[object]]
) -> None:
    session = session_for_few(spark)
    store = open_store(session, ledger).by_given()
    for table in (BRONZE, NOTABLE.name):
        store.read(table, store.latest()).createOrReplaceTempView(table)
    assert sorted(map(list, session.sql(SQL).collect())) == reported
    assert sorted(map(list, session.sql(NAMED).collect())) == named
    # Without it a message would be lost that was found again.
    lost = session.sql("SELECT message_id FROM notable WHERE fate = 'lost' ORDER BY message_id")
    assert [row[0] for row in lost.collect()] == ["gone", "late", "late"]


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


def spark_with_delta() -> str:
    """The beginning of a program: a session with these jars."""
    return SPARK.format(jars=delta_jars(), java=java_options.NAME, quick=java_options.QUICK_JAVA)


def test_spark_reads_the_tables_with_the_jars_of_delta(
    ledger: Path, reported: list[list[object]]
) -> None:
    code = spark_with_delta() + shown_for("Spark with the jars of Delta")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(sql="", code=code, rows="found.collect()")],
        cwd=ledger.parent,
        env={**os.environ, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=500,
    )
    # What Ivy says of its downloads comes before.
    in_brief = [[*one[:4], one[-1]] for one in reported]
    assert json.loads(ran.stdout.splitlines()[-1]) == in_brief


PUBLISHED = """
from twinbus.ledger import LedgerError
from twinbus.pipeline import publish
spark.sql("CREATE SCHEMA lake")
spark.sql("CREATE TABLE lake.other (a INT) USING parquet")
assert publish(spark, "ledger", "lake") == (names := publish(spark, "ledger", "lake")), names
assert len(names) == len(spark.sql("SHOW TABLES IN lake").collect()) - 1
spark.sql("DROP TABLE lake.fates")
spark.sql("ALTER TABLE lake.other RENAME TO lake.fates")
try:
    publish(spark, "ledger", "lake")
except LedgerError as error:
    assert "lake.fates is another table, at file:" in str(error), error
else:
    raise AssertionError
spark.sql("DROP TABLE lake.fates")
publish(spark, "ledger", "spark_catalog.lake")
newest = "SELECT max_by(fates_version, number) FROM lake.sets"
[[version]] = spark.sql(newest).collect()
sums = "sum(accepted), sum(delivered), sum(undecided)"
fates = f"lake.fates VERSION AS OF {version}"
found = spark.sql(f"SELECT primary_label, destination, {sums} FROM {fates} GROUP BY ALL")
"""


def test_published_tables_are_read_by_their_names(
    ledger: Path, reported: list[list[object]]
) -> None:
    code = spark_with_delta() + PUBLISHED
    told = PROGRAM.format(sql="", code=code, rows="found.collect()")
    ran = subprocess.run(
        [sys.executable, "-c", told.replace('sys.modules["twinbus"] = None', "")],
        cwd=ledger.parent,
        env={**os.environ, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=500,
    )
    in_brief = [[*one[:4], one[-1]] for one in reported]
    assert json.loads(ran.stdout.splitlines()[-1]) == in_brief


FEW_LINES = [*(sent("a"), received("a", 1)), *moved("b", 2), diverted("waits", 4)]


def test_the_public_names_load_spark_only_when_they_are_used() -> None:
    assert sorted(pipeline.__all__) == [
        *("Frames", "conservation", "publish", "read_ledger", "read_tables", "start_session"),
        "update",
    ]
    program = "import sys, twinbus.pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipeline.nothing  # type: ignore[attr-defined]


def test_tables_are_frames_of_the_callers_session_with_comments(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    write_lines(ledger, "p-0.jsonl", FEW_LINES)
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
    # Other tools skip files by these.
    records = DeltaTable(str(ledger / "_tables" / "bronze"))
    [file] = pa.table(records.get_add_actions()).to_pylist()
    times = [one["at_ms"] for one in FEW_LINES]
    assert (file["min"]["at_ms"], file["max"]["at_ms"]) == (min(times), max(times))
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
    write_lines(tmp_path, "p-0.jsonl", [*FEW_LINES, sent("odd", size_bytes="many")])
    records = pipeline.read_ledger(spark, tmp_path)
    assert records.schema.fieldNames() == LEDGER.fieldNames()
    # The fault of the last line is in a column that this does not read.
    assert records.select("operation").count() == len(FEW_LINES)
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


@pytest.fixture
def url(spark: SparkSession) -> str:
    """A Connect server in the JVM that the tests share; it ends with the JVM."""
    jvm: Any = spark._jvm
    module = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    service = getattr(module, "MODULE$")
    if not service.started():
        service.start(spark.sparkContext._jsc.sc())
    return f"sc://localhost:{service.localPort()}"


@pytest.mark.soak  # above a minute of processor time: nothing is made for few rows there
def test_tables_reports_and_plans_are_the_same_over_connect(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    ledger = story.write_story(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", url, str(ledger)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)
    refused = answers.pop("drain")
    store = open_store(spark, ledger)
    kept = stored_tables(store, store.latest())
    classic = rebuild(spark, ledger)
    assert kept == stored_tables(open_store(spark, ledger), classic)
    assert answers == told(spark, ledger)
    assert refused.startswith("over Spark Connect a drain needs a ledger")
    assert "\n" not in refused


def test_a_connect_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_active", lambda: None)
    with pytest.raises(session.SparkStartError, match=r"^Spark Connect at sc://127.0.0.1:1 cannot"):
        session.start_session(master="sc://127.0.0.1:1")
