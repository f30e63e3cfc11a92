"""Progress of a drain on Spark by the counts of its queues, and its results by its ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from twinbus.client.administration import CountsUnavailable, QueueCounts, counts_of
from twinbus.client.peeking import count_matching
from twinbus.errors import SyphonError
from twinbus.ledger.record import FILE_SUFFIX, LedgerError
from twinbus.loops import run_anywhere
from twinbus.namespace.access import Endpoint
from twinbus.pipeline.spark.session import session_for_tables
from twinbus.pipeline.tables.bronze import read_ledger
from twinbus.syphon.host import PEEK_AGAIN_S, DrainProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DrainBacklog:
    """The queues of one drain, and their last counts."""

    def __init__(
        self,
        endpoint: Endpoint,
        queues: Sequence[str],
        on_progress: Callable[[DrainProgress], None] | None,
        only: frozenset[str] | None = None,
    ) -> None:
        self.queues = queues
        self.waiting: int | None = None
        """Messages left at the last count; None: not counted yet."""
        self._endpoint = endpoint
        self._on_progress = on_progress
        self._only = only
        self._report_at = float("-inf")
        self._dead_lettered = 0
        self._first: tuple[int, int] | None = None
        """Waiting and dead-lettered at the first count."""

    def count(self) -> int:
        """Return the waiting messages; SyphonError, CountsUnavailable as of `counts_of`.

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
            raise CountsUnavailable(str(error)) from error

    def report(self, problems: tuple[str, ...], *, is_over: bool = False) -> None:
        """Report the progress, with the problems that tasks report."""
        now = time.monotonic()
        if self._on_progress is None or (now < self._report_at and not is_over):
            return
        # A peek reads all messages of the queues.
        self._report_at = now + (0.0 if self._only is None else PEEK_AGAIN_S)
        try:
            waiting = self.count()
        except (CountsUnavailable, SyphonError):
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
    """A drain that has ended."""

    spark: SparkSession
    name: str
    """Prefix of the names of its ledger files."""
    ledger: str | None

    def statistics(self) -> DrainStatistics | None:
        """Return the results by the ledger, with a Spark job; None without a ledger."""
        if self.ledger is None:
            return None
        place = self.ledger.removeprefix("file://")
        session = session_for_tables(self.spark)
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
