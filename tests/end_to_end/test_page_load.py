"""The page under load: 50 pairs with 40 entities each, 20 events a second, one open stream."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.page_process import paged
from tests.processes import until
from twinbus.control.sockets import VARIABLE

pytestmark = [pytest.mark.end_to_end, pytest.mark.soak]

PAIRS, ENTITIES, EVENTS_PER_S = 50, 40, 20
MEASURED_S = 30.0
CORE_SHARE_MAX = 0.10
MEMORY_MAX_MB = 150

HOSTS = """
import asyncio, itertools, sys
from tests.unit.status.statuses import entity, status
from twinbus.control.protocol import Verb
from twinbus.control.server import ControlServer

async def main(pairs, entities, per_s):
    queues = [entity(f"queue-{n}") for n in range(entities)]
    states = [status(*queues).as_dict() for _ in range(pairs)]
    servers = [
        ControlServer("pair", f"pair-{n}", {"status": Verb(lambda one=one: one)})
        for n, one in enumerate(states)
    ]
    for server in servers:
        await server.start()
    print("ready", flush=True)
    for number in itertools.count():
        one = states[number % pairs]["entities"][f"queue-{number // pairs % entities}"]
        is_healthy = one["state"] == "healthy"
        one.update(state="suspect" if is_healthy else "healthy", sent=one["sent"] + 1)
        await asyncio.sleep(1 / per_s)

asyncio.run(main(*map(int, sys.argv[1:])))
"""


@pytest.fixture
def hosts() -> Iterator[Path]:
    """A directory with the sockets of many pairs."""
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    command = [sys.executable, "-c", HOSTS, str(PAIRS), str(ENTITIES), str(EVENTS_PER_S)]
    environment = {**os.environ, VARIABLE: str(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield directory
        process.kill()
    shutil.rmtree(directory)


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def test_many_pairs_cost_little_and_are_shown_every_second(hosts: Path) -> None:
    with paged({VARIABLE: str(hosts)}) as page:
        until(lambda: len(page.pairs()) == PAIRS)
        stream = http.client.HTTPConnection(page.host, timeout=60)
        stream.request("GET", "/api/stream", headers={"Authorization": f"Bearer {page.token}"})
        answer = stream.getresponse()
        pid, heads, events = page.process.pid, [], 0
        ends = time.monotonic() + 5 + MEASURED_S
        began, used, first_mb = 0.0, 0.0, 0.0
        while time.monotonic() < ends:
            line = answer.readline()
            if not began and time.monotonic() > ends - MEASURED_S:
                began, used, first_mb = time.monotonic(), processor_s(pid), memory_mb(pid)
            if began and line == b"event: head\n":
                heads.append(time.monotonic())
            events += bool(began) and line == b"event: event\n"
        took_s = time.monotonic() - began
        share, size_mb = (processor_s(pid) - used) / took_s, memory_mb(pid)
        stream.close()
        seen = f"{share:.1%} of a core, {size_mb:.0f} MB (from {first_mb:.0f} MB), {events} events"
        assert share <= CORE_SHARE_MAX, seen
        assert size_mb <= MEMORY_MAX_MB, seen
        assert len(heads) >= MEASURED_S * 0.8
        assert events >= EVENTS_PER_S * MEASURED_S * 0.5
