"""A process that is killed in the middle of a batch costs nothing: the next has the same tables.

Every step of a batch that changes the disk is a point at which a process is killed (`kill -9`). As
long as Spark writes, no version of a table changes. The commit needs no Spark: what two attempts at
a batch would commit is noted once, one of them is killed at each point, and the other follows it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.spark.kept import Tables, batch_tables, stored_tables, write_lines
from tests.spark.ledgers import Line, diverted, line, moved, received, sent
from tests.spark.stream_driver import COMMIT, COMMITTED, PUBLISHED, WRITTEN, lake_at
from twinbus.pipeline.store import stream
from twinbus.pipeline.tables.gold import stored_schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    Kill = Callable[[Path, str, Path | None], int]

pytestmark = pytest.mark.spark

FILES: tuple[list[Line], ...] = (
    [sent("a"), diverted("b", 1), diverted("c", 2), line("state", None, 1, state="failed over")],
    [*moved("b", 1, out_s=9)[1:], received("a", 3), received("b", 10), received("b", 11)],
)

WITHOUT_ROWS = {f"{table} committed" for table in ("diversions", "states", "raised", "skews")}
"""The second batch adds no rows to these tables, so they get no version."""

COMMITTED_LATER = [
    point for point in COMMITTED if not point.endswith("created") and point not in WITHOUT_ROWS
]
"""Points of the second batch."""

COMMAND = (sys.executable, "-m", "tests.spark.stream_driver")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def killed(spark: SparkSession) -> Iterator[Kill]:
    """Has a process work until it kills itself at a point; gives its exit status."""
    reached = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    command = [*COMMAND, str(reached.port), str(reached.auth_token), "-"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        orders, answers = driver.stdin, driver.stdout

        def kill(place: Path, point: str, step: Path | None = None) -> int:
            orders.write(json.dumps([str(place), point, str(step) if step else ""]) + "\n")
            orders.flush()
            return int(answers.readline())

        yield kill
        orders.close()


@pytest.fixture(scope="module")
def whole(spark: SparkSession) -> Tables:
    """The tables of all records, worked out at once."""
    return batch_tables(spark, [one for lines in FILES for one in lines])


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of two files, without tables."""
    ledger = tmp_path_factory.mktemp("new") / "ledger"
    for number, lines in enumerate(FILES):
        write_lines(ledger, f"p-{number}.jsonl", lines)
    return ledger


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of which the tables have the first file, and not yet the second one."""
    ledger = tmp_path_factory.mktemp("begun") / "ledger"
    write_lines(ledger, "p-0.jsonl", FILES[0])
    stream.update(spark, ledger)
    write_lines(ledger, "p-1.jsonl", FILES[1])
    return ledger


def versions(ledger: Path) -> dict[str, int]:
    """The newest version of each table, and of the sets."""
    places = (ledger / "_tables" / name for name in (*stored_schemas(), "sets"))
    return {
        place.name: DeltaTable(str(place)).version()
        for place in places
        if (place / "_delta_log").exists()
    }


def check_done_again(spark: SparkSession, ledger: Path, whole: Tables, *, sets: int) -> None:
    """The tables are whole after the next update; `sets` have been published by then."""
    snapshot = stream.update(spark, ledger)
    assert snapshot.number == sets - 1
    assert stored_tables(stream.open_store(spark, ledger), snapshot) == whole
    assert len(whole["notable"]) == 2


@pytest.mark.parametrize("point", ["journeys written", "fates committed"])
def test_a_killed_process_is_followed_by_one_that_has_the_same_tables(
    spark: SparkSession, tmp_path: Path, begun: Path, whole: Tables, killed: Kill, point: str
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    assert killed(ledger, point, None) == -signal.SIGKILL
    check_done_again(spark, ledger, whole, sets=2)


@pytest.mark.soak
@pytest.mark.parametrize("batch", [0, 1])
def test_a_process_that_is_killed_after_any_write_has_changed_no_version(
    spark: SparkSession,
    tmp_path: Path,
    new: Path,
    begun: Path,
    whole: Tables,
    killed: Kill,
    batch: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = shutil.copytree((new, begun)[batch], tmp_path / "ledger")
    before = versions(ledger)
    assert len(before) == (0, 16)[batch]
    for point in WRITTEN:
        assert killed(ledger, point, None) == -signal.SIGKILL, point
        assert versions(ledger) == before, point
    # Beside the remains of all of them; a first batch takes both files.
    check_done_again(spark, ledger, whole, sets=batch + 1)
    with capsys.disabled():
        sys.stdout.write(f"\nkilled at {len(WRITTEN)} points of batch {batch}: none counted\n")


def contents(tables: Path) -> dict[str, list[str]]:
    """The rows that the newest set names, read without Spark."""
    snapshot = lake_at(tables).latest()
    return {
        name: sorted(
            map(str, DeltaTable(str(tables / name), version=version).to_pyarrow_table().to_pylist())
        )
        for name, version in snapshot.versions.items()
    }


@pytest.mark.soak
@pytest.mark.parametrize("batch", [0, 1])
def test_a_process_that_is_killed_at_any_step_of_a_commit_is_followed_by_another(
    tmp_path: Path,
    new: Path,
    begun: Path,
    killed: Kill,
    batch: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = shutil.copytree((new, begun)[batch], tmp_path / "ledger")
    first, second = tmp_path / "first", tmp_path / "second"
    for attempt in (first, second):
        assert killed(ledger, COMMIT, attempt) == -signal.SIGKILL
    prepared, again = ledger / "_tables", pickle.loads(second.read_bytes())
    done = shutil.copytree(prepared, tmp_path / "done")
    lake_at(done).publish(*again)
    expected = contents(done)
    points = (COMMITTED, COMMITTED_LATER)[batch]
    for number, point in enumerate(points):
        tables = shutil.copytree(prepared, tmp_path / str(number))
        assert killed(tables, point, first) == -signal.SIGKILL, point
        found = lake_at(tables).latest()
        assert found.number == batch - (point != PUBLISHED), point
        if point != PUBLISHED:
            assert lake_at(tables).publish(*again).number == batch, point
        assert contents(tables) == expected, point
    with capsys.disabled():
        sys.stdout.write(f"\nkilled at {len(points)} points of commit {batch}: the same tables\n")


def lose_power(ledger: Path, table: str) -> None:
    """Kill a process and its Spark while a table of the next batch is written."""
    done = subprocess.run(
        [*COMMAND, str(ledger), table],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        timeout=500,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == -signal.SIGKILL


def test_a_spark_that_is_killed_while_it_writes_leaves_the_tables_as_they_were(
    spark: SparkSession, tmp_path: Path, begun: Path, whole: Tables
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    lose_power(ledger, "fates")
    check_done_again(spark, ledger, whole, sets=2)


@pytest.mark.soak
@pytest.mark.parametrize("table", ["bronze", "journeys", "charges", "notable"])
def test_a_spark_that_is_killed_while_it_writes_any_kind_of_table(
    spark: SparkSession, tmp_path: Path, begun: Path, whole: Tables, table: str
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    lose_power(ledger, table)
    check_done_again(spark, ledger, whole, sets=2)
