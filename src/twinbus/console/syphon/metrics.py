"""Metrics and health of `twinbus syphon run`, at the address of `--metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from aiohttp import web

from twinbus.client.peeking import EVERY_MIN_S, BacklogMeter
from twinbus.console.options import secret_in
from twinbus.console.output import WrongUse
from twinbus.console.syphon.http_port import HttpAddress, HttpPort
from twinbus.console.syphon.queue_search import QueueSearch
from twinbus.console.times import seconds_of
from twinbus.exposition import CONTENT_TYPE, GAUGE, Families, Sample, metrics_of, text_of
from twinbus.ledger import LedgerWriter, NullLedger
from twinbus.namespace.access import Endpoint
from twinbus.pairing.observing.metrics import BACKLOG_FAMILIES, depth_samples, syphon_samples
from twinbus.syphon.core.health import StallDetector, SyphonHealth
from twinbus.syphon.host import SyphonGroup

FAMILIES: Final[Families] = {
    **BACKLOG_FAMILIES,
    "twinbus_syphon_paused": (GAUGE, "1 while an operator has paused the syphon"),
    "twinbus_syphon_blocked": (
        GAUGE, "1 while a queue is not served, by primary, secondary, lease or pump", "queue", "by",
    ),
    "twinbus_syphon_held_destinations": (
        GAUGE, "Entities of the primary that do not accept messages of a queue now", "queue",
    ),
    "twinbus_syphon_healthy": (GAUGE, "0 while /health asks for a restart"),
}  # fmt: skip


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
            every_s = seconds_of(every, "--backlog-every", least=EVERY_MIN_S)
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
        self._watch = StallDetector(group.rate.governor.most_per_s)
        self._refusal = (
            (403, "metrics are closed beyond loopback; give --metrics-token-file\n")
            if request.token is None
            else (401, "metrics need the bearer token of --metrics-token-file\n")
        )
        pages = {"/metrics": self._metrics, "/health": self._health}
        self._port = HttpPort(request.address, request.token, pages)
        self._meter: BacklogMeter | None = None
        if request.backlog_every_s is not None:
            self._meter = BacklogMeter(secondary, search.counts, request.backlog_every_s)

    async def start(self) -> str:
        """Listen, and return the URL; SyphonError of one line if the address cannot be used."""
        await self._port.start()
        if self._meter is not None:
            self._meter.start(asyncio.get_running_loop())
        return f"http://{self._port.address}"

    async def close(self) -> None:
        """Stop measuring and close the port."""
        if self._meter is not None:
            await self._meter.close()
        await self._port.close()

    def observe(self) -> None:
        """Follow the pumps; called every second or so."""
        self._watch.observe(self._group.status(), time.monotonic())

    def _metrics(self, may_read_names: bool) -> web.Response:
        if not may_read_names:
            status, text = self._refusal
            return web.Response(status=status, text=text)
        metrics = metrics_of(FAMILIES, "pair", [(self._pair, self._samples())])
        return web.Response(body=text_of(metrics), headers={"Content-Type": CONTENT_TYPE})

    def _samples(self) -> Iterator[Sample]:
        queues = self._group.status()
        yield "twinbus_syphon_paused", self._group.is_paused
        yield "twinbus_syphon_healthy", not self._judge().failures
        yield "twinbus_ledger_unrecorded", self._ledger.unrecorded
        yield from syphon_samples(queues)
        yield from depth_samples(self._meter)
        for queue, state in queues.items():
            yield "twinbus_syphon_held_destinations", len(state.held), queue
            for by in state.problems:
                yield "twinbus_syphon_blocked", 1, queue, by

    def _health(self, may_read_names: bool) -> web.Response:
        """Everybody may ask for the state; the reasons have names of queues and hosts."""
        health = self._judge()
        document: dict[str, Any] = {"status": health.word}
        if may_read_names:
            document["pair"] = self._pair
            document["failures"] = health.failures
            document["waits_for"] = health.waits_for
        return web.json_response(document, status=503 if health.failures else 200)

    def _judge(self) -> SyphonHealth:
        self.observe()
        return self._watch.health(self._group.status(), time.monotonic(), self._search.without_pump)
