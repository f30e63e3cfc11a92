"""The archive of Spark's classes with a real Java: written, used, and passed over when broken."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twinbus.pipeline.spark.class_archive import SWITCH, ClassArchive, class_archive
from twinbus.pipeline.spark.java import find_java

pytestmark = pytest.mark.spark

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
