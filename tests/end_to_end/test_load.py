"""A broker under many clients, and with deep queues: memory, latency, start."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from tests.end_to_end.load_worker import CREDIT, LINKS_EACH
from tests.end_to_end.raw_client import RawClient, batch, message
from tests.official_sdk import administration
from tests.processes import ServedBroker

pytestmark = pytest.mark.end_to_end

BODY_BYTES = 16_000
AT_ONCE = 10
"""Messages of one batch."""
SMALL_BUFFERS = """
import socket
def listen(self, backlog, whole=socket.socket.listen):
    self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
    whole(self, backlog)
socket.socket.listen = listen
"""
"""Otherwise the kernel keeps 4 MB of deliveries for a slow reader before the broker has to."""
UNREAD_BYTES_LEAST = 500_000
"""What the broker then keeps for each, of the megabyte that it asked for."""
SETTLE_S, SETTLE_LIMIT_S, SETTLED_BYTES = 1.0, 120.0, 1_000_000
"""Deliveries to slow readers are still on their way when all of them are attached."""
HEALTH_MAX_S = 0.1
WORSE_MAX = 3.0
LEVEL_SHARE, LEVEL_BYTES = 0.05, 8_000_000
"""Growth of the memory while the load lasts that counts as level."""


@dataclass(frozen=True)
class Load:
    idle: int
    slow: int
    links: int
    strangers: int
    cycles: int
    """Of the honest client, in each phase."""


@dataclass(frozen=True)
class Phase:
    """What an honest client and a monitor met, in seconds."""

    cycles: list[float] = field(default_factory=list)
    """Send, receive and complete one message, each confirmed."""
    health: list[float] = field(default_factory=list)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def text_of(values: list[float], share: float) -> str:
    return f"{1000 * percentile(values, share):.1f} ms"


async def phase(broker: ServedBroker, cycles: int) -> Phase:
    """Work as an honest client, and ask for /health all the time."""
    result = Phase()
    monitor = asyncio.create_task(watch(broker.port(), result.health))
    client = await RawClient.open(broker.connection_string())
    sender, receiver = await client.sender("honest"), await client.receiver("honest", credit=10)
    for number in range(cycles):
        began = time.perf_counter()
        await sender.room()
        await sender.send(message(f"honest-{number}", b"x" * 1024))
        delivery = await receiver.receive()
        assert delivery is not None
        assert delivery.key == f"honest-{number}"
        await receiver.complete(delivery)
        result.cycles.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)
    assert not monitor.done(), "a request for /health failed"
    monitor.cancel()
    await client.close()
    return result


async def watch(port: int, took: list[float]) -> None:
    while True:
        took.append(await asyncio.to_thread(ask_health, port))
        await asyncio.sleep(0.01)


def ask_health(port: int) -> float:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("localhost", port, timeout=30)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    return time.perf_counter() - began


@contextmanager
def burden(broker: ServedBroker, load: Load) -> Iterator[None]:
    """The load, in a process of its own; it is there when this returns."""
    numbers = [load.idle, load.slow, load.links, load.strangers]
    command = [sys.executable, "-m", "tests.end_to_end.load_worker", broker.connection_string()]
    worker = subprocess.Popen(
        command + [str(number) for number in numbers],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "up\n"
        yield
        assert worker.poll() is None, "the load ended before its time"
    finally:
        worker.kill()
        worker.communicate()


async def prepare(broker: ServedBroker, slow: int) -> None:
    """Make the queues, and a message for each credit of each slow reader."""
    with administration(broker.connection_string()) as admin:
        for number in range(10):
            admin.create_queue(f"idle-{number}")
        admin.create_queue("honest")
        admin.create_queue("slow", lock_duration=timedelta(minutes=5))
    client = await RawClient.open(broker.connection_string())
    sender = await client.sender("slow")
    for number in range(slow * CREDIT // AT_ONCE):
        parts = [message(f"{number}-{part}", b"x" * BODY_BYTES) for part in range(AT_ONCE)]
        await sender.room()
        await sender.send(batch(parts), is_batch=True)
    await client.close()


async def settled_bytes(broker: ServedBroker, least_bytes: int) -> int:
    """Anonymous memory once it has reached `least_bytes` and grows no more."""
    before_bytes = 0
    async with asyncio.timeout(SETTLE_LIMIT_S):
        while (
            now_bytes := anonymous_bytes(broker)
        ) < least_bytes or now_bytes - before_bytes > SETTLED_BYTES:
            before_bytes = now_bytes
            await asyncio.sleep(SETTLE_S)
    return now_bytes


def connections(broker: ServedBroker) -> int:
    """AMQP connections by the broker's own count."""
    found = http.client.HTTPConnection("localhost", broker.port(), timeout=30)
    found.request("GET", "/metrics")
    lines = found.getresponse().read().decode().splitlines()
    found.close()
    (line,) = [each for each in lines if each.startswith("twinbus_broker_connections{")]
    return int(float(line.split()[-1]))


@dataclass(frozen=True)
class Figures:
    load: Load
    alone: Phase
    loaded: Phase
    empty_bytes: int
    up_bytes: int
    end_bytes: int

    def table(self) -> str:
        load, rows = self.load, [("", "alone", "under load")]
        for name, share in (("median", 0.5), ("99th percentile", 0.99)):
            for what, alone, loaded in (
                ("honest client", self.alone.cycles, self.loaded.cycles),
                ("/health", self.alone.health, self.loaded.health),
            ):
                rows.append((f"{what}, {name}", text_of(alone, share), text_of(loaded, share)))
        up = f"{self.up_bytes / 1e6:.0f} MB, at the end {self.end_bytes / 1e6:.0f} MB"
        rows.append(("anonymous memory", f"{self.empty_bytes / 1e6:.0f} MB", up))
        head = (
            f"{load.idle:,} idle connections, {load.slow} slow readers, {load.links:,} links, "
            f"{load.strangers} half-open connections, up to {2 * load.strangers} with garbage a "
            f"second, {load.cycles:,} cycles"
        )
        return "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])


async def measure(directory: Path, load: Load) -> Figures:
    with ServedBroker(directory, options=("--quiet",), before=SMALL_BUFFERS) as broker:
        await prepare(broker, load.slow)
        empty_bytes = anonymous_bytes(broker)
        alone = await phase(broker, load.cycles)
        with burden(broker, load):
            assert connections(broker) >= load.idle + load.slow + load.links // LINKS_EACH
            up_bytes = await settled_bytes(broker, empty_bytes + load.slow * UNREAD_BYTES_LEAST)
            loaded = await phase(broker, load.cycles)
            end_bytes = anonymous_bytes(broker)
        assert broker.health()["status"] == "ok"
        assert "Traceback" not in broker.log()
        return Figures(load, alone, loaded, empty_bytes, up_bytes, end_bytes)


async def test_an_honest_client_is_served_and_the_memory_is_level_under_load(
    tmp_path: Path,
) -> None:
    figures = await measure(tmp_path, Load(idle=500, slow=50, links=1_000, strangers=20, cycles=50))
    assert len(figures.loaded.cycles) == 50
    assert figures.loaded.health
    assert figures.end_bytes - figures.up_bytes < LEVEL_SHARE * figures.up_bytes + LEVEL_BYTES


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_thousands_of_clients_do_not_slow_an_honest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = Load(idle=5_000, slow=500, links=10_000, strangers=200, cycles=2_000)
    figures = await measure(tmp_path, load)
    with capsys.disabled():
        print(f"\n{figures.table()}")  # noqa: T201  # a figure that was measured is a result
    assert figures.end_bytes - figures.up_bytes < LEVEL_SHARE * figures.up_bytes + LEVEL_BYTES
    assert percentile(figures.loaded.health, 0.99) < HEALTH_MAX_S
    alone, loaded = (percentile(each.cycles, 0.99) for each in (figures.alone, figures.loaded))
    assert loaded < WORSE_MAX * alone


BODY = b"x" * 1024
BATCH = 200
"""Messages of one batch: some 220 KB, and a queue takes 256."""
WARM_COUNT = 4_000
UNDER_WAY = 8
"""Batches that wait for the broker's answer."""
MEMORY_MAX_BYTES = 600_000_000
MESSAGE_MAX_BYTES = 600
"""The same for each of a million."""
START_MAX_S = 5.0
"""Of processor time, so that other programs of the machine do not count."""


@dataclass(frozen=True)
class QueueFigures:
    """What queued messages cost; the bytes are anonymous memory of the broker."""

    count: int
    empty_bytes: int
    """At its first start."""
    warm_bytes: int
    """With the first messages: the buffers have their size."""
    filled_bytes: int
    """With all messages."""
    restarted_bytes: int
    start_s: float
    """From the command to the first answer of /health, with the messages there."""
    start_cpu_s: float
    """Processor time of the same. It is what `start_s` is while nothing else runs."""

    @property
    def each_bytes(self) -> tuple[float, float]:
        """For each message: as it arrives, and after a restart."""
        arriving = (self.filled_bytes - self.warm_bytes) / (self.count - WARM_COUNT)
        return arriving, (self.restarted_bytes - self.empty_bytes) / self.count

    def __str__(self) -> str:
        return (
            f"{self.count:,} messages of {len(BODY)} bytes: {self.empty_bytes / 1e6:.0f} MB empty, "
            f"{self.filled_bytes / 1e6:.0f} MB filled, {self.restarted_bytes / 1e6:.0f} MB after a "
            f"restart, which took {self.start_s:.1f} s ({self.start_cpu_s:.1f} s of processor "
            f"time); {self.each_bytes[0]:.0f} and {self.each_bytes[1]:.0f} bytes for each"
        )


def anonymous_bytes(broker: ServedBroker) -> int:
    """Memory of the process without files, such as the store, that it maps."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def processor_s(broker: ServedBroker) -> float:
    """Processor time of the process so far."""
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def fill(broker: ServedBroker, queue: str, count: int) -> None:
    """Send `count` messages, each with an id of its own, as long as a UUID."""
    client = await RawClient.open(broker.connection_string())
    sender = await client.sender(queue)
    under_way: deque[asyncio.Future[None]] = deque()
    for first in range(0, count, BATCH):
        parts = [message(f"{number:036}", BODY) for number in range(first, first + BATCH)]
        await sender.room()
        under_way.append(sender.send(batch(parts), is_batch=True))
        if len(under_way) >= UNDER_WAY:
            await under_way.popleft()
    await asyncio.gather(*under_way)
    await client.close()


async def measure_queue(directory: Path, count: int) -> QueueFigures:
    with ServedBroker(directory) as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_queue("deep", max_size_in_megabytes=5120)
        empty_bytes = anonymous_bytes(broker)
        await fill(broker, "deep", WARM_COUNT)
        warm_bytes = anonymous_bytes(broker)
        await fill(broker, "deep", count - WARM_COUNT)
        filled_bytes = anonymous_bytes(broker)
        broker.kill9()
        broker.restart()
        start_s, start_cpu_s = broker.start_took_s, processor_s(broker)
        restarted_bytes = anonymous_bytes(broker)
        with administration(broker.connection_string()) as admin:
            found = admin.get_queue_runtime_properties("deep").active_message_count
        assert found == count
        held = empty_bytes, warm_bytes, filled_bytes, restarted_bytes
        return QueueFigures(count, *held, start_s, start_cpu_s)


async def test_a_queued_message_needs_little_memory(tmp_path: Path) -> None:
    figures = await measure_queue(tmp_path, 20_000 + WARM_COUNT)
    assert max(figures.each_bytes) < MESSAGE_MAX_BYTES, str(figures)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_million_messages_need_600_mb_and_a_start_within_5_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = await measure_queue(tmp_path, 1_000_000)
    with capsys.disabled():
        print(f"\n{figures}")  # noqa: T201  # a figure that was measured is a result
    assert max(figures.filled_bytes, figures.restarted_bytes) < MEMORY_MAX_BYTES
    assert figures.start_cpu_s < START_MAX_S
