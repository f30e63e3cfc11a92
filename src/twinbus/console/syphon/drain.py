"""`twinbus syphon drain`: move the whole backlog, show the progress, and exit."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, Final, NamedTuple

from twinbus.client.administration import (
    QUEUES,
    NotAnswered,
    QueueCounts,
    backlog_counts_in,
    counts_of,
    list_entries,
)
from twinbus.client.peeking import count_matching, destination_keys
from twinbus.client.twins import twins_in
from twinbus.console import ATTENTION, COULD_NOT, STOPPED
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.options import require_shared_places
from twinbus.console.output import LiveLine, Output, WrongUse, progress_bar, show
from twinbus.console.syphon.request import SyphonRequest
from twinbus.control.protocol import Verb, steering_verbs
from twinbus.control.server import ControlServer
from twinbus.errors import SyphonError
from twinbus.ledger import open_ledger
from twinbus.ledger.requests import recording_to
from twinbus.namespace.access import endpoint_of
from twinbus.servicebus.names import parse_backlog_path
from twinbus.syphon.core.pacing import DrainMeter, Rate, time_to_empty_s
from twinbus.syphon.draining import DrainProgress, drain_host
from twinbus.wording import counted, duration, visible

LINE_EVERY_S: Final = 10.0
"""Time between two lines of a log, which should show that the drain goes on."""

CHECK_EVERY_S: Final = 0.5

STILL_S: Final = 5.0
"""A drain that moved no message for this long is not moving, whatever its last rate was."""


class DrainDisplay:
    """Shows the progress of a drain: a live line on a terminal, else a line every 10 s."""

    def __init__(self, stream: IO[str], *, is_quiet: bool = False) -> None:
        self.last: DrainProgress | None = None
        self._stream = stream
        self._line = LiveLine(stream)
        self._is_quiet = is_quiet
        self._meter = DrainMeter()
        self._first = 0
        self._gone = 0
        self._moved_at = time.monotonic()
        self._next_at = 0.0

    def __call__(self, progress: DrainProgress) -> None:
        now = time.monotonic()
        gone = progress.forwarded + progress.dead_lettered
        if self.last is None:
            self._first = progress.waiting + gone
        if gone > self._gone:
            self._moved_at = now
        self._meter.moved(max(0, gone - self._gone), now)
        self._gone = max(self._gone, gone)
        self.last = progress
        if self._is_quiet or (not self._line.is_live and now < self._next_at):
            return
        text = progress_line(progress, self._first, self._meter.per_s(now), now - self._moved_at)
        self._line.show(text)
        if not self._line.is_live:
            self._stream.write(f"twinbus: {text}\n")
            self._stream.flush()
        self._next_at = now + LINE_EVERY_S

    @property
    def waiting(self) -> int | None:
        """Messages in the backlog; None: not known yet."""
        return None if self.last is None else self.last.waiting

    @property
    def per_s(self) -> float:
        return self._meter.per_s(time.monotonic())

    def clear(self) -> None:
        self._line.clear()


@runs_to_its_end
async def drain_here(
    request: SyphonRequest, named: Sequence[str] | None, timeout_s: float | None, output: Output
) -> int:
    """Drain in this process and print the result; return the exit status."""
    display = DrainDisplay(sys.stderr, is_quiet=output is Output.JSON)
    with open_ledger(request.ledger) as ledger, recording_to(ledger):
        queues, twins = await _served_queues(request, named)
        await request.have_lease_queue()
        began = time.monotonic()
        host = request.host(queues, ledger, Rate(request.rate_per_s), twins=twins)
        verbs = {
            "status": Verb(lambda: request.status(host, display.waiting, display.per_s).as_dict()),
            **steering_verbs(host),
        }
        control = ControlServer("syphon", request.label, verbs)
        await control.start()
        is_drained = False
        try:
            async with asyncio.timeout(timeout_s):
                await drain_host(host, idle_s=CHECK_EVERY_S, on_progress=display)
            is_drained = True
        except TimeoutError:
            pass
        finally:
            display.clear()
            await control.close()
    pumps = [relay.pump for relay in host.relays]
    done = {
        "drained": is_drained,
        "queues": queues,
        "twins": twins,
        "forwarded": sum(pump.forwarded for pump in pumps),
        "dead_lettered": sum(pump.dead_lettered for pump in pumps),
        "not_served": sum(pump.not_served for pump in pumps),
        "seconds": round(time.monotonic() - began, 3),
    }
    return _print_result(request, done, display.last, output)


class SparkDrain(NamedTuple):
    master: str | None
    shared: bool
    tasks: int | None
    continuous: bool


def drain_on_spark(
    request: SyphonRequest, named: Sequence[str] | None, output: Output, job: SparkDrain
) -> int:
    """Drain with a Spark job and print the result; return the exit status.

    Ctrl-C and SIGTERM let the tasks settle what is in flight.
    """
    from twinbus.pipeline.drain.drain import drain
    from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session

    require_shared_places(job.master, request.ledger, shared=job.shared)
    queues, twins = asyncio.run(_served_queues(request, named))
    if twins:
        text = f"{counted(len(twins), 'twin')} with messages: --engine relay empties them"
        print(f"twinbus: {text}", file=sys.stderr)
    asyncio.run(request.have_lease_queue())
    before = asyncio.run(_counts(request, queues))
    display = DrainDisplay(sys.stderr, is_quiet=output is Output.JSON)
    began = time.monotonic()
    stop = threading.Event()
    # Spark's own settings would let spark-submit run a second attempt beside a running one.
    settings = {"spark.speculation": "false"}
    with spark_session(master=job.master or LOCAL_MASTER, settings=settings) as spark:
        before_sigterm = signal.signal(signal.SIGTERM, lambda *_: stop.set())
        try:
            run = drain(
                spark,
                request.primary,
                request.secondary,
                queues,
                ledger_directory=request.ledger,
                on_progress=display,
                options=request.options,
                lease=request.lease,
                rate_per_s=request.rate_per_s,
                only=request.only or None,
                shared=job.shared,
                tasks=job.tasks,
                continuous=job.continuous,
                stop=stop,
            )
        except KeyboardInterrupt:
            print("twinbus: stopped", file=sys.stderr)
            return STOPPED
        finally:
            signal.signal(signal.SIGTERM, before_sigterm)
            display.clear()
        took_s = time.monotonic() - began
        statistics = run.statistics()
    try:
        after = asyncio.run(_counts(request, queues))
    except SyphonError:
        # The tasks saw it drained, although the namespace does not answer now.
        after = replace(before, active=0, scheduled=0, total=before.dead_lettered)
    # Without a ledger the queues' counts tell; messages that arrive meanwhile distort them.
    dead = max(0, after.dead_lettered - before.dead_lettered)
    forwarded = max(0, before.waiting - after.waiting - dead)
    done = {
        "drained": not stop.is_set(),
        "queues": queues,
        "forwarded": forwarded if statistics is None else statistics.forwarded,
        "dead_lettered": dead if statistics is None else statistics.dead_lettered,
        "not_served": max(0, _deferred(after) - _deferred(before)),
        "seconds": round(took_s, 3),
    }
    status = _print_result(request, done, display.last, output, is_stopped=stop.is_set())
    return status if job.continuous or not stop.is_set() else STOPPED


async def _counts(request: SyphonRequest, queues: list[str]) -> QueueCounts:
    endpoint = endpoint_of(request.secondary)
    try:
        found = await asyncio.gather(*(counts_of(endpoint, queue) for queue in queues))
    except NotAnswered as error:
        raise SyphonError(str(error)) from error
    names = ("active", "scheduled", "dead_lettered", "total")
    return QueueCounts(**{name: sum(getattr(one, name) for one in found) for name in names})


def _deferred(counts: QueueCounts) -> int:
    return counts.waiting - counts.active - counts.scheduled


async def _served_queues(
    request: SyphonRequest, named: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Return the backlog queues and the twins to drain: with --only, those that hold such messages.

    A twin with sessions, and one without messages, is left alone.
    """
    endpoint = endpoint_of(request.secondary)
    for queue in named or ():
        # A syphon dead-letters what it cannot restore: all of a queue that has no backlog.
        label, _ = parse_backlog_path(queue) or ("", 0)
        if label.lower() != request.label.lower():
            raise WrongUse(
                f"--queue must be a backlog queue of {request.label}, like"
                f" {request.label}/x-servicebus-transfer/0; got {queue!r:.280}"
            )
    queues, twins = list(dict.fromkeys(named or ())), list[str]()
    if not queues:
        entries = await list_entries(endpoint, QUEUES)
        queues = list(backlog_counts_in(entries, request.label))
        found = twins_in(entries, request.label)
        twins = [one.path for one in found if one.active and not one.requires_session]
    if not queues and not twins:
        raise SyphonError(
            f"there is no backlog queue of {request.label} in {request.secondary.endpoint}; if the"
            " application gives the primary a `name`, give --label NAME"
        )
    if not request.only:
        return queues, twins
    only = destination_keys(request.only)
    counts = await count_matching(endpoint, queues, only)
    return (
        [queue for queue, count in counts.items() if count],
        [twin for twin in twins if twin.lower() in only],
    )


def _print_result(
    request: SyphonRequest,
    done: dict[str, Any],
    last: DrainProgress | None,
    output: Output,
    *,
    is_stopped: bool = False,
) -> int:
    waiting = 0 if done["drained"] else (last.waiting if last else None)
    document = {
        "primary": request.primary.endpoint,
        "secondary": request.secondary.endpoint,
        **done,
        "waiting": waiting,
        "problems": list(last.problems) if last and not done["drained"] else [],
    }
    show(output, document, [outcome(done)])
    if not done["drained"] and not is_stopped:
        left = "messages" if waiting is None else f"{waiting:,} messages"
        why = "; ".join(reasons(last)) if last else "no answer"
        print(
            f"twinbus: not drained in time, {left} left: {why or 'still moving'}", file=sys.stderr
        )
        return COULD_NOT
    return ATTENTION if done["dead_lettered"] else 0


def progress_line(progress: DrainProgress, first: int, per_s: float, still_s: float) -> str:
    """Return a bar, the messages left, the rate and the time to go; or why nothing moves.

    `first` is the number of messages at the start, `still_s` the time since the last one left.
    """
    is_moving = still_s < STILL_S
    total = max(first, progress.waiting)
    done = total - progress.waiting
    share = done / total if total else 1.0
    parts = [progress_bar(share), f"{progress.waiting:,} of {total:,} left"]
    if progress.is_paused:
        parts.append("paused: `twinbus syphon resume` resumes it")
    elif is_moving and per_s > 0:
        parts.append(f"{per_s:,.0f}/s")
        left_s = time_to_empty_s(progress.waiting, per_s)
        parts.append(f"{duration(left_s)} to go" if left_s is not None else "")
    elif progress.waiting and not is_moving:
        parts.append("not moving: " + ("; ".join(reasons(progress)) or "nothing was received"))
        return "  ".join(parts)
    return "  ".join(parts + reasons(progress))


def reasons(progress: DrainProgress) -> list[str]:
    """Return what keeps messages in the backlog."""
    given_up = [
        f"{visible(path)} is missing: its messages are dead-lettered in {duration(left_s)}"
        " (--grace)"
        for path, left_s in progress.giving_up.items()
    ]
    missing = tuple(f"{path}: " for path in progress.giving_up)
    others = [
        visible(why) for why in progress.problems if not (missing and why.startswith(missing))
    ]
    return given_up + others


def outcome(done: Mapping[str, Any]) -> str:
    forwarded, seconds = done["forwarded"], done["seconds"]
    per_s = f", {forwarded / seconds:,.0f}/s" if seconds >= 1 else ""
    verb = "drained" if done["drained"] else "stopped"
    line = f"{verb}: {forwarded:,} messages forwarded in {duration(seconds)}{per_s}"
    if dead := done["dead_lettered"]:
        line += f"; {dead:,} dead-lettered, `twinbus backlog dead-letters list` says why"
    if aside := done["not_served"]:
        line += (
            f"; {aside:,} of other destinations were deferred, the next syphon that serves them"
            " finds them"
        )
    return line
