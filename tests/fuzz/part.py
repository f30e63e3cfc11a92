"""A part of the fuzzer: examples to draw and a check that no example may fail."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

EXAMPLE_S = 30.0
"""Processor time of one example. Most take milliseconds, those with thousands of links seconds."""


class EndlessExample(BaseException):
    """Not an Exception: the broker contains those of its parts and goes on."""


@dataclass(frozen=True)
class Part:
    """`check` raises on a find. `finds` are examples that failed once."""

    name: str
    examples: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    finds: tuple[Any, ...] = ()
    short: int = 20
    """Examples of the short form, which the ordinary tests run."""
    round: int = 50
    """Examples of one round of `make fuzz`."""
    phases: tuple[Phase, ...] = field(default=(Phase.explicit, Phase.generate, Phase.shrink))

    def run(self, seed: int, count: int, *, tries_finds: bool = True) -> None:
        """Try `count` examples that follow from `seed`; raises what the first find raised."""

        def check(example: Any) -> None:
            with _bounded():
                self.check(example)

        test: Any = hypothesis.given(self.examples)(check)
        for find in self.finds if tries_finds else ():
            test = hypothesis.example(find)(test)
        test = settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=self.phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )(test)
        hypothesis.seed(seed)(test)()


@contextmanager
def _bounded() -> Iterator[None]:
    """Let an example that does not end be a find too."""

    def stop(*_: object) -> None:
        raise EndlessExample(f"one example took more than {EXAMPLE_S:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, EXAMPLE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the loop that all examples of the process share."""
    _runner().run(work)
