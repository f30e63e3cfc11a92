"""The processors of a pair: their state, and their end with the pair.

A pair that is closed stops them first, while its receivers and senders still work, so that a
handler that is running can send and its message is settled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from twinbus.pairing.receiving.processor import Processor
from twinbus.status.receiving import OTHERS, ProcessorStatus, summed_processors
from twinbus.wording import named

log = logging.getLogger("twinbus.processor")

SETTLING_S: Final = 60.0
"""How long the close of a pair waits for a processor beyond its `stop_timeout`."""

PATHS_MAX: Final = 1_000
"""Queues and subscriptions with a row of their own in the status; others are summed in one."""


class PairedProcessors:
    """The processors of one pair that were started and have not stopped."""

    def __init__(self) -> None:
        self._running: dict[Processor, None] = {}
        self._ended: dict[str, ProcessorStatus] = {}
        """The counts of processors that have stopped, by path."""

    def started(self, processor: Processor) -> None:
        self._running[processor] = None

    def stopped(self, processor: Processor) -> None:
        if processor not in self._running:
            return
        del self._running[processor]
        last = processor.status()
        is_kept = last.path in self._ended or len(self._ended) < PATHS_MAX
        path = last.path if is_kept else OTHERS
        ended = ProcessorStatus(
            path=path,
            handled=last.handled,
            failed=last.failed,
            dead_lettered=last.dead_lettered,
            error=last.error,
        )
        before = [self._ended[path]] if path in self._ended else []
        self._ended[path] = summed_processors(path, [*before, ended])

    def status(self) -> dict[str, ProcessorStatus]:
        """The processors of each queue and subscription together, by path. From any thread."""
        # Copies: the loop changes both meanwhile.
        parts = [*dict(self._ended).values(), *(one.status() for one in tuple(self._running))]
        by_path: dict[str, list[ProcessorStatus]] = {}
        for one in parts:
            is_shown = one.path in by_path or len(by_path) < PATHS_MAX
            by_path.setdefault(one.path if is_shown else OTHERS, []).append(one)
        return {path: summed_processors(path, found) for path, found in by_path.items()}

    @property
    def are_running(self) -> bool:
        return bool(self._running)

    def hurry(self) -> None:
        """Let stops that wait cancel the handlers that run."""
        for processor in tuple(self._running):
            processor.hurry()

    async def stop(self, error: Exception, caller: asyncio.Task[Any] | None = None) -> None:
        """Stop all, each with its own `stop_timeout`; a bound holds whatever a handler does.

        Their `run_until_stopped` raises the error. One whose handler is the caller is told to stop
        and not waited for: it cannot end before.
        """
        processors = tuple(self._running)
        for processor in processors:
            processor.end_soon(error)
        awaited = [one for one in processors if not one.is_handler(caller)]
        if not awaited:
            return
        stops = [asyncio.create_task(one.stop(), name=f"stop {one.name}") for one in awaited]
        bound_s = max(one.stop_timeout_s for one in awaited) + SETTLING_S
        _, late = await asyncio.wait(stops, timeout=bound_s)
        if late:
            names = [one.name for one, stop in zip(awaited, stops, strict=True) if stop in late]
            log.warning("%s: not stopped within %g s; the pair is closed", named(names), bound_s)
        for stop in late:
            stop.cancel()
