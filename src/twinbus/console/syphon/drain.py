"""`twinbus syphon drain`: move everything that is in the backlog, show how it goes, and exit."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from dataclasses import replace
from typing import IO, Any, Final

from twinbus.console.namespaces import run_to_its_end
from twinbus.console.syphon import text as syphon_words
from twinbus.console.syphon.request import SyphonRequest
from twinbus.console.syphon.text import SyphonProgress
from twinbus.console.terminal.output import ATTENTION, COULD_NOT, WrongUse, print_json
from twinbus.control.protocol import Verb
from twinbus.control.server import ControlServer
from twinbus.control.syphon_verbs import steering_verbs
from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import endpoint_of
from twinbus.syphon.connection.counts import CountsUnavailable, QueueCounts, counts_of
from twinbus.syphon.connection.selection import matching, selected
from twinbus.syphon.core.forecast import DrainMeter, time_to_empty_s
from twinbus.syphon.host import DrainProgress, SyphonHost, drain_host

__all__ = ["drain_here", "drain_on_spark"]

LINE_EVERY_S: Final = 10.0
"""Between two lines where nobody looks at a terminal: a log should show that it goes on."""

LOOK_S: Final = 0.5


class Display:
    """Shows how a drain stands: one live line on a terminal, else a line from time to time."""

    def __init__(self, stream: IO[str], *, is_quiet: bool = False) -> None:
        self.last: DrainProgress | None = None
        self._stream = stream
        self._is_live = stream.isatty()
        self._is_quiet = is_quiet
        self._meter = DrainMeter()
        self._first = 0
        self._gone = 0
        self._moved_at = time.monotonic()
        self._next_at = 0.0
        self._is_shown = False

    def __call__(self, progress: DrainProgress) -> None:
        """Take in how far it has come, and show it where it is time to."""
        now = time.monotonic()
        gone = progress.forwarded + progress.dead_lettered
        if self.last is None:
            self._first = progress.waiting + gone
        if gone > self._gone:
            self._moved_at = now
        self._meter.moved(max(0, gone - self._gone), now)
        self._gone = max(self._gone, gone)
        self.last = progress
        if self._is_quiet or (not self._is_live and now < self._next_at):
            return
        standing = SyphonProgress(
            progress, self._first, self._meter.per_s(now), now - self._moved_at
        )
        self._show(syphon_words.standing_line(standing))
        self._next_at = now + LINE_EVERY_S

    def forecast(self) -> dict[str, float | None]:
        """The speed now, and when the rest is gone."""
        per_s = self._meter.per_s(time.monotonic())
        left_s = None if self.last is None else time_to_empty_s(self.last.waiting, per_s)
        return {"rate_per_s": round(per_s, 1), "empty_in_s": left_s}

    def clear(self) -> None:
        """Take the live line away."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False

    def _show(self, line: str) -> None:
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + line[:width])
            self._is_shown = True
        else:
            self._stream.write(f"twinbus: {line}\n")
        self._stream.flush()


def drain_here(plan: SyphonRequest, timeout_s: float | None, *, as_json: bool) -> int:
    """Drain in this process; print what came of it; the exit status."""

    async def work() -> int:
        queues = await _served_queues(plan)
        await plan.have_lease_queue()
        display = Display(sys.stderr, is_quiet=as_json)
        began = time.monotonic()
        with plan.open_ledger() as ledger:
            host = plan.host(queues, ledger, plan.make_rate())
            verbs = {"status": Verb(lambda: _status(plan, host, display)), **steering_verbs(host)}
            control = ControlServer("syphon", plan.label, verbs)
            await control.start()
            is_drained = False
            try:
                async with asyncio.timeout(timeout_s):
                    await drain_host(host, idle_s=LOOK_S, on_progress=display)
                is_drained = True
            except TimeoutError:
                pass
            finally:
                display.clear()
                await control.close()
        pumps = [relay.pump for relay in host.relays]
        return _tell(
            plan,
            {
                "drained": is_drained,
                "queues": queues,
                "forwarded": sum(pump.forwarded for pump in pumps),
                "dead_lettered": sum(pump.dead_lettered for pump in pumps),
                "left_aside": sum(pump.left_aside for pump in pumps),
                "seconds": round(time.monotonic() - began, 3),
            },
            display.last,
            as_json=as_json,
        )

    return run_to_its_end(work)


def _status(plan: SyphonRequest, host: SyphonHost, display: Display) -> dict[str, Any]:
    return {
        "primary": plan.primary.endpoint,
        "secondary": plan.secondary.endpoint,
        "paused": host.is_paused,
        "rate_limit_per_s": plan.rate_per_s,
        "only": sorted(plan.only),
        "queues": host.status(),
        "waiting": None if display.last is None else display.last.waiting,
        **display.forecast(),
    }


def drain_on_spark(plan: SyphonRequest, master: str | None, *, as_json: bool) -> int:
    """Drain with a Spark job; print what came of it; the exit status."""
    from twinbus.pipeline.drain.drain import drain
    from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session

    sides = [side.connection_string for side in (plan.primary, plan.secondary)]
    if None in sides:
        raise WrongUse("--engine spark needs connection strings: tasks sign in with them")
    queues = asyncio.run(_served_queues(plan))
    asyncio.run(plan.have_lease_queue())
    before = asyncio.run(_counts(plan, queues))
    display = Display(sys.stderr, is_quiet=as_json)
    began = time.monotonic()
    with spark_session(master=master or LOCAL_MASTER) as spark:
        try:
            run = drain(
                spark,
                str(sides[0]),
                str(sides[1]),
                queues,
                ledger_directory=plan.ledger,
                on_progress=display,
                options=plan.options,
                lease=plan.wants_lease,
                rate_per_s=plan.rate_per_s,
                only=plan.only or None,
            )
        finally:
            display.clear()
        took_s = time.monotonic() - began
        statistics = run.statistics()
    try:
        after = asyncio.run(_counts(plan, queues))
    except SyphonError:
        # It is drained, as its tasks have seen, though nobody answers now.
        after = replace(before, active=0, scheduled=0, total=before.dead_lettered)
    # Without a ledger by the queues' own counts, which what comes meanwhile can hide.
    dead = max(0, after.dead_lettered - before.dead_lettered)
    forwarded = max(0, before.waiting - after.waiting - dead)
    done = {
        "drained": True,
        "queues": queues,
        "forwarded": forwarded if statistics is None else statistics.forwarded,
        "dead_lettered": dead if statistics is None else statistics.dead_lettered,
        "left_aside": max(0, _deferred(after) - _deferred(before)),
        "seconds": round(took_s, 3),
    }
    return _tell(plan, done, display.last, as_json=as_json)


async def _counts(plan: SyphonRequest, queues: list[str]) -> QueueCounts:
    """What the queues hold together."""
    endpoint = endpoint_of(plan.secondary)
    try:
        found = await asyncio.gather(*(counts_of(endpoint, queue) for queue in queues))
    except CountsUnavailable as error:
        raise SyphonError(str(error)) from error
    return QueueCounts(
        active=sum(one.active for one in found),
        scheduled=sum(one.scheduled for one in found),
        dead_lettered=sum(one.dead_lettered for one in found),
        total=sum(one.total for one in found),
    )


def _deferred(counts: QueueCounts) -> int:
    return counts.waiting - counts.active - counts.scheduled


async def _served_queues(plan: SyphonRequest) -> list[str]:
    """The queues to drain: of some destinations only, those that hold messages to them."""
    queues = await _queues(plan)
    if not plan.only:
        return queues
    found = await matching(endpoint_of(plan.secondary), queues, selected(plan.only))
    return [queue for queue, count in found.items() if count]


async def _queues(plan: SyphonRequest) -> list[str]:
    queues = await plan.find_queues()
    if not queues:
        raise SyphonError(
            f"there is no backlog queue of {plan.label} in {plan.secondary.endpoint}; where the"
            " application gives the primary a `name`, say --label NAME"
        )
    return queues


def _tell(
    plan: SyphonRequest, done: dict[str, Any], last: DrainProgress | None, *, as_json: bool
) -> int:
    waiting = 0 if done["drained"] else (last.waiting if last else None)
    if as_json:
        problems = list(last.problems) if last and not done["drained"] else []
        print_json(
            {
                "primary": plan.primary.endpoint,
                "secondary": plan.secondary.endpoint,
                **done,
                "waiting": waiting,
                "problems": problems,
            }
        )
    else:
        keys = ("forwarded", "dead_lettered", "left_aside", "seconds")
        numbers = {key: done[key] for key in keys}
        print(syphon_words.outcome(**numbers, is_drained=done["drained"]))
    if not done["drained"]:
        left = "messages" if waiting is None else f"{waiting:,} messages"
        why = "; ".join(syphon_words.reasons(last)) if last else "nobody answers"
        print(
            f"twinbus: not drained in time, {left} left: {why or 'still moving'}", file=sys.stderr
        )
        return COULD_NOT
    return ATTENTION if done["dead_lettered"] else 0
