"""Starting Spark: quiet, announced, from an archive of classes; one clear line when it cannot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from pyspark.sql import functions as F

from twinbus.pipeline.spark.class_archive import SWITCH, ClassArchive, class_archive
from twinbus.pipeline.spark.classic import JVM_GONE
from twinbus.pipeline.spark.java import find_java
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


def test_the_functions_of_columns_are_looked_up_in_the_jvm_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> None:
        F.when(F.upper(F.col("name")) == "A", F.lit(1)).otherwise(~F.coalesce("name", "other"))

    made()
    commands: list[str] = []
    send = ClientServerConnection.send_command

    def sent(connection: Any, command: str) -> Any:
        commands.append(command)
        return send(connection, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", sent)
    made()
    assert [one for one in commands if "upper" in one]
    # The name of a class, and of what is in it.
    assert [one for one in commands if one.startswith("r\n")] == []


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


SPARK = str(Path(str(__import__("pyspark").__file__)).parent)

SESSION = """
from twinbus.pipeline.spark.session import QUICK_START, spark_session
name, short = next(iter(QUICK_START.items()))
settings = {name: f"{short} -Xlog:class+load:file=loaded.txt"}
with spark_session(settings=settings, record_classes=True) as spark:
    print(spark.range(3).count())
"""

END_LIMIT_S = 300.0


def asked(cache: Path) -> ClassArchive | None:
    environment = {"XDG_CACHE_HOME": str(cache)}
    return class_archive(find_java(), SPARK, environment, record=True, now=time.time())


def launcher(option: str) -> int:
    """Run the smallest program of Spark's; return how many classes came from the archive."""
    done = subprocess.run(
        [
            *(find_java().home / "bin" / "java", option.strip('"'), "-Xlog:class+load"),
            *("-cp", f"{SPARK}/jars/*", "org.apache.spark.launcher.Main"),
            "org.apache.spark.deploy.SparkSubmit",
            "pyspark-shell",
        ],
        env={**os.environ, "SPARK_HOME": SPARK, "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        timeout=END_LIMIT_S,
        check=True,
    )
    assert "org.apache.spark.deploy.SparkSubmit" in done.stdout
    return done.stdout.count("source: shared objects file (top)")


def test_java_starts_from_what_another_one_recorded_and_passes_over_what_is_broken(
    tmp_path: Path,
) -> None:
    recording = asked(tmp_path)
    assert recording is not None
    assert launcher(recording.option) == 0
    used = asked(tmp_path)
    assert used is not None
    assert not used.is_recorded
    assert launcher(used.option) > 20
    # One of another Java, and something else that has its name and its size.
    whole = used.path.read_bytes()
    used.path.chmod(0o600)
    other = whole.replace(b"OpenJDK", b"AnyJDK!")
    for broken in (other, bytes(len(whole)), b"no archive".ljust(len(whole))):
        assert broken != whole
        used.path.write_bytes(broken)
        assert launcher(used.option) == 0


@pytest.mark.soak
def test_the_first_session_records_and_the_second_one_starts_from_it(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop(SWITCH, None)

    def session() -> int:
        done = subprocess.run(
            [sys.executable, "-c", SESSION],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=END_LIMIT_S,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("3\n", "")
        return (tmp_path / "loaded.txt").read_text().count("shared objects file (top)")

    assert session() == 0
    deadline = time.monotonic() + END_LIMIT_S
    while (used := asked(tmp_path / "cache")) is None:
        # The JVM is still writing.
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert not used.is_recorded
    assert session() > 5_000
