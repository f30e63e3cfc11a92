"""The start of a test's namespace: the first of a process, and each one after it.

The pytest plugin starts a namespace for each test, so what counts is the second. No ratio against a
peer, so it is printed.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from twinbus.testing import LocalNamespace

if TYPE_CHECKING:
    from bench.harness import Progress

ROUNDS = 50
AIM_MS = 50.0


def tables(progress: Progress) -> str:
    """Measure start, one queue and end; the figures as a person reads them."""
    progress("the first namespace")
    first = _round_ms()
    progress(f"{ROUNDS} more")
    starts, ends = zip(*(_round_ms() for _ in range(ROUNDS)), strict=True)
    rows = {
        "first of the process": first,
        f"median of {ROUNDS} more": (statistics.median(starts), statistics.median(ends)),
        f"slowest of {ROUNDS}": (max(starts), max(ends)),
    }
    lines = [
        f"  {name:<22} start {start:6.1f}   end {end:6.1f}" for name, (start, end) in rows.items()
    ]
    title = f"namespace_start: wall time in ms, aim {AIM_MS:g} for the start of a second one"
    return "\n".join([title, *lines])


def _round_ms() -> tuple[float, float]:
    began = time.perf_counter()
    with LocalNamespace() as namespace:
        namespace.create_queue("orders")
        ready = time.perf_counter()
    return (ready - began) * 1000, (time.perf_counter() - ready) * 1000
