"""The syphon as a Spark job: backlog queues drained by tasks, one task for a group of queues.

    from twinbus.pipeline.drain.drain import drain
    done = drain(spark, primary, secondary, queues, ledger_directory="/mnt/ledger")
    print(done.statistics())

A task receives, restores, sends and completes by itself (`task`). Messages not completed are still
locked in the broker, and that lock is the only checkpoint. So Spark runs a failed task again, and a
drain whose driver died is started again: nothing is lost, and only messages that were
sent and not yet completed are duplicated. The results are in the ledger, which each task writes as
it goes; rows that tasks return would be lost with a failed attempt.

Over Spark Connect the driver is a client: it divides the same work by a range, marks its job with a
tag, and reaches its tasks through files at the ledger's place (`place_link`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from twinbus.client.administration import NotAnswered, QueueCounts, counts_of
from twinbus.client.peeking import count_matching, destination_keys
from twinbus.errors import SyphonError
from twinbus.ledger.record import FILE_SUFFIX, LedgerError
from twinbus.loops import run_anywhere
from twinbus.namespace.access import Endpoint, NamespaceAccess
from twinbus.options import LEDGER_VARIABLE, SendAvailabilityOptions
from twinbus.pipeline.drain.driver_link import DriverListener
from twinbus.pipeline.drain.place_link import PlaceAddress, PlaceListener
from twinbus.pipeline.drain.task import (
    PROBED,
    SEPARATOR,
    DrainTask,
    NetworkProbe,
    ShippedSide,
    open_side,
    prepare_place,
    shipped_side,
)
from twinbus.pipeline.spark import classic
from twinbus.pipeline.spark.classic import JobCancelled, JobFailed, SparkJob, ship_package
from twinbus.pipeline.spark.session import master_of, require_shared, session_for_many
from twinbus.pipeline.tables.bronze import read_ledger
from twinbus.syphon.core.pacing import LOWEST_PER_S, require_rate
from twinbus.syphon.core.pump import IntakeLimits
from twinbus.syphon.draining import PEEK_AGAIN_S, DrainProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("twinbus.pipeline")

PROGRESS_S: Final = 0.5
"""Time between two counts of the queues while the job runs."""

TURN_POLLS: Final = 4
"""Minimum number of long polls of a continuous task; then a new job uses the current executors."""

FAILURES_MAX: Final = 3
"""Jobs in a row that fail and move no message before a batch gives up. Spark has tried each task
four times by then."""

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0

STARVED_S: Final = 15.0
"""How long tasks may wait for a slot: a dead executor is replaced by then, or never, and a running
task may wait for a destination for ever."""

STOP_S: Final = 30.0
"""Time for stopped tasks to settle messages in flight; then Spark kills them."""

GROUPS: Final = StructType([StructField("queues", StringType(), nullable=False)])


def drain(
    spark: SparkSession,
    primary: object,
    secondary: object,
    queues: Sequence[str],
    *,
    ledger_directory: Path | str | None = None,
    tasks: int | None = None,
    on_progress: Callable[[DrainProgress], None] | None = None,
    options: SendAvailabilityOptions | None = None,
    limits: IntakeLimits | None = None,
    lease: bool | None = None,
    rate_per_s: float | None = None,
    only: Collection[str] | None = None,
    continuous: bool = False,
    stop: threading.Event | None = None,
    shared: bool = False,
) -> DrainRun:
    """Move all messages out of these backlog queues with Spark jobs; see its `statistics()`.

    Returns when no active, locked, scheduled or deferred message is left; with `continuous`, when
    `stop` is set or at Ctrl-C. Messages in flight are settled first. `primary` and `secondary` are
    connection strings, `sb://HOST?credential=SOURCE` texts, Namespaces made of such a text, or
    functions that return a Namespace in a task. `ledger_directory` is a directory that all
    executors reach, or a URL, by default that of the options; without it there are no statistics.
    `tasks` is the number of tasks that share the queues, by default as many as can run at once.
    `on_progress` is called with what is left. `lease`: only the task that holds its lease pumps a
    queue; None: if the order is strict. `rate_per_s` limits all tasks together, with an equal share
    for each. `only` are the destinations to serve: the drain ends when no message to them is left.
    `shared`: all machines of the cluster mount a local `ledger_directory`. Over Spark Connect the
    ledger is required, and connection strings are refused. SyphonError if a queue
    does not exist, or jobs fail repeatedly.
    """
    options = options or SendAvailabilityOptions()
    place = options.ledger if ledger_directory is None else ledger_directory
    place = os.environ.get(LEDGER_VARIABLE) if place is None else place
    _require_usable(spark)
    if tasks is not None and tasks < 1:
        raise SyphonError(f"tasks must be at least 1; got {tasks}")
    require_shared(master_of(spark), (place,), shared=shared)
    if not (place or classic.is_classic(spark)):
        raise SyphonError(
            "over Spark Connect a drain needs a ledger (--ledger): its tasks are stopped and"
            " counted through it"
        )
    prepare_place(str(place or ""))
    rate_per_s = options.syphon_rate if rate_per_s is None else rate_per_s
    only = options.syphon_only if only is None else only
    try:
        require_rate(LOWEST_PER_S if rate_per_s is None else rate_per_s)
    except ValueError as error:
        raise SyphonError(str(error)) from error
    served = None if only is None else destination_keys(only)
    task = DrainTask(
        primary=_shippable(spark, "primary", primary),
        secondary=_shippable(spark, "secondary", secondary),
        # A callable may not be picklable, and the syphon does not use it.
        options=replace(options, classify=None, ledger=""),
        run=f"spark-{uuid.uuid4().hex[:12]}",
        ledger=str(place) if place else None,
        limits=limits,
        lease=lease,
        only=None if served is None else tuple(sorted(served)),
        rate_per_s=rate_per_s,
        turn_s=_turn_s(options) if continuous else None,
    )
    unique = list(dict.fromkeys(queues))
    backlog = DrainBacklog(open_side(task.secondary), unique, on_progress, served)
    if backlog.queues:
        ship_package(spark)
        if not classic.is_classic(spark):
            _require_network(spark, task.secondary, backlog)
        _Drain(spark, task, backlog, tasks, stop or threading.Event()).run()
    return DrainRun(spark, task.run, task.ledger)


def group_queues(queues: Sequence[str], count: int) -> list[list[str]]:
    """Divide the queues into at most `count` groups of nearly the same size, none empty."""
    if count < 1:
        raise SyphonError(f"tasks must be at least 1; got {count}")
    unique = list(dict.fromkeys(queues))
    return [unique[at::count] for at in range(min(count, len(unique)))]


@dataclass(slots=True, repr=False)
class _Drain:
    """One call of `drain`: runs jobs one after another until none is needed."""

    _spark: SparkSession
    _task: DrainTask
    _backlog: DrainBacklog
    _tasks: int | None
    _stop: threading.Event
    _failures: int = 0
    _slots: int | None = None
    """Tasks of the last job that really ran; None: as many as Spark has slots."""

    @property
    def _is_continuous(self) -> bool:
        return self._task.turn_s is not None

    def run(self) -> None:
        """Submit jobs until the queues are empty or the drain is stopped."""
        # A missing queue or right is reported before anything starts.
        with contextlib.suppress(NotAnswered):
            self._backlog.count()
        with _stopped_by_interrupt(self._stop):
            while not self._stop.is_set():
                before = self._backlog.waiting
                try:
                    self._run_job()
                    self._failures = 0
                except JobFailed as error:
                    self._failed(error, before)
                if not self._is_continuous and not self._stop.is_set() and self._is_empty():
                    return

    def _run_job(self) -> None:
        count = self._slots or self._tasks or classic.slots(self._spark)
        self._slots = None
        task = self._task
        if task.rate_per_s is not None:
            # Each task gets at least the lowest rate.
            count = max(1, min(count, int(task.rate_per_s / LOWEST_PER_S)))
        groups = group_queues(self._backlog.queues, count)
        if task.rate_per_s is not None:
            task = replace(task, rate_per_s=task.rate_per_s / len(groups))
        with self._listener() as listener:
            rows = [(SEPARATOR.join(group),) for group in groups]
            each = classic.one_task_each(self._spark, rows, GROUPS)
            work = each.mapInArrow(replace(task, driver=listener.address), GROUPS)
            words = f"twinbus: {len(self._backlog.queues)} backlog queues in {len(groups)} groups"
            with SparkJob(self._spark, work, words) as job:
                self._monitor(job, listener)
            job.result()

    def _listener(self) -> DriverListener | PlaceListener:
        if not classic.is_classic(self._spark):
            assert self._task.ledger is not None
            # A name of its own for each job: tasks of the last one may still find its end.
            return PlaceListener(PlaceAddress(self._task.ledger, f"link-{uuid.uuid4().hex}"))
        conf = self._spark.conf
        host = conf.get("spark.driver.host", None) or "localhost"
        return DriverListener(host, conf.get("spark.driver.bindAddress", None))

    def _monitor(self, job: SparkJob, listener: DriverListener | PlaceListener) -> None:
        """Monitor the job until it ends; report progress and stop it on request."""
        starving_since: float | None = None
        ending_since: float | None = None
        while not job.wait(PROGRESS_S):
            now = time.monotonic()
            self._backlog.report(listener.problems)
            if ending_since is None and self._stop.is_set():
                ending_since = now
                listener.release()
            if ending_since is not None:
                if now - ending_since > STOP_S:
                    job.cancel()
            else:
                running, waiting = job.tasks()
                if not (running and waiting):
                    starving_since = None
                elif starving_since is None:
                    starving_since = now
                elif now - starving_since > STARVED_S:
                    log.info("%d tasks find no slot: the queues are divided again", waiting)
                    self._slots = running
                    ending_since = now
                    listener.release()
        self._backlog.report((), is_over=True)

    def _failed(self, error: JobFailed, before: int | None) -> None:
        """Wait after a failed job, or give up."""
        if self._stop.is_set():
            # The drain was stopped, and Spark may have killed the job.
            return
        if isinstance(error, JobCancelled) or error.is_final:
            raise SyphonError(str(error)) from error
        with contextlib.suppress(NotAnswered):
            self._backlog.count()
        left = self._backlog.waiting
        has_moved = before is None or left is None or left < before
        self._failures = 1 if has_moved else self._failures + 1
        if not self._is_continuous and self._failures >= FAILURES_MAX:
            raise SyphonError(
                f"{FAILURES_MAX} Spark jobs failed and moved nothing, {left} messages are left:"
                f" {error}"
            ) from error
        again_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** (self._failures - 1))
        log.warning("the Spark job failed, the next one starts in %.0f s: %s", again_s, error)
        self._stop.wait(again_s)

    def _is_empty(self) -> bool:
        """Return whether nothing is left; asks until the namespace answers."""
        while not self._stop.is_set():
            try:
                return self._backlog.count() == 0
            except NotAnswered as error:
                log.warning("counting what is left: %s", error)
                self._stop.wait(RETRY_FIRST_S)
        return False


def _turn_s(options: SendAvailabilityOptions) -> float:
    """Return how long a continuous task works before the next job starts.

    A task forgets its destinations at its end. So a turn is longer than the grace period of a
    missing destination.
    """
    poll_s, grace_s = options.syphon_poll_s, options.undeliverable_grace_s
    return max(TURN_POLLS * poll_s, grace_s + poll_s)


def _require_usable(spark: SparkSession) -> None:
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise SyphonError(
            "spark.speculation is on: a second attempt beside a running one would send the same"
            " messages; set it to false"
        )


def _shippable(spark: SparkSession, role: str, given: object) -> ShippedSide:
    """Return a side in a form that can be shipped to the executors of this session."""
    side = shipped_side(role, given)
    is_secret = isinstance(side, NamespaceAccess) and side.connection_string
    if is_secret and not classic.is_classic(spark):
        raise SyphonError(
            f"the {role}: a connection string is not sent over Spark Connect, where others can see"
            " its key; give sb://HOST?credential=SOURCE, such as env:NAME with a variable of the"
            " executors, or their managed-identity"
        )
    return side


def _require_network(spark: SparkSession, side: ShippedSide, backlog: DrainBacklog) -> None:
    """Raise SyphonError if tasks do not reach the secondary, which this process reaches.

    Serverless compute gives the code of users no network.
    """
    with contextlib.suppress(NotAnswered):
        backlog.count()
    if backlog.waiting is None:
        return
    probe = NetworkProbe(side)
    try:
        [told] = spark.range(1).mapInArrow(probe, PROBED).collect()
    except Exception as error:  # the errors of Spark and of its gateway share no class
        raise SyphonError(f"Spark runs no task: {classic.failure_of(error)}") from error
    if told["problem"]:
        raise SyphonError(
            f"tasks of this Spark do not reach the secondary, which this process does:"
            f" {told['problem']}; without a network for them (serverless) drain without Spark:"
            " twinbus syphon drain --engine relay"
        )


@contextlib.contextmanager
def _stopped_by_interrupt(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at Ctrl-C, and raise at the end of the block; a second Ctrl-C raises at once.

    pyspark's own handler kills all jobs, with their messages in flight.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.getsignal(signal.SIGINT)
    interrupted = False

    def on_interrupt(number: int, frame: object) -> None:
        nonlocal interrupted
        if interrupted and callable(before):
            before(number, frame)
        interrupted = True
        stop.set()

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


@dataclass(slots=True, repr=False)
class DrainBacklog:
    """The queues of one drain, and their last counts."""

    _endpoint: Endpoint
    queues: Sequence[str]
    _on_progress: Callable[[DrainProgress], None] | None
    _only: frozenset[str] | None
    waiting: int | None = None
    """Messages left at the last count; None: not counted yet."""
    _report_at: float = float("-inf")
    _dead_lettered: int = 0
    _first: tuple[int, int] | None = None
    """Waiting and dead-lettered at the first count."""

    def count(self) -> int:
        """Return the waiting messages; SyphonError, NotAnswered as of `counts_of`.

        Messages of some destinations only are counted by peeking.
        """
        counts = run_anywhere(self._ask())
        self.waiting = sum(count.waiting for count in counts)
        if self._only is not None:
            self.waiting = self._peek(self._only)
        self._dead_lettered = sum(count.dead_lettered for count in counts)
        if self._first is None:
            self._first = self.waiting, self._dead_lettered
        return self.waiting

    def _peek(self, only: frozenset[str]) -> int:
        try:
            return sum(run_anywhere(count_matching(self._endpoint, self.queues, only)).values())
        except SyphonError as error:
            if self._first is None:
                # Before anything starts: most likely a missing right.
                raise
            raise NotAnswered(str(error)) from error

    def report(self, problems: tuple[str, ...], *, is_over: bool = False) -> None:
        now = time.monotonic()
        if self._on_progress is None or (now < self._report_at and not is_over):
            return
        # A peek reads all messages of the queues.
        self._report_at = now + (0.0 if self._only is None else PEEK_AGAIN_S)
        try:
            waiting = self.count()
        except (NotAnswered, SyphonError):
            # The tasks report the reason.
            return
        assert self._first is not None
        # By messages that are gone: one that arrives meanwhile hides one that left.
        dead_lettered = max(0, self._dead_lettered - self._first[1])
        forwarded = max(0, self._first[0] - waiting - dead_lettered)
        self._on_progress(
            DrainProgress(
                waiting=waiting, forwarded=forwarded, dead_lettered=dead_lettered, problems=problems
            )
        )

    async def _ask(self) -> list[QueueCounts]:
        return await asyncio.gather(*(counts_of(self._endpoint, queue) for queue in self.queues))


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainStatistics:
    """Messages by outcome, with those that dead attempts recorded."""

    forwarded: int = 0
    """Accepted by the primary; more than `completed` if an attempt died in between."""
    completed: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class DrainRun:
    spark: SparkSession
    name: str
    """Prefix of the names of its ledger files."""
    ledger: str | None

    def statistics(self) -> DrainStatistics | None:
        """Return the results by the ledger, with a Spark job; None without a ledger."""
        if self.ledger is None:
            return None
        place = self.ledger.removeprefix("file://")
        session = session_for_many(self.spark, 0)
        try:
            lines = read_ledger(session, place, files=f"{self.name}-*{FILE_SUFFIX}*")
        except LedgerError:
            # Its tasks wrote no record.
            return DrainStatistics()
        done = lines.where(F.col("outcome") == "ok").groupBy("operation").count()
        counts = {row["operation"]: row["count"] for row in done.collect()}
        return DrainStatistics(
            forwarded=counts.get("forward", 0),
            completed=counts.get("complete", 0),
            dead_lettered=counts.get("dead_letter", 0),
        )
