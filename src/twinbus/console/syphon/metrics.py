"""Metrics and health of `twinbus syphon run`, at the address of `--metrics`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from twinbus.console.syphon.queue_search import QueueSearch
from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.secret_file import secret_in
from twinbus.console.terminal.times import seconds_of
from twinbus.ledger import LedgerWriter, NullLedger
from twinbus.namespace.endpoint import Endpoint
from twinbus.syphon.host import SyphonGroup
from twinbus.syphon.observing.depth import SyphonBacklog
from twinbus.syphon.observing.exposition import CONTENT_TYPE, SyphonFigures, exposition
from twinbus.syphon.observing.health import HealthWatch, SyphonHealth
from twinbus.syphon.observing.http_port import HttpAddress, HttpAnswer, HttpPort

BACKLOG_EVERY_MIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """The checked options about metrics."""

    address: HttpAddress
    token: str | None
    backlog_every_s: float | None
    """Time between two measurements of the backlog; None: it is not measured."""

    @classmethod
    def of(cls, address: str | None, token_file: Path | None, every: str | None) -> Self | None:
        """Return the request, None without an address; WrongUse if an option is not valid."""
        if address is None:
            if token_file is not None or every is not None:
                raise WrongUse("--metrics-token-file and --backlog-every need --metrics")
            return None
        try:
            place = HttpAddress.parse(address)
        except ValueError as error:
            raise WrongUse(f"--metrics: {error}; got {address!r:.60}") from None
        every_s = None
        if every is not None:
            every_s = seconds_of(every, "--backlog-every", least=BACKLOG_EVERY_MIN_S)
        return cls(place, secret_in(token_file), every_s)


class SyphonMetrics:
    """The port of one syphon program, from `start` to `close`."""

    def __init__(
        self,
        request: MetricsRequest,
        pair: str,
        group: SyphonGroup,
        search: QueueSearch,
        secondary: Endpoint,
        ledger: LedgerWriter | NullLedger,
    ) -> None:
        self._pair = pair
        self._group = group
        self._search = search
        self._ledger = ledger
        self._watch = HealthWatch(group.rate.governor.most_per_s)
        self._refused = (
            HttpAnswer(403, "metrics are closed beyond loopback; give --metrics-token-file\n")
            if request.token is None
            else HttpAnswer(401, "metrics need the bearer token of --metrics-token-file\n")
        )
        pages = {"/metrics": self._metrics, "/health": self._health}
        self._port = HttpPort(request.address, request.token, pages)
        self._backlog: SyphonBacklog | None = None
        if request.backlog_every_s is not None:
            self._backlog = SyphonBacklog(secondary, search.counts, request.backlog_every_s)
        self._measuring: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen, and return the URL; SyphonError of one line if the address cannot be used."""
        await self._port.start()
        if self._backlog is not None:
            self._measuring = asyncio.create_task(self._backlog.run(), name="syphon backlog")
        return f"http://{self._port.address}"

    async def close(self) -> None:
        """Stop measuring and close the port."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait({self._measuring})
        await self._port.close()

    def observe(self) -> None:
        """Follow the pumps; called every second or so."""
        self._watch.observe(self._group.status(), time.monotonic())

    def _metrics(self, may_read_names: bool) -> HttpAnswer:
        if not may_read_names:
            return self._refused
        figures = SyphonFigures(
            pair=self._pair,
            queues=self._group.status(),
            is_paused=self._group.is_paused,
            is_healthy=not self._judge().failures,
            unrecorded=self._ledger.unrecorded,
            depths={} if self._backlog is None else self._backlog.depths(),
            unix_s=time.time(),
        )
        return HttpAnswer(200, exposition(figures), CONTENT_TYPE)

    def _health(self, may_read_names: bool) -> HttpAnswer:
        """Everybody may ask for the state; the reasons have names of queues and hosts."""
        health = self._judge()
        document: dict[str, object] = {"status": health.word}
        if may_read_names:
            document["pair"] = self._pair
            document["failures"] = health.failures
            document["waits_for"] = health.waits_for
        status = 503 if health.failures else 200
        return HttpAnswer(status, json.dumps(document) + "\n", "application/json")

    def _judge(self) -> SyphonHealth:
        self.observe()
        return self._watch.health(self._group.status(), time.monotonic(), self._search.without_pump)
