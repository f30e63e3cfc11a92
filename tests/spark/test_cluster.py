"""A standalone cluster: tables and drains on executors that are killed, and `spark-submit`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.ledger_reading import read
from tests.spark.cluster_world import Cluster, spark_home, standalone_cluster
from tests.spark.drain_world import KINDS, QUEUES, Driver, duplicates, kill9, world
from tests.spark.ledgers import diverted, moved, received, sent
from tests.spark.test_compaction import write
from tests.spark.test_drain_kill import kill_drivers, kill_executors
from twinbus.console import entry

FILES = 4
EACH = 100
"""Messages of each kind in a file."""
MESSAGES = 6_000
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One driver for all tests; the last one ends by killing it."""
    with Driver(
        cluster.url,
        tmp_path_factory.mktemp("driver") / "log",
        environment=cluster.environment,
        executors=cluster.executors,
    ) as driver:
        yield driver


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In each file messages that were sent, that came home by the backlog, and that wait in it."""
    place = tmp_path_factory.mktemp("ledger")
    for number in range(FILES):
        ids = [f"{number}-{index:03d}" for index in range(EACH)]
        lines = [line for one in ids for line in (sent(f"s{one}"), received(f"s{one}", 1))]
        lines += [line for one in ids for line in moved(f"m{one}")]
        write(place, f"app-{number}", [*lines, *(diverted(f"w{one}") for one in ids)])
    return place


def test_executors_have_no_twinbus_until_a_driver_brings_it(driver: Driver) -> None:
    assert driver.started["is_bare"]
    assert all(".zip/twinbus/" in place for place in driver.started["places"])


def test_a_directory_that_is_not_shared_is_refused_and_else_noticed(
    cluster: Cluster, driver: Driver, ledger: Path
) -> None:
    if cluster.covered is None:
        pytest.skip("only root may give a worker a mount namespace of its own")
    driver.order_update(ledger, cluster.covered, shared=False)
    assert f"is a local path and {cluster.url} is a cluster" in driver.answer()["error"]
    driver.order_update(ledger, cluster.covered)
    told = (
        r"2,800 records were written to .* and [\d,]+ can be read there, so nothing was committed"
    )
    answer = driver.answer()
    assert re.match(told, answer["error"]), answer
    assert not (cluster.covered / "sets").exists()
    # What is missing is on the other machine.
    assert list(cluster.private.rglob("*.parquet"))


def test_an_update_whose_executor_is_killed_gives_every_message_its_fate(
    driver: Driver, ledger: Path, tmp_path: Path
) -> None:
    driver.order_update(ledger, tmp_path)
    ends = time.monotonic() + PATIENCE_S
    # The records are written, and the rows of messages on their way from executor to executor.
    while not list((tmp_path / "journeys").glob("*")):
        assert time.monotonic() < ends, "no journeys are written"
        time.sleep(0.02)
    kill9(driver.executors[0])
    assert not (tmp_path / "sets").exists(), "it was over before the kill"
    records = FILES * EACH * 7
    assert driver.answer() == {"batch": 0, "records": records}
    numbers = [f"{number}-{index:03d}" for number in range(FILES) for index in range(EACH)]
    # As docs/tables.md reads them, by a process without Spark.
    [newest] = DeltaTable(str(tmp_path / "sets")).to_pyarrow_table().to_pylist()
    found = {
        name: DeltaTable(str(tmp_path / name), version=newest[f"{name}_version"])
        .to_pyarrow_table()
        .to_pylist()
        for name in ("bronze", "journeys", "fates", "notable")
    }
    assert len(found["bronze"]) == records
    ids = sorted(f"{kind}{one}" for kind in "smw" for one in numbers)
    assert sorted(row["message_id"] for row in found["journeys"]) == ids
    assert {
        name: sum(row[name] for row in found["fates"])
        for name in ("accepted", "delivered", "received", "undecided", "lost")
    } == {"accepted": 1_200, "delivered": 800, "received": 400, "undecided": 400, "lost": 0}
    waiting = sorted(row["message_id"] for row in found["notable"])
    assert waiting == [f"w{one}" for one in numbers]


@pytest.mark.timeout(1_200)
def test_a_drain_whose_executor_and_then_driver_is_killed_loses_nothing(
    driver: Driver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(tmp_path) as namespaces:
        figures = [
            kill_executors(
                namespaces, driver, tmp_path / "e", 1, is_strict=True, messages=MESSAGES
            ),
            kill_drivers(namespaces, tmp_path / "d", 1, first=driver, messages=MESSAGES),
        ]
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(figures) + "\n")


def submitted(*arguments: str, directory: Path, **variables: str) -> tuple[int, str]:
    """Exit status and output of a command under spark-submit."""
    ran = subprocess.run(
        [
            *(str(spark_home() / "bin" / "spark-submit"), "--master", "local[2,4]"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"),
            *("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
            *(entry.__file__, *arguments),
        ],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **variables,
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "SharedAccessKey" not in ran.stderr + ran.stdout
    # spark-submit puts a script's standard error among its output.
    return ran.returncode, ran.stdout


@pytest.mark.soak  # a JVM of its own, half a minute of processor time
def test_spark_submit_keeps_the_tables_and_says_in_one_line_what_fails(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    write(ledger, "app-0", [sent("a"), received("a", 1)])
    update = ("ledger", "update", str(ledger), "--output", "json")
    code, output = submitted(*update, directory=tmp_path)
    assert code == 0, output
    assert json.loads(output) == {"commit": 0, "batch": 0, "records": 2, "rejected": {}}
    code, output = submitted("ledger", "status", "nofs://host/ledger", directory=tmp_path)
    assert code == 1
    assert output.startswith("twinbus: nofs://host/ledger/_tables cannot be used: ")
    assert output.count("\n") == 1


@pytest.mark.soak  # the same
def test_spark_submit_runs_a_drain_at_its_rate(tmp_path: Path) -> None:
    served, rate = KINDS[:3], 100
    with world(tmp_path) as namespaces:
        namespaces.fill("s", EACH)
        code, output = submitted(
            *("syphon", "drain", "--engine", "spark", "--output", "json", "--label", "contoso"),
            *("--ledger", str(tmp_path / "ledger"), "--lease", "--rate", str(rate)),
            *(word for kind in served for word in ("--only", kind)),
            directory=tmp_path,
            TWINBUS_PRIMARY=namespaces.primary,
            TWINBUS_SECONDARY=namespaces.secondary,
        )
        assert code == 0, output
        arrived, left = namespaces.received(), namespaces.waiting()
    count = EACH * len(served)
    assert left == EACH * (len(KINDS) - len(served))
    done = json.loads(output.splitlines()[-1])
    assert (done["drained"], done["forwarded"], done["dead_lettered"]) == (True, count, 0)
    assert done["queues"] == QUEUES
    assert sum(map(len, arrived.values())) == count
    assert not duplicates(arrived)
    sent_at = [r["at_ms"] for r in read(tmp_path / "ledger") if r["operation"] == "forward"]
    assert max(sent_at) - min(sent_at) > count / rate * 1000 / 2, "nothing kept the rate"
