"""The tables' jobs on executors that are processes of their own, and by `spark-submit`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.spark.ledgers import moved, received, sent
from tests.spark.test_compaction import write
from twinbus.pipeline import submit

EXECUTORS = "local-cluster[2,1,1024]"


@pytest.mark.soak  # CI has a cluster in the kill tests of the drain
def test_a_cluster_of_two_executors_keeps_the_tables(tmp_path: Path) -> None:
    for number in range(4):
        ids = [f"m{number}-{index}" for index in range(25)]
        lines = [line for one in ids for line in (sent(one), received(one, 1))]
        write(tmp_path, f"app-{number}", lines + moved(f"moved-{number}"))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "twinbus.pipeline.submit", "update", str(tmp_path)),
            *("--master", EXECUTORS),
        ],
        # For the executors too: what is short need not be compiled well.
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"commit": 0, "batch": 0, "records": 216, "set_aside": {}}
    [journeys] = (tmp_path / "_tables" / "journeys").glob("batch=0-*")
    assert pq.read_table(journeys).num_rows == 104


@pytest.mark.soak  # CI has spark-submit in the drain's job
def test_spark_submit_keeps_the_tables_and_says_in_one_line_what_fails(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    where = [sys.executable, "-m", "twinbus.pipeline.submit", "--where"]
    script = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    write(ledger, "app-0", [sent("a"), received("a", 1)])

    def submitted(*arguments: str) -> tuple[int, str]:
        ran = subprocess.run(
            [
                *(str(home / "bin" / "spark-submit"), "--master", "local[2]"),
                *("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"),
                *("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
                *(script, *arguments),
            ],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        # spark-submit puts a script's standard error among its output.
        return ran.returncode, ran.stdout

    code, told = submitted("update", str(ledger))
    assert code == 0, told
    assert json.loads(told) == {"commit": 0, "batch": 0, "records": 2, "set_aside": {}}
    code, told = submitted("status", "nofs://host/ledger")
    assert code == 1
    assert told.startswith("twinbus: Spark could not work it out: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "name a job, for example: update LEDGER; --help shows all"),
        (["update"], "the following arguments are required: LEDGER; --help shows all"),
        (["retain", "x"], "the following arguments are required: --days; --help shows all"),
        (["compact", "x", "--days", "3"], "unrecognized arguments: --days 3; --help shows all"),
        (["retain", "x", "--days", "0"], "--days is 0, at least 1: today is always kept"),
        (["update", "x", "--remove-raw"], "unrecognized arguments: --remove-raw; --help shows all"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit.main(arguments) == submit.WRONG_USE
    assert capsys.readouterr().err == f"twinbus: {line}\n"


def test_where_prints_the_script_for_spark_submit(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["--where"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "submit.py"
