"""A syphon in a process of its own, to be killed: drains, prints how far it is, ends when done.

    python -m tests.end_to_end.syphon_worker JSON

Each line of its output is how many messages it has forwarded so far. The JSON may name a faulty
pump of `bad_pumps`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

from tests.end_to_end import bad_pumps
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.core.pump import IntakeLimits
from twinbus.syphon.draining import DrainProgress, drain

LOOK_S = 0.05


async def work(given: dict[str, Any]) -> None:
    """Drain the relaxed queues and the strict ones side by side."""
    forwarded: dict[str, int] = {}

    def tell(order: str, progress: DrainProgress) -> None:
        forwarded[order] = progress.forwarded
        sys.stdout.write(f"{sum(forwarded.values())}\n")
        sys.stdout.flush()

    await asyncio.gather(
        *(
            drain(
                given["primary"],
                given["secondary"],
                queues,
                twins=given.get("twins", ()),
                idle_s=LOOK_S,
                limits=IntakeLimits(messages=given["window"]),
                options=SendAvailabilityOptions(session_order=order),
                on_progress=partial(tell, order),
            )
            for order, queues in given["queues"].items()
        )
    )


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    pump = getattr(bad_pumps, given.get("pump", ""), None)
    with bad_pumps.pumped_by(pump) if pump else nullcontext():
        asyncio.run(work(given))
