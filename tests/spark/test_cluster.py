"""A standalone cluster and killed executors and drivers: tables, drains, `spark-submit`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.ledger_reading import read
from tests.spark.cluster_world import Cluster, spark_home, standalone_cluster
from tests.spark.drain_world import (
    KINDS,
    QUEUES,
    SESSIONS,
    Driver,
    World,
    descendants,
    duplicates,
    is_running,
    kill9,
    world,
)
from tests.spark.ledgers import diverted, moved, received, sent
from tests.spark.test_compaction import write
from twinbus.console import entry
from twinbus.ledger import LedgerWriter
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.draining import drain as drain_here

pytestmark = pytest.mark.spark

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


MASTER = "local-cluster[2,1,1024]"
LIMIT = 100
"""Messages in flight for a queue: what a kill may duplicate of it."""
SOAK_MESSAGES = 20_000
SOAK_KILLS = int(os.environ.get("TWINBUS_KILL_ROUNDS", "20"))
SOAK_KILLS_EACH = 4
"""In one drain of the soak: Spark gives a task up that failed so often, and another job begins."""
END_S = 60.0
"""Executors of a dead driver, and their Python, have ended by then: in seconds, where there is a
processor for them."""


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_killed_executors_lose_nothing_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(tmp_path) as namespaces, Driver(MASTER, tmp_path / "driver.log") as driver:
        for number in range(SOAK_KILLS // SOAK_KILLS_EACH):
            figures = kill_executors(
                namespaces,
                driver,
                tmp_path / f"e{number}",
                SOAK_KILLS_EACH,
                is_strict=number % 2 == 0,
            )
            with capsys.disabled():
                sys.stdout.write(f"\n{figures}\n")


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_killed_drivers_lose_nothing_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(tmp_path) as namespaces:
        for number in range(SOAK_KILLS // SOAK_KILLS_EACH):
            figures = kill_drivers(namespaces, tmp_path / f"d{number}", SOAK_KILLS_EACH)
            with capsys.disabled():
                sys.stdout.write(f"\n{figures}\n")


def kill_executors(
    namespaces: World,
    driver: Driver,
    ledger: Path,
    kills: int,
    *,
    is_strict: bool,
    messages: int = SOAK_MESSAGES,
) -> str:
    """One drain, in the middle of which executors are killed; the figures in one line."""
    namespaces.fill(ledger.name, messages // len(KINDS))
    began = time.monotonic()
    driver.order(namespaces, ledger, limit=LIMIT, strict=is_strict)
    left = []
    for limit in _thresholds(kills, messages):
        namespaces.wait_until_below(limit, PATIENCE_S)
        victim = driver.busy_executor(ledger)
        # Its Python too, as the loss of its machine does: that by itself would end a moment later.
        for pid in (*descendants(victim), victim):
            kill9(pid)
        left.append(namespaces.waiting())
    assert left[-1] > 0, "it was over before the last kill"
    told = driver.answer()
    took_s = time.monotonic() - began

    arrived = namespaces.received()
    # Two of the four queues were the dead executor's.
    window = kills * LIMIT * len(QUEUES) // 2
    twice = check(arrived, ledger.name, window, messages, is_strict=is_strict)
    check_ledger(ledger, twice, told)
    attempts = len({path.name.rsplit("-", 1)[0] for path in ledger.glob("*.jsonl*")})
    order = "strict" if is_strict else "relaxed"
    return (
        f"kill -9 of an executor: {kills} rounds with {left} of {messages} left, {order},"
        f" {attempts} attempts, lost 0, duplicates {twice.total()}, window {window},"
        f" with duplicate detection 0; {took_s:.1f} s"
    )


def kill_drivers(
    namespaces: World,
    place: Path,
    kills: int,
    *,
    first: Driver | None = None,
    messages: int = SOAK_MESSAGES,
) -> str:
    """One drain by drivers that are killed one after the other; a plain syphon does the rest."""
    namespaces.fill(place.name, messages // len(KINDS))
    left, orphans, took = [], [], []
    with ExitStack() as drivers:
        coming = first
        for number, limit in enumerate(_thresholds(kills, messages)):
            driver = coming or _begin(drivers, place, number)
            if driver is not first:
                driver.__enter__()
            began = time.monotonic()
            driver.order(namespaces, place, limit=LIMIT, strict=True)
            # The next one starts meanwhile, which takes it longer than the rest of the round.
            coming = _begin(drivers, place, number + 1) if number + 1 < kills else None
            namespaces.wait_until_below(limit, PATIENCE_S)
            orphans += driver.helpers
            driver.kill9()
            left.append(namespaces.waiting())
            took.append(time.monotonic() - began)
    killed_at = time.monotonic()
    assert left[-1] > 0, "it was over before the last kill"
    assert len(orphans) >= 4 * kills, "two executors each, with Python"
    # At once, while orphaned tasks may still be at it: the lease and the locks are between them.
    with LedgerWriter(place) as writer:
        work = drain_here(
            namespaces.primary,
            namespaces.secondary,
            QUEUES,
            idle_s=0.2,
            ledger=writer,
            options=SendAvailabilityOptions(session_order="strict"),
        )
        asyncio.run(asyncio.wait_for(work, PATIENCE_S))
    window = kills * LIMIT * len(QUEUES)
    twice = check(namespaces.received(), place.name, window, messages, is_strict=True)
    check_ledger(place, twice, None)
    while any(is_running(pid) for pid in orphans):
        assert time.monotonic() - killed_at < END_S, "executors outlived their driver"
        time.sleep(0.1)
    return (
        f"kill -9 of the driver: {kills} rounds with {left} of {messages} left, strict, lost 0,"
        f" duplicates {twice.total()}, window {window}, with duplicate detection 0;"
        f" {', '.join(f'{each:.1f}' for each in took)} s to each kill"
    )


def _begin(drivers: ExitStack, place: Path, number: int) -> Driver:
    """A driver that is starting; gone with the others, whatever happens."""
    driver = Driver(MASTER, place.with_name(f"{place.name}-{number}.log"))
    drivers.push(driver)
    return driver


def _thresholds(kills: int, messages: int) -> list[int]:
    """What is left at each kill, somewhere in its part of the drain."""
    return [
        int(messages * (1 - (number + random.uniform(0.1, 0.7)) / kills)) for number in range(kills)
    ]


def check(
    arrived: dict[str, list[str]], name: str, window: int, messages: int, *, is_strict: bool
) -> Counter[str]:
    """Nothing is lost, no more is duplicated than may be, the order is kept; the duplicates."""
    numbers = range(messages // len(KINDS))
    wanted = {f"{name}-{kind}-{number:06d}" for kind in KINDS for number in numbers}
    lost = wanted - {key for keys in arrived.values() for key in keys}
    assert not lost, f"{len(lost)} lost: {sorted(lost)[:5]}"
    twice = duplicates(arrived)
    assert twice.total() <= window
    assert len(set(arrived["once"])) == len(arrived["once"]), "despite duplicate detection"
    if is_strict:
        for session in SESSIONS:
            assert arrived[session] == sorted(arrived[session]), f"{session} is out of order"
    return twice


def check_ledger(ledger: Path, twice: Counter[str], told: dict[str, int] | None) -> None:
    """The statistics are the ledger's, and what was completed is not sent again."""
    records = [r for r in read(ledger) if r.get("outcome") == "ok"]
    done = Counter(record["operation"] for record in records)
    assert told in (
        None,
        {"forwarded": done["forward"], "completed": done["complete"], "dead_lettered": 0},
    ), json.dumps(done)
    completed = Counter(r["message_id"] for r in records if r["operation"] == "complete")
    assert all(completed[key] <= 1 for key in twice)
