"""Starting Spark: quiet, announced, and one clear line when it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


def test_a_session_starts_without_a_word_but_the_announcement(started: Started) -> None:
    assert started.noise == ""
    [line] = started.announced
    assert re.fullmatch(r"starting Spark \(Java \d+ from \w+\)", line)
    left = {path.name for path in Path().iterdir()}
    assert not left & {"artifacts", "derby.log", "metastore_db", "spark-warehouse"}


def test_its_settings_are_the_quiet_and_safe_ones(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.speculation") == "false"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None


def test_a_start_that_fails_is_one_line_with_the_jvms_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
    )
    line = "Spark does not start on local[*,4]: Too small maximum heap\n"
    # The same a second time: the first leaves nothing behind.
    assert (done.stdout, done.stderr) == (line * 2, "")


def test_a_session_that_is_there_is_used_and_left_running(spark: SparkSession) -> None:
    with spark_session(announce=pytest.fail) as same:
        assert same is spark
    assert start_session(announce=pytest.fail) is spark
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(start_session, announce=pytest.fail).result() is spark
    assert spark.range(1).count() == 1
