"""The tables' jobs on executors that are processes of their own, and by `spark-submit`.

A worker in a mount namespace of its own, with another directory over that of the tables, is the
machine of a cluster that does not share a path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.spark.ledgers import moved, received, sent
from tests.spark.test_compaction import write
from twinbus.pipeline import submit
from twinbus.pipeline.spark.java import find_java

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
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"commit": 0, "batch": 0, "records": 216, "set_aside": {}}
    [journeys] = (tmp_path / "_tables" / "journeys").glob("0-*")
    assert pq.read_table(journeys).num_rows == 104


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextlib.contextmanager
def standalone_cluster(tables: Path, private: Path) -> Iterator[str]:
    """A master and two workers, one of which has `private` where the others have `tables`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, deploy = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    spark_class = str(spark_home() / "bin" / "spark-class")
    worker = [spark_class, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
    worker += ["--cores", "1", "--memory", "1g", "--work-dir", str(private.parent / "work"), url]
    covered = 'mount --bind "$0" "$1" && shift && exec "$@"'
    commands = [
        [
            *(spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1"),
            *("--port", str(port), "--webui-port", "0"),
        ],
        worker,
        ["unshare", "-m", "sh", "-c", covered, str(private), str(tables), *worker],
    ]
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with contextlib.ExitStack() as stack:
        for place, command in enumerate(commands):
            process = stack.enter_context(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stderr is not None
            # The master first: the workers look for it. A worker says when it has found it.
            ready = "Starting Spark master" if place == 0 else "Successfully registered"
            assert any(ready in line for line in process.stderr), command
        yield url


@pytest.mark.soak  # half a minute: three JVMs and two executors
@pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="only root may give a worker a mount namespace of its own",
)
def test_a_worker_that_does_not_share_the_directory_is_noticed(tmp_path: Path) -> None:
    ledger, tables, private = (tmp_path / name for name in ("ledger", "tables", "private"))
    for place in (ledger, tables, private):
        place.mkdir()
    for number in range(3):
        write(ledger, f"app-{number}", [sent(f"m{number}-{index}") for index in range(1_000)])
    with standalone_cluster(tables, private) as url:

        def ran(*more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [
                    *(sys.executable, "-c", "from twinbus.console.entry import main; main()"),
                    *("ledger", "update", str(ledger)),
                    *("--tables", str(tables), "--master", url, *more),
                ],
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    # Not before both workers are there.
                    "PYSPARK_SUBMIT_ARGS": "--conf spark.scheduler.minRegisteredResourcesRatio=1.0"
                    " --conf spark.executor.memory=512m --conf spark.sql.shuffle.partitions=2"
                    " pyspark-shell",
                },
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )

        refused, noticed = ran(), ran("--shared")
    assert refused.returncode == 2
    assert f"is a local path and {url} is a cluster" in refused.stderr
    assert noticed.returncode == 1, noticed.stdout
    told = r"3,000 records were written to .* and [12],000 can be read there, so nothing was comm"
    assert re.search(told, noticed.stderr), noticed.stderr
    assert not list(tables.glob("commits/*.json"))
    # What is missing is on the other machine.
    assert list(private.rglob("*.parquet"))


@pytest.mark.soak  # CI has spark-submit in the drain's job
def test_spark_submit_keeps_the_tables_and_says_in_one_line_what_fails(tmp_path: Path) -> None:
    home = spark_home()
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
    assert told.startswith("twinbus: nofs://host/ledger/_tables cannot be used: ")
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
