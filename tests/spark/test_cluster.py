"""The tables' jobs on executors that are processes of their own, and what wrong use gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from tests.spark.ledgers import moved, received, sent
from tests.spark.test_compaction import write
from twinbus.console.cli import app
from twinbus.pipeline import tables_job

EXECUTORS = "local-cluster[2,1,1024]"


@pytest.mark.soak  # CI has a cluster in the kill tests of the drain
def test_a_cluster_of_two_executors_keeps_the_tables(tmp_path: Path) -> None:
    for number in range(4):
        ids = [f"m{number}-{index}" for index in range(25)]
        lines = [line for one in ids for line in (sent(one), received(one, 1))]
        write(tmp_path, f"app-{number}", lines + moved(f"moved-{number}"))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "twinbus.pipeline.tables_job", "update", str(tmp_path)),
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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "say what to do with which ledger: update LEDGER; --help shows all"),
        (["update"], "say what to do with which ledger: update LEDGER; --help shows all"),
        (["retain", "x"], "retain needs --days N, and nothing else takes it"),
        (["compact", "x", "--days", "3"], "retain needs --days N, and nothing else takes it"),
        (["retain", "x", "--days", "0"], "--days is 0, at least 1: today is always kept"),
        (["update", "x", "--remove-raw"], "--remove-raw is for compact"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables_job.main(arguments) == tables_job.WRONG_USE
    assert capsys.readouterr().err == f"twinbus: {line}\n"


def test_where_prints_the_script_for_spark_submit(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables_job.main(["--where"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "tables_job.py"


@pytest.mark.parametrize("verb", ["status", "compact", "retain"])
def test_the_commands_have_help_with_an_example(verb: str) -> None:
    shown = CliRunner().invoke(app, ["ledger", verb, "--help"])
    assert shown.exit_code == 0
    assert f"Example: twinbus ledger {verb}" in shown.output
