"""A program with ten thousand entities in one pair, a thousand of them failed over: what it costs.

Run as a process of its own, with the secondary's connection string, so that nothing else is
measured; prints one line of JSON.
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
IDLE_S = 3.0
LOOKS_MAX = 8
"""All of them before the first ping, which comes after a minute."""

IDLE_CPU_MAX = 0.03
"""Of one processor, while nothing is sent and no ping is due."""

NOBODY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;"
)


def memory_mb() -> float:
    """What of this process is in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def least_idle_cpu() -> float:
    """The share of a processor that is used when nothing happens.

    What the outage itself brought (links that are being closed) is no part of that, and takes a
    busy machine longer: so the least of several looks. A loop that is busy is so in all of them.
    """
    looks: list[float] = []
    while len(looks) < LOOKS_MAX and min(looks, default=1.0) > IDLE_CPU_MAX:
        await asyncio.sleep(1.0)
        began_s = time.process_time()
        await asyncio.sleep(IDLE_S)
        looks.append((time.process_time() - began_s) / IDLE_S)
    return min(looks)


async def measure(secondary: str, before_mb: float) -> dict[str, float]:
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
        idle_cpu = await least_idle_cpu()
        return {
            "entities": len(states),
            "failed_over": states.count("failed over"),
            "diverted": sum(entity.diverted for entity in pair.status().entities.values()),
            "healthy_mb": round(healthy_mb - before_mb, 1),
            "memory_mb": round(memory_mb() - before_mb, 1),
            "idle_cpu": round(idle_cpu, 4),
            "tasks": len(asyncio.all_tasks()),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(measure(sys.argv[1], memory_mb()))) + "\n")
