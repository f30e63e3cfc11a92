"""`twinbus syphon run`: the syphon as a program, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from twinbus.client.administration import KeyRefused, ListingRefused
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.namespaces import UnreachableError
from twinbus.console.output import Output, show
from twinbus.console.syphon.metrics import MetricsRequest, SyphonMetrics
from twinbus.console.syphon.request import QueueSearch, SyphonRequest
from twinbus.control.protocol import Verb, steering_verbs
from twinbus.control.server import ControlServer
from twinbus.errors import SyphonError
from twinbus.ledger import LedgerWriter, NullLedger, open_ledger
from twinbus.ledger.requests import recording_to
from twinbus.namespace.access import endpoint_of
from twinbus.servicebus.names import backlog_paths
from twinbus.status.document import SyphonQueueStatus
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.host import SyphonGroup, SyphonHost
from twinbus.syphon.twin_search import TwinSearch
from twinbus.wording import counted, duration, visible

CHECK_EVERY_S: Final = 1.0
"""Time between two checks for obstacles."""

COUNTS_S: Final = 2.0
"""Timeout of the counts in a status; without them the rest is returned."""


@runs_to_its_end
async def run(
    request: SyphonRequest, count: int | None, output: Output, metrics: MetricsRequest | None = None
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with open_ledger(request.ledger) as ledger, recording_to(ledger):
        await SyphonProgram(request, ledger, count, output, metrics).run(stop)
    return 0


class SyphonProgram:
    """The syphon hosts of one process, their control socket and their messages."""

    def __init__(
        self,
        request: SyphonRequest,
        ledger: LedgerWriter | NullLedger,
        count: int | None,
        output: Output,
        metrics: MetricsRequest | None = None,
    ) -> None:
        """With `count` the queues are known and not listed, which would need the Manage right."""
        self._request = request
        self._ledger = ledger
        self._output = output
        self._group = SyphonGroup(Rate(request.rate_per_s))
        self._has_lease_queue = False
        """Whether the lease queue exists, or none is wanted."""
        self._obstacles = ObstacleLog()
        self._waits_for = ""
        """The last text about queues that were not found: each is printed once."""
        secondary = endpoint_of(request.secondary)
        named = None if count is None else backlog_paths(request.label, count)
        self._twins = TwinSearch(
            secondary,
            request.label,
            self._group,
            lambda path: self._make_host([], [path]),
            only=request.only or None,
        )
        self._search = QueueSearch(
            secondary, request.label, self._group, self._start_host, named, self._twins
        )
        self._metrics: SyphonMetrics | None = None
        if metrics is not None:
            self._metrics = SyphonMetrics(
                metrics, request.pair, self._group, self._search, secondary, ledger
            )
        verbs = {"status": Verb(self.status), **steering_verbs(self._group)}
        self._control = ControlServer("syphon", request.label, verbs)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then wait for messages in flight."""
        await self._control.start()
        try:
            if self._metrics is not None:
                url = await self._metrics.start()
                self._say("metrics", f"metrics at {url}/metrics, health at {url}/health", url=url)
            while not stop.is_set():
                if self._search.is_due():
                    await self._find()
                for event, text in self._obstacles.observe(self._group.status(), time.monotonic()):
                    self._say(event, text)
                if self._metrics is not None:
                    self._metrics.observe()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_EVERY_S):
                        await stop.wait()
        finally:
            self._search.close()
            await asyncio.gather(*(host.close() for host in self._group.hosts))
            if self._metrics is not None:
                await self._metrics.close()
            await self._control.close()
        states = self._group.status().values()
        moved, dead = (
            sum(getattr(s, key) for s in states) for key in ("completed", "dead_lettered")
        )
        self._say("stopped", f"{moved:,} messages moved, {dead:,} dead-lettered", moved=moved)

    async def status(self) -> dict[str, Any]:
        """Return the status, with the messages that wait in the queues."""
        per_s = sum(state.rate_per_s for state in self._group.status().values())
        waiting: int | None = None
        with contextlib.suppress(SyphonError, TimeoutError):
            async with asyncio.timeout(COUNTS_S):
                counts = await self._search.counts()
            waiting = sum(count.waiting for count in counts.values())
        return self._request.status(
            self._group, waiting, per_s, self._search.without_pump, self._twins.contents
        ).as_dict()

    async def _find(self) -> None:
        """Start a host for the backlog queues that have none yet."""
        try:
            await self._search.search()
        except SyphonError as error:
            is_refusal = isinstance(error, ListingRefused | KeyRefused)
            if is_refusal and not self._group.hosts:
                more = " (--queues N)" if isinstance(error, ListingRefused) else ""
                raise SyphonError(f"{error}{more}") from None
            waits_for = f"searching for backlog queues: {error}"
        else:
            none = f"no backlog queue of {self._request.label} is there yet"
            waits_for = "" if self._group.hosts else none
        if waits_for and waits_for != self._waits_for:
            self._say("waiting", waits_for)
        self._waits_for = waits_for

    async def _start_host(self, queues: list[str]) -> None:
        if not self._has_lease_queue:
            try:
                await self._request.have_lease_queue()
            except UnreachableError as error:
                # The secondary is away: wait for it, as for its backlog queues.
                raise SyphonError(f"the lease queue: {error}") from error
            self._has_lease_queue = True
        await self._group.add(self._make_host(queues))
        counted = f"{len(queues)} backlog queue{'s' if len(queues) > 1 else ''}"
        text = f"{counted} of {self._request.label}, {self._settings()}"
        self._say("running", text, queues=queues)

    def _make_host(self, queues: Sequence[str], twins: Sequence[str] = ()) -> SyphonHost:
        group = self._group
        return self._request.host(queues, self._ledger, group.rate, group.outages, twins)

    def _settings(self) -> str:
        request = self._request
        parts = [f"{request.secondary.endpoint} -> {request.primary.endpoint}"]
        if request.rate_per_s is not None:
            parts.append(f"at most {request.rate_per_s:g}/s")
        if request.only:
            parts.append(f"only {', '.join(request.only)}")
        if request.lease:
            parts.append("each queue under its lease")
        return ", ".join(parts)

    def _say(self, event: str, text: str, **facts: Any) -> None:
        line = f"{datetime.now().astimezone():%H:%M:%S}  {visible(text)}"
        show(self._output, {"event": event, "text": text, **facts}, [line])


SIDES: Final = ("primary", "secondary")

PARTLY_S: Final = 5.0
"""The queues lose a side one after the other: before this time a loss of some is not printed."""


@dataclass(slots=True)
class _Obstacle:
    begins: str
    ends: str
    since: float
    is_told: bool = False


class ObstacleLog:
    """What the queues of one program cannot get past: a line when it begins, one at its end.

    An outage of a side is one obstacle, however many queues meet it and whatever each attempt to
    reconnect reports; it is over when every queue has the side again. A destination that is held
    is one obstacle for all queues.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], _Obstacle] = {}

    def observe(self, queues: Mapping[str, SyphonQueueStatus], now: float) -> list[tuple[str, str]]:
        """Take the state of the queues; return the lines to print, each with its event."""
        found = self._found(queues)
        lines: list[tuple[str, str]] = []
        for key, (begins, ends, is_told_later) in found.items():
            known = self._known.setdefault(key, _Obstacle(begins, ends, now))
            if not known.is_told and now - known.since >= (PARTLY_S if is_told_later else 0.0):
                known.is_told = True
                lines.append(("held", begins))
        for key in [key for key in self._known if key not in found]:
            gone = self._known.pop(key)
            if gone.is_told:
                lines.append(("released", f"{gone.ends} after {duration(now - gone.since)}"))
        return lines

    def _is_told(self, *key: str) -> bool:
        return key in self._known and self._known[key].is_told

    def _found(
        self, queues: Mapping[str, SyphonQueueStatus]
    ) -> dict[tuple[str, ...], tuple[str, str, bool]]:
        """Return each obstacle: its first line, its last one, and whether it may still grow."""
        found: dict[tuple[str, ...], tuple[str, str, bool]] = {}
        for side in SIDES:
            lost = {q: s.problems[side] for q, s in queues.items() if side in s.problems}
            # A queue that was lost alone before, as a disabled one, says nothing of the side.
            alone = {queue: why for queue, why in lost.items() if self._is_told(side, queue)}
            together = {queue: why for queue, why in lost.items() if queue not in alone}
            is_whole = len(lost) == len(queues) or (side,) in self._known
            if together and is_whole:
                why = next(iter(together.values()))
                found[(side,)] = f"the {side} is lost: {why}", f"the {side} is back", False
            for queue, why in (alone if is_whole else lost).items():
                begins = f"{queue}: the {side} is lost: {why}"
                found[side, queue] = begins, f"{queue}: the {side} is back", True
        others: dict[str, list[str]] = {}
        for state in queues.values():
            for what, why in state.problems.items():
                if what not in SIDES:
                    others.setdefault(what, []).append(why)
            for path, why in state.held.items():
                found["held", path] = f"{path} is held: {why}", f"{path} is no longer held", False
        for what, reasons in others.items():
            begins = f"{what}: {reasons[0]} [{counted(len(reasons), 'queue')}]"
            found[what, "*"] = begins, f"{what}: no longer so", False
        return found
