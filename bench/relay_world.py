"""Two durable brokers and a relay, each in a process of its own, for the benchmarks of the syphon.

The backlog queues are filled with the very bytes that a paired sender would have stored there. A
round is what a person asks for, "move all of it": it begins with the command and ends when every
message is in the primary and none is left in the secondary.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from bench.large_sender import send_large
from bench.pipelined_client import PipelinedSender
from bench.processes import TWINBUS, serve, wait_until
from twinbus.amqp.message import Header, Properties, encode_message, join, split
from twinbus.namespace.tokens import sign
from twinbus.transfer.sections import to_backlog_sections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

DATA = Path(__file__).parent / "results"
"""The brokers keep their data here: a temporary directory may be memory, not disk."""

WINDOW = 1_000
ONE_FRAME_BYTES = 60_000
KILOBYTE = 1_024
TOKEN_LIFE_S = 24 * 3_600
START_TIMEOUT_S = 20.0
HTTP_TIMEOUT_S = 60.0
MEMORY_SAMPLE_S = 0.05
DESTINATION = "orders"

CONNECTION_STRING = re.compile(
    r"(Endpoint=(sb://[^;/]+)[^;]*;SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+);\S*)"
)
COUNT = re.compile(r"<(?:\w+:)?MessageCount>(\d+)<")
QUEUE_ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    "<QueueDescription"
    ' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>5120</MaxSizeInMegabytes>"
    "<MaxDeliveryCount>2147483647</MaxDeliveryCount>"
    "</QueueDescription></content></entry>"
)


def scaled(count: int) -> int:
    """A number of messages times $TWINBUS_BENCH_SCALE, for a quick look at a bench's health."""
    return max(20, int(count * float(os.environ.get("TWINBUS_BENCH_SCALE", "1"))))


class Broker:
    """`twinbus serve` with one namespace."""

    def __init__(self, process: subprocess.Popen[bytes], found: re.Match[str]) -> None:
        self.connection_string, endpoint, rule, key = found.groups()
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        self.process = process
        self.host, self.port = parts.hostname, parts.port
        self._audience = f"{endpoint}/"
        self._token = sign(self._audience, rule, key, int(time.time()) + TOKEN_LIFE_S)

    def declare_queue(self, name: str) -> None:
        self._administer("PUT", name, QUEUE_ENTRY)

    def delete_queue(self, name: str) -> None:
        self._administer("DELETE", name)

    def count(self, name: str) -> int:
        found = COUNT.search(self._administer("GET", name))
        assert found is not None
        return int(found[1])

    def send(self, queue: str, payload: bytes, count: int) -> None:
        """Store `count` copies of an encoded message."""
        if len(payload) > ONE_FRAME_BYTES:
            send_large(self.connection_string, queue, payload, count)
            return
        token = (self._audience, self._token)
        with PipelinedSender(self.host, self.port, queue, token=token) as sender:
            sender.send(payload, count, WINDOW)

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def _administer(self, verb: str, name: str, body: str = "") -> str:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=HTTP_TIMEOUT_S)
        headers = {"Authorization": self._token, "Content-Type": "application/atom+xml"}
        connection.request(verb, f"/{quote(name)}?api-version=2021-05", body, headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{verb} {name}: {response.status} {text}")
        return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """One drained backlog: what it took."""

    messages: int
    seconds: float
    relay_cpu_s: float
    primary_cpu_s: float
    secondary_cpu_s: float
    anonymous_kb: int
    """The most anonymous memory that the mover was seen with; 0: nobody looked."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Mover:
    """A process that moves backlogs when it is told to; use it as a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.relay_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, order: dict[str, Any]) -> None:
        """Tell it what to move; `end` has the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def has_answered(self, wait_s: float) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], wait_s)[0])

    def end(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the mover ended with {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


class RelayWorld:
    """A primary, a secondary, and backlogs that are filled and moved round by round."""

    def __init__(self, primary: Broker, secondary: Broker) -> None:
        self.primary, self.secondary = primary, secondary
        self._numbers = itertools.count()

    @contextmanager
    def backlog(
        self, messages: int, *, queues: int = 1, body_bytes: int = KILOBYTE
    ) -> Iterator[list[str]]:
        """Backlog queues that hold so many messages together; gone after the block.

        The block must have moved all of them: it is looked after.
        """
        number = next(self._numbers)
        destination = f"{DESTINATION}-{number}"
        paths = [f"bench-{number}/x-servicebus-transfer/{index}" for index in range(queues)]
        self.primary.declare_queue(destination)
        shares = [messages // queues + (index < messages % queues) for index in range(queues)]
        payload = backlog_message(destination, body_bytes)
        for path, share in zip(paths, shares, strict=True):
            self.secondary.declare_queue(path)
            self.secondary.send(path, payload, share)
        yield paths
        arrived = self.primary.count(destination)
        left = sum(self.secondary.count(path) for path in paths)
        assert (arrived, left) == (messages, 0), f"{arrived} of {messages} came, {left} are left"
        for path in paths:
            self.secondary.delete_queue(path)
        self.primary.delete_queue(destination)

    def move(
        self,
        mover: Mover,
        messages: int,
        *,
        queues: int = 1,
        body_bytes: int = KILOBYTE,
        engine: str = "relay",
        watch_memory: bool = False,
    ) -> Moved:
        """Fill backlog queues and have them moved; what that took."""
        with self.backlog(messages, queues=queues, body_bytes=body_bytes) as paths:
            before = self.primary.cpu_s, self.secondary.cpu_s
            mover.begin(
                {
                    "engine": engine,
                    "primary": self.primary.connection_string,
                    "secondary": self.secondary.connection_string,
                    "queues": paths,
                }
            )
            peak_kb = _watched(mover) if watch_memory else 0
            answer = mover.end()
            after = self.primary.cpu_s, self.secondary.cpu_s
        assert answer["moved"] == messages
        return Moved(
            messages=messages,
            seconds=answer["seconds"],
            relay_cpu_s=answer["cpu_s"],
            primary_cpu_s=after[0] - before[0],
            secondary_cpu_s=after[1] - before[1],
            anonymous_kb=peak_kb,
        )


@contextmanager
def relay_world() -> Iterator[RelayWorld]:
    """Both brokers, running, durable, with their data in directories that go when they stop."""
    DATA.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        primary, secondary = (stack.enter_context(_broker(name)) for name in ("one", "two"))
        yield RelayWorld(primary, secondary)


@contextmanager
def _broker(name: str) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="twinbus-", dir=DATA) as directory:
        home = Path(directory)
        log = home / "serve.log"
        command = [*TWINBUS, "serve", f"{name}:0", "--quiet", "--data", str(home / "data")]
        with serve(command, log=log) as process:
            wait_until(
                lambda: "ready;" in log.read_text(),
                process=process,
                log=log,
                timeout_s=START_TIMEOUT_S,
            )
            found = CONNECTION_STRING.search(log.read_text())
            assert found is not None
            yield Broker(process, found)


def backlog_message(path: str, body_bytes: int = KILOBYTE) -> bytes:
    """A durable message as a paired sender stores it in a backlog queue."""
    sent = encode_message(
        header=Header(durable=True),
        properties=Properties(message_id="bench", content_type="application/octet-stream"),
        application_properties={"origin": "bench"},
        data=bytes(body_bytes),
    )
    return join(to_backlog_sections(split(sent), path, now_ms=0))


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, all its threads together."""
    # After the name in parentheses: state is field 3, utime and stime are 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _watched(mover: Mover) -> int:
    """The most anonymous memory (kB) that the mover has until it answers."""
    peak = 0
    while True:
        status = Path(f"/proc/{mover.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+)", status)
        peak = max(peak, int(found[1]) if found else 0)
        if mover.has_answered(MEMORY_SAMPLE_S):
            return peak
