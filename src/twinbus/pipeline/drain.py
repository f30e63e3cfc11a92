"""The syphon as a Spark job: backlog queues drained by tasks, one task for a group of queues.

A task receives, restores, sends and completes by itself (`twinbus.syphon.host.drain`); what it has
not completed is still locked in the broker, and that lock is the only checkpoint. So a task that
fails, or whose executor dies, is simply run again: nothing is lost, and only what was sent and not
yet completed is duplicated. What was done is in the ledger, which each task writes as it goes; the
rows that tasks return would vanish with a failed attempt, and are not looked at.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import LongType, StringType, StructField, StructType

from twinbus.errors import SyphonError
from twinbus.ledger import open_ledger
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.counts import CountsUnavailable, counts_of
from twinbus.syphon.endpoint import Endpoint
from twinbus.syphon.host import DrainProgress
from twinbus.syphon.host import drain as drain_here
from twinbus.syphon.pump import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GROUPS", "MOVED", "DrainTask", "drain", "group_queues"]

PROGRESS_S: Final = 0.5
"""Between two looks at the counts, while the job runs."""

SEPARATOR: Final = "\n"
"""Between the queues of a group; no entity path holds one."""

GROUPS: Final = StructType([StructField("queues", StringType(), nullable=False)])
MOVED: Final = StructType(
    [
        StructField("queues", StringType(), nullable=False),
        StructField("forwarded", LongType(), nullable=False),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainTask:
    """What a task needs; it travels to the executors as it is, so it holds nothing but values."""

    primary: str
    secondary: str
    ledger_directory: str | None = None
    undeliverable_grace_s: float = 21_600.0
    ttl_policy: str = "full"
    limits: Limits | None = None
    pump_factory: str | None = None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Drain the queues of each row that comes; for `mapInArrow`, with its record batches."""
        pa: Any = importlib.import_module("pyarrow")

        for batch in batches:
            groups = batch.column(0).to_pylist()
            moved = [self._drain(group.split(SEPARATOR)) for group in groups]
            yield pa.RecordBatch.from_pydict(
                {"queues": groups, "forwarded": moved},
                schema=pa.schema([("queues", pa.string()), ("forwarded", pa.int64())]),
            )

    def _drain(self, queues: list[str]) -> int:
        options = SendAvailabilityOptions(
            undeliverable_grace=self.undeliverable_grace_s,
            ttl_policy="remaining" if self.ttl_policy == "remaining" else "full",
        )
        with open_ledger(self.ledger_directory) as ledger:
            stats = asyncio.run(
                drain_here(
                    self.primary,
                    self.secondary,
                    queues,
                    ledger=ledger,
                    options=options,
                    limits=self.limits,
                    pump_factory=self.pump_factory,
                )
            )
        return stats.forwarded


def drain(
    spark: SparkSession,
    primary: str,
    secondary: str,
    queues: Sequence[str],
    *,
    ledger_directory: Path | str | None = None,
    tasks: int | None = None,
    on_progress: Callable[[DrainProgress], None] | None = None,
    options: SendAvailabilityOptions | None = None,
    limits: Limits | None = None,
    pump_factory: str | None = None,
) -> None:
    """Move everything out of these backlog queues with a Spark job; returns when they are empty.

    `primary` and `secondary` are connection strings. `tasks` is how many tasks share the queues,
    by default as many as can run at once. `on_progress` is called now and then from this thread's
    neighbour with what is left. SyphonError if a queue is not there.
    """
    if not queues:
        return
    if spark.conf.get("spark.speculation", "false") == "true":
        raise SyphonError(
            "spark.speculation is on: a second attempt beside a running one would send what that "
            "has received; set it to false"
        )
    options = options or SendAvailabilityOptions()
    task = DrainTask(
        primary=primary,
        secondary=secondary,
        ledger_directory=None if ledger_directory is None else str(ledger_directory),
        undeliverable_grace_s=options.undeliverable_grace_s,
        ttl_policy=options.ttl_policy,
        limits=limits,
        pump_factory=pump_factory,
    )
    endpoint = Endpoint.parse(secondary)
    _waiting(endpoint, queues)
    count = tasks or min(len(queues), spark.sparkContext.defaultParallelism)
    work = drained(_groups(spark, queues, count), task)
    with _Watch(endpoint, queues, on_progress):
        # The one action: it runs the tasks, and what they return is only a hint.
        work.collect()


def drained(groups: DataFrame, task: DrainTask) -> DataFrame:
    """One row for each group of queues, after its task has emptied them."""
    return groups.mapInArrow(task, MOVED)


def group_queues(queues: Sequence[str], count: int) -> list[list[str]]:
    """The queues dealt into at most `count` groups of nearly the same size, none of them empty."""
    if count < 1:
        raise SyphonError(f"tasks must be at least 1; got {count}")
    unique = list(dict.fromkeys(queues))
    return [unique[at::count] for at in range(min(count, len(unique)))]


def _groups(spark: SparkSession, queues: Sequence[str], count: int) -> DataFrame:
    rows = [(SEPARATOR.join(group),) for group in group_queues(queues, count)]
    # `parallelize` with as many slices as rows is what gives each group a task of its own.
    slices = spark.sparkContext.parallelize(rows, len(rows))
    return spark.createDataFrame(slices, GROUPS)


class _Watch:
    """Tells how much is left while the job runs, from a thread: the job blocks its own."""

    def __init__(
        self,
        endpoint: Endpoint,
        queues: Sequence[str],
        on_progress: Callable[[DrainProgress], None] | None,
    ) -> None:
        self._endpoint = endpoint
        self._queues = queues
        self._on_progress = on_progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twinbus-drain", daemon=True)
        self._first: int | None = None

    def __enter__(self) -> None:
        if self._on_progress is not None:
            self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._on_progress is not None:
            self._thread.join()
            if exc[0] is None:
                self._tell()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self._tell()
            self._over.wait(max(0.0, PROGRESS_S - (time.monotonic() - began)))

    def _tell(self) -> None:
        assert self._on_progress is not None
        try:
            waiting = _waiting(self._endpoint, self._queues)
        except (CountsUnavailable, SyphonError):
            # The job knows better what is wrong, and says so.
            return
        if self._first is None:
            self._first = waiting
        forwarded = max(0, self._first - waiting)
        self._on_progress(DrainProgress(waiting=waiting, forwarded=forwarded, dead_lettered=0))


def _waiting(endpoint: Endpoint, queues: Sequence[str]) -> int:
    async def ask() -> int:
        counts = await asyncio.gather(*(counts_of(endpoint, queue) for queue in queues))
        return sum(count.waiting for count in counts)

    return asyncio.run(ask())
