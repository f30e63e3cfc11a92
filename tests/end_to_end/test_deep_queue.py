"""Deep queues: the memory of a queued message, and a start with many of them."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.raw_client import RawClient, batch, message
from tests.official_sdk import administration
from tests.processes import ServedBroker

pytestmark = pytest.mark.end_to_end

BODY = b"x" * 1024
AT_ONCE = 200
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
class Figures:
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
    for first in range(0, count, AT_ONCE):
        parts = [message(f"{number:036}", BODY) for number in range(first, first + AT_ONCE)]
        await sender.room()
        under_way.append(sender.send(batch(parts), is_batch=True))
        if len(under_way) >= UNDER_WAY:
            await under_way.popleft()
    await asyncio.gather(*under_way)
    await client.close()


async def measure(directory: Path, count: int) -> Figures:
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
        return Figures(count, *held, start_s, start_cpu_s)


async def test_a_queued_message_needs_little_memory(tmp_path: Path) -> None:
    figures = await measure(tmp_path, 20_000 + WARM_COUNT)
    assert max(figures.each_bytes) < MESSAGE_MAX_BYTES, str(figures)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_million_messages_need_600_mb_and_a_start_within_5_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = await measure(tmp_path, 1_000_000)
    with capsys.disabled():
        print(f"\n{figures}")  # noqa: T201  # a figure that was measured is a result
    assert max(figures.filled_bytes, figures.restarted_bytes) < MEMORY_MAX_BYTES
    assert figures.start_cpu_s < START_MAX_S
