"""ActiveMQ Artemis from Maven Central, which syncs its journal before it confirms a message."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import NotMeasured, Progress
from bench.peers.sender import Peer
from bench.pipelined_client import PipelinedSender
from bench.processes import free_port, serve, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERSION = "2.40.0"
"""The newest whose archive Maven Central has."""
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
ARCHIVE = f"org.apache.activemq:apache-artemis:{VERSION}:tar.gz:bin"
FETCH_LIMIT_S = 600.0
START_LIMIT_S = 120.0
LOGIN = "bench", "bench"


@contextmanager
def artemis(
    data: Path, payload: bytes, queues: Sequence[str], progress: Progress
) -> Iterator[Peer]:
    """Run a broker with these queues."""
    for tool in ("mvn", "java"):
        if shutil.which(tool) is None:
            raise NotMeasured(f"ActiveMQ Artemis comes by Maven and runs on Java: no {tool} here")
    with tempfile.TemporaryDirectory(prefix="artemis-", dir=data) as directory:
        home, port = Path(directory), free_port()
        progress("fetching ActiveMQ Artemis")
        _run("mvn", "-q", "-B", COPY, f"-Dartifact={ARCHIVE}", f"-DoutputDirectory={home}")
        (archive,) = home.glob("*.tar.gz")
        _run("tar", "-x", "-C", str(home), "-f", str(archive))
        (program,) = home.glob("*/bin/artemis")
        user, password = LOGIN
        _run(
            *(str(program), "create", str(home / "broker"), "--silent", "--require-login"),
            *("--user", user, "--password", password, "--host", "127.0.0.1"),
            *("--default-port", str(port), "--queues", ",".join(queues), "--no-web"),
            *("--no-amqp-acceptor", "--no-hornetq-acceptor"),
            *("--no-mqtt-acceptor", "--no-stomp-acceptor"),
        )
        progress("starting ActiveMQ Artemis")
        log = home / "artemis.log"
        with serve([str(home / "broker" / "bin" / "artemis"), "run"], log=log) as process:
            wait_until(lambda: _listens(port), process=process, log=log, timeout_s=START_LIMIT_S)

            def send(name: str, messages: int, window: int) -> float:
                with PipelinedSender("127.0.0.1", port, name, login=LOGIN) as sender:
                    return sender.send(payload, messages, window)

            yield Peer(f"ActiveMQ Artemis {VERSION}", True, process.pid, send)


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
        raise NotMeasured(f"{command[0]} ended with {done.returncode}: {said[-1]}")


def _listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        return True
    return False
