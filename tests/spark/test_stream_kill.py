"""A process that is killed in the middle of a batch costs nothing: the next has the same tables."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.spark.kept import Tables, batch_tables, stored_tables, write_lines
from tests.spark.ledgers import Line, diverted, line, moved, received, sent
from tests.spark.stream_driver import PUBLISHED, points
from twinbus.pipeline.store import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILES: tuple[list[Line], ...] = (
    [sent("a"), diverted("b", 1), diverted("c", 2), line("state", None, 1, state="failed over")],
    [*moved("b", 1, out_s=9)[1:], received("a", 3), received("b", 10), received("b", 11)],
)

WITHOUT_ROWS = {f"{table} committed" for table in ("diversions", "states", "raised", "skews")}
"""The second batch adds no rows to these tables, so they get no version."""

LATER_POINTS = [
    point for point in points() if not point.endswith("created") and point not in WITHOUT_ROWS
]
"""Steps of the second batch."""

COMMAND = (sys.executable, "-m", "tests.spark.stream_driver")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def killed(spark: SparkSession) -> Iterator[Callable[[Path, str], int]]:
    """Has a process take one batch of a ledger, until it kills itself; gives its exit status."""
    reached = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    command = [*COMMAND, str(reached.port), str(reached.auth_token), "-"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:

        def kill(ledger: Path, point: str) -> int:
            assert driver.stdin is not None
            assert driver.stdout is not None
            driver.stdin.write(json.dumps([str(ledger), point]) + "\n")
            driver.stdin.flush()
            return int(driver.stdout.readline())

        yield kill
        assert driver.stdin is not None
        driver.stdin.close()


@pytest.fixture(scope="module")
def whole(spark: SparkSession) -> Tables:
    """The tables of all records, worked out at once."""
    return batch_tables(spark, [one for lines in FILES for one in lines])


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of which the tables have the first file, and not yet the second one."""
    ledger = tmp_path_factory.mktemp("begun") / "ledger"
    write_lines(ledger, "p-0.jsonl", FILES[0])
    stream.update(spark, ledger)
    write_lines(ledger, "p-1.jsonl", FILES[1])
    return ledger


def check_done_again(spark: SparkSession, ledger: Path, whole: Tables, *, sets: int) -> None:
    """The tables are whole after the next update; `sets` have been published by then."""
    snapshot = stream.update(spark, ledger)
    assert snapshot.number == sets - 1
    assert stored_tables(stream.open_store(spark, ledger), snapshot) == whole
    assert len(whole["notable"]) == 2


@pytest.mark.parametrize("point", ["journeys written", "fates committed", "sets written"])
def test_a_killed_process_is_followed_by_one_that_has_the_same_tables(
    spark: SparkSession,
    tmp_path: Path,
    begun: Path,
    whole: Tables,
    killed: Callable[[Path, str], int],
    point: str,
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    assert killed(ledger, point) == -signal.SIGKILL
    check_done_again(spark, ledger, whole, sets=2)


@pytest.mark.soak
@pytest.mark.parametrize("point", LATER_POINTS)
def test_a_process_that_is_killed_at_any_step_of_the_second_batch(
    spark: SparkSession,
    tmp_path: Path,
    begun: Path,
    whole: Tables,
    killed: Callable[[Path, str], int],
    point: str,
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    assert killed(ledger, point) == -signal.SIGKILL
    check_done_again(spark, ledger, whole, sets=2)


@pytest.mark.soak
@pytest.mark.parametrize("point", points())
def test_a_process_that_is_killed_at_any_step_of_the_first_batch(
    spark: SparkSession,
    tmp_path: Path,
    whole: Tables,
    killed: Callable[[Path, str], int],
    point: str,
) -> None:
    for number, lines in enumerate(FILES):
        write_lines(tmp_path, f"p-{number}.jsonl", lines)
    assert killed(tmp_path, point) == -signal.SIGKILL
    # Without the first batch the next process takes both files at once.
    check_done_again(spark, tmp_path, whole, sets=2 if point == PUBLISHED else 1)


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
