"""A program with ten thousand entities in one pair, a thousand of them failed over: what it costs.

Run as a process of its own, with the secondary's connection string, so that nothing else is
measured; prints one line of JSON. `--idle` also measures what it uses when nothing happens.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import azure.servicebus.aio  # noqa: F401  # the baseline: what a program with the SDK has anyway
from azure.servicebus import ServiceBusMessage

ENTITIES, DOWN = 10_000, 1_000
SETTLE_S = 10.0
"""After this the links that the outage broke are closed."""

IDLE_S = 10.0
"""Both together end before the first ping, which comes after a minute."""

NOBODY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;"
)


def memory_mb() -> float:
    """What of this process is in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def idle_cpu() -> float:
    """The share of a processor that the program uses while nothing is sent and no ping is due."""
    await asyncio.sleep(SETTLE_S)
    began_s = time.process_time()
    await asyncio.sleep(IDLE_S)
    return (time.process_time() - began_s) / IDLE_S


async def measure(secondary: str, before_mb: float, *, idle: bool) -> dict[str, float]:
    from twinbus import SendAvailabilityOptions, pair_namespaces

    options = SendAvailabilityOptions(failover_interval=1.0, ledger="")
    async with pair_namespaces(NOBODY, secondary, options) as pair:
        senders = [pair.get_queue_sender(f"entity-{number}") for number in range(ENTITIES)]
        healthy_mb = memory_mb()
        sends = (
            sender.send_messages(ServiceBusMessage("x"), timeout=60) for sender in senders[:DOWN]
        )
        await asyncio.gather(*sends)
        states = [entity.state for entity in pair.status().entities.values()]
        used = await idle_cpu() if idle else 0.0
        return {
            "entities": len(states),
            "failed_over": sum(state == "failed over" for state in states),
            "diverted": sum(entity.diverted for entity in pair.status().entities.values()),
            "healthy_mb": round(healthy_mb - before_mb, 1),
            "memory_mb": round(memory_mb() - before_mb, 1),
            "idle_cpu": round(used, 4),
            "tasks": len(asyncio.all_tasks()),
        }


if __name__ == "__main__":
    figures = measure(sys.argv[1], memory_mb(), idle="--idle" in sys.argv)
    sys.stdout.write(json.dumps(asyncio.run(figures)) + "\n")
