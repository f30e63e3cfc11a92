"""Starting Spark: quiet, announced, with one clear line when it cannot; each in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUIET = """
from twinbus.pipeline.session import QUICK_START, spark_session

def noisy(batches):
    import sys
    print("from a worker", file=sys.stderr)
    yield from batches

said = []
with spark_session(master="local[1]", announce=said.append, settings=QUICK_START) as spark:
    assert spark.range(3).mapInArrow(noisy, "id long").count() == 3
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.speculation") == "false"
    process = spark.sparkContext._gateway.proc
assert process.poll() is not None, "the JVM outlived its session"
[line] = said
assert line.startswith("starting Spark (Java "), line
"""

REFUSED = """
from twinbus.pipeline.session import SparkStartError, start_session
try:
    start_session(master="local[1]", settings={"spark.driver.memory": "100m"})
except SparkStartError as error:
    print(error)
"""


def run(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=directory,
        # A Spark and a Python that are not ours must not be taken.
        env={**os.environ, "SPARK_HOME": "/nowhere", "PYSPARK_PYTHON": "/nowhere/python"},
    )


def test_a_session_starts_and_ends_without_a_word_or_a_trace(tmp_path: Path) -> None:
    done = run(QUIET, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_is_one_line_with_the_jvms_reason(tmp_path: Path) -> None:
    done = run(REFUSED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("Spark does not start on local[1]: ")
    assert "memory" in done.stdout


def test_a_session_that_is_there_is_used_and_left_running(spark: SparkSession) -> None:
    from twinbus.pipeline.session import spark_session

    def never(line: str) -> None:
        pytest.fail(line)

    with spark_session(announce=never) as same:
        assert same is spark
    assert spark.range(1).count() == 1
