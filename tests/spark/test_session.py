"""Starting Spark: quiet, announced, and one clear line when it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from twinbus.pipeline.spark.classic import JVM_GONE
from twinbus.pipeline.spark.session import spark_session, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Started

pytestmark = pytest.mark.spark

REFUSED = """
from twinbus.pipeline.spark.session import SparkStartError, start_session
for _ in range(2):
    try:
        start_session(settings={"spark.driver.memory": "1k"})
    except SparkStartError as error:
        print(error)
"""

KILLED = """
import os, signal, sys
from twinbus.pipeline.spark.classic import SparkFailed
from twinbus.pipeline.spark.session import QUICK_START, spark_session
try:
    with spark_session(settings=QUICK_START) as spark:
        jvm = spark.sparkContext._gateway.proc
        try:
            spark.sql("select raise_error('x')").collect()
        finally:
            os.kill(jvm.pid, signal.SIGKILL)
            jvm.wait()
except SparkFailed as error:
    print(error)
if sys.argv[1:] == ["again"]:
    with spark_session(settings=QUICK_START) as spark:
        print(spark.range(3).count())
"""


def test_a_session_starts_without_a_word_but_the_announcement(started: Started) -> None:
    assert started.noise == ""
    [line] = started.announced
    assert re.fullmatch(r"starting Spark \(Java \d+ from \w+\)", line)
    left = {path.name for path in Path().iterdir()}
    assert not left & {"artifacts", "derby.log", "metastore_db", "spark-warehouse"}


def test_its_settings_are_the_quiet_and_safe_ones(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.speculation") == "false"
    # Driver and block manager listen on loopback; a task's connection string is a block there.
    assert spark.conf.get("spark.authenticate") == "true"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None


def test_a_start_that_fails_is_one_line_with_the_jvms_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
        cwd=tmp_path,
    )
    line = "Spark does not start on local[*,4]: Too small maximum heap\n"
    # The same a second time: the first leaves nothing behind.
    assert (done.stdout, done.stderr) == (line * 2, "")


@pytest.mark.parametrize(
    ("again", "more"),
    [((), ""), pytest.param(("again",), "3\n", marks=pytest.mark.soak)],
    ids=["once", "and another can start"],
)
def test_a_jvm_that_is_killed_is_one_line(
    tmp_path: Path, again: tuple[str, ...], more: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *again],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
        cwd=tmp_path,
    )
    line = f"Spark failed: {JVM_GONE}\n"
    assert (done.stdout, done.stderr) == (line + more, "")


def test_a_session_that_is_there_is_used_and_left_running(spark: SparkSession) -> None:
    # Another test may have made a session of its own the active one.
    spark.createDataFrame([(1,)], "number int")
    with spark_session(announce=pytest.fail) as same:
        assert same is spark
    assert start_session(announce=pytest.fail) is spark
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(start_session, announce=pytest.fail).result() is spark
    assert spark.range(1).count() == 1
