"""One task of a drain: drains a group of backlog queues with the relay, on an executor.

It needs pyarrow, which Spark has, and this package, which the driver ships; not the SDK. WebSocket
needs aiohttp there, and a credential of azure-identity that package.

A side of the pair is shipped to it as a description, or as a function that returns one. A
description such as `sb://contoso.servicebus.windows.net?credential=managed-identity` holds no
secret: each machine opens the credential with its own identity, file or variable. A connection
string is a secret and is shipped with the task; `credential=env:NAME` is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from twinbus.errors import SyphonError
from twinbus.ledger import process_name
from twinbus.loops import run_alone
from twinbus.namespace.access import Endpoint, NamespaceAccess, endpoint_of
from twinbus.namespace.address import DIRECT
from twinbus.namespace.credentials import route_of
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pipeline.drain.driver_link import DriverAddress, DriverLink
from twinbus.pipeline.drain.task_ledger import task_ledger
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.core.pump import IntakeLimits
from twinbus.syphon.host import DrainProgress, SyphonHost
from twinbus.syphon.host import drain as drain_here
from twinbus.syphon.relay.bookkeeping import RelayLedger

SEPARATOR: Final = "\n"
"""Separates the queues of a group; no entity path contains it."""

REPORT_S: Final = 1.0
"""Time between two reports of a continuous task about its problems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainTask:
    """The settings of a task; pickled for the executors, so it holds only values."""

    primary: ShippedSide = field(repr=False)
    secondary: ShippedSide = field(repr=False)
    options: SendAvailabilityOptions = field(default_factory=SendAvailabilityOptions)
    run: str = "drain"
    """Name of the drain; the names of its ledger files begin with it."""
    ledger: str | None = None
    limits: IntakeLimits | None = None
    lease: bool | None = None
    """Whether a queue is pumped only under its lease; None: if the order is strict."""
    only: tuple[str, ...] | None = None
    """The destinations to serve; None: all."""
    rate_per_s: float | None = None
    """This task's share of the rate; None: as fast as the primary accepts."""
    turn_s: float | None = None
    """How long it works; None: until its queues are empty."""
    driver: DriverAddress | None = None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Drain the queues of each row that comes; for `mapInArrow`, with its record batches.

        The rows are returned unchanged: the results are in the ledger.
        """
        importlib.import_module("pyarrow")
        for batch in batches:
            for group in batch.column(0).to_pylist():
                self.drain(group.split(SEPARATOR))
            yield batch

    def drain(self, queues: Sequence[str]) -> None:
        """Drain these queues in this process, until they are empty or the turn is over."""
        with task_ledger(self.ledger, self._process_name()) as ledger:
            run_alone(self._work(queues, ledger))

    def _process_name(self) -> str:
        """Return a name for this attempt: each attempt of a task writes its own files."""
        from pyspark import TaskContext

        context = TaskContext.get()
        part = "0-0" if context is None else f"{context.partitionId()}-{context.attemptNumber()}"
        return process_name(f"{self.run}-{part}")

    async def _work(self, queues: Sequence[str], ledger: RelayLedger) -> None:
        async with DriverLink(self.driver) as driver_link:
            make = self._until_empty if self.turn_s is None else self._for_a_turn
            work = asyncio.ensure_future(make(queues, ledger, driver_link))
            released = asyncio.ensure_future(driver_link.released())
            await asyncio.wait({work, released}, return_when=asyncio.FIRST_COMPLETED)
            released.cancel()
            # Both kinds of work settle messages in flight when they are cancelled.
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _until_empty(
        self, queues: Sequence[str], ledger: RelayLedger, driver_link: DriverLink
    ) -> None:
        def report(progress: DrainProgress) -> None:
            driver_link.report(progress.problems)

        primary, secondary = open_side(self.primary), open_side(self.secondary)
        await drain_here(
            primary, secondary, queues, ledger=ledger, on_progress=report, **self._bounds()
        )

    async def _for_a_turn(
        self, queues: Sequence[str], ledger: RelayLedger, driver_link: DriverLink
    ) -> None:
        assert self.turn_s is not None
        primary, secondary = open_side(self.primary), open_side(self.secondary)
        host = SyphonHost(primary, secondary, queues, ledger=ledger, **self._bounds())
        ends = time.monotonic() + self.turn_s
        await host.start()
        try:
            while (left_s := ends - time.monotonic()) > 0:
                driver_link.report(_problems(host))
                await asyncio.sleep(min(REPORT_S, left_s))
        finally:
            await host.close()

    def _bounds(self) -> dict[str, Any]:
        return {
            "options": self.options,
            "limits": self.limits,
            "lease": self.lease,
            "only": self.only,
            "rate": Rate(self.rate_per_s),
        }


def _problems(host: SyphonHost) -> tuple[str, ...]:
    found = [
        f"{what}: {why}"
        for status in host.status().values()
        for what, why in status.obstacles.items()
    ]
    return tuple(dict.fromkeys(found))


ShippedSide = NamespaceAccess | Callable[[], Any]
"""A side to open in a task. A function returns a Namespace, or a text that a pair accepts."""


def shipped_side(role: str, given: object) -> ShippedSide:
    """Return a side in a form that can be shipped; SyphonError if it has none."""
    if isinstance(given, NamespaceAccess):
        return given
    if isinstance(given, Namespace):
        if given.access is not None:
            return given.access
        if given.connection_string is not None and given.route == DIRECT:
            return NamespaceAccess.parse(given.connection_string, name=given.label)
    elif isinstance(given, str):
        try:
            return NamespaceAccess.parse(given)
        except ValueError as error:
            raise SyphonError(f"the {role}: {error}") from None
    elif callable(given):
        return given
    raise SyphonError(
        f"the {role} needs a connection string, sb://HOST?credential=SOURCE, or a function that"
        f" returns a Namespace: tasks sign in by themselves, on other machines; got"
        f" {type(given).__name__}"
    )


def open_side(side: ShippedSide) -> Endpoint:
    """Return the endpoint of a side, its credential opened on this machine."""
    if isinstance(side, NamespaceAccess) and side.connection_string:
        found = Endpoint.parse(side.connection_string)
        return replace(found, name=side.name or "", route=route_of(side))
    made = side if isinstance(side, NamespaceAccess) else side()
    return endpoint_of(Namespace.of(made))
