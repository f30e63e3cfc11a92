"""The process that moves backlogs for a benchmark: an order per line in, an answer per line out.

An order names the engine: `relay`, ours, or `sdk`, a good loop on the official SDK.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Sequence

from bench.sdk_loop import move_by_sdk
from twinbus.loops import run_alone
from twinbus.syphon.draining import drain


def main() -> None:
    """Serve orders until there are no more."""
    for line in sys.stdin:
        order = json.loads(line)
        before, began = _cpu_s(), time.perf_counter()
        moved, ended = run_alone(
            _move(order["engine"], order["primary"], order["secondary"], order["queues"])
        )
        answer = {
            "moved": moved,
            "seconds": ended - began,
            "cpu_s": _cpu_s() - before,
        }
        print(json.dumps(answer), flush=True)


async def _move(
    engine: str, primary: str, secondary: str, queues: Sequence[str]
) -> tuple[int, float]:
    """How many were moved, and when that was done."""
    if engine == "sdk":
        done = await asyncio.gather(*(move_by_sdk(primary, secondary, queue) for queue in queues))
        return sum(moved for moved, _ in done), max(ended for _, ended in done)
    stats = await drain(primary, secondary, queues)
    return stats.completed, time.perf_counter()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
