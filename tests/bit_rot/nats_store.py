"""The control: messages in a stream of NATS JetStream, and what its server makes of changed files.

A warning or an error in the server's log counts as noticed, whatever it says. A server that answers
as if a message had never been stored, and logs nothing, leaves it out in silence: a consumer skips
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nats
from nats.js.errors import APIError, NotFoundError

from tests.bit_rot.flips import CRASH, HARMLESS, NOTICED, WRONG
from tests.bit_rot.small_store import body

MESSAGES = 8
START_LIMIT_S = 8.0
"""No promise: a server that takes longer hangs, and is ended."""

ANSWER_LIMIT_S = 10.0
POLL_S = 0.005
Files = dict[str, bytes]
"""By path below the store's directory."""


def server_binary() -> str | None:
    return shutil.which("nats-server", path=str(Path(sys.executable).parent))


@dataclass
class NatsStore:
    """A store, and the server that is started on it."""

    binary: str
    home: Path

    def fill(self) -> Files:
        """Store the messages, stop the server as a person would, and return its files."""
        self.store.mkdir(parents=True)
        with self._serving() as (process, port):
            asyncio.run(_publish(port))
            process.send_signal(signal.SIGTERM)
            process.wait(START_LIMIT_S)
        return self._files()

    @property
    def store(self) -> Path:
        return self.home / "store"

    def _files(self) -> Files:
        paths = [path for path in self.store.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.store)): path.read_bytes() for path in sorted(paths)}

    def read(self, files: Files) -> str:
        """Start a server on these files, read every message; the outcome."""
        shutil.rmtree(self.store)
        for name, content in files.items():
            path = self.store / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        with self._serving() as (process, port):
            found = asyncio.run(_read(port)) if port else {}
            status = process.poll()
        log = (self.home / "log").read_text(errors="replace")
        if not port and status is None:
            return f"{CRASH}: the server hangs: {log[-200:]}"
        return _outcome(found, status, log)

    @contextlib.contextmanager
    def _serving(self) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """The server and its port; port 0 if it ended at its start, or hangs."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(self.store)]
        with (self.home / "log").open("wb") as log:
            process = subprocess.Popen([self.binary, *words], stdout=log, stderr=log)
        try:
            yield process, port if _is_ready(process, port) else 0
        finally:
            process.kill()
            process.wait()


def _is_ready(process: subprocess.Popen[bytes], port: int) -> bool:
    ends = time.monotonic() + START_LIMIT_S
    while process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return True
        if time.monotonic() > ends:
            return False
        time.sleep(POLL_S)
    return False


async def _publish(port: int) -> None:
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = connection.jetstream(timeout=ANSWER_LIMIT_S)
    await stream.add_stream(name="orders", subjects=["orders"])
    for number in range(1, MESSAGES + 1):
        await stream.publish("orders", body(number))
    await connection.close()


async def _read(port: int) -> dict[int, bytes | None]:
    """By number, the body; None: the server answered with an error other than that it is absent."""
    found: dict[int, bytes | None] = {}
    connection = await nats.connect(
        f"nats://127.0.0.1:{port}", allow_reconnect=False, connect_timeout=START_LIMIT_S
    )
    stream = connection.jetstream(timeout=ANSWER_LIMIT_S)
    for number in range(1, MESSAGES + 2):
        try:
            found[number] = (await stream.get_msg("orders", number)).data or b""
        except NotFoundError:
            continue
        except APIError:
            found[number] = None
    await connection.close()
    return found


def _outcome(found: dict[int, bytes | None], status: int | None, log: str) -> str:
    told = [line for line in log.splitlines() if any(f"[{k}]" in line for k in ("WRN", "ERR"))]
    if status is not None:
        is_crash = status < 0 or "panic:" in log or "fatal error:" in log
        return f"{CRASH if is_crash else NOTICED}: {log[-200:]}"
    for number, content in found.items():
        if content is not None and (number > MESSAGES or content != body(number)):
            return f"{WRONG}: {number} is {content!r:.100}"
    absent = [number for number in range(1, MESSAGES + 1) if number not in found]
    if told or None in found.values():
        return f"{NOTICED}: {told[:1]}"
    return f"{WRONG}: {absent} are left out in silence" if absent else HARMLESS
