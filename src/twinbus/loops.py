"""Runs the event loop of our own processes: commands, Spark tasks, benchmarks.

An application chooses its own loop and garbage collector settings. A notebook has a running loop.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")

COLLECTED_AFTER: Final = (5_000, 2, 2)
"""New objects before the garbage collector looks at them, and how often it looks at the new ones
before it looks at older ones; Python's 700 new ones are made in a millisecond.

A message of the broker or of a relay lives for some milliseconds and is freed by its reference
count. Collections in between find nothing and cost 5 to 8 % of the processor time. What a closed
connection leaves behind refers to itself and is old by then: it waits for a look at the oldest.
With 20,000 and Python's 10 and 10, a gateway grew from 75 to 142 MB in 24,000 connections; with
these it stays at 83, at the same rate of messages.
"""

SWITCH_S: Final = 0.00005
"""Time after which a thread lets another one run that waits. A broker's writer waits for the loop
several times in one commit, and the sends of all clients wait with it while one client keeps the
loop busy. With 0.5 ms they took six times as long, at the same rate of messages."""


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as `asyncio.run` does, in a process that does nothing else."""
    # Everything loaded until now stays: the garbage collector need not visit it again and again.
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        return runner.run(work)


def run_anywhere(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where a loop runs already, as in a notebook.

    It blocks that loop meanwhile.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A factory of uvloop's loops for `asyncio.Runner`; None: uvloop is not installed.

    uvloop halves the cost of small round trips and reads large pieces without a new buffer each.
    """
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
