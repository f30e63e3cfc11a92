"""A standalone Spark cluster from the pip package, on this machine: a master and two workers.

Executors have no Twinbus. A worker in a mount namespace of its own, with another directory over one
of ours, is the machine of a cluster that does not share that path; only root may start one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.spark.drain_world import children, is_java
from tests.spark.java_options import QUICK_JAVA
from twinbus.pipeline.spark.java import find_java

START_S = 240.0
"""A JVM is up by then, on a busy machine too."""
LOOK_S = 0.1

COVERED = 'mount --bind "$0" "$1" && shift && exec "$@"'


@dataclass(frozen=True)
class Cluster:
    url: str
    workers: tuple[int, ...]
    """Process ids; the second worker does not share `covered`."""
    covered: Path | None
    """A directory that not all machines share; None: only root can have one."""
    private: Path
    """What the second worker has in its place."""
    environment: Mapping[str, str]
    """For a driver."""

    def executors(self) -> list[int]:
        """The JVMs that run tasks."""
        return [pid for worker in self.workers for pid in children(worker) if is_java(pid)]


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextlib.contextmanager
def standalone_cluster(place: Path) -> Iterator[Cluster]:
    """A cluster for a `with` block; `place` is a directory of its own."""
    covered, private, work = (place / name for name in ("covered", "private", "work"))
    for directory in (covered, private, work):
        directory.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, deploy = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    spark_class = str(spark_home() / "bin" / "spark-class")
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    worker = [spark_class, f"{deploy}.worker.Worker", *here, "--cores", "1", "--memory", "1g"]
    worker += ["--work-dir", str(work), url]
    other = worker
    if is_root := may_mount():
        other = ["unshare", "-m", "sh", "-c", COVERED, str(private), str(covered), *worker]
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": str(bare_python(place)),
    }
    # A worker says when it has found the master, which must be there before.
    commands = [
        (
            [spark_class, f"{deploy}.master.Master", *here, "--port", str(port)],
            "Starting Spark mas",
        ),
        (worker, "Successfully registered"),
        (other, "Successfully registered"),
    ]
    with contextlib.ExitStack() as stack:
        pids = []
        for number, (command, ready) in enumerate(commands):
            log = place / f"daemon-{number}.log"
            process = stack.enter_context(_started(command, environment, log))
            _wait_for(ready, log, process)
            pids.append(process.pid)
        yield Cluster(url, tuple(pids[1:]), covered if is_root else None, private, environment)


def may_mount() -> bool:
    """Whether a worker can have a mount namespace of its own."""
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def bare_python(place: Path) -> Path:
    """This Python with all that is installed in it but what is linked there, as Twinbus is."""
    script = place / "python"
    packages = shlex.quote(sysconfig.get_path("purelib"))
    # Without `site` the files that name further directories are not read.
    run = f'exec env PYTHONPATH={packages}:"$PYTHONPATH" {shlex.quote(sys.executable)} -S "$@"'
    script.write_text(f"#!/bin/sh\n{run}\n")
    script.chmod(0o755)
    return script


@contextlib.contextmanager
def _started(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield process
        finally:
            # An executor of a worker that was killed ends by itself.
            process.kill()


def _wait_for(text: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_S
    while text not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < ends, f"not in {log}: {text}"
        time.sleep(LOOK_S)
