"""`twinbus drill`: an outage on purpose, and the proof of what happened to every message.

start   pair   send and receive ------------------------.   Spark   drain   receive   count
                 '-- outage (SIGKILL, started again) -- ping

With --gateway the senders know nothing of the pair; the phases are the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError

import twinbus
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces
from twinbus.client.administration import NotAnswered, counts_of
from twinbus.console import COULD_NOT
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.drill.consumers import Consumers
from twinbus.console.drill.result import HEALTHY, DrillPlan, DrillResult, Moments
from twinbus.console.drill.sheet import drill_sheet, rate_text
from twinbus.console.drill.traffic import DrillGateway, DrillTraffic
from twinbus.console.drill.world import (
    ENTITIES,
    TWINS,
    WITHOUT_TWIN,
    DrillError,
    DrillPage,
    DrillScreen,
    NamespaceProcess,
    Phase,
    World,
    create_entities,
    create_twins,
)
from twinbus.console.output import Output, show
from twinbus.console.report.making import READING, BacklogScan
from twinbus.console.sheet import page_of, text_of
from twinbus.console.spark_thread import SparkInstallation, SparkThread
from twinbus.cost import prices
from twinbus.namespace.access import endpoint_of
from twinbus.pair import Pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S: Final = 0.25
"""Between two checks of something awaited: often enough for a progress bar."""

HEAL_LIMIT_S: Final = 30.0
"""After the ping interval: a primary that has not answered a ping by then never will."""

DRAIN_TRIES: Final = 3
"""The drill restarts a drain whose task died, as a scheduler would."""

DRAIN_STALL_S: Final = 75.0
"""The drill stops a drain that moved no message for this time, and the report says so. Longer than
a lock of the backlog: the messages that a dead task had locked come free meanwhile."""

ERROR_LENGTH_MAX: Final = 200
"""Of the text of a Spark error, which can be pages long."""

LOST_IDS_MAX: Final = 10_000
"""Limit of the lost messages that a drill names."""

DRAIN: Final = "twinbus.pipeline.drain.drain"
REPORT: Final = "twinbus.pipeline.reports.outage"
"""Modules that need Spark, whose packages may still be on their way when the drill begins."""

BACKOFF_S: Final = 0.2
RETRIES: Final = 1_000
"""Effectively unlimited: time ends the calls of a drill (`traffic`), not a count."""


@runs_to_its_end
async def run(
    plan: DrillPlan, directory: Path, output: Output, *, is_page_wanted: bool = False
) -> int:
    """Run a drill, write its report to `directory` and to stdout; return the exit status."""
    # However the drill ends, no process and no file of its world is left.
    with SparkInstallation() as packages, World(plan.like) as world, ExitStack() as stack:
        _make_directory(directory)
        _log_to(directory / "drill.log")
        page = stack.enter_context(DrillPage(world)) if is_page_wanted else None
        with SparkThread() as spark, DrillScreen() as screen:
            if page is not None:
                screen.on_line = page.say
            drill = Drill(plan, world, packages, spark, screen, page)
            try:
                result = await drill.run()
            except BaseException as error:
                raise _reason(error) from error
        document, sheet = result.as_json(), drill_sheet(result)
        (directory / "drill.json").write_text(json.dumps(document, indent=2) + "\n")
        (directory / "report.html").write_text(page_of(sheet))
        show(output, document, [f"\n{text_of(sheet)}"])
        if page is not None:
            page.prove(result, sheet.headline)
            await _until_closed(page)
        await asyncio.to_thread(world.keep_ledger, directory / "ledger")
    if output is Output.TEXT:
        ledger = shlex.quote(str(directory / "ledger"))
        print(f"report: {directory / 'report.html'}, with drill.json and drill.log")
        print(f"ledger: more with, for example, twinbus report reconciliation {ledger}")
    return 0 if result.passed else COULD_NOT


async def _until_closed(page: DrillPage) -> None:
    """Keep the page for the person at the terminal until Enter or Ctrl-C; without one, end."""
    if not sys.stdin.isatty():
        return
    print(f"the page stays open at {page.address} until you press Enter", file=sys.stderr)
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin, pressed.set)
    with suppress(asyncio.CancelledError):
        await pressed.wait()
    loop.remove_reader(sys.stdin)


def _reason(error: BaseException) -> BaseException:
    """The first error of a group; one of a namespace as ours, in a single line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AzureError | NotAnswered):
        return DrillError(f"the drill could not go on: {' '.join(str(error).split())}")
    return error


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "drill.json").unlink(missing_ok=True)
    except OSError as error:
        raise DrillError(
            f"the report cannot be written to {directory}: {error.strerror}; name another"
            " directory with --report"
        ) from error


def _log_to(path: Path) -> None:
    """Log to a file beside the report: on the screen it would run through the live lines."""
    handler = logging.FileHandler(path, mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("twinbus").setLevel(logging.INFO)


class Drill:
    def __init__(
        self,
        plan: DrillPlan,
        world: World,
        packages: SparkInstallation,
        spark: SparkThread,
        screen: DrillScreen,
        page: DrillPage | None = None,
    ) -> None:
        self._plan = plan
        self._world = world
        self._packages = packages
        self._spark = spark
        self._screen = screen
        self._page = page
        self._queues: tuple[str, ...] = ()
        self._sends_returned = 0
        self._client = ""
        self._began_ms = self._killed_ms = self._back_ms = 0
        self._in_twins = 0
        self._came_again: frozenset[str] = frozenset()

    async def run(self) -> DrillResult:
        # The pair stays open until everything is received, so that it can be watched.
        async with AsyncExitStack() as opened:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._get_spark_ready())
                await self._start()
                pair = self._pair()
                client: Any = pair
                if self._plan.gateway:
                    client = await self._open_gateway(opened, pair)
                else:
                    await opened.enter_async_context(pair)
                consumers = await opened.enter_async_context(Consumers(pair, self._world))
                await self._send(pair, client, consumers)
            await self._drain()
            await self._receive(consumers)
        return await self._count()

    async def _get_spark_ready(self) -> None:
        """Start Spark while messages are sent."""
        with self._screen.phase("Spark", "starting Spark") as phase:
            while not await asyncio.to_thread(self._packages.is_done, POLL_S):
                phase.note = "installing Spark, 460 MB; the drill goes on meanwhile"
            ready = self._spark.submit(_start_worker)
            while not await _is_done(ready):
                phase.note = self._spark.announcement or "starting Spark"
            ready.result()
            phase.note = "Spark is ready"

    async def _start(self) -> None:
        primary, secondary = self._world.primary, self._world.secondary
        with self._screen.phase("start", "two namespaces, each in its own process") as phase:
            async with asyncio.TaskGroup() as group:
                for namespace in (primary, secondary):
                    group.create_task(asyncio.to_thread(namespace.start))
            await create_entities(primary.connection_string)
            await create_twins(_side(primary), _side(secondary))
            phase.note = f"{_address(primary)}, {_address(secondary)}"
        if self._page is not None:
            await asyncio.to_thread(self._page.start)
            self._screen.print(f"page     {self._page.address}", sys.stderr)
            if sys.stdin.isatty():
                await asyncio.to_thread(self._page.open_browser)

    async def _open_gateway(self, opened: AsyncExitStack, pair: Pair) -> Any:
        with self._screen.phase("gateway", "a gateway and a client without Twinbus") as phase:
            gateway = await opened.enter_async_context(DrillGateway(self._plan, pair))
            phase.note = f"gateway at :{gateway.port}; the senders use {gateway.CLIENT}"
        self._client = gateway.CLIENT
        return gateway.client

    async def _send(self, pair: Pair, client: Any, consumers: Consumers) -> None:
        """Send all messages; `client` is the pair, or a client of the gateway."""
        self._queues = pair.backlog_queues
        plan = self._plan
        note = f"{plan.messages:,} messages, {rate_text(plan)} a second, {plan.senders} senders"
        with self._screen.phase("send", note, plan.messages) as phase:
            traffic = DrillTraffic(plan, client, phase.reach)
            async with asyncio.TaskGroup() as group:
                group.create_task(traffic.run())
                await traffic.begun.wait()
                await self._lose_primary(pair, consumers)
        self._began_ms, self._sends_returned = traffic.began_ms, traffic.sends_returned

    def _pair(self) -> Pair:
        options = SendAvailabilityOptions(
            backlog_queue_count=self._plan.backlog_queues,
            failover_interval=self._plan.failover_interval_s,
            ping_primary_interval=self._plan.ping_interval_s,
            require_secondary=True,
            retry_total=RETRIES,
            retry_backoff_factor=BACKOFF_S,
            retry_backoff_max=1.0,
            ledger=self._world.ledger,
            twins=TWINS,
        )
        return pair_namespaces(_side(self._world.primary), _side(self._world.secondary), options)

    async def _lose_primary(self, pair: Pair, consumers: Consumers) -> None:
        plan, primary = self._plan, self._world.primary
        await asyncio.sleep(plan.kill_after_s)
        note = f"{primary.name} killed with SIGKILL (process {primary.pid})"
        with self._screen.phase("outage", note, plan.outage_s) as phase:
            self._killed_ms = _now_ms()
            primary.kill()
            await self._wait(
                plan.outage_s,
                lambda down_s: self._outage_line(phase, pair, consumers, down_s),
            )
            await asyncio.to_thread(primary.start)
            self._back_ms = _now_ms()
            down_s = (self._back_ms - self._killed_ms) / 1000
            phase.note = f"{primary.name} was killed and down for {down_s:.1f} s"
        with self._screen.phase("ping", "waiting for an answer", len(ENTITIES)) as phase:
            limit_s = plan.ping_interval_s + HEAL_LIMIT_S
            await self._wait(limit_s, lambda _: self._ping_line(phase, pair))

    def _outage_line(
        self, phase: Phase, pair: Pair, consumers: Consumers, elapsed_s: float
    ) -> bool:
        entities = pair.status().entities.values()
        states = ", ".join(sorted({entity.state for entity in entities}))
        name = self._world.primary.name
        phase.reach(elapsed_s, f"{name} is down; {states}; {consumers.count:,} received")
        return False

    def _ping_line(self, phase: Phase, pair: Pair) -> bool:
        entities = pair.status().entities
        healthy = [path for path, entity in entities.items() if entity.state == HEALTHY]
        phase.reach(len(healthy), f"healthy: {', '.join(sorted(healthy)) or 'none yet'}")
        return len(healthy) == len(entities)

    async def _wait(self, limit_s: float, check: Callable[[float], bool]) -> None:
        """Check repeatedly until the check returns True or the time is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (elapsed_s := loop.time() - began) < limit_s:
            if check(elapsed_s):
                return
            await asyncio.sleep(min(POLL_S, limit_s - elapsed_s))

    async def _drain(self) -> None:
        waiting = await self._in_backlog()
        note = f"{waiting:,} messages; the Spark syphon moves them home"
        with self._screen.phase("drain", note, waiting) as phase:
            for _ in range(DRAIN_TRIES):
                error = await self._drain_once(phase, waiting)
                left = await self._in_backlog()
                phase.note = f"Spark brought {waiting - left:,} home, {left:,} are left"
                if error is None:
                    return
                why = str(error).strip().partition("\n")[0][:ERROR_LENGTH_MAX]
                phase.note = f"the drain ended early, {left:,} messages are left: {why}"

    async def _drain_once(self, phase: Phase, waiting: int) -> BaseException | None:
        """Drain once; return the error that ended it early, or None."""
        work = self._spark.submit(
            lambda session: import_module(DRAIN).drain(
                session,
                _side(self._world.primary),
                _side(self._world.secondary),
                self._queues,
                ledger_directory=self._world.ledger,
            )
        )
        loop = asyncio.get_running_loop()
        least, since = waiting, loop.time()
        while not await _is_done(work):
            left = await self._in_backlog()
            phase.reach(waiting - left)
            if left < least:
                least, since = left, loop.time()
            if loop.time() - since > DRAIN_STALL_S:
                self._spark.interrupt()
        return work.exception()

    async def _in_backlog(self) -> int:
        endpoint = endpoint_of(self._world.secondary.connection_string)
        return sum([(await counts_of(endpoint, queue)).waiting for queue in self._queues])

    async def _receive(self, consumers: Consumers) -> None:
        note, total = "the rest of the messages", self._sends_returned
        with self._screen.phase("receive", note, total) as phase:
            self._in_twins = await consumers.finish(phase.reach)
            self._came_again = frozenset(consumers.came_again)
            twins = f"{self._in_twins:,} are left in twins" if self._in_twins else "twins are empty"
            phase.note = f"{consumers.count:,} messages handed out; {twins}"

    async def _count(self) -> DrillResult:
        ended_ms = _now_ms()
        with self._screen.phase("count", READING) as phase:
            peeked_ms = _now_ms()
            with closing(BacklogScan(self._world.secondary.connection_string)) as scan:
                await scan.peek()
                seen = list(scan.sightings())
            report = await self._spark.do(
                lambda session: import_module(REPORT).outage_report(
                    session,
                    self._world.ledger,
                    prices.standard(),
                    seen,
                    peeked_ms=peeked_ms,
                    ids_max=LOST_IDS_MAX,
                ),
                READING,
                partial(setattr, phase, "note"),
            )
            records = report.conservation.scope.records
            phase.note = f"the ledger has {records:,} records"
        return DrillResult(
            plan=self._plan,
            moments=Moments(
                began_ms=self._began_ms,
                killed_ms=self._killed_ms,
                back_ms=self._back_ms,
                ended_ms=ended_ms,
            ),
            report=report,
            sends_returned=self._sends_returned,
            left_behind=frozenset(sighting.message_id for sighting in seen),
            in_twins=self._in_twins,
            came_again=self._came_again,
            twins=TWINS,
            without_twin=WITHOUT_TWIN,
            client=self._client,
            took_s=self._screen.took_s,
            version=twinbus.__version__,
        )


def _start_worker(session: SparkSession) -> None:
    """Start a Python worker and load the syphon in it: the first one takes Spark seconds."""
    session.range(1).mapInArrow(_unchanged, "id long").collect()


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    import_module("twinbus.syphon.host")
    yield from batches


async def _is_done(work: Future[Any]) -> bool:
    """Whether the work has ended; waits a moment if it has not."""
    if not work.done():
        await asyncio.sleep(POLL_S)
    return work.done()


def _side(namespace: NamespaceProcess) -> Namespace:
    return Namespace.from_connection_string(namespace.connection_string, name=namespace.name)


def _address(namespace: NamespaceProcess) -> str:
    return f"{namespace.name} at :{namespace.port}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
