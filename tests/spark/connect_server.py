"""A server of Spark Connect in a JVM of its own, from the pip package."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.spark.cluster_world import LOOK_S, START_S, spark_home
from tests.spark.drain_world import children, is_java
from tests.spark.java_options import QUICK_JAVA
from twinbus.pipeline.spark.java import find_java


@dataclass(frozen=True)
class ConnectServer:
    url: str
    pid: int

    def executors(self) -> list[int]:
        """The JVMs that run tasks, with the master `local-cluster`."""
        return [pid for pid in children(self.pid) if is_java(pid)]


@contextlib.contextmanager
def connect_server(
    master: str,
    log: Path,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ConnectServer]:
    """A server on this master for a `with` block; `python` is that of its tasks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master]
    command += ["--driver-java-options", QUICK_JAVA]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    given = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": python,
        **(environment or {}),
    }
    # With it every pyspark is a client, also that of the server.
    given.pop("SPARK_REMOTE", None)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "spark-internal"], env=given, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            ends = time.monotonic() + START_S
            while not _answers(port):
                assert process.poll() is None, log.read_text(errors="replace")
                assert time.monotonic() < ends, f"no answer: see {log}"
                time.sleep(LOOK_S)
            yield ConnectServer(f"sc://127.0.0.1:{port}", process.pid)
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
