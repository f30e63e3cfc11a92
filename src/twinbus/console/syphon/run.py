"""`twinbus syphon run`: the syphon as a program of its own, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from datetime import datetime
from typing import Any, Final

from twinbus.console.syphon.request import SyphonRequest
from twinbus.console.terminal.output import print_json
from twinbus.console.terminal.table import visible
from twinbus.control.protocol import Verb
from twinbus.control.server import ControlServer
from twinbus.control.syphon_verbs import steering_verbs
from twinbus.errors import SyphonError
from twinbus.ledger import LedgerWriter, NullLedger
from twinbus.namespace.endpoint import endpoint_of
from twinbus.syphon.connection.counts import CountsUnavailable, counts_of
from twinbus.syphon.connection.peeking import ListingRefused
from twinbus.syphon.core.forecast import time_to_empty_s
from twinbus.syphon.host import SyphonGroup

__all__ = ["run"]

LOOK_S: Final = 1.0
"""Between two looks at what is in the way."""

COUNTS_S: Final = 2.0
"""For the counts in a status: who asked waits, and knows the rest without them."""

FIND_AGAIN_S: Final = 900.0
"""Between two looks for backlog queues that were created since: as seldom as an idle poll."""

FIND_FIRST_S: Final = 30.0
"""The same as long as there is none."""


def run(plan: SyphonRequest, *, count: int | None, as_json: bool) -> int:
    """Run the syphon until a signal; the exit status."""
    # The syphon's warnings are told by this program, each once, and not by a log that nobody set.
    logging.getLogger().addHandler(logging.NullHandler())

    async def work() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        with plan.open_ledger() as ledger:
            syphon = RunningSyphon(plan, ledger, count, as_json=as_json)
            await syphon.run(stop)
        return 0

    return asyncio.run(work())


class RunningSyphon:
    """The hosts of one program, what they are asked over the socket, and what they tell."""

    def __init__(
        self,
        plan: SyphonRequest,
        ledger: LedgerWriter | NullLedger,
        count: int | None,
        *,
        as_json: bool,
    ) -> None:
        """`count`: the queues are known by it and need not be listed, which takes a right."""
        self._plan = plan
        self._ledger = ledger
        self._count = count
        self._as_json = as_json
        self._group = SyphonGroup()
        self._rate = plan.make_rate()
        self._in_the_way: set[str] = set()
        verbs = {"status": Verb(self.status), **steering_verbs(self._group)}
        self._control = ControlServer("syphon", plan.label, verbs)

    async def run(self, stop: asyncio.Event) -> None:
        """Syphon until `stop` is set, then wait for what is in flight."""
        await self._control.start()
        try:
            await self._plan.have_lease_queue()
            find_at = 0.0
            while not stop.is_set():
                if time.monotonic() >= find_at:
                    await self._find()
                    wait_s = FIND_AGAIN_S if self._group.hosts else FIND_FIRST_S
                    find_at = time.monotonic() + wait_s
                self._tell_what_is_in_the_way()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await stop.wait()
        finally:
            await asyncio.gather(*(host.close() for host in self._group.hosts))
            await self._control.close()
        states = self._group.status().values()
        moved, dead = (sum(s[key] for s in states) for key in ("completed", "dead_lettered"))
        self._say("stopped", f"{moved:,} messages moved, {dead:,} dead-lettered", moved=moved)

    async def status(self) -> dict[str, Any]:
        """All that can be said of it now, what waits in the queues included."""
        queues = self._group.status()
        per_s = sum(state["rate_per_s"] for state in queues.values())
        waiting: int | None = None
        with contextlib.suppress(CountsUnavailable, SyphonError, TimeoutError):
            endpoint = endpoint_of(self._plan.secondary)
            async with asyncio.timeout(COUNTS_S):
                counts = await asyncio.gather(*(counts_of(endpoint, queue) for queue in queues))
            waiting = sum(count.waiting for count in counts)
        return {
            "primary": self._plan.primary.endpoint,
            "secondary": self._plan.secondary.endpoint,
            "paused": self._group.is_paused,
            "rate_limit_per_s": self._plan.rate_per_s,
            "only": sorted(self._plan.only),
            "queues": queues,
            "waiting": waiting,
            "rate_per_s": round(per_s, 1),
            "empty_in_s": None if waiting is None else time_to_empty_s(waiting, per_s),
        }

    async def _find(self) -> None:
        """Start a host for the backlog queues that have none yet."""
        if self._count is not None:
            found = list(self._plan.backlog_paths(self._count))
        else:
            try:
                found = await self._plan.find_queues()
            except ListingRefused as error:
                raise SyphonError(f"{error} (--queues N)") from None
            except SyphonError as error:
                self._say("waiting", f"looking for backlog queues: {error}")
                return
        known = set(self._group.status())
        queues = [queue for queue in found if queue not in known]
        if queues:
            await self._group.add(self._plan.host(queues, self._ledger, self._rate))
            words = f"{len(queues)} backlog queue{'s' if len(queues) > 1 else ''} of"
            self._say("running", f"{words} {self._plan.label}, {self._how()}", queues=queues)
        elif not known:
            self._say("waiting", f"no backlog queue of {self._plan.label} is there yet")

    def _how(self) -> str:
        plan = self._plan
        words = [f"{plan.secondary.endpoint} -> {plan.primary.endpoint}"]
        if plan.rate_per_s is not None:
            words.append(f"at most {plan.rate_per_s:g}/s")
        if plan.only:
            words.append(f"only {', '.join(plan.only)}")
        if plan.wants_lease:
            words.append("each queue under its lease")
        return ", ".join(words)

    def _tell_what_is_in_the_way(self) -> None:
        now = {
            f"{queue}: {what}: {why}"
            for queue, state in self._group.status().items()
            for what, why in {**state["problems"], **state["held"]}.items()
        }
        for line in sorted(now - self._in_the_way):
            self._say("held", line)
        for line in sorted(self._in_the_way - now):
            self._say("released", f"over: {line}")
        self._in_the_way = now

    def _say(self, event: str, text: str, **facts: Any) -> None:
        if self._as_json:
            print_json({"event": event, "text": text, **facts})
        else:
            print(f"{datetime.now().astimezone():%H:%M:%S}  {visible(text)}", flush=True)
        sys.stdout.flush()
